package integration

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/devcluster/azure"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestRefusedTenant: a tenant whose pods the provider refuses does not keep other tenants' pods off the burst pool:
// pods larger than all that ran, images whose names look like the provider's codes, and errors that nobody knows.
func TestRefusedTenant(t *testing.T) {
	t.Parallel()
	e := startRefusing(t)
	region := e.VirtualNode.Azure()
	e.Create(suite.Deployment("web", 4, "1")) // the VM has room for two
	e.Eventually(time.Minute, func() string { return e.runs("web", 2) })
	must.Do(t)(e.Client.CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mallory"}}, metav1.CreateOptions{}))
	const image = "evil.example/429-TooManyRequests:Unauthorized-InvalidAuthenticationToken-QuotaExceeded"
	isMallory := func(s azure.Spec) bool { return s.Namespace == "mallory" }
	for i, tc := range []struct {
		name       string
		cpu, image string
		refusal    azure.Refusal
	}{
		{"too large for the region", "30", "image", azure.Refusal{Status: http.StatusConflict, Code: azure.CodeStockout, Match: func(s azure.Spec) bool { return s.Cores() > 8 }}},
		{"an image that is not there", "1", image, azure.Refusal{Status: http.StatusBadRequest, Code: "InaccessibleImage", Match: isMallory,
			Message: "The image '" + image + "' in container group 'mallory' is not accessible. Please check the image and registry credential."}},
		{"a registry that fails", "1", image, azure.Refusal{Status: http.StatusConflict, Code: "RegistryErrorResponse", Match: isMallory,
			Message: "An error response is received from the docker registry 'evil.example'. Please retry later: '" + image + "'"}},
		{"a secret named like an error of credentials", "1", "image", azure.Refusal{}}, // the connector refuses the pod
		{"an unknown code", "1", "image", azure.Refusal{Status: http.StatusTeapot, Code: "Teapot", Message: "short and stout: 'TooManyRequests'", Match: isMallory}},
	} {
		if tc.refusal.Match != nil {
			region.RefuseWith(tc.refusal)
		}
		refused := len(region.Puts())
		for k := range 3 { // three workloads of the tenant
			d := suite.Deployment(fmt.Sprintf("m-%d-%d", i, k), 2, tc.cpu, func(p *corev1.PodTemplateSpec) {
				p.Spec.Containers[0].Image = tc.image
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(tc.cpu)
				p.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
				if tc.refusal.Match == nil {
					p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "AADSTS1", Optional: ptr.To(false)}}})
				}
			})
			d.Namespace = "mallory"
			must.Do(t)(e.Client.AppsV1().Deployments("mallory").Create(e.ctx, d, metav1.CreateOptions{}))
		}
		want := 2
		if i > 0 {
			want = 1 // the pool may be closed for the namespace, but for one test pod every minute or two
		}
		e.Eventually(3*time.Minute, func() string {
			pods := must.Get(e.Client.CoreV1().Pods("mallory").List(e.ctx, metav1.ListOptions{}))(e).Items
			n := len(slices.DeleteFunc(pods, func(p corev1.Pod) bool {
				return p.Status.Reason != refusal.ReasonProviderFailed || tc.refusal.Match != nil
			}))
			if n += len(region.Puts()) - refused; n < want {
				return fmt.Sprintf("%s: %d pods reached the provider", tc.name, n)
			}
			return ""
		})
		began := time.Now()
		e.Scale("web", int32(5+i))
		e.Eventually(30*time.Second, func() string {
			if said := e.runs("web", 3+i); said != "" {
				return tc.name + ": " + said
			}
			return ""
		})
		state := must.Get(e.published())(t)
		i := slices.IndexFunc(state.View.Args.Pools, func(p configv1.Pool) bool { return p.Burst != nil })
		if b := state.View.Capacity.Pools[i].Provider; cmp.Or(b.State, breaker.Open) != breaker.Open {
			t.Errorf("%s: the pool is %s: %s %s", tc.name, b.State, b.Code, b.Message)
		}
		t.Logf("%s: another tenant's pod ran after %v; %v", tc.name, time.Since(began).Round(100*time.Millisecond), e.Placed("web"))
		must.NoError(t, e.Client.AppsV1().Deployments("mallory").DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
}
