package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// attack is a command of kubectl by a tenant with the role edit.
type attack struct {
	name, args string
	object     string // on standard input
	want       string // in the denial; "" if the command must succeed, because it harms nobody
}

// Denials by RBAC and by the API's validation. All others are by a policy.
const byRBAC, byAPI = "cannot ", "does not match event.namespace"

// attackOf returns YAML of an object in the namespace tenant. In the text, ANNOTATIONS stands for an annotation that
// only our accounts may write.
func attackOf(apiVersion, kind, spec string) string {
	return strings.ReplaceAll("{apiVersion: "+apiVersion+", kind: "+kind+", metadata: {generateName: attack-, namespace: tenant}, spec: {"+spec+"}}",
		"ANNOTATIONS", `annotations: {poolpriority.dev/bound-at: "2099-01-01T00:00:00Z"}`)
}

func podAttack(spec string) string {
	return attackOf("v1", "Pod", "schedulerName: pool-priority-scheduler, containers: [{name: web, image: web}], "+spec)
}

func daemonAttack(spec string) string {
	return attackOf("apps/v1", "DaemonSet", "selector: {matchLabels: {app: d}}, template: {metadata: {labels: {app: d}}, spec: {containers: [{name: web, image: web}], "+spec+"}}")
}

// eventAttack returns YAML of an autoscaler's event in the namespace, about an object.
func eventAttack(namespace, source, reason, object string) string {
	return "{apiVersion: v1, kind: Event, metadata: {generateName: attack-, namespace: " + namespace + "}, source: {component: " + source + "}, reason: " + reason +
		", message: \"" + notTriggered + "\", lastTimestamp: \"" + time.Now().UTC().Format(time.RFC3339) + "\", involvedObject: {" + object + "}}"
}

// notTriggered is the message of an event that counts two groups, one of them at its maximum size.
const notTriggered = "pod didn't trigger scale-up: 1 max node group size reached, 1 node(s) had untolerated taint(s)"

func nodeAffinity(term string) string {
	return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + term + "]}}}"
}

