package gatekeeper

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

// TestKindOf: pods that the autoscaler and the gate treat alike have the same autoscaler key. The key is empty for pods
// whose possible nodes depend on other objects.
func TestKindOf(t *testing.T) {
	w := newWorld(t)
	plain := func() *v1.Pod {
		p := pod("p")
		p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("1")}}}}
		p.Spec.Tolerations = []v1.Toleration{{Key: "a", Operator: v1.TolerationOpExists}}
		return p
	}
	const (
		same  = "the same"
		other = "another"
		none  = "none"
	)
	podTerm := []v1.PodAffinityTerm{{TopologyKey: v1.LabelHostname}}
	for _, tc := range []struct {
		name   string
		change func(*v1.Pod)
		want   string
	}{
		{"another name", func(p *v1.Pod) { p.Name, p.UID = "q", "q" }, same},
		{"another image, label and annotation", func(p *v1.Pod) {
			p.Spec.Containers[0].Image, p.Labels, p.Annotations = "i", map[string]string{"app": "x"}, map[string]string{"a": "b"}
		}, same},
		{"other requests", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2") }, other},
		{"requests for a device", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1") }, other},
		{"an init container that requests more", func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("2")}}}}
		}, other},
		{"a node selector", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }, other},
		{"a node affinity", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "a", Operator: v1.NodeSelectorOpExists}}}}}}}
		}, other},
		{"another toleration", func(p *v1.Pod) { p.Spec.Tolerations[0].Key = "b" }, other},
		{"a priority", func(p *v1.Pod) { p.Spec.Priority = ptr.To(int32(-11)) }, other},
		{"a host port", func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}} }, other},
		{"a port", func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80}} }, same},
		{"an annotation that the gate reads", func(p *v1.Pod) { p.Annotations = map[string]string{pool.BurstAnnotation: "Always"} }, other},
		{"an annotation that the autoscaler reads", func(p *v1.Pod) { p.Annotations = map[string]string{gate.DelayAnnotation: "10m"} }, other},
		{"what a virtual kubelet cannot run", func(p *v1.Pod) { p.Spec.HostNetwork = true }, other},
		{"a spread that is preferred", func(p *v1.Pod) {
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.ScheduleAnyway}}
		}, same},
		{"a pod affinity that is preferred", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 1}}}}
		}, same},

		{"a spread that is required", func(p *v1.Pod) {
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{WhenUnsatisfiable: v1.ScheduleAnyway}, {WhenUnsatisfiable: v1.DoNotSchedule}}
		}, none},
		{"a pod affinity that is required", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: podTerm}}
		}, none},
		{"a pod anti-affinity that is required", func(p *v1.Pod) {
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: podTerm}}
		}, none},
		{"a claim", func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		}, none},
		{"an ephemeral volume", func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		}, none},
		{"a resource claim", func(p *v1.Pod) { p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c"}} }, none},
		{"a pod group", func(p *v1.Pod) { p.Labels = map[string]string{"scheduling.x-k8s.io/pod-group": "g"} }, none},
		{"a workload", compat.JoinPodGroup, none},
		{"a ProvisioningRequest", func(p *v1.Pod) {
			p.Annotations = map[string]string{"autoscaling.x-k8s.io/consume-provisioning-request": "r"}
		}, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := plain()
			tc.change(changed)
			got := other
			switch w.autoscalerKey(changed) {
			case "":
				got = none
			case w.autoscalerKey(plain()):
				got = same
			}
			if got != tc.want {
				t.Errorf("it is of %s kind, want %s", got, tc.want)
			}
		})
	}
}

// kindsWorld is a world with a fixed view. One node group of the first pool can grow, but does not.
type kindsWorld struct {
	*world
	view *nodegroups.View
}

// newKindsWorld returns a kindsWorld that does not run.
func newKindsWorld(t *testing.T) *kindsWorld {
	w := &kindsWorld{world: newWorld(t), view: &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}}
	w.view.Pools[0].Groups = []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{Name: "a", State: nodegroups.CanGrow}}}
	w.view.Pools[1].Groups = []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Full}}}
	w.Assume(w.view)
	return w
}

// opens reports whether the gate is open for a pod with this name and CPU request. The CPU request determines the pod's
// key. If the gate is closed, the pod is held.
func (w *kindsWorld) opens(name, cpu string) bool {
	p := pod(name)
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse(cpu)}}}}
	p.CreationTimestamp = metav1.NewTime(w.clock.Now())
	if name != "deleted" {
		must.NoError(w.TB, w.config.Informers.Core().V1().Pods().Informer().GetIndexer().Add(p))
	}
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	if !d.Burst[2].Open {
		w.Gatekeeper.Failed(p, true)
		w.Hold(klog.Background(), p, &d, nil, strings.HasPrefix(name, "repelled"))
	}
	return d.Burst[2].Open
}

// step advances the clock, lets the autoscaler finish a loop, and decides again for all held pods.
func (w *kindsWorld) step(d time.Duration) {
	w.clock.Step(d)
	w.view.Pools[0].ScannedBefore = w.clock.Now()
	w.reconsider(w.Context(), false)
	w.SendBatch(klog.Background())
}

func (w *kindsWorld) check(name, cpu string, want bool) {
	w.Helper()
	if got := w.opens(name, cpu); got != want {
		w.Errorf("pod %s: open %v, want %v", name, got, want)
	}
}

// TestKinds: if a node group declines a pod, it also counts as having declined other pods with the same key, unless
// other pods keep the pod off nodes. From time to time, one pod waits on its own clock as the trial.
func TestKinds(t *testing.T) {
	w := newKindsWorld(t)
	w.check("repelled", "3", false)
	w.check("first", "1", false)
	w.step(59 * time.Second)
	w.check("early", "1", false)
	w.step(time.Second) // the first pod has waited for a minute
	if !w.wasActivated("first") {
		t.Error("the first pod is not requeued")
	}
	w.check("second", "1", true)
	w.check("repelled", "3", true)
	w.check("like it, and not repelled", "3", false)
	w.check("of another kind", "2", false)

	w.clock.Step(gate.TrialAfter)
	w.check("believes", "1", true)
	w.clock.Step(time.Second)
	w.check("repelled, too", "1", false) // it waits on its own clock, and does not stay the probe
	w.check("deleted", "1", false)       // its cycle ends after it, and it does not stay the probe
	w.check("probe", "1", false)
	w.forget("probe")
	w.check("another probe", "1", false)
	w.check("beside it", "1", true)
}
