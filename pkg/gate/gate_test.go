package gate

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// declining returns a Capacity with the declineGrace.
func declining(grace time.Duration) configv1.Capacity {
	return configv1.Capacity{DeclineGrace: &metav1.Duration{Duration: grace}}
}

// With lasting as its staleAfter, a rule gives pods so much credit that it does not end. Only TestCredit gives less.
const lasting = 1000 * time.Hour

// rule returns a Rule for the pools user, system and aci, with an unknownGrace of 15 minutes and a declineGrace of 5
// minutes. template is the nodeTemplate of user.
func rule(t *testing.T, template *configv1.NodeTemplate) *Rule {
	t.Helper()
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Capacity: declining(5 * time.Minute), Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user"), NodeTemplate: template, Capacity: &configv1.PoolCapacity{ProvisionGrace: &metav1.Duration{Duration: 12 * time.Minute}}},
		{Name: "system", NodeSelector: matching("mode", "system")},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{MakeRoom: configv1.MakeRoom{BelowPriority: new(int32)}}},
	}, Orders: []configv1.NamedOrder{{Name: "vms", Pools: []string{"system"}}, {Name: "all", Pools: []string{"system", "aci"}}}})
	must.NoError(t, err)
	return &Rule{Pools: pools, UnknownGrace: 15 * time.Minute, StaleAfter: lasting}
}

// in returns a pool with one node group, which has been in the state for the given time and has never been active.
func in(state nodegroups.State, since time.Duration) nodegroups.Pool {
	return of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: state}, Since: ago(since)})
}

// of returns a pool with the groups.
func of(groups ...nodegroups.Group) nodegroups.Pool {
	for i := range groups {
		groups[i].Reason = nodegroups.Reason{Code: "Test", Sentence: "as the test says", Detail: "some numbers"}
	}
	return nodegroups.Pool{State: groups[0].State, Groups: groups}
}

// looked returns the pool as it is after the autoscaler has considered all pods in enough loops. The last activity of
// its groups was the given time ago.
func looked(p nodegroups.Pool, moved time.Duration) nodegroups.Pool {
	p.ScannedBefore = now
	p.Groups = slices.Clone(p.Groups)
	for i := range p.Groups {
		p.Groups[i].LastActivity = ago(moved)
	}
	return p
}