// askForBurstNodes are attempts to get to burst nodes without the scheduler's decision.
func askForBurstNodes() []attack {
	const create = "create --validate=false -f -"
	const tolerates, selects, affine, named, spread = "it tolerates the taint poolpriority.dev/gate", "its nodeSelector asks for a burst node", "its required node affinity asks for a burst node", "its nodeName is a burst node's", "a label that only burst nodes have"
	const all, v2 = "tolerations: [{operator: Exists}]", "burst-virtualnode-0"
	return []attack{
		{"the gate toleration", create, podAttack("tolerations: [{key: poolpriority.dev/gate, operator: Exists, effect: NoSchedule}]"), tolerates},
		{"the gate toleration with a value", create, podAttack("tolerations: [{key: poolpriority.dev/gate, operator: Equal, value: pool-priority-scheduler}]"), tolerates},
		{"a toleration of every taint", create, podAttack(all), tolerates},
		{"a toleration of every taint with the effect", create, podAttack("tolerations: [{operator: Exists, effect: NoSchedule}]"), tolerates},
		{"a toleration for a pending pod", `patch pod pending --type=json -p [{"op":"add","path":"/spec/tolerations/-","value":{"key":"poolpriority.dev/gate","operator":"Exists"}}]`, "", tolerates},
		{"a selector of the type", create, podAttack("nodeSelector: {type: virtual-kubelet}"), selects},
		{"a selector of virtual nodes v2", create, podAttack("nodeSelector: {virtualization: virtualnode2}"), selects},
		{"a selector of the name", create, podAttack("nodeSelector: {kubernetes.io/hostname: virtual-node-aci-linux}"), selects},
		{"a selector of a name of v2", create, podAttack("nodeSelector: {kubernetes.io/hostname: " + v2 + "}"), selects},
		{"a selector of unmanaged nodes", create, podAttack(`nodeSelector: {kubernetes.azure.com/managed: "false"}`), selects},
		{"a selector of nodes without load balancer", create, podAttack(`nodeSelector: {node.kubernetes.io/exclude-from-external-load-balancers: "true"}`), selects},
		{"the older label of those", create, podAttack(`nodeSelector: {alpha.service-controller.kubernetes.io/exclude-balancer: "true"}`), selects},
		{"affinity to the type", create, podAttack(nodeAffinity("{matchExpressions: [{key: type, operator: In, values: [vm, virtual-kubelet]}]}")), affine},
		{"affinity to the type among others", create, podAttack(nodeAffinity("{matchExpressions: [{key: a, operator: Exists}]}, {matchExpressions: [{key: type, operator: In, values: [virtual-kubelet]}]}")), affine},
		{"affinity to whatever has the label", create, podAttack(nodeAffinity("{matchExpressions: [{key: kubernetes.azure.com/managed, operator: Exists}]}")), affine},
		{"affinity to the name of the Node", create, podAttack(nodeAffinity("{matchFields: [{key: metadata.name, operator: In, values: [virtual-node-aci-linux]}]}")), affine},
		{"affinity to a name of v2", create, podAttack(nodeAffinity("{matchFields: [{key: metadata.name, operator: In, values: [" + v2 + "]}]}")), affine},
		{"affinity by a number", create, podAttack(nodeAffinity("{matchExpressions: [{key: type, operator: Gt, values: ['1']}]}")), affine},
		{"spread over a label of the virtual node", create, podAttack("topologySpreadConstraints: [{maxSkew: 1, topologyKey: type, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]"), spread},
		{"affinity to pods within a label of the virtual node", create, podAttack("affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: virtualization, labelSelector: {}}]}}"), spread},
		{"a nodeName", create, podAttack("nodeName: virtual-node-aci-linux"), named},
		{"a nodeName of v2", create, podAttack("nodeName: " + v2), named},
		{"a pod that claims to be a DaemonSet's", create, strings.Replace(podAttack(all), "generateName", "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d, controller: true}], generateName", 1), tolerates},
		{"the same by an account that is called like its controller", "--as=system:serviceaccount:tenant:daemon-set-controller " + create, podAttack(all), byRBAC},
		{"the same by the controller's account", "--as=system:serviceaccount:kube-system:daemon-set-controller " + create, podAttack(all), byRBAC},
		{"a DaemonSet with a selector", create, daemonAttack("nodeSelector: {type: virtual-kubelet}"), selects},
		{"a DaemonSet with another label", create, daemonAttack(`nodeSelector: {kubernetes.azure.com/managed: "false"}`), selects},
		{"a DaemonSet with affinity", create, daemonAttack(nodeAffinity("{matchExpressions: [{key: type, operator: Exists}]}")), affine},
		{"a DaemonSet with the gate toleration", create, daemonAttack("tolerations: [{key: poolpriority.dev/gate, operator: Exists}]"), tolerates},
		{"a DaemonSet with a nodeName", create, daemonAttack("nodeName: virtual-node-aci-linux"), named},
		{"a DaemonSet that is changed", `patch daemonset plain --type=merge -p {"spec":{"template":{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}}}`, "", selects},
		{"a DaemonSet that tolerates everything", create, daemonAttack(all), tolerates},
		{"a DaemonSet that tolerates everything, and stays off virtual nodes", create, daemonAttack(all + ", " + nodeAffinity("{matchExpressions: [{key: type, operator: NotIn, values: [virtual-kubelet]}]}")), ""},
		{"a Deployment whose pods are denied", create, attackOf("apps/v1", "Deployment", "replicas: 2, selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {nodeSelector: {type: virtual-kubelet}, containers: [{name: web, image: web}]}}"), ""},
		{"a toleration of the virtual node's own taint", create, podAttack("tolerations: [{key: virtual-kubelet.io/provider, operator: Exists}]"), ""},
		{"a toleration of all that evicts", create, podAttack("tolerations: [{operator: Exists, effect: NoExecute}]"), ""},
		{"a selector of VMs", create, podAttack("nodeSelector: {kubernetes.azure.com/mode: user, type: vm}"), ""},
		{"affinity to anything but burst nodes", create, podAttack(nodeAffinity("{matchExpressions: [{key: type, operator: NotIn, values: [virtual-kubelet]}, {key: kubernetes.io/hostname, operator: Exists}]}")), ""},
		{"preferred affinity", create, podAttack("affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: type, operator: In, values: [virtual-kubelet]}]}}]}}"), ""},
		{"a binding", create, "{apiVersion: v1, kind: Binding, metadata: {name: pending, namespace: tenant}, target: {kind: Node, name: virtual-node-aci-linux}}", byRBAC},
		{"a label on a VM", "label node virtual-node-aci-linux type=vm --overwrite", "", byRBAC},
		{"a taint that is taken off", "taint node virtual-node-aci-linux poolpriority.dev/gate-", "", byRBAC},
		{"a label on the namespace", "label namespace tenant poolpriority.dev/burst-nodes=Allowed", "", byRBAC},
		{"a RuntimeClass with a selector", create, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: attack}, handler: a, scheduling: {nodeSelector: {type: virtual-kubelet}}}", byRBAC},
		{"a resize", `patch pod pending --subresource=resize -p {"spec":{"containers":[{"name":"web","resources":{"requests":{"cpu":"1m"}}}]}}`, "", byRBAC},
	}
}

