package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const components = root + "/manifests/components/"

// as returns a client that acts as the ServiceAccount.
func (e *env) as(namespace, account string) kubernetes.Interface {
	e.Helper()
	e.account(namespace, account)
	token := must.Get(e.ServiceAccountToken(e.ctx, namespace, account))(e)
	config := *e.Config
	config.BearerToken = token
	client := must.Get(kubernetes.NewForConfig(&config))(e)
	return client
}

// withAllRights returns a client that acts as the ServiceAccount and has all rights, so that only policies deny
// anything.
func (e *env) withAllRights(namespace, account string) kubernetes.Interface {
	e.Helper()
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account, Groups: []string{"system:masters"}}
	return must.Get(kubernetes.NewForConfig(config))(e)
}

// attempt is a write. If denied is "", the write must succeed. Otherwise the API server must deny it with this reason.
type attempt struct {
	name, denied string
	do           func() error
}

// tries waits until the attempts are denied, because policies take effect after a while. Then it makes all
// attempts.
func (e *env) tries(t *testing.T, attempts []attempt) {
	t.Helper()
	// An earlier test may have left another version of the policies in the API server's cache for a moment.
	e.of(t).Eventually(60*time.Second, func() string {
		for _, a := range attempts {
			if a.denied == "" {
				continue
			}
			if err := a.do(); err == nil || !strings.Contains(err.Error(), a.denied) {
				return fmt.Sprintf("%s: %v", a.name, err)
			}
		}
		return ""
	})
	for _, a := range attempts {
		switch err := a.do(); {
		case a.denied == "" && err != nil:
			t.Errorf("%s is denied: %v", a.name, err)
		case a.denied != "" && err == nil:
			t.Errorf("%s is not denied", a.name)
		case a.denied != "" && (!strings.Contains(err.Error(), "ValidatingAdmissionPolicy") || !strings.Contains(err.Error(), a.denied)):
			t.Errorf("%s is denied otherwise: %v", a.name, err)
		}
	}
}

// applyPolicies applies the component's policies, and fails the test if the API server has warnings about their
// expressions.
func (e *env) applyPolicies(component string) {
	e.Helper()
	e.applyPolicyFile(components + component + "/policy.yaml")
}

func (e *env) applyPolicyFile(path string) {
	e.Helper()
	must.NoError(e, e.ApplyFile(e.ctx, path))
	e.Eventually(30*time.Second, func() string {
		list, err := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(e.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, p := range list.Items {
			if p.Status.TypeChecking == nil {
				return p.Name + " is not checked yet"
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				e.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
		}
		return ""
	})
}

// leastRights installs the policies for our own accounts, and waits until they are in effect.
func (e *env) leastRights() {
	e.Helper()
	must.NoError(e, e.ApplyFile(e.ctx, components+"least-rights/policy.yaml"))
	e.holdsFor(devcluster.SchedulerNamespace, "")
}

// holdsFor waits until the policies are in effect for the accounts of the namespace whose names have the prefix.
func (e *env) holdsFor(namespace, prefix string) {
	e.Helper()
	for _, forbidden := range []struct {
		account string
		do      func(kubernetes.Interface) error
	}{
		{devcluster.ControllerName, func(c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().Create(e.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "forbidden"}}, dryCreate)
			return err
		}},
		{devcluster.ControllerName, func(c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods(metav1.NamespaceSystem).Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forbidden"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}, dryCreate)
			return err
		}},
		{devcluster.SchedulerName, func(c kubernetes.Interface) error {
			_, err := c.CoordinationV1().Leases(metav1.NamespaceSystem).Create(e.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "forbidden"}}, dryCreate)
			return err
		}},
	} {
		client := e.withAllRights(namespace, prefix+forbidden.account)
		e.Eventually(60*time.Second, func() string {
			if err := forbidden.do(client); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				return fmt.Sprintf("%s%s is not denied: %v", prefix, forbidden.account, err)
			}
			return ""
		})
	}
}