func TestDecide(t *testing.T) {
	const minute = time.Minute
	full, canGrow, growing, unknown := in(nodegroups.Full, 0), in(nodegroups.CanGrow, 0), in(nodegroups.Growing, 0), in(nodegroups.Unknown, minute)
	growingUntil := of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Growing, Until: now.Add(minute)}})
	came := looked(canGrow, time.Hour)
	came.Outages = []nodegroups.Outage{{From: ago(2 * time.Hour), To: ago(minute)}}
	away := looked(canGrow, time.Hour)
	away.Outages = []nodegroups.Outage{{From: ago(2 * minute)}}
	uncounted := in(nodegroups.CanGrow, 0)
	uncounted.Uncounted = true
	looping := looked(canGrow, time.Hour)
	looping.ScannedBefore = ago(5 * minute)
	skipped := looked(of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow, BackingOff: true, Until: now.Add(minute)}}), time.Hour)
	patient := of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow, MinWait: 10 * minute}})
	patient.Uncounted = true
	byEvent := of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow, MinWait: 10 * minute, ByEvent: true}})
	byEvent.Uncounted = true
	foreign := of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow, MinWait: 10 * minute, Foreign: true}})
	foreign.Outages = []nodegroups.Outage{{From: ago(time.Hour)}}
	booked := map[string]string{"autoscaling.x-k8s.io/consume-provisioning-request": "request"}
	for _, tc := range []struct {
		name         string
		user, system nodegroups.Pool
		unschedFor   time.Duration
		stopped      bool          // the pod waits for something other than resources
		ignored      time.Duration // ago
		declined     time.Duration // how long ago the first pool declined another pod with the same key
		refused      time.Duration // how long ago Karpenter wrote that it cannot place the pod
		priority     int32
		annotations  map[string]string
		gang         string
		room         time.Duration // how long the pod still waits for old pods of its rollout
		wantOpen     bool
		wantCode     string
		wantUntil    time.Duration // from now; 0: never
	}{
		{name: "all full, and old pods make room", user: full, system: full, room: minute, wantCode: "RolloutTerminating", wantUntil: minute},
		{name: "all full, and old pods made room until now", user: full, system: full, room: -1, wantOpen: true, wantCode: "Open"},
		{name: "old pods make room, and a pool can grow", user: full, system: canGrow, room: minute, wantCode: "PoolCanGrow"},
		{name: "all full", user: full, system: full, wantOpen: true, wantCode: "Open"},
		{name: "the first can grow", user: canGrow, system: full, wantCode: "PoolCanGrow"},
		{name: "the second can grow", user: full, system: canGrow, wantCode: "PoolCanGrow"},
		{name: "one is growing", user: growing, system: full, wantCode: "PoolGrowing"},
		{name: "one is growing, and will be late at some time", user: growingUntil, system: full, wantCode: "PoolGrowing", wantUntil: minute},
		{name: "the first pool that holds gives the reason", user: growing, system: canGrow, wantCode: "PoolGrowing"},
		{name: "unknown within its grace", user: unknown, system: full, wantCode: "PoolUnknown", wantUntil: 14 * minute},
		{name: "unknown for its grace counts as full", user: in(nodegroups.Unknown, 15*minute), system: full, wantOpen: true, wantCode: "Open"},
		{name: "unknown does not hide one that can grow", user: in(nodegroups.Unknown, time.Hour), system: canGrow, wantCode: "PoolCanGrow"},
		{name: "not declined yet", user: looked(canGrow, time.Hour), system: full, unschedFor: 4 * minute, wantCode: "PoolCanGrow", wantUntil: minute},
		{name: "declined", user: looked(canGrow, time.Hour), system: full, unschedFor: 5 * minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: the pod was tried only just now", user: looked(canGrow, time.Hour), system: full, wantCode: "PoolCanGrow"},
		{name: "not declined: the status came back only now", user: came, system: full, unschedFor: time.Hour, wantCode: "PoolCanGrow", wantUntil: 4 * minute},
		{name: "not declined: the pool grew lately", user: looked(canGrow, minute), system: full, unschedFor: time.Hour, wantCode: "PoolCanGrow", wantUntil: 4 * minute},
		{name: "not declined: the source has no status to be fresh", user: canGrow, system: full, unschedFor: time.Hour, wantCode: "PoolCanGrow"},
		{name: "declined by one pool is not declined by the other", user: looked(canGrow, time.Hour), system: looked(canGrow, minute), unschedFor: time.Hour, wantCode: "PoolCanGrow", wantUntil: 4 * minute},
		{name: "not declined: four loops have not ended yet", user: looping, system: full, unschedFor: 5 * minute, wantCode: "PoolCanGrow"},
		{name: "declined: four loops have", user: looping, system: full, unschedFor: 5*minute + 1, wantOpen: true, wantCode: "Open"},
		{name: "not declined: the autoscaler is away", user: away, system: full, unschedFor: 6 * minute, wantCode: "PoolCanGrow"},
		{name: "declined before the autoscaler went away", user: away, system: full, unschedFor: 7 * minute, wantOpen: true, wantCode: "Open"},
		{name: "declined by a source that tells no loops", user: uncounted, system: full, unschedFor: 5 * minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: the source needs longer", user: patient, system: full, unschedFor: 5 * minute, wantCode: "PoolCanGrow", wantUntil: 5 * minute},
		{name: "declined by one that needs longer", user: patient, system: full, unschedFor: 10 * minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: no event on the pod", user: byEvent, system: full, unschedFor: 9 * minute, wantCode: "PoolCanGrow", wantUntil: minute},
		{name: "declined by silence", user: byEvent, system: full, unschedFor: 10 * minute, wantOpen: true, wantCode: "Open"},
		{name: "declined after an event on the pod", user: byEvent, system: full, unschedFor: 5 * minute, refused: 5 * minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: an event, and too short a wait", user: byEvent, system: full, unschedFor: 4 * minute, refused: minute, wantCode: "PoolCanGrow", wantUntil: minute},
		{name: "not declined: the event is older than the wait", user: byEvent, system: full, unschedFor: 5 * minute, refused: 6 * minute, wantCode: "PoolCanGrow", wantUntil: 5 * minute},
		{name: "not declined: an event on another of the kind", user: byEvent, system: full, declined: minute, wantCode: "PoolCanGrow"},
		{name: "not declined: the group is another autoscaler's, and too short a wait", user: foreign, system: full, unschedFor: 9 * minute, wantCode: "PoolCanGrow", wantUntil: minute},
		{name: "declined: the group is another autoscaler's, and the pool's is away", user: foreign, system: full, unschedFor: 10 * minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: another autoscaler's group declined another of the kind", user: foreign, system: full, declined: minute, wantCode: "PoolCanGrow"},
		{name: "not declined: the other pool was given up lately", user: looked(full, minute), system: looked(canGrow, time.Hour), unschedFor: time.Hour, wantCode: "PoolCanGrow", wantUntil: 4 * minute},
		{name: "not declined: the pod waits for something else", user: looked(canGrow, time.Hour), system: full, unschedFor: time.Hour, stopped: true, wantCode: "PoolCanGrow"},
		{name: "not declined: the pod was nominated", user: looked(canGrow, time.Hour), system: full, unschedFor: time.Hour, ignored: minute, wantCode: "PoolCanGrow", wantUntil: 4 * minute},
		{name: "not declined: the autoscaler does not look at it yet", user: looked(canGrow, time.Hour), system: full, unschedFor: time.Hour, annotations: map[string]string{DelayAnnotation: "2h"}, wantCode: "PoolCanGrow"},
		{name: "not declined: the autoscaler never looks at it", user: looked(canGrow, time.Hour), system: full, unschedFor: time.Hour, priority: -11, annotations: map[string]string{pool.BurstAnnotation: pool.BurstBelowPriority}, wantCode: "PoolCanGrow"},
		{name: "not declined: a ProvisioningRequest may still get it nodes", user: looked(canGrow, time.Hour), system: full, unschedFor: 11 * minute, annotations: booked, wantCode: "ProvisioningRequest", wantUntil: minute},
		{name: "the same with the old annotation", user: looked(canGrow, time.Hour), system: full, unschedFor: 11 * minute,
			annotations: map[string]string{"cluster-autoscaler.kubernetes.io/consume-provisioning-request": ""}, wantCode: "ProvisioningRequest", wantUntil: minute},
		{name: "declined: the ProvisioningRequest got it none for provisionGrace", user: looked(canGrow, time.Hour), system: full, unschedFor: 12 * minute, annotations: booked, wantOpen: true, wantCode: "Open"},
		{name: "not declined: the request got nodes lately", user: looked(canGrow, minute), system: full, unschedFor: time.Hour, annotations: booked, wantCode: "ProvisioningRequest", wantUntil: 11 * minute},
		{name: "not declined: four loops have not ended since the request's time began", user: canGrow, system: full, unschedFor: time.Hour, annotations: booked, wantCode: "ProvisioningRequest"},
		{name: "no autoscaler that reads ProvisioningRequests", user: uncounted, system: full, unschedFor: 5 * minute, annotations: booked, wantOpen: true, wantCode: "Open"},
		{name: "no pool can grow, whatever the request", user: full, system: full, unschedFor: minute, annotations: booked, wantOpen: true, wantCode: "Open"},
		{name: "declined before by another of the kind", user: looked(canGrow, time.Hour), system: full, declined: minute, wantOpen: true, wantCode: "Open"},
		{name: "not declined: it is skipped for a while", user: skipped, system: full, unschedFor: time.Hour, wantCode: "PoolCanGrow", wantUntil: minute},
		{name: "what was declined before is over: something happened since", user: looked(canGrow, minute), system: full, declined: 90 * time.Second, wantCode: "PoolCanGrow"},
		{name: "what was declined before is over: it was touched since", user: looked(canGrow, time.Hour), system: full, declined: 3 * time.Hour, wantCode: "PoolCanGrow"},
		{name: "the earliest change counts", user: looked(canGrow, time.Hour), system: unknown, unschedFor: 3 * minute, wantCode: "PoolCanGrow", wantUntil: 2 * minute},
		{name: "opted out", user: full, system: full, annotations: map[string]string{pool.BurstAnnotation: pool.BurstNever}, wantCode: "OptedOut"},
		{name: "an unknown value opts out", user: full, system: full, annotations: map[string]string{pool.BurstAnnotation: "never"}, wantCode: "UnknownBurstValue"},
		{name: "others preempt it before they burst", user: full, system: full, priority: -1, wantCode: "BelowPriority"},
		{name: "others preempt it, and it may burst", user: full, system: full, priority: -1, annotations: map[string]string{pool.BurstAnnotation: pool.BurstBelowPriority}, wantOpen: true, wantCode: "Open"},
		{name: "Always is not enough", user: full, system: full, priority: -1, annotations: map[string]string{pool.BurstAnnotation: pool.BurstAlways}, wantCode: "BelowPriority"},
		{name: "an order that leaves out the pool", user: full, system: full, annotations: map[string]string{pool.OrderAnnotation: "vms"}, wantCode: "NotInOrder"},
		{name: "an order with the pool", user: full, system: full, annotations: map[string]string{pool.OrderAnnotation: "all"}, wantOpen: true, wantCode: "Open"},
		{name: "any earlier pool holds it, whatever the order", user: looked(canGrow, minute), system: full, annotations: map[string]string{pool.OrderAnnotation: "all"}, wantCode: "PoolCanGrow"},
		{name: "an unknown order", user: full, system: full, annotations: map[string]string{pool.OrderAnnotation: "typo"}, wantCode: "UnknownOrder"},
		{name: "a pod of a gang", user: full, system: full, gang: "ring", wantCode: "GroupNotHeld"},
		{name: "a pod of a gang may not ask for it", user: full, system: full, gang: "ring", annotations: map[string]string{pool.BurstAnnotation: pool.BurstAlways}, wantCode: "GroupNotHeld"},
		{name: "a pod of a gang, and a pool can grow", user: canGrow, system: full, gang: "ring", wantCode: "GroupNotHeld"},
		{name: "an empty value says nothing", user: full, system: full, annotations: map[string]string{pool.BurstAnnotation: ""}, wantOpen: true, wantCode: "Open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := Request{Gang: tc.gang, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations, CreationTimestamp: metav1.NewTime(ago(time.Hour))},
				Spec: corev1.PodSpec{Priority: &tc.priority}}}
			if tc.unschedFor > 0 {
				request.UnschedulableSince, request.NoRoomSince = ago(tc.unschedFor), ago(tc.unschedFor)
			}
			if tc.stopped {
				request.NoRoomSince = time.Time{}
			}
			if tc.ignored > 0 {
				request.IgnoredUntil = ago(tc.ignored)
			}
			if tc.declined > 0 {
				request.Declined = knowing(DeclineKey(0, ""), tc.declined)
				tc.user.Groups[0].LastChanged = ago(2 * time.Hour)
			}
			if tc.refused > 0 {
				request.RefusedAt = func(*corev1.Pod) time.Time { return ago(tc.refused) }
			}
			if tc.room != 0 {
				request.Wait = Wait{Reason: ReasonRolloutTerminating, Until: now.Add(max(tc.room, 0))}
			}
			view := &nodegroups.View{Pools: []nodegroups.Pool{tc.user, tc.system, {}}}
			r := rule(t, nil)
			decision := r.Decide(request, view, now)
			got := decision.Burst[2]
			if got.Open != tc.wantOpen || got.Reason.Code != tc.wantCode {
				t.Errorf("Decide() = %+v, want open %v by %s", got, tc.wantOpen, tc.wantCode)
			}
			if got.Reason.Sentence == "" || strings.Contains(got.Reason.Sentence, "some numbers") {
				t.Errorf("the sentence must be there and static: %q", got.Reason.Sentence)
			}
			var wantUntil time.Time
			if tc.wantUntil > 0 {
				wantUntil = now.Add(tc.wantUntil)
			}
			if got.Until.After(now.Add(lasting / 2)) {
				got.Until = time.Time{} // it was the end of the credit
			}
			if !got.Until.Equal(wantUntil) {
				t.Errorf("Until = %v, want %v", got.Until, wantUntil)
			}
			if tc.wantUntil > 0 && !tc.wantOpen && len(tc.annotations) == 0 {
				// Just before Until the gate is still closed, so that a requeue at Until is not too late.
				if before := r.Decide(request, view, wantUntil.Add(-time.Millisecond)); before.Burst[2].Open {
					t.Error("the gate opened before Until")
				}
			}
			for i, v := range decision.Regular {
				if i == 0 && len(v.Declined) > 0 && (tc.user.Groups[0].ByEvent || tc.user.Groups[0].Foreign) {
					t.Error("the decline would be remembered for other pods")
				}
				if v.Reason.Code == "" {
					t.Errorf("no reason for pool %d", i)
				}
			}
		})
	}
}

func TestApplicable(t *testing.T) {
	shape := func(labels map[string]string, taints ...corev1.Taint) nodegroups.NodeTemplate {
		return nodegroups.NodeTemplate{Labels: labels, Taints: taints, Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}}
	}
	ssd := shape(map[string]string{"mode": "user", "disk": "ssd", "generation": "5"})
	hdd := shape(map[string]string{"mode": "user", "disk": "hdd"})
	dedicated := shape(map[string]string{"mode": "user"}, corev1.Taint{Key: "dedicated", Value: "special", Effect: corev1.TaintEffectNoSchedule})
	booting := nodegroups.NodeTemplate{Labels: map[string]string{"mode": "user"}}
	selector := func(kv map[string]string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = kv }
	}
	affinity := func(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	term := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	field := func(op corev1.NodeSelectorOperator, name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}}
	}
	requests := func(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(quantity)}}}}
		}
	}
	tolerates := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	template := &configv1.NodeTemplate{
		Labels:      map[string]string{"disk": "nvme"},
		Taints:      []corev1.Taint{{Key: "dedicated", Value: "special", Effect: corev1.TaintEffectNoSchedule}},
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")},
	}
	for _, tc := range []struct {
		name     string
		shapes   []nodegroups.NodeTemplate
		template *configv1.NodeTemplate
		pod      func(*corev1.Pod)
		want     bool
	}{
		{"no constraints", []nodegroups.NodeTemplate{ssd}, nil, nil, true},
		{"selector matches", []nodegroups.NodeTemplate{ssd}, nil, selector(map[string]string{"disk": "ssd"}), true},
		{"selector contradicts", []nodegroups.NodeTemplate{ssd}, nil, selector(map[string]string{"disk": "hdd"}), false},
		{"one kind of node is enough", []nodegroups.NodeTemplate{ssd, hdd}, nil, selector(map[string]string{"disk": "hdd"}), true},
		{"selector asks for a label that the nodes lack", []nodegroups.NodeTemplate{ssd}, nil, selector(map[string]string{"gpu": "yes"}), false},
		{"a zone: new nodes may be elsewhere", []nodegroups.NodeTemplate{ssd}, nil, selector(map[string]string{corev1.LabelTopologyZone: "3"}), true},
		{"a host name: no new node has it", []nodegroups.NodeTemplate{ssd}, nil, selector(map[string]string{corev1.LabelHostname: "node-1"}), false},
		{"any host name but one", []nodegroups.NodeTemplate{ssd}, nil, affinity(term(corev1.LabelHostname, corev1.NodeSelectorOpNotIn, "node-1")), true},
		{"affinity: one of two terms", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("disk", corev1.NodeSelectorOpIn, "hdd"), term("disk", corev1.NodeSelectorOpIn, "ssd")), true},
		{"affinity: not in", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("disk", corev1.NodeSelectorOpNotIn, "ssd")), false},
		{"affinity: not in, label absent", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("gpu", corev1.NodeSelectorOpNotIn, "yes")), true},
		{"affinity: exists", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("gpu", corev1.NodeSelectorOpExists)), false},
		{"affinity: does not exist", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("gpu", corev1.NodeSelectorOpDoesNotExist)), true},
		{"affinity: greater than", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("generation", corev1.NodeSelectorOpGt, "4")), true},
		{"affinity: greater than the same", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("generation", corev1.NodeSelectorOpGt, "5")), false},
		{"affinity: less than", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("generation", corev1.NodeSelectorOpLt, "5")), false},
		{"affinity: less than nothing", []nodegroups.NodeTemplate{hdd}, nil, affinity(term("generation", corev1.NodeSelectorOpLt, "5")), false},
		{"affinity: an empty term matches nothing", []nodegroups.NodeTemplate{ssd}, nil, affinity(corev1.NodeSelectorTerm{}), false},
		{"affinity: the virtual node only", []nodegroups.NodeTemplate{ssd}, nil, affinity(term("type", corev1.NodeSelectorOpIn, "virtual-kubelet")), false},
		{"a node by its name", []nodegroups.NodeTemplate{ssd}, nil, affinity(field(corev1.NodeSelectorOpIn, "node-1")), false},
		{"not a node by its name", []nodegroups.NodeTemplate{ssd}, nil, affinity(field(corev1.NodeSelectorOpNotIn, "node-1")), true},
		{"taint untolerated", []nodegroups.NodeTemplate{dedicated}, nil, nil, false},
		{"taint tolerated", []nodegroups.NodeTemplate{dedicated}, nil, tolerates, true},
		{"too large for any node", []nodegroups.NodeTemplate{ssd}, nil, requests(corev1.ResourceCPU, "3"), false},
		{"as large as a node", []nodegroups.NodeTemplate{ssd}, nil, requests(corev1.ResourceCPU, "2"), true},
		{"a device that the nodes lack", []nodegroups.NodeTemplate{ssd}, nil, requests("nvidia.com/gpu", "1"), false},
		{"storage that the nodes do not report", []nodegroups.NodeTemplate{ssd}, nil, requests(corev1.ResourceEphemeralStorage, "1Gi"), true},
		{"a node that has not reported its size", []nodegroups.NodeTemplate{booting}, nil, requests(corev1.ResourceCPU, "64"), true},
		{"empty pool: anything may fit", nil, nil, selector(map[string]string{"disk": "ssd"}), true},
		{"empty pool: its own selector is known", nil, nil, selector(map[string]string{"mode": "system"}), false},
		{"empty pool with a template: label", nil, template, func(p *corev1.Pod) { tolerates(p); selector(map[string]string{"disk": "nvme", "mode": "user"})(p) }, true},
		{"empty pool with a template: another label", nil, template, func(p *corev1.Pod) { tolerates(p); selector(map[string]string{"disk": "ssd"})(p) }, false},
		{"empty pool with a template: linux is understood", nil, template, func(p *corev1.Pod) { tolerates(p); selector(map[string]string{corev1.LabelOSStable: "linux"})(p) }, true},
		{"empty pool with a template: taint", nil, template, nil, false},
		{"empty pool with a template: size", nil, template, func(p *corev1.Pod) { tolerates(p); requests(corev1.ResourceCPU, "9")(p) }, false},
		{"a pool with nodes is not judged by its template", []nodegroups.NodeTemplate{ssd}, template, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pool.BurstAnnotation: pool.BurstAlways}}}
			if tc.pod != nil {
				tc.pod(pod)
			}
			r := rule(t, tc.template)
			user := in(nodegroups.CanGrow, 0)
			user.Groups[0].NodeTemplates = tc.shapes
			decision := r.Decide(Request{Pod: pod}, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
			got := decision.Regular[0]
			if !got.Open != tc.want {
				t.Errorf("the pool holds the gate: %v (%+v), want %v", !got.Open, got.Reason, tc.want)
			}
			if got.Open && (got.Reason.Code != "NotApplicable" || got.Reason.Detail == "") {
				t.Errorf("reason = %+v, want NotApplicable with a detail", got.Reason)
			}
			if decision.Burst[2].Open == tc.want {
				t.Errorf("gate open: %v", decision.Burst[2].Open)
			}
		})
	}
}