// forge are attempts to write what our accounts believe.
func forge() []attack {
	const create = "create --validate=false -f -"
	const ours, scheduler = "only the pool-priority scheduler and controller write the annotations", "--namespace=" + devcluster.SchedulerNamespace
	const template = "template: {metadata: {labels: {app: a}, ANNOTATIONS}, spec: {containers: [{name: web, image: web}]}}"
	const job = "template: {metadata: {ANNOTATIONS}, spec: {restartPolicy: Never, containers: [{name: web, image: web}]}}"
	const selected = "selector: {matchLabels: {app: a}}, "
	attacks := []attack{
		{"a Deployment", create, attackOf("apps/v1", "Deployment", selected+template), ours},
		{"a ReplicaSet", create, attackOf("apps/v1", "ReplicaSet", selected+template), ours},
		{"a StatefulSet", create, attackOf("apps/v1", "StatefulSet", selected+template), ours},
		{"a DaemonSet", create, attackOf("apps/v1", "DaemonSet", selected+template), ours},
		{"a ReplicationController", create, attackOf("v1", "ReplicationController", "selector: {app: a}, "+template), ours},
		{"a Job", create, attackOf("batch/v1", "Job", job), ours},
		{"a CronJob", create, attackOf("batch/v1", "CronJob", "schedule: '* * * * *', jobTemplate: {spec: {"+job+"}}"), ours},
		{"a DaemonSet that is changed", `patch daemonset plain --type=merge -p {"spec":{"template":{"metadata":{"annotations":{"poolpriority.dev/bound-at":"2099-01-01T00:00:00Z"}}}}}`, "", ours},
		{"another value where there was one", "annotate --overwrite pod noted poolpriority.dev/bound-at=2099-01-01T00:00:00Z", "", ours},
		{"an annotation that is taken off", "annotate pod noted poolpriority.dev/decision-", "", ""},
		{"what was there before", "label deployment old a=b", "", ""},
		{"a pod from a backup", create, strings.Replace(podAttack(""), "generateName", `annotations: {poolpriority.dev/bound-at: "2099-01-01T00:00:00Z"}, generateName`, 1), ""},
		{"the cost of its own pod", "annotate pod pending controller.kubernetes.io/pod-deletion-cost=-2147483648", "", ""},
		{"burst: Always", "annotate pod pending poolpriority.dev/burst=Always", "", ""},
		{"a status", `patch pod pending --subresource=status -p {"status":{"phase":"Failed","reason":"ProviderFailed"}}`, "", byRBAC},
		{"the override", "create configmap pool-priority-override --from-literal=gate=Closed " + scheduler, "", byRBAC},
		{"the override, at home", "create configmap pool-priority-override --from-literal=gate=Closed", "", ""},
		{"the published state", "delete configmap pool-priority-status " + scheduler, "", byRBAC},
		{"the autoscaler's status", "create configmap cluster-autoscaler-status --namespace=kube-system", "", byRBAC},
		{"the autoscaler's status, at home", "create configmap cluster-autoscaler-status --from-literal=status=none", "", ""},
		{"the lease", "delete lease pool-priority-scheduler " + scheduler, "", byRBAC},
		{"a token of the scheduler", "create token pool-priority-scheduler " + scheduler, "", byRBAC},
		{"the scheduler's pods", "delete pods --all " + scheduler, "", byRBAC},
		{"an autoscaler's event", create, eventAttack("tenant", "cluster-autoscaler", "NotTriggerScaleUp", "kind: Pod, namespace: tenant, name: pending"), ""},
		{"Karpenter's event", create, eventAttack("tenant", "karpenter", "FailedScheduling", "kind: Pod, namespace: tenant, name: pending"), ""},
		{"an autoscaler's event, elsewhere", create + " --namespace=default", eventAttack("default", "cluster-autoscaler", "NotTriggerScaleUp", "kind: Pod, namespace: default, name: web"), byRBAC},
		{"Karpenter's event, elsewhere", create + " --namespace=default", eventAttack("default", "karpenter", "FailedScheduling", "kind: Pod, namespace: default, name: web"), byRBAC},
		{"an event at home about a pod elsewhere", create, eventAttack("tenant", "cluster-autoscaler", "NotTriggerScaleUp", "kind: Pod, namespace: default, name: web"), byAPI},
		{"an event on the autoscaler's status", create + " --namespace=kube-system", eventAttack("kube-system", "cluster-autoscaler", "GracefulDegradationStarted", "kind: ConfigMap, namespace: kube-system, name: cluster-autoscaler-status"), byRBAC},
		{"a policy", "delete validatingadmissionpolicy pool-priority-tenants", "", byRBAC},
		{"a priority", "create priorityclass attack --value=1000000000", "", byRBAC},
	}
	for _, key := range []string{"bound-at", "decision", "pool", "pod-deletion-cost"} {
		attacks = append(attacks, attack{key, "annotate pod pending poolpriority.dev/" + key + "=2099-01-01T00:00:00Z", "", ours})
	}
	return attacks
}

