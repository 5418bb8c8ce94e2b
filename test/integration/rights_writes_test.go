package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var (
	dryRun      = []string{metav1.DryRunAll}
	dryPatch    = metav1.PatchOptions{DryRun: dryRun}
	dryCreate   = metav1.CreateOptions{DryRun: dryRun}
	dryDelete   = metav1.DeleteOptions{DryRun: dryRun}
	strategic   = types.StrategicMergePatchType
	ourNames    = map[string]string{"poolpriority.dev/pool": "user", "controller.kubernetes.io/pod-deletion-cost": "1000"}
	theirNames  = map[string]string{"sidecar.istio.io/inject": "false"}
	ofExtended  = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	plainPod    = corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: "web"}}}
	claimedSpec = resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}}}
)

// TestSchedulersWrites: with the shipped policies, accounts with all rights that are called like ours may only write
// what the scheduler and the controller write.
func TestSchedulersWrites(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	must.NoError(t, e.Apply(e.ctx, e.rbac))
	const ns = devcluster.SchedulerNamespace
	e.makeWritten()
	e.applyPolicies("least-rights")
	scheduler, controller := e.withAllRights(ns, devcluster.SchedulerName), e.withAllRights(ns, devcluster.ControllerName)
	for name, attempts := range map[string][]attempt{
		"pods": e.podWrites(scheduler), "bindings": e.bindingWrites(scheduler), "configmaps": e.configMapWrites(scheduler),
		"claims": e.claimWrites(scheduler), "volumes": e.volumeWrites(scheduler), "evictions": e.evictionWrites(scheduler), "leases": e.leaseWrites(controller),
	} {
		t.Run(name, func(t *testing.T) { e.tries(t, attempts) })
	}
}

// makeWritten creates the objects that the attempts are about.
func (e *env) makeWritten() {
	e.Helper()
	vm := e.nodesOf("userpool")[0].Name
	for name, class := range map[string]string{"bound": "", "critical": "system-cluster-critical", "pending": ""} {
		spec := *plainPod.DeepCopy()
		spec.PriorityClassName = class
		if name != "pending" {
			spec.NodeName = vm
		}
		must.Do(e)(e.Client.CoreV1().Pods(namespace).Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}))
	}
	for name, annotations := range map[string]map[string]string{"theirs": nil, "made": ofExtended} {
		must.Do(e)(e.Client.ResourceV1().ResourceClaims(namespace).Create(e.ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: claimedSpec}, metav1.CreateOptions{}))
	}
	for name, claim := range map[string]*corev1.ObjectReference{"free": nil, "taken": {Kind: "PersistentVolumeClaim", Namespace: namespace, Name: "gone", UID: "a"}} {
		must.Do(e)(e.Client.CoreV1().PersistentVolumes().Create(e.ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: "a", ClaimRef: claim,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}}}}, metav1.CreateOptions{}))
	}
	must.Do(e)(e.Client.CoreV1().PersistentVolumeClaims(namespace).Create(e.ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("b"),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}, metav1.CreateOptions{}))
}