// TestEmptyGroups: a pool that may get other nodes than it has is not excluded because of the nodes that it has.
func TestEmptyGroups(t *testing.T) {
	user := in(nodegroups.CanGrow, 0)
	user.Groups[0].NodeTemplates = []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user", "agentpool": "a"}}}
	for _, tc := range []struct {
		stale    bool
		selector map[string]string
		want     bool
	}{
		{false, map[string]string{"agentpool": "b"}, false},
		{true, map[string]string{"agentpool": "b"}, true},
		{true, map[string]string{"mode": "system"}, false},
	} {
		user.Groups[0].Open = tc.stale
		decision := rule(t, nil).Decide(Request{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: tc.selector}}}, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
		if got := !decision.Regular[0].Open; got != tc.want {
			t.Errorf("orphaned %v, selector %v: the pool holds the gate: %v, want %v", tc.stale, tc.selector, got, tc.want)
		}
	}
}

func TestAsksForBurst(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	selector := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{}
			for i := 0; i < len(kv); i += 2 {
				p.Spec.NodeSelector[kv[i]] = kv[i+1]
			}
		}
	}
	affinity := func(terms ...[]corev1.NodeSelectorRequirement) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			required := &corev1.NodeSelector{}
			for _, term := range terms {
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: term})
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}
	}
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user")},
		{Name: "v2", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"os": "linux", "virtualization": "virtualnode2"}}, Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		want bool
	}{
		{"nothing", func(*corev1.Pod) {}, false},
		{"the virtual node by its type", selector("type", "virtual-kubelet"), true},
		{"the virtual node by its type, and more", selector("type", "virtual-kubelet", "kubernetes.io/role", "agent"), true},
		{"another type", selector("type", "metal"), false},
		{"one of the labels of the pool's selector", selector("os", "linux"), false},
		{"the other one: a node that is not linux would do too, for all that is known", selector("virtualization", "virtualnode2"), false},
		{"both", selector("os", "linux", "virtualization", "virtualnode2"), true},
		{"a regular pool", selector("mode", "user"), false},
		{"by affinity", affinity([]corev1.NodeSelectorRequirement{in("type", "virtual-kubelet")}), true},
		{"by affinity, or something else", affinity([]corev1.NodeSelectorRequirement{in("type", "virtual-kubelet")}, []corev1.NodeSelectorRequirement{in("agentpool", "agentpool")}), false},
		{"by affinity, either type", affinity([]corev1.NodeSelectorRequirement{in("type", "virtual-kubelet", "metal")}), false},
		{"anything but the virtual node", affinity([]corev1.NodeSelectorRequirement{{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}}}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			tc.pod(pod)
			r := &Rule{Pools: pools, UnknownGrace: time.Hour}
			// The regular pool has no nodes and might fit any pod. The gate opens only for a pod that selects the burst
			// pool.
			decision := r.Decide(Request{Pod: pod}, &nodegroups.View{Pools: []nodegroups.Pool{of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow}}), {}}}, now)
			if got := decision.Burst[1]; got.Open != tc.want || tc.want && got.Reason.Code != "SelectedByPod" {
				t.Errorf("Decide() = %+v, want open %v", got, tc.want)
			}
		})
	}
}