// TestLeastRights: with the shipped policies, our own accounts may change only the fields that they need to change.
// Other accounts are not restricted.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	must.NoError(t, e.Apply(e.ctx, e.rbac))
	e.applyPolicies("least-rights")
	const ns = devcluster.SchedulerNamespace
	vm := e.nodesOf("userpool")[0].Name
	e.createSilentNode("silent")
	for name, node := range map[string]string{"bound": vm, "pending": "", "deleted": "silent", "nobodys": "silent"} {
		var finalizers []string
		var owners []metav1.OwnerReference
		switch name {
		case "deleted":
			finalizers, owners = []string{batchv1.JobTrackingFinalizer}, e.notAJob()
		case "nobodys":
			finalizers = []string{"a/b"}
		}
		must.Do(t)(e.Client.CoreV1().Pods(namespace).Create(e.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"theirs": "1", "poolpriority.dev/pool": "user"}, Labels: map[string]string{"a": "1"}, Finalizers: finalizers, OwnerReferences: owners},
			Spec:       corev1.PodSpec{NodeName: node, SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{}))
	}
	controller, scheduler := e.as(ns, devcluster.ControllerName), e.as(ns, devcluster.SchedulerName)
	patchPod := func(client kubernetes.Interface, name, patch string) func() error {
		return func() error {
			_, err := client.CoreV1().Pods(namespace).Patch(e.ctx, name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	tolerate := func(toleration string) string {
		return `[{"op":"add","path":"/spec/tolerations/-","value":` + toleration + `}]`
	}
	annotate := func(op, key string) string {
		return `[{"op":"` + op + `","path":"/metadata/annotations/` + strings.ReplaceAll(key, "/", "~1") + `","value":"5"}]`
	}
	for _, name := range []string{"deleted", "nobodys"} {
		must.NoError(t, e.Client.CoreV1().Pods(namespace).Delete(e.ctx, name, metav1.DeleteOptions{}))
	}
	patchStatus := func(name string, phases ...string) func() error {
		return func() error { // the first that the pod does not have: a patch that changes nothing is not denied
			pod := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, name, metav1.GetOptions{}))(t)
			i := max(0, slices.IndexFunc(phases, func(phase string) bool { return phase != string(pod.Status.Phase) }))
			_, err := scheduler.CoreV1().Pods(namespace).Patch(e.ctx, name, types.MergePatchType, []byte(`{"status":{"phase":"`+phases[i]+`"}}`), metav1.PatchOptions{}, "status")
			return err
		}
	}
	const status = "of a Job's pod that was deleted while it was pending"
	const spec, tolerations, meta, annotations = "may change the tolerations only", "of the effects NoSchedule and PreferNoSchedule only", "may change annotations only", "controller.kubernetes.io/pod-deletion-cost only"
	t.Run("the controller on pods", func(t *testing.T) {
		e.tries(t, []attempt{
			{"an image", spec, func() error { // another than the pod has: a patch that changes nothing is not denied
				pod := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, "bound", metav1.GetOptions{}))(t)
				return patchPod(controller, "bound", fmt.Sprintf(`[{"op":"replace","path":"/spec/containers/0/image","value":"%s-mine"}]`, pod.Spec.Containers[0].Image))()
			}},
			{"a deadline", spec, patchPod(controller, "bound", `[{"op":"add","path":"/spec/activeDeadlineSeconds","value":1}]`)},
			{"a toleration that keeps pods on dead nodes", tolerations, patchPod(controller, "bound", tolerate(`{"key":"a","operator":"Exists","effect":"NoExecute"}`))},
			{"a toleration of all effects", tolerations, patchPod(controller, "bound", tolerate(`{"key":"a","operator":"Exists"}`))},
			{"a toleration of a pending pod", "may change pods that are bound only", patchPod(controller, "pending", tolerate(`{"key":"poolpriority.dev/gate","operator":"Exists","effect":"NoSchedule"}`))},
			{"a label", meta, patchPod(controller, "bound", `[{"op":"add","path":"/metadata/labels/b","value":"1"}]`)},
			{"a label that is taken off", meta, patchPod(controller, "bound", `[{"op":"remove","path":"/metadata/labels/a"}]`)},
			{"all labels", meta, patchPod(controller, "bound", `[{"op":"remove","path":"/metadata/labels"}]`)},
			{"a finalizer", meta, patchPod(controller, "bound", `[{"op":"add","path":"/metadata/finalizers","value":["a/b"]}]`)},
			{"an owner", meta, patchPod(controller, "bound", `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"n"}]}]`)},
			{"an annotation of others", annotations, patchPod(controller, "bound", annotate("replace", "theirs"))},
			{"an annotation of others, taken off", annotations, patchPod(controller, "bound", annotate("remove", "theirs"))},
			{"an annotation that begins like ours", annotations, patchPod(controller, "bound", annotate("add", "poolpriority.devil/x"))},
			{"the toleration of the gate taint", "", patchPod(controller, "bound", tolerate(`{"key":"poolpriority.dev/gate","operator":"Equal","value":"pool-priority-scheduler","effect":"NoSchedule"}`))},
			{"a toleration that matters little", "", patchPod(controller, "bound", tolerate(`{"key":"b","operator":"Exists","effect":"PreferNoSchedule"}`))},
			{"our annotation", "", patchPod(controller, "bound", annotate("add", "poolpriority.dev/pool"))},
			{"an annotation of users", annotations, patchPod(controller, "bound", annotate("add", "poolpriority.dev/burst"))},
			{"an annotation of the scheduler", annotations, patchPod(controller, "bound", annotate("add", "poolpriority.dev/bound-at"))},
			{"our annotation on a pending pod", "may change pods that are bound only", patchPod(controller, "pending", annotate("add", "poolpriority.dev/pod-deletion-cost"))},
			{"the deletion cost", "", patchPod(controller, "bound", annotate("add", "controller.kubernetes.io/pod-deletion-cost"))},
			{"the deletion cost, taken off", "", patchPod(controller, "bound", annotate("remove", "controller.kubernetes.io/pod-deletion-cost"))},
			{"a label by somebody else", "", patchPod(e.Client, "bound", `[{"op":"add","path":"/metadata/labels/c","value":"1"}]`)},
		})
	})
	t.Run("the scheduler on the phase of pods", func(t *testing.T) {
		e.tries(t, []attempt{
			{"the status of a pod that was not deleted", status, patchStatus("pending", "Failed", "Unknown")},
			{"another status of one that was", status, patchStatus("deleted", "Succeeded", "Unknown")},
			{"the status of one that was and is no Job's", status, patchStatus("nobodys", "Failed", "Unknown")},
			{"the status of one that was deleted before it started", "", patchStatus("deleted", "Failed")},
		})
	})
	target := vm
	patchNode := func(client kubernetes.Interface, patch string) func() error {
		return func() error {
			_, err := client.CoreV1().Nodes().Patch(e.ctx, target, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	taints := func(taints ...string) string { return `{"spec":{"taints":[` + strings.Join(taints, ",") + `]}}` }
	taint := func(key, value, effect string) string {
		return fmt.Sprintf(`{"key":%q,"value":%q,"effect":%q}`, key, value, effect)
	}
	const key, own, only = "poolpriority.dev/gate", "pool-priority-scheduler", "the taint poolpriority.dev/gate=pool-priority-scheduler only"
	other, theirs := taint("other", "", "NoSchedule"), taint(key, "theirs", "NoSchedule")
	set := func(before string, do func() error) func() error { // runs do after a patch by the administrator
		return func() error {
			if err := patchNode(e.Client, before)(); err != nil {
				return fmt.Errorf("preparing: %w", err)
			}
			return do()
		}
	}
	t.Run("the controller on nodes", func(t *testing.T) {
		e.tries(t, []attempt{
			{"a cordon", "may change the taints only", set(`{"spec":{"unschedulable":false}}`, patchNode(controller, `{"spec":{"unschedulable":true}}`))},
			{"a label", "may not change a node's metadata", patchNode(controller, `{"metadata":{"labels":{"b":"1"}}}`)},
			{"an annotation", "may not change a node's metadata", patchNode(controller, `{"metadata":{"annotations":{"b":"1"}}}`)},
			{"another taint", only, set(taints(), patchNode(controller, taints(other)))},
			{"another taint, taken off", only, set(taints(other), patchNode(controller, taints()))},
			{"another installation's", only, set(taints(), patchNode(controller, taints(theirs)))},
			{"another installation's, taken off", only, set(taints(theirs), patchNode(controller, taints()))},
			{"its own, with an effect that evicts pods", only, set(taints(), patchNode(controller, taints(taint(key, own, "NoExecute"))))},
			{"its own, on a VM", "may taint nodes of burst pools only", set(taints(other), patchNode(controller, taints(other, taint(key, own, "NoSchedule"))))},
			{"its own, taken off", "", set(taints(other, taint(key, own, "NoSchedule")), patchNode(controller, taints(other)))},
			{"a cordon by somebody else", "", patchNode(e.Client, `{"spec":{"unschedulable":false}}`)},
		})
		target = "silent"
		e.tries(t, []attempt{{"its own, on a burst node", "", set(taints(other), patchNode(controller, taints(other, taint(key, own, "NoSchedule"))))}})
	})
	lease := func(client kubernetes.Interface, verb, namespace, name string) func() error {
		return func() error {
			_, err := e.Client.CoordinationV1().Leases(namespace).Get(e.ctx, name, metav1.GetOptions{})
			if exists := err == nil; exists && verb == "create" {
				_ = e.Client.CoordinationV1().Leases(namespace).Delete(e.ctx, name, metav1.DeleteOptions{})
			} else if !exists && verb == "update" {
				_ = createLease(e, e.Client, namespace, name)
			}
			if verb == "create" {
				return createLease(e, client, namespace, name)
			}
			l, err := e.Client.CoordinationV1().Leases(namespace).Get(e.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			holder := "thief"
			l.Spec.HolderIdentity = &holder
			_, err = client.CoordinationV1().Leases(namespace).Update(e.ctx, l, metav1.UpdateOptions{})
			return err
		}
	}
	const leases = "may have the lease pool-priority-system/pool-priority-scheduler only"
	t.Run("the scheduler on leases", func(t *testing.T) {
		e.tries(t, []attempt{
			{"the default scheduler's", leases, lease(scheduler, "update", "kube-system", "kube-scheduler")},
			{"the default scheduler's, where there is none", leases, lease(scheduler, "create", "kube-system", "kube-scheduler")},
			{"another's", leases, lease(scheduler, "create", "kube-system", "another")},
			{"of its name, elsewhere", leases, lease(scheduler, "create", "kube-system", "pool-priority-scheduler")},
			{"its own, where there is none", "", lease(scheduler, "create", ns, "pool-priority-scheduler")},
			{"its own", "", lease(scheduler, "update", ns, "pool-priority-scheduler")},
			{"the default scheduler's by somebody else", "", lease(e.Client, "update", "kube-system", "kube-scheduler")},
		})
	})
	must.NoError(t, e.Client.CoreV1().Nodes().Delete(e.ctx, "silent", metav1.DeleteOptions{}))
	for _, l := range []string{"kube-system/kube-scheduler", ns + "/pool-priority-scheduler"} {
		at, name, _ := strings.Cut(l, "/")
		must.NoError(t, e.Client.CoordinationV1().Leases(at).Delete(e.ctx, name, metav1.DeleteOptions{}))
	}
	t.Run("all that ours do", func(t *testing.T) { e.of(t).allThatOursDo() })
}

func createLease(e *env, client kubernetes.Interface, namespace, name string) error {
	_, err := client.CoordinationV1().Leases(namespace).Create(e.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// allThatOursDo makes the scheduler and the controller do all their kinds of writes. It fails the test if one is
// denied.
func (e *env) allThatOursDo() {
	e.rbac = returnRBAC
	const config = "testdata/rights.yaml"
	node := e.nodesOf("userpool")[0].Name
	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable, n.Spec.Taints = true, nil })
	e.schedule(config, suite.UserTier(1), suite.VirtualTier())
	controller := e.control(config)
	e.waitGated(true)
	e.Create(suite.Deployment("web", 2, "100m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"aci": 2})
	e.Eventually(20*time.Second, func() string {
		for _, p := range e.Pods("web") {
			if !strings.Contains(fmt.Sprint(p.Spec.Tolerations), "poolpriority.dev/gate") {
				return "pod " + p.Name + " has not been given the toleration"
			}
		}
		return ""
	})
	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = false }) // they return
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 2})
	e.updateNode(node, func(n *corev1.Node) { n.Labels[devcluster.ModeLabel] = "system" }) // and get the cost of another pool, or none
	e.Eventually(20*time.Second, func() string {
		for _, p := range e.Pods("web") {
			if p.Annotations["poolpriority.dev/pool"] == "user" {
				return "pod " + p.Name + " is in the pool user still"
			}
		}
		return ""
	})
	e.bindsVolumes()
	e.notDenied(e.scheduler, controller)
}

// TestTenants: what the policy says about pods that are there, about a namespace with the label, and about the DaemonSet
// controller. TestAttacks has what tenants may create elsewhere.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.applyPolicies("tenants")
	e.tenant()
	pods := e.as("tenant", "tenant").CoreV1().Pods("tenant")
	for name, node := range map[string]string{"bound": e.nodesOf("userpool")[0].Name, "pending": ""} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
		must.Do(t)(pods.Create(e.ctx, pod, metav1.CreateOptions{}))
	}
	patch := func(name, patch string) func() error {
		return func() error {
			_, err := pods.Patch(e.ctx, name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	const toleration = `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"poolpriority.dev/gate","operator":"Exists","effect":"NoSchedule"}}]`
	owned := func(name string) error { // the pod's owner is a DaemonSet
		yes := true
		_, err := pods.Create(e.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: &yes}}},
			Spec:       corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{})
		return err
	}
	forged := attempt{"what says that it is a DaemonSet's", "it tolerates the taint poolpriority.dev/gate", func() error { return owned("forged") }}
	e.tries(t, []attempt{forged})
	// A pod is created while the namespace has the label, as if it had been there before the policy.
	label := func(value string) {
		must.Do(t)(e.Client.CoreV1().Namespaces().Patch(e.ctx, "tenant", types.MergePatchType, []byte(`{"metadata":{"labels":{"poolpriority.dev/burst-nodes":`+value+`}}}`), metav1.PatchOptions{}))
	}
	label(`"Allowed"`)
	e.Eventually(20*time.Second, func() string {
		_, err := pods.Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "before", Finalizers: []string{"a/b"}}, Spec: corev1.PodSpec{SchedulerName: "nobody",
			NodeSelector: map[string]string{"type": "virtual-kubelet"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{Name: "web", Image: "web"}}}}, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	label("null")
	e.tries(t, []attempt{
		forged, // first: a toleration that is added before the label is gone stays
		{"a toleration of a pending pod", "it tolerates the taint poolpriority.dev/gate", patch("pending", toleration)},
		{"a label of a pending pod", "", patch("pending", `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)},
		{"the finalizer of one that was there before", "", patch("before", `[{"op":"remove","path":"/metadata/finalizers"}]`)},
		{"a toleration of a pod that is bound", "", patch("bound", toleration)},
	})
	daemon := `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d, namespace: tenant}, spec: {selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}},
  spec: {tolerations: [{operator: Exists}], ` + nodeAffinity("{matchExpressions: [{key: type, operator: NotIn, values: [virtual-kubelet]}]}") + `, containers: [{name: web, image: web}]}}}}`
	if out, err := e.kubectl("", daemon, "apply", "-f", "-"); err != nil {
		t.Fatal(err, out)
	}
	e.Eventually(30*time.Second, func() string {
		d, err := e.Client.AppsV1().DaemonSets("tenant").Get(e.ctx, "d", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if d.Status.CurrentNumberScheduled < 1 {
			return fmt.Sprintf("%d pods of the DaemonSet", d.Status.CurrentNumberScheduled)
		}
		return ""
	})
}

// TestPoliciesByHelm: the chart's policies are for the release's accounts, lease, scheduler and burst nodes.
func TestPoliciesByHelm(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	dir := t.TempDir()
	config := must.ReadFile(t, "testdata/rights.yaml")
	values := map[string]any{
		"config": strings.NewReplacer("schedulerName: pool-priority-scheduler", "schedulerName: mine", "      pools:", "      tenants: true\n      pools:",
			"{type: virtual-kubelet}}", `{type: virtual-kubelet}, matchExpressions: [{key: team, operator: NotIn, values: [a]}, {key: mark, operator: DoesNotExist}]}`).Replace(string(config)),
		"policies": map[string]any{"tenants": map[string]any{"nodeNames": `^vn-\d+$`, "labels": map[string]string{"team": "^burst'?$"}}},
		"tenants":  true,
	}
	data := must.Get(yaml.Marshal(values))(t)
	must.NoError(t, os.WriteFile(dir+"/values.yaml", data, 0o600))
	out, err := tool(t, "helm", "template", "pool-priority", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4", ourImage, "--values", dir+"/values.yaml", "--show-only", "templates/policies.yaml")
	if err != nil {
		t.Fatal(err, out)
	}
	must.NoError(t, os.WriteFile(dir+"/policies.yaml", []byte(out), 0o600))
	must.NoError(t, e.Apply(e.ctx, e.rbac))
	e.applyPolicyFile(dir + "/policies.yaml")
	e.holdsFor(devcluster.SchedulerNamespace, "")
	n := 0
	create := func(spec string) func() error {
		return func() error {
			n++
			pod := &corev1.Pod{}
			must.NoError(t, yaml.UnmarshalStrict([]byte("{spec: {"+spec+"}}"), pod))
			pod.Name, pod.Spec.Containers = fmt.Sprint("p", n), []corev1.Container{{Name: "web", Image: "web"}}
			_, err := e.Client.CoreV1().Pods(namespace).Create(e.ctx, pod, metav1.CreateOptions{})
			return err
		}
	}
	const selects = "its nodeSelector asks for a burst node. Leave that to schedulerName: mine"
	e.tries(t, []attempt{
		{"a selector", selects, create(`nodeSelector: {team: burst}`)},
		{"a selector by the name", selects, create("nodeSelector: {kubernetes.io/hostname: vn-1}")},
		{"a nodeName", "its nodeName is a burst node's", create("nodeName: vn-1")},
		{"the toleration", "Leave that to schedulerName: mine", create("tolerations: [{operator: Exists}]")},
		{"a selector of other nodes", "", create("nodeSelector: {type: virtual-kubelet}")},
		{"a name that only begins like it", "", create("nodeSelector: {kubernetes.io/hostname: vn-1-2}")},
	})
	controller := e.withAllRights(devcluster.SchedulerNamespace, devcluster.ControllerName)
	taint := func(name string, labels map[string]string) func() error {
		must.Do(t)(e.Client.CoreV1().Nodes().Create(e.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}}}, metav1.CreateOptions{}))
		return func() error {
			_, err := controller.CoreV1().Nodes().Patch(e.ctx, name, types.JSONPatchType,
				[]byte(`[{"op":"add","path":"/spec/taints/-","value":{"key":"poolpriority.dev/gate","value":"pool-priority-scheduler","effect":"NoSchedule"}}]`), metav1.PatchOptions{})
			return err
		}
	}
	const only = "may taint nodes of burst pools only"
	e.tries(t, []attempt{
		{"a node of another type", only, taint("vm", map[string]string{"type": "vm", "team": "burst"})},
		{"a node with an excluded value", only, taint("excluded", map[string]string{"type": "virtual-kubelet", "team": "a"})},
		{"a node with an excluded label", only, taint("marked", map[string]string{"type": "virtual-kubelet", "team": "burst", "mark": "1"})},
		{"a node that the pool selects", "", taint("selected", map[string]string{"type": "virtual-kubelet", "team": "burst"})},
		{"a node without the label", "", taint("without", map[string]string{"type": "virtual-kubelet"})},
	})
	other := e.withAllRights("elsewhere", devcluster.SchedulerName)
	if err := createLease(e, other, "kube-system", "another"); err != nil {
		t.Errorf("an account of another namespace is denied: %v", err)
	}
}