func (e *env) podWrites(scheduler kubernetes.Interface) []attempt {
	pods := scheduler.CoreV1().Pods(namespace)
	patch := func(name, patch string, subresources ...string) func() error {
		return func() error {
			_, err := pods.Patch(e.ctx, name, strategic, []byte(patch), dryPatch, subresources...)
			return err
		}
	}
	remove := func(name string) func() error {
		return func() error { return pods.Delete(e.ctx, name, dryDelete) }
	}
	const only, fields, conditions = "changes the status of pods and preempts pods", "may change conditions, nominatedNodeName", "may change PodScheduled and DisruptionTarget only"
	return []attempt{
		{"an image", only, patch("bound", `{"spec":{"containers":[{"name":"web","image":"mine"}]}}`)},
		{"a new pod", only, func() error {
			_, err := pods.Create(e.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: plainPod}, dryCreate)
			return err
		}},
		{"a phase", fields, patch("bound", `{"status":{"phase":"Failed"}}`, "status")},
		{"an address", fields, patch("bound", `{"status":{"podIP":"10.9.9.9","podIPs":[{"ip":"10.9.9.9"}]}}`, "status")},
		{"that it is not ready", conditions, patch("pending", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status")},
		{"an annotation with the status", "may not change a pod's metadata", patch("pending", `{"metadata":{"annotations":{"a":"b"}},"status":{"nominatedNodeName":"a"}}`, "status")},
		{"a pod without its grace period", "with the grace period that they have", func() error {
			return pods.Delete(e.ctx, "bound", metav1.DeleteOptions{DryRun: dryDelete.DryRun, GracePeriodSeconds: ptr.To(int64(0))})
		}},
		{"a critical pod", "may not delete pods of a system priority", remove("critical")},
		{"the reason why it waits", "", patch("pending", `{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"a"}],"nominatedNodeName":"a"}}`, "status")},
		{"a victim's condition", "", patch("bound", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`, "status")},
		{"a victim", "", remove("bound")},
		{"a phase by somebody else", "", func() error {
			_, err := e.Client.CoreV1().Pods(namespace).Patch(e.ctx, "bound", strategic, []byte(`{"status":{"message":"a"}}`), dryPatch, "status")
			return err
		}},
	}
}

func (e *env) bindingWrites(scheduler kubernetes.Interface) []attempt {
	uid := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, "pending", metav1.GetOptions{}))(e).UID
	binding := func(namespace string, annotations map[string]string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pending", UID: uid, Annotations: annotations}, Target: corev1.ObjectReference{Kind: "Node", Name: e.nodesOf("userpool")[0].Name}}
	}
	bind := func(namespace string, annotations map[string]string) func() error {
		return func() error {
			return scheduler.CoreV1().Pods(namespace).Bind(e.ctx, binding(namespace, annotations), dryCreate)
		}
	}
	const closed, annotations = "may bind no pods of this namespace", "may write its own annotations and"
	return []attempt{
		{"a pod of kube-system", closed, bind(metav1.NamespaceSystem, nil)},
		{"a pod of kube-system, by the older resource", closed, func() error {
			body := must.Get(json.Marshal(binding(metav1.NamespaceSystem, nil)))(e)
			return scheduler.CoreV1().RESTClient().Post().Namespace(metav1.NamespaceSystem).Resource("bindings").SetHeader("Content-Type", "application/json").Body(body).Do(e.ctx).Error()
		}},
		{"an annotation of others", annotations, bind(namespace, theirNames)},
		{"a label", "may write no labels", func() error {
			b := binding(namespace, nil)
			b.Labels = map[string]string{"app": "theirs"}
			return scheduler.CoreV1().Pods(namespace).Bind(e.ctx, b, dryCreate)
		}},
		{"whatever pod has the name", "the very pod", func() error {
			b := binding(namespace, nil)
			b.UID = ""
			return scheduler.CoreV1().Pods(namespace).Bind(e.ctx, b, dryCreate)
		}},
		{"our annotations", "", bind(namespace, ourNames)},
	}
}

func (e *env) configMapWrites(scheduler kubernetes.Interface) []attempt {
	create := func(namespace, name string) func() error {
		return func() error {
			_, err := scheduler.CoreV1().ConfigMaps(namespace).Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, dryCreate)
			return err
		}
	}
	const only, ns = "may write the ConfigMap pool-priority-system/pool-priority-status only", devcluster.SchedulerNamespace
	return []attempt{
		{"the override", only, create(ns, "pool-priority-override")},
		{"the autoscaler's status", only, create(metav1.NamespaceSystem, "cluster-autoscaler-status")},
		{"of its name, elsewhere", only, create(namespace, "pool-priority-status")},
		{"its own", "", create(ns, "pool-priority-status")},
	}
}

func (e *env) claimWrites(scheduler kubernetes.Interface) []attempt {
	claims := scheduler.ResourceV1().ResourceClaims(namespace)
	create := func(annotations map[string]string) func() error {
		return func() error {
			_, err := claims.Create(e.ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "new", Annotations: annotations}, Spec: claimedSpec}, dryCreate)
			return err
		}
	}
	remove := func(name string) func() error {
		return func() error { return claims.Delete(e.ctx, name, dryDelete) }
	}
	patch := func(patch string, subresources ...string) func() error {
		return func() error {
			_, err := claims.Patch(e.ctx, "theirs", types.MergePatchType, []byte(patch), dryPatch, subresources...)
			return err
		}
	}
	const only, meta = "may create and delete ResourceClaims of extended resources only", "may change the finalizer resource.kubernetes.io/delete-protection only"
	return []attempt{
		{"a claim", only, create(nil)},
		{"somebody's claim", only, remove("theirs")},
		{"a finalizer of others", meta, patch(`{"metadata":{"finalizers":["a/b"]}}`)},
		{"a label", meta, patch(`{"metadata":{"labels":{"a":"b"}}}`)},
		{"a device's status", "may not write the devices", patch(`{"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":"a.dev","pool":"b","device":"c"}]}},"devices":[{"driver":"a.dev","pool":"b","device":"c"}]}}`, "status")},
		{"its finalizer", "", patch(`{"metadata":{"finalizers":["` + resourcev1.Finalizer + `"]}}`)},
		{"an allocation", "", patch(`{"status":{"allocation":{},"reservedFor":[{"resource":"pods","name":"pending","uid":"a"}]}}`, "status")},
		{"a claim of an extended resource", "", create(ofExtended)},
		{"the end of one", "", remove("made")},
	}
}

func (e *env) volumeWrites(scheduler kubernetes.Interface) []attempt {
	volume := func(name, patch string) func() error {
		return func() error {
			_, err := scheduler.CoreV1().PersistentVolumes().Patch(e.ctx, name, types.MergePatchType, []byte(patch), dryPatch)
			return err
		}
	}
	claim := func(patch string) func() error {
		return func() error {
			_, err := scheduler.CoreV1().PersistentVolumeClaims(namespace).Patch(e.ctx, "claim", types.MergePatchType, []byte(patch), dryPatch)
			return err
		}
	}
	const spec, meta, mine = "if the volume is for none yet", "may change the annotation", `"claimRef":{"kind":"PersistentVolumeClaim","namespace":"default","name":"claim"}`
	return []attempt{
		{"another claim's volume", spec, volume("taken", `{"spec":{`+mine+`}}`)},
		{"a new claim of the same name", spec, volume("taken", `{"spec":{"claimRef":{"uid":"b"}}}`)},
		{"what becomes of a volume", spec, volume("free", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)},
		{"a volume's label", meta, volume("free", `{"metadata":{"labels":{"a":"b"}}}`)},
		{"a volume's finalizers", meta, volume("free", `{"metadata":{"finalizers":null}}`)},
		{"a claim's annotation", meta, claim(`{"metadata":{"annotations":{"a":"b"}}}`)},
		{"a claim", "may neither create nor delete", func() error {
			return scheduler.CoreV1().PersistentVolumeClaims(namespace).Delete(e.ctx, "claim", dryDelete)
		}},
		{"a free volume", "", volume("free", `{"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":"yes"}},"spec":{`+mine+`}}`)},
		{"a claim's node", "", claim(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"a"}}}`)},
	}
}