// TestWaitLimitAndHoldLimit: no pod is held for longer by earlier pools. A budget may hold it for longer.
func TestWaitLimitAndHoldLimit(t *testing.T) {
	const minute = time.Minute
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Capacity: declining(2 * time.Hour), Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user")},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Limits: &configv1.BurstLimits{Pods: 10}, WaitLimit: metav1.Duration{Duration: minute}}},
	}})
	must.NoError(t, err)
	r := &Rule{Pools: pools, UnknownGrace: 2 * time.Hour, StaleAfter: lasting, HoldLimit: time.Hour}
	canGrow, full := in(nodegroups.CanGrow, 0), in(nodegroups.Full, 0)
	for _, tc := range []struct {
		name                  string
		user                  nodegroups.Pool
		unschedFor, noRoomFor time.Duration // 0: not known; below 0: inherited
		burst                 []aci.Use
		wantOpen              bool
		wantCode              string
		wantUntil             time.Duration
	}{
		{"within waitLimit", canGrow, 40 * time.Second, 0, nil, false, "PoolCanGrow", 20 * time.Second},
		{"at waitLimit", canGrow, minute, 0, nil, true, "WaitLimit", 0},
		{"not known to be unschedulable", canGrow, 0, 0, nil, false, "PoolCanGrow", 0},
		{"within holdLimit", canGrow, 0, 59 * minute, nil, false, "PoolCanGrow", minute},
		{"at holdLimit", canGrow, 0, time.Hour, nil, true, "HoldLimit", 0},
		{"a deleted pod has waited for some of it", canGrow, 0, -40 * minute, nil, false, "PoolCanGrow", 20 * minute},
		{"a pool that grows for others all the time", in(nodegroups.Growing, 0), 0, time.Hour, nil, true, "HoldLimit", 0},
		{"an autoscaler that comes and goes", in(nodegroups.Unknown, 0), 0, time.Hour, nil, true, "HoldLimit", 0},
		{"budget spent, and the pod has waited", canGrow, time.Hour, time.Hour, []aci.Use{{}, {Pods: 10}}, false, "BudgetSpent", 0},
		{"budget not looked at", full, 0, 0, nil, true, "Open", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := Request{Pod: &corev1.Pod{}, Burst: tc.burst}
			if tc.unschedFor > 0 {
				request.UnschedulableSince = ago(tc.unschedFor)
			}
			if tc.noRoomFor != 0 {
				request.NoRoomSince, request.Inherited = ago(max(0, tc.noRoomFor)), max(0, -tc.noRoomFor)
			}
			got := r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{tc.user, {}}}, now).Burst[1]
			var until time.Time
			if tc.wantUntil > 0 {
				until = now.Add(tc.wantUntil)
			}
			if got.Open != tc.wantOpen || got.Reason.Code != tc.wantCode || !got.Until.Equal(until) {
				t.Errorf("Decide() = %+v, want open %v by %s until %v", got, tc.wantOpen, tc.wantCode, until)
			}
		})
	}
}