// TestAttacks: a tenant with the role edit is denied what would harm others. What is allowed harms nobody: no pod of
// the tenant is on the virtual node in the end, and pods of others burst as ever.
func TestAttacks(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	must.NoError(t, e.Apply(e.ctx, e.rbac))
	const config = "testdata/fixed.yaml"
	e.schedule(config, suite.UserTier(1), suite.VirtualTier())
	controller := e.control(config)
	e.waitGated(true)
	tenant := e.tenant()
	try := func(a attack) (string, error) {
		return e.kubectl(tenant, a.object, append([]string{"--namespace=tenant"}, strings.Fields(a.args)...)...)
	}
	for _, object := range []string{
		"{apiVersion: v1, kind: Pod, metadata: {name: pending, namespace: tenant}, spec: {schedulerName: nobody, containers: [{name: web, image: web}]}}",
		"{apiVersion: v1, kind: Pod, metadata: {name: noted, namespace: tenant, annotations: {poolpriority.dev/bound-at: a, poolpriority.dev/decision: b}}, spec: {schedulerName: nobody, containers: [{name: web, image: web}]}}",
		strings.Replace(daemonAttack(""), "generateName: attack-", "name: plain", 1),
		strings.Replace(attackOf("apps/v1", "Deployment", "replicas: 0, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}, ANNOTATIONS}, spec: {containers: [{name: web, image: web}]}}"), "generateName: attack-", "name: old", 1),
	} {
		e.Eventually(20*time.Second, func() string { // the API server's cache may have an earlier test's policies for a moment
			if out, err := try(attack{args: "create -f -", object: object}); err != nil {
				return out
			}
			return ""
		})
	}
	for _, component := range []string{"tenants", "least-rights"} {
		e.applyPolicies(component)
	}
	all := append(askForBurstNodes(), forge()...)
	for _, first := range []attack{askForBurstNodes()[5], forge()[0]} { // policies take effect after a while
		e.Eventually(60*time.Second, func() string {
			if out, err := try(attack{args: first.args + " --dry-run=server", object: first.object}); err == nil || !strings.Contains(out, first.want) {
				return out
			}
			return ""
		})
	}
	for _, a := range all {
		out, err := try(a)
		switch {
		case a.want == "" && err != nil:
			t.Errorf("%s is denied: %s", a.name, out)
		case a.want != "" && (err == nil || !strings.Contains(out, a.want)):
			t.Errorf("%s: %v, want a denial with %q: %s", a.name, err, a.want, out)
		case a.want != "" && a.want != byRBAC && a.want != byAPI && !strings.Contains(out, "ValidatingAdmissionPolicy"):
			t.Errorf("%s is not denied by a policy: %s", a.name, out)
		case a.name == "a pod from a backup" && !strings.Contains(out, "Warning: "):
			t.Errorf("%s comes without a warning: %s", a.name, out)
		}
	}
	if len(all) < 65 {
		t.Errorf("only %d attacks", len(all))
	}
	e.unharmed(controller)
}

