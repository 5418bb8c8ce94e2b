package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestMigration: Deployments as people have them are opted in and taken back with the patches of docs/migration.md. Our
// scheduler places their pods. In the end, the Deployments are what they were.
func TestMigration(t *testing.T) {
	t.Parallel()
	const in, back = `{"spec":{"template":{"spec":{"schedulerName":"pool-priority-scheduler"}}}}`, `[{"op":"remove","path":"/spec/template/spec/schedulerName"}]`
	page := string(must.ReadFile(t, root+"/docs/migration.md"))
	if !strings.Contains(page, in) || !strings.Contains(page, back) {
		t.Fatal("docs/migration.md has other patches")
	}
	dedicated := vms("dedicated", "user", 1, 1, 1, 20)
	dedicated.Labels, dedicated.Taints = map[string]string{"workload": "extra"}, []corev1.Taint{{Key: "dedicated", Value: "special", Effect: corev1.TaintEffectNoSchedule}}
	e := start(t, nil, vms("agentpool", "user", 1, 1, 1, 20), vms("appsnodepool", "user", 1, 1, 1, 20), dedicated)
	e.schedule("testdata/fixed.yaml", suite.UserTier(3), suite.VirtualTier())
	client := e.Client.AppsV1().Deployments(namespace)
	before := map[string]*appsv1.Deployment{}
	for _, file := range []string{"burst-preferred", "burst-required", "dedicated-pool", "pinned-pool", "virtual-only", "wild"} {
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(must.ReadFile(t, "testdata/"+file+".yaml")), 4096)
		for {
			d := &appsv1.Deployment{}
			if err := decoder.Decode(d); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			before[d.Name] = must.Get(client.Create(e.ctx, d, metav1.CreateOptions{}))(t)
		}
	}
	if len(before) != 15 {
		t.Fatalf("there are %d Deployments", len(before))
	}
	changes := func(change func(name string)) {
		for name := range before {
			change(name)
		}
	}
	changes(func(name string) {
		must.Do(t)(client.Patch(e.ctx, name, types.StrategicMergePatchType, []byte(in), metav1.PatchOptions{}))
	})
	e.Eventually(2*time.Minute, func() string {
		for _, d := range must.Get(client.List(e.ctx, metav1.ListOptions{}))(t).Items {
			if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas || s.ReadyReplicas != *d.Spec.Replicas {
				return fmt.Sprintf("%s has %d of %d pods ready, %d updated", d.Name, s.ReadyReplicas, *d.Spec.Replicas, s.UpdatedReplicas)
			}
		}
		return ""
	})
	for _, p := range e.Pods("") {
		if p.Spec.SchedulerName != devcluster.SchedulerName {
			t.Errorf("%s runs by %s", p.Name, p.Spec.SchedulerName)
		}
	}
	changes(func(name string) {
		must.Do(t)(client.Patch(e.ctx, name, types.JSONPatchType, []byte(back), metav1.PatchOptions{}))
	})
	lasting := func(d *appsv1.Deployment) any {
		annotations := map[string]string{}
		maps.Copy(annotations, d.Annotations)
		delete(annotations, "deployment.kubernetes.io/revision")
		return []any{d.Spec, d.Labels, annotations}
	}
	changes(func(name string) {
		was, is := before[name], must.Get(client.Get(e.ctx, name, metav1.GetOptions{}))(t)
		if diff := cmp.Diff(lasting(was), lasting(is)); diff != "" {
			t.Errorf("%s is not what it was (-was,+is):\n%s", name, diff)
		}
	})
}