// TestLimits: a pool with limits is full for pods that request more than the limits leave, and for no other pods.
func TestLimits(t *testing.T) {
	user := in(nodegroups.CanGrow, 0)
	user.Groups[0].Remaining = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), "nvidia.com/gpu": resource.MustParse("0")}
	asking := func(requests corev1.ResourceList) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pool.BurstAnnotation: pool.BurstAlways}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}}}
	}
	for _, tc := range []struct {
		name     string
		requests corev1.ResourceList
		open     bool
	}{
		{"nothing", nil, false},
		{"as much as is left", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}, false},
		{"more than is left", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2001m")}, true},
		{"something without a limit", corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ti")}, false},
		{"a device of which nothing is left", corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := rule(t, nil).Decide(Request{Pod: asking(tc.requests)}, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
			if d.Burst[2].Open != tc.open {
				t.Errorf("open: %v, want %v: %+v", d.Burst[2].Open, tc.open, d)
			}
			if tc.open && d.Regular[0].Reason.Code != reasonBeyondLimits.Code {
				t.Errorf("reason %+v", d.Regular[0].Reason)
			}
		})
	}
}

// TestNewNodes: what the source knows of new nodes determines which pods fit an empty pool. A nodeTemplate in the
// configuration has precedence.
func TestNewNodes(t *testing.T) {
	user := in(nodegroups.CanGrow, 0)
	user.Groups[0].New = &nodegroups.NewNodes{
		Choices: map[string][]string{"team": {"web"}, "size": {"4", "8"}, corev1.LabelTopologyZone: {"1", "2"}},
		Taints:  []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}},
	}
	tolerant := []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	affinity := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.PodSpec {
		return corev1.PodSpec{Tolerations: tolerant, Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}}}}}}
	}
	for _, tc := range []struct {
		name  string
		spec  corev1.PodSpec
		holds bool
	}{
		{"tolerates the taint", corev1.PodSpec{Tolerations: tolerant}, true},
		{"does not", corev1.PodSpec{}, false},
		{"selects a label that all have", corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{"team": "web"}}, true},
		{"selects another value of it", corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{"team": "db"}}, false},
		{"selects one of the values", corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{"size": "8"}}, true},
		{"selects a zone that is none of the values", corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{corev1.LabelTopologyZone: "3"}}, false},
		{"selects a label that is not known", corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{"other": "x"}}, true},
		{"wants more than one of the values", affinity("size", corev1.NodeSelectorOpGt, "4"), true},
		{"wants more than all of the values", affinity("size", corev1.NodeSelectorOpGt, "8"), false},
		{"wants none of the values", affinity("size", corev1.NodeSelectorOpNotIn, "4", "8"), false},
		{"wants the label not to be", affinity("size", corev1.NodeSelectorOpDoesNotExist), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := rule(t, nil).Decide(Request{Pod: &corev1.Pod{Spec: tc.spec}}, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
			if d.Regular[0].Open == tc.holds {
				t.Errorf("holds: %v, want %v: %+v", !d.Regular[0].Open, tc.holds, d.Regular[0])
			}
		})
	}
	configured := rule(t, &configv1.NodeTemplate{Labels: map[string]string{"team": "db"}})
	d := configured.Decide(Request{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"team": "db"}}}}, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
	if d.Regular[0].Open {
		t.Errorf("the configuration's template does not come first: %+v", d.Regular[0])
	}
}