func (e *env) evictionWrites(scheduler kubernetes.Interface) []attempt {
	evict := func(namespace string, options metav1.DeleteOptions) func() error {
		return func() error {
			options.DryRun = dryRun
			return scheduler.PolicyV1().Evictions(namespace).Evict(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bound"}, DeleteOptions: &options})
		}
	}
	seen := metav1.Preconditions{UID: &must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, "bound", metav1.GetOptions{}))(e).UID}
	return []attempt{
		{"a pod of kube-system", "may evict no pods of this namespace", evict(metav1.NamespaceSystem, metav1.DeleteOptions{Preconditions: &seen})},
		{"whatever pod has the name", "only the very pod", evict(namespace, metav1.DeleteOptions{})},
		{"at once", "only the very pod", evict(namespace, metav1.DeleteOptions{Preconditions: &seen, GracePeriodSeconds: new(int64)})},
		{"without its dependents", "only the very pod", evict(namespace, metav1.DeleteOptions{Preconditions: &seen, PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)})},
		{"a pod", "", evict(namespace, metav1.DeleteOptions{Preconditions: &seen})},
	}
}

func (e *env) leaseWrites(controller kubernetes.Interface) []attempt {
	lease := func(namespace, name string) func() error {
		return func() error { return createLease(e, controller, namespace, name) }
	}
	const leases = "may have the lease pool-priority-system/pool-priority-controller only"
	return []attempt{
		{"the scheduler's lease", leases, lease(devcluster.SchedulerNamespace, "pool-priority-scheduler")},
		{"the default scheduler's lease", leases, lease(metav1.NamespaceSystem, "kube-scheduler")},
		{"its own lease", "", lease(devcluster.SchedulerNamespace, "pool-priority-controller")},
	}
}

const volumes = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: NAME}
provisioner: PROVISIONER
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec: {storageClassName: CLASS, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /a}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: default}
spec: {storageClassName: NAME, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default, labels: {app: NAME}}
spec:
  schedulerName: pool-priority-scheduler
  nodeSelector: {kubernetes.io/os: linux}
  containers: [{name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]
`

// bindsVolumes checks that the scheduler gives a claim a free volume, and asks for a new volume where there is none.
func (e *env) bindsVolumes() {
	e.Helper()
	for name, replace := range map[string][]string{
		"free-volume": {"PROVISIONER", "kubernetes.io/no-provisioner", "CLASS", "free-volume", "NAME", "free-volume"},
		"new-volume":  {"PROVISIONER", "example.com/nobody", "CLASS", "another", "NAME", "new-volume"},
	} {
		if out, err := e.kubectl("", strings.NewReplacer(replace...).Replace(volumes), "apply", "-f", "-"); err != nil {
			e.Fatal(name, out)
		}
	}
	e.Eventually(20*time.Second, func() string {
		bound := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, "free-volume", metav1.GetOptions{}))(e)
		claim := must.Get(e.Client.CoreV1().PersistentVolumeClaims(namespace).Get(e.ctx, "new-volume", metav1.GetOptions{}))(e)
		if node := claim.Annotations["volume.kubernetes.io/selected-node"]; bound.Spec.NodeName == "" || node == "" {
			return fmt.Sprintf("the pod is on %q: %v; the new volume is for node %q", bound.Spec.NodeName, bound.Status.Conditions, node)
		}
		return ""
	})
}

// TestWithoutVolumes: with the chart's volumes: false, the scheduler starts and binds pods. No request is forbidden.
func TestWithoutVolumes(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	out, err := tool(t, "helm", "template", "pool-priority", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4", ourImage, "--set=volumes=false", "--show-only", "templates/rbac.yaml")
	if err != nil {
		t.Fatal(out)
	}
	e.rbac = kustomization(t, "resources: [rbac.yaml, namespace.yaml]\n", map[string]string{"rbac.yaml": out, "namespace.yaml": string(must.ReadFile(t, rbac+"/namespace.yaml"))})
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	e.Create(suite.Deployment("web", 1, "100m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 1})
}