// tenant makes a namespace with an account that has the role edit, and returns its kubeconfig.
func (e *env) tenant() string {
	e.Helper()
	must.Do(e)(e.Client.CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}, metav1.CreateOptions{}))
	kubeConfig := e.account("tenant", "tenant")
	must.Do(e)(e.Client.RbacV1().RoleBindings("tenant").Create(e.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "tenant", Namespace: "tenant"}}}, metav1.CreateOptions{}))
	e.Eventually(20*time.Second, func() string { // the role is aggregated, and pods need the ServiceAccount default
		if out, err := e.kubectl(kubeConfig, "", "--namespace=tenant", "auth", "can-i", "create", "pods"); err != nil {
			return out
		}
		if out, err := e.kubectl("", "", "--namespace=tenant", "get", "serviceaccount", "default"); err != nil {
			return out
		}
		return ""
	})
	return kubeConfig
}

// unharmed checks that pods of others use the VM and then the virtual node, that their bindings have annotations, and
// that a pod on the virtual node cannot be resized, even by an administrator.
func (e *env) unharmed(controller *devcluster.Component) {
	e.Helper()
	e.Create(suite.Deployment("others", 3, "900m", endsFast))
	e.Lands(30*time.Second, "others", map[string]int{"userpool": 2, "aci": 1})
	for _, p := range e.Pods("others") {
		if p.Annotations["poolpriority.dev/pool"] == "" {
			e.Errorf("%s is on %s and has the annotations %v", p.Name, p.Spec.NodeName, p.Annotations)
		}
		if p.Spec.NodeName != devcluster.VirtualNodeName {
			continue
		}
		_, err := e.Client.CoreV1().Pods(namespace).Patch(e.ctx, p.Name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"web","resources":{"requests":{"cpu":"10m"}}}]}}`), metav1.PatchOptions{}, "resize")
		want := "where pods cannot be resized"
		if now := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, p.Name, metav1.GetOptions{}))(e); now.Status.Phase == corev1.PodRunning && err != nil && !strings.Contains(err.Error(), want) {
			want = "Pod running on node without support for resize" // the API server asks no policy
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			e.Errorf("the resize of a pod on the virtual node: %v", err)
		}
	}
	theirs := must.Get(e.Client.CoreV1().Pods("tenant").List(e.ctx, metav1.ListOptions{}))(e)
	placed := map[string]int{}
	for _, p := range theirs.Items {
		placed[p.Spec.NodeName]++
		if p.Spec.NodeName == devcluster.VirtualNodeName {
			e.Errorf("the tenant's pod %s is on the virtual node", p.Name)
		}
	}
	if e.Logf("the tenant's pods by node: %v", placed); len(theirs.Items) < 5 {
		e.Errorf("the tenant has only %d pods: the attacks that are allowed had no effect", len(theirs.Items))
	}
	e.notDenied(e.scheduler, controller)
}

// notDenied fails the test if an admission policy denied a request of one of our processes.
func (e *env) notDenied(ours ...*devcluster.Component) {
	e.Helper()
	for _, c := range ours {
		for line := range strings.Lines(string(must.ReadFile(e, c.Log()))) {
			if strings.Contains(line, "denied request") {
				e.Error(fmt.Sprint(c.Log(), ": ", line))
			}
		}
	}
}

// TestForgedEvents: a tenant with the role edit writes events of the cluster autoscaler. Without tenants, they open the
// gate only for the pod that they are about, which must be of the tenant's namespace. With tenants, they do nothing.
func TestForgedEvents(t *testing.T) {
	t.Parallel()
	for name, tenants := range map[string]bool{"one team": false, "tenants": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, &devcluster.AutoscalerOptions{Interval: eventLoop, NoEvents: true}, vms("userpool", "user", 1, 1, 1, 20), taintedPool("gpupool"))
			config := replaced(t, "testdata/one-pool.yaml", "static: {maxNodes: 2}", "clusterAutoscaler: {}")
			if tenants {
				config = replaced(t, config, "      pools:\n", "      tenants: true\n      pools:\n")
			}
			e.schedule(config, suite.UserTier(1), suite.VirtualTier())
			tenant := e.tenant()
			for _, name := range []string{"tenant", namespace} {
				if out, err := e.kubectl("", "", "label", "namespace", name, "poolpriority.dev/burst=Allowed"); err != nil {
					t.Fatal(out)
				}
			}
			e.Create(suite.Deployment("full", 1, "1500m"))
			e.Lands(20*time.Second, "full", map[string]int{"userpool": 1})
			time.Sleep(2 * eventLoop)
			e.Create(suite.Deployment("others", 1, "1500m"))
			own := must.Get(e.Client.CoreV1().Pods("tenant").Create(e.ctx, hardened("tenant", "own"), metav1.CreateOptions{}))(t)
			second := must.Get(e.Client.CoreV1().Pods("tenant").Create(e.ctx, hardened("tenant", "second"), metav1.CreateOptions{}))(t)
			other := e.held(namespace, 1)[0]
			e.held("tenant", 2)
			status := must.Get(e.Client.CoreV1().ConfigMaps("kube-system").Get(e.ctx, "cluster-autoscaler-status", metav1.GetOptions{}))(t)
			for what, event := range map[string]string{
				"its own pod":     eventAttack("tenant", "cluster-autoscaler", "NotTriggerScaleUp", "kind: Pod, namespace: tenant, name: own, uid: "+string(own.UID)),
				"another's UID":   eventAttack("tenant", "cluster-autoscaler", "NotTriggerScaleUp", "kind: Pod, namespace: tenant, name: own, uid: "+string(other.UID)),
				"the status' UID": eventAttack("tenant", "cluster-autoscaler", "GracefulDegradationStarted", "kind: ConfigMap, namespace: tenant, name: cluster-autoscaler-status, uid: "+string(status.UID)),
			} {
				if out, err := e.kubectl(tenant, event, "create", "-f", "-"); err != nil {
					t.Errorf("%s: %s", what, out)
				}
			}
			nodeOf := func(name string) string {
				return must.Get(e.Client.CoreV1().Pods("tenant").Get(e.ctx, name, metav1.GetOptions{}))(t).Spec.NodeName
			}
			e.Stays(soon, func() string {
				if n := e.Placed("others")["aci"]; n > 0 || nodeOf(second.Name) != "" || tenants && nodeOf(own.Name) != "" {
					return fmt.Sprintf("%d pods of others burst; the tenant's pods are on %q and %q", n, nodeOf(own.Name), nodeOf(second.Name))
				}
				return ""
			})
			if got := nodeOf(own.Name); !tenants && got != devcluster.VirtualNodeName {
				t.Errorf("the pod that the event is about is on %q: the event has no effect", got)
			}
			if !tenants { // the autoscaler does not count as degraded: the others are declined in time
				e.Lands(time.Minute+5*eventLoop+10*time.Second, "others", map[string]int{"aci": 1})
			}
		})
	}
}