// TestPlatformLabels: in an empty pool with a nodeTemplate, labels that the platform sets and the template does not name rule
// nothing out, and the old labels of the operating system and the architecture follow the new ones.
func TestPlatformLabels(t *testing.T) {
	r := rule(t, &configv1.NodeTemplate{Labels: map[string]string{"team": "web"}})
	view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.CanGrow, 0), in(nodegroups.Full, 0), {}}}
	for _, tc := range []struct {
		key, value string
		holds      bool
	}{
		{"beta.kubernetes.io/os", "linux", true},
		{"beta.kubernetes.io/os", "windows", false},
		{"beta.kubernetes.io/arch", "arm64", false},
		{"kubernetes.io/role", "agent", true},
		{"kubernetes.azure.com/scalesetpriority", "spot", true},
		{"kubernetes.azure.company/a", "b", false},
		{"team", "db", false},
		{"disk", "ssd", false},
	} {
		d := r.Decide(Request{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{tc.key: tc.value}}}}, view, now)
		if d.Regular[0].Open == tc.holds {
			t.Errorf("%s=%s: holds %v, want %v: %+v", tc.key, tc.value, !d.Regular[0].Open, tc.holds, d.Regular[0])
		}
	}
}

// TestGroups: whether a pod fits a node group depends on the nodes of that group only.
func TestGroups(t *testing.T) {
	gpuTaint := corev1.Taint{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
	general := func(state nodegroups.State) nodegroups.Group {
		return nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: "general", State: state}, LastActivity: ago(time.Hour), NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user"}}}}
	}
	gpu := func(state nodegroups.State, moved time.Duration) nodegroups.Group {
		return nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: "gpu", State: state}, LastActivity: ago(moved), NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user"}, Taints: []corev1.Taint{gpuTaint}}}}
	}
	empty := func(state nodegroups.State) nodegroups.Group {
		return nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: "orphaned", State: state, New: &nodegroups.NewNodes{Choices: map[string][]string{"agentpool": {"orphaned"}}}}, LastActivity: ago(time.Hour)}
	}
	starting := func(g nodegroups.Group) nodegroups.Group {
		g.Starting = 1
		return g
	}
	plain, tolerant := &corev1.Pod{}, &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "sku", Operator: corev1.TolerationOpExists}}}}
	elsewhere := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"agentpool": "general"}}}
	for _, tc := range []struct {
		name       string
		groups     []nodegroups.Group
		pod        *corev1.Pod
		unschedFor time.Duration
		wantOpen   bool
		wantCode   string // the code of the pool's verdict or, if the gate is closed, of the gate's verdict
	}{
		{"beside a tainted group that can grow a plain pod bursts at once", []nodegroups.Group{general(nodegroups.Full), gpu(nodegroups.CanGrow, 0)}, plain, 0, true, "Test"},
		{"one that tolerates the taint does not", []nodegroups.Group{general(nodegroups.Full), gpu(nodegroups.CanGrow, 0)}, tolerant, 0, false, "PoolCanGrow"},
		{"nor while the group grows", []nodegroups.Group{general(nodegroups.Full), gpu(nodegroups.Growing, 0)}, tolerant, 0, false, "PoolGrowing"},
		{"the group that grows gives the reason", []nodegroups.Group{general(nodegroups.CanGrow), gpu(nodegroups.Growing, 0)}, tolerant, 0, false, "PoolGrowing"},
		{"a group of which nothing is known might run it", []nodegroups.Group{general(nodegroups.Full), empty(nodegroups.CanGrow)}, plain, time.Minute, false, "PoolCanGrow"},
		{"until it is declined", []nodegroups.Group{general(nodegroups.Full), empty(nodegroups.CanGrow)}, plain, 5 * time.Minute, true, "Declined"},
		{"not while nodes are on their way that it can use", []nodegroups.Group{general(nodegroups.Growing), empty(nodegroups.CanGrow)}, plain, 5 * time.Minute, false, "PoolGrowing"},
		{"nor if it has been unknown for long whether more would come", []nodegroups.Group{starting(general(nodegroups.Unknown)), empty(nodegroups.CanGrow)}, plain, 5 * time.Minute, false, "PoolGrowing"},
		{"without them that counts as full", []nodegroups.Group{general(nodegroups.Unknown), empty(nodegroups.CanGrow)}, plain, 5 * time.Minute, true, "Declined"},
		{"unless the group's name tells", []nodegroups.Group{empty(nodegroups.CanGrow)}, elsewhere, 0, true, "NotApplicable"},
		{"what a group does that the pod cannot use touches nothing", []nodegroups.Group{general(nodegroups.CanGrow), gpu(nodegroups.Full, time.Second)}, plain, 5 * time.Minute, true, "Declined"},
		{"what another does that it can use does", []nodegroups.Group{general(nodegroups.CanGrow), gpu(nodegroups.Full, time.Second)}, tolerant, 5 * time.Minute, false, "PoolCanGrow"},
		{"nothing is known of the pool", nil, plain, time.Hour, false, "PoolUnknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range tc.groups {
				tc.groups[i].Reason.Code = "Test"
			}
			user := nodegroups.Pool{Groups: tc.groups}
			user.ScannedBefore = now
			request := Request{Pod: tc.pod}
			if tc.unschedFor > 0 {
				request.NoRoomSince = ago(tc.unschedFor)
			}
			d := rule(t, nil).Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{user, in(nodegroups.Full, 0), {}}}, now)
			code := d.Regular[0].Reason.Code
			if !d.Burst[2].Open {
				code = d.Burst[2].Reason.Code
			}
			if d.Burst[2].Open != tc.wantOpen || code != tc.wantCode {
				t.Errorf("Decide() = %+v, want open %v by %s", d, tc.wantOpen, tc.wantCode)
			}
			if declined := len(d.Regular[0].Declined) > 0; declined != (tc.wantCode == "Declined") {
				t.Errorf("declined by %v", d.Regular[0].Declined)
			}
		})
	}
}

// TestTwoAutoscalers: where AKS runs both autoscalers, each has a pool of the list and a taint on its nodes. A pod waits
// for the pool whose taint it tolerates. The event on a pod that tolerates neither names both taints.
func TestTwoAutoscalers(t *testing.T) {
	const keys = "autoscaling.azure.com/"
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "nap", NodeSelector: matching(nodegroups.KarpenterNodePoolLabel, "default"), Karpenter: &configv1.KarpenterSource{NodePool: "default"}},
		{Name: "cas", NodeSelector: matching("mode", "user"), ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
	}}
	configv1.SetDefaults_PoolPriorityArgs(args)
	must.NoError(t, configv1.Validate(args).ToAggregate())
	r := NewRule(args, must.Get(pool.ListOf(args))(t))
	nap, cas := in(nodegroups.CanGrow, 0), in(nodegroups.CanGrow, 0)
	nap.Groups[0].New = &nodegroups.NewNodes{Taints: []corev1.Taint{{Key: keys + "nap-block", Effect: corev1.TaintEffectNoSchedule}}}
	cas.Groups[0].NodeTemplates = []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user"}, Taints: []corev1.Taint{{Key: keys + "cas-block", Value: "true", Effect: corev1.TaintEffectNoSchedule}}}}
	for _, tc := range []struct {
		tolerates string // keys
		holds     string // pools
	}{{"nap-block", "nap"}, {"cas-block", "cas"}, {"nap-block cas-block", "nap cas"}, {"", ""}} {
		p := &corev1.Pod{}
		for _, key := range strings.Fields(tc.tolerates) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: keys + key, Operator: corev1.TolerationOpExists})
		}
		d := r.Decide(Request{Pod: p}, &nodegroups.View{Pools: []nodegroups.Pool{nap, cas, {}}}, now)
		var holds []string
		for i := range d.Regular {
			if d.Regular[i].Holds() {
				holds = append(holds, r.Pools.At(i).Name)
			}
		}
		if got := strings.Join(holds, " "); got != tc.holds || d.Burst[2].Open != (tc.holds == "") {
			t.Errorf("a pod that tolerates %q is held by %q, want %q: %+v", tc.tolerates, got, tc.holds, d.Burst[2])
		}
		const want = "(nap NotApplicable: no toleration of the taint autoscaling.azure.com/nap-block:NoSchedule, cas NotApplicable: no toleration of the taint autoscaling.azure.com/cas-block=true:NoSchedule)"
		if got := d.Message(r.Pools, 2, 0); tc.tolerates == "" && !strings.HasSuffix(got, want) {
			t.Errorf("the event is %q", got)
		}
	}
}

// TestVariedLabel: if the nodes have different values of a label, a new node may have any value, also the one that a
// pod selects.
func TestVariedLabel(t *testing.T) {
	group := &nodegroups.Group{NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"disk": "ssd"}, Varied: []string{"owner"}}}}
	p := &pool.Pool{Pool: configv1.Pool{NodeSelector: &metav1.LabelSelector{}}}
	for _, tc := range []struct {
		selector map[string]string
		want     string
	}{
		{map[string]string{"owner": "me"}, ""},
		{map[string]string{"owner": "me", "disk": "hdd"}, "node selector disk=hdd"},
		{map[string]string{"other": "x"}, "node selector other=x"},
	} {
		m := notApplicable(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: tc.selector}}, nil, nodesOf(p, group))
		if got := m.String(); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.selector, got, tc.want)
		}
	}
}

func TestUnschedulableSince(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	for want, conditions := range map[bool][]corev1.PodCondition{
		true: {{Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}},
		false: {{Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}, {Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError},
			{Status: corev1.ConditionTrue}},
	} {
		for _, c := range conditions {
			c.Type, c.LastTransitionTime = corev1.PodScheduled, at
			if got := !UnschedulableSince(&corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{c}}}).IsZero(); got != want {
				t.Errorf("%s %q: known to be unschedulable: %v, want %v", c.Status, c.Reason, got, want)
			}
		}
	}
}
