package gate

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/seed"
)

var packings = flag.Int("packings", 5000, "random queues that TestOverflowPacking judges")

// queueOf returns a queue of pods that request these CPUs.
func queueOf(r *Rule, view *nodegroups.View, cpus ...string) []Queued {
	var queue []Queued
	for i, cpu := range cpus {
		pod := requesting(cpu)
		pod.UID = types.UID(fmt.Sprint(i))
		queue = append(queue, Queued{Pod: pod, Assessment: r.Assess(Request{Pod: pod}, view), Counts: true})
	}
	return queue
}

func requesting(cpu string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
}

// ordered returns a group at its maximum with a usable node and n nodes on their way, which have this many CPUs and room
// for 10 pods.
func ordered(n int, cpu string) nodegroups.Group {
	return nodegroups.Group{
		GroupStatus: nodegroups.GroupStatus{State: nodegroups.Growing, AtMaximum: true, MaxNodes: ptr.To(n + 1)}, Nodes: 1, Usable: 1, LastArrival: ago(time.Hour),
		NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user"}, Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10")}}},
	}
}

// maxed returns a full group at its maximum, which lacks n of its nodes.
func maxed(n int) nodegroups.Group {
	return nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Full, AtMaximum: true, MaxNodes: ptr.To(n)}}
}

func TestOverflow(t *testing.T) {
	with := func(change func(*nodegroups.Group)) nodegroups.Pool {
		g := ordered(2, "2")
		change(&g)
		return of(g)
	}
	arrived := maxed(0)
	arrived.LastArrival = ago(time.Second)
	ten := slices.Repeat([]string{"1m"}, 21)
	for _, tc := range []struct {
		name string
		user nodegroups.Pool
		cpus []string
		want string // the numbers of the pods that overflow
	}{
		{"as many as fit, and one more", of(ordered(2, "2")), []string{"1", "1", "1", "1", "1"}, "[4]"},
		{"a remainder on each node is no room", of(ordered(2, "2")), []string{"1500m", "1500m", "500m", "1500m"}, "[3]"},
		{"the sum of smaller ones", of(ordered(2, "2")), []string{"500m", "1", "500m", "1", "500m", "1500m"}, "[5]"},
		{"larger ones may not fit themselves", of(ordered(2, "4")), []string{"3", "3", "2", "1"}, "[]"},
		{"one that overflows takes nothing from others", of(ordered(1, "2")), []string{"1500m", "1500m", "500m", "500m", "500m"}, "[1]"},
		{"the number of pods", of(ordered(2, "2")), ten, "[20]"},
		{"two groups", of(ordered(1, "2"), ordered(1, "1")), []string{"1", "1", "1", "1"}, "[3]"},
		{"beside a full group", of(ordered(1, "1"), maxed(0)), []string{"1", "1"}, "[1]"},
		{"beside one that can grow", of(ordered(1, "1"), nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow}}), []string{"1", "1"}, "[]"},
		{"beside an unknown one", of(ordered(1, "1"), nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Unknown}, Since: ago(14 * time.Minute)}), []string{"1", "1"}, "[]"},
		{"beside one that was unknown for too long", of(ordered(1, "1"), nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Unknown}, Since: ago(15 * time.Minute)}), []string{"1", "1"}, "[1]"},
		{"more can be ordered", with(func(g *nodegroups.Group) { g.AtMaximum = false }), []string{"2", "2", "2"}, "[]"},
		{"the maximum is not known", with(func(g *nodegroups.Group) { g.MaxNodes = nil }), []string{"2", "2", "2"}, "[]"},
		{"a broken node may be mended", with(func(g *nodegroups.Group) { g.Nodes, g.MaxNodes = 2, ptr.To(4) }), []string{"2", "2", "2"}, "[]"},
		{"a full group may get the nodes that it lacks", of(ordered(1, "1"), maxed(1)), []string{"1", "1"}, "[]"},
		{"beside one that is full because it failed", of(ordered(1, "1"), nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Full, MaxNodes: new(int)}}), []string{"1", "1"}, "[]"},
		{"a node has just come", with(func(g *nodegroups.Group) { g.LastArrival = ago(59 * time.Second) }), []string{"2", "2", "2"}, "[]"},
		{"a node came a minute ago", with(func(g *nodegroups.Group) { g.LastArrival = ago(time.Minute) }), []string{"2", "2", "2"}, "[2]"},
		{"a node of a full group has just come", of(ordered(1, "1"), arrived), []string{"1", "1"}, "[]"},
		{"nothing is known of the nodes", with(func(g *nodegroups.Group) { g.Nodes = 0 }), []string{"2", "2", "2"}, "[]"},
		{"the nodes may be others", with(func(g *nodegroups.Group) { g.Open = true }), []string{"2", "2", "2"}, "[]"},
		{"the nodes' size is not known", with(func(g *nodegroups.Group) { g.NodeTemplates[0].Allocatable = nil }), []string{"2", "2", "2"}, "[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rule(t, nil)
			view := &nodegroups.View{Pools: []nodegroups.Pool{tc.user, of(maxed(0)), {}}}
			queue := queueOf(r, view, tc.cpus...)
			found, _ := r.Overflow(queue, view, now)
			got := []int{}
			for i := range queue {
				if found[queue[i].Pod.UID] {
					got = append(got, i)
				}
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("%v overflow, want %s", got, tc.want)
			}
		})
	}
}

// TestOverflowCounts: which pods before a pod take room on the upcoming node, which has room for one.
func TestOverflowCounts(t *testing.T) {
	repels := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: matching("app", "web")}}}}
	}
	for _, tc := range []struct {
		name          string
		first, second func(*corev1.Pod)
		want          bool
	}{
		{"a plain pod", func(*corev1.Pod) {}, func(*corev1.Pod) {}, true},
		{"a pod with a host port", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }, func(*corev1.Pod) {}, false},
		{"a pod that another repels", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }, repels, false},
		{"a pod beside one that repels others", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} }, repels, true},
	} {
		r := rule(t, nil)
		view := &nodegroups.View{Pools: []nodegroups.Pool{of(ordered(1, "1")), of(maxed(0)), {}}}
		queue := queueOf(r, view, "1", "1")
		tc.first(queue[0].Pod)
		tc.second(queue[1].Pod)
		if found, _ := r.Overflow(queue, view, now); found["1"] != tc.want {
			t.Errorf("%s: the next pod overflows %v, want %v", tc.name, found["1"], tc.want)
		}
	}
}

// TestOverflowOpens: only with whileGrowing: Overflow, and only without another reason to wait, the gate opens for a pod
// that overflows.
func TestOverflowOpens(t *testing.T) {
	for _, tc := range []struct {
		name    string
		growing configv1.WhileGrowing
		change  func(*Request)
		want    string
	}{
		{"hold", configv1.Hold, nil, ReasonGrowing.Code},
		{"overflow", configv1.Overflow, nil, reasonOverflow.Code},
		{"the nodes have room", configv1.Overflow, func(r *Request) { r.Overflow = false }, ReasonGrowing.Code},
		{"the pod is opted out", configv1.Overflow, func(r *Request) { r.Pod.Annotations = map[string]string{"poolpriority.dev/burst": "Never"} }, ReasonOptedOut.Code},
		{"victims are ending", configv1.Overflow, func(r *Request) { r.Wait = Wait{Reason: ReasonVictimsTerminating, Until: now.Add(time.Second)} }, ReasonVictimsTerminating.Code},
		{"victims are ending, at holdLimit", configv1.Overflow, func(r *Request) { r.Wait.Until, r.NoRoomSince = now.Add(time.Second), ago(time.Hour) }, reasonHoldLimit.Code},
		{"the snapshot lacks a node", configv1.Overflow, func(r *Request) { r.Snapshot = make([]Nodes, 2) }, ReasonSnapshotStale.Code},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rule(t, nil)
			r.Pools.At(2).Burst.WhileGrowing, r.HoldLimit = tc.growing, time.Hour
			view := &nodegroups.View{Pools: []nodegroups.Pool{of(ordered(1, "1")), of(maxed(0)), {}}}
			view.Pools[0].Nodes, view.Built = 1, now
			req := Request{Pod: requesting("1"), Overflow: true}
			if tc.change != nil {
				tc.change(&req)
			}
			v := r.Decide(req, view, now).Burst[2]
			if v.Reason.Code != tc.want || v.Open != (tc.want == reasonOverflow.Code || tc.want == reasonHoldLimit.Code) {
				t.Errorf("open %v, %s; want %s", v.Open, v.Reason.Code, tc.want)
			}
		})
	}
}

// TestOverflowPacking packs random queues onto the nodes in all ways that serve earlier pods first, as the nodes come. No
// pod that overflows may be packed in any of them. A pod that does not count may stay unpacked for any reason.
func TestOverflowPacking(t *testing.T) {
	random := seed.New(t, 1)
	r := rule(t, nil)
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	overflow, homeless, pods := 0, 0, 0
	for range *packings {
		view := &nodegroups.View{Pools: []nodegroups.Pool{of(ordered(1, "1"), ordered(1, "1")), of(ordered(1, "1")), {}}}
		p := packing{packed: map[int]bool{}}
		for i, group := range []*nodegroups.Group{&view.Pools[0].Groups[0], &view.Pools[0].Groups[1], &view.Pools[1].Groups[0]} {
			mode := []string{"user", "user", "system"}[i]
			if random.IntN(2) == 0 {
				group.State, *group.MaxNodes = nodegroups.Full, 1
			} else {
				*group.MaxNodes = 2 + random.IntN(2)
			}
			group.NodeTemplates = nil
			for range 1 + random.IntN(5)/4 {
				group.NodeTemplates = append(group.NodeTemplates, nodegroups.NodeTemplate{Labels: map[string]string{"mode": mode, "group": fmt.Sprint(i)}, Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(pick("1", "2", "3", "4")), corev1.ResourceMemory: resource.MustParse(pick("1Gi", "2Gi", "8Gi")), corev1.ResourcePods: resource.MustParse(pick("2", "3", "10"))}})
			}
			for range group.Missing() {
				template := group.NodeTemplates[random.IntN(len(group.NodeTemplates))]
				free := amountsOf(template.Allocatable)
				free[corev1.ResourceCPU] -= int64(random.IntN(3) / 2 * 500) // of a DaemonSet
				p.nodes = append(p.nodes, packed{template.Labels, free})
			}
		}
		random.Shuffle(len(p.nodes), func(i, j int) { p.nodes[i], p.nodes[j] = p.nodes[j], p.nodes[i] })
		if len(p.nodes) > 0 {
			p.nodes = p.nodes[random.IntN(10)/9:] // one may never come
		}
		assessed, selectors := map[string]*Assessment{}, []map[string]string{nil, nil, nil, {"group": "0"}, {"mode": "system"}}
		var pod *corev1.Pod
		for i := range 2 + random.IntN(5) {
			if pod = pod.DeepCopy(); i == 0 || random.IntN(3) == 0 { // most pods are replicas of the pod before
				pod = requesting(pick("0", "500m", "1", "1", "1500m", "2"))
				pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(pick("0", "0", "1Gi", "2Gi"))
				pod.Spec.NodeSelector = selectors[random.IntN(len(selectors))]
			}
			pod.UID = types.UID(fmt.Sprint(i))
			key := alike.View(pod)
			if assessed[key] == nil {
				assessed[key] = r.Assess(Request{Pod: pod}, view)
			}
			p.queue = append(p.queue, Queued{pod, assessed[key], random.IntN(5) > 0})
		}
		found, _ := r.Overflow(p.queue, view, now)
		p.place(1, 0, map[int]bool{})
		for i := range p.queue {
			pods++
			switch is := found[p.queue[i].Pod.UID]; {
			case is && p.packed[i]:
				t.Fatalf("pod %d overflows, and can be packed: %s", i, p.String())
			case is:
				overflow++
				fallthrough
			case !p.packed[i]:
				homeless++
			}
		}
	}
	t.Logf("%d queues of %d pods: %d are packed in no way, and %d of these overflow", *packings, pods, homeless, overflow)
	if overflow < homeless/20 {
		t.Error("too few overflow")
	}
}

// packed is a node with what is free on it.
type packed struct {
	labels map[string]string
	free   amounts
}

// packing packs a queue onto nodes, which come one after the other.
type packing struct {
	queue  []Queued
	nodes  []packed
	packed map[int]bool // pods that were packed in any way
}

// place packs the pods from the number pod on onto the nodes that have come, in all ways. placed has the pods that are
// packed already.
func (p *packing) place(come, pod int, placed map[int]bool) {
	if come > len(p.nodes) {
		return
	}
	if pod == len(p.queue) {
		p.place(come+1, 0, placed)
		return
	}
	size, fits := amountsOf(p.queue[pod].requests), false
	size[corev1.ResourcePods] = 1
	for i := range p.nodes[:come] {
		n := &p.nodes[i]
		if placed[pod] || !size.within(n.free) || !selects(p.queue[pod].Pod.Spec.NodeSelector, n.labels) {
			continue
		}
		fits, placed[pod], p.packed[pod] = true, true, true
		n.add(size, -1)
		p.place(come, pod+1, placed)
		n.add(size, 1)
		delete(placed, pod)
	}
	if !fits || !p.queue[pod].Counts {
		p.place(come, pod+1, placed)
	}
}

func (n *packed) add(size amounts, sign int64) {
	for name, amount := range size {
		n.free[name] += sign * amount
	}
}

func selects(selector, of map[string]string) bool {
	return labels.SelectorFromSet(selector).Matches(labels.Set(of))
}

func (p *packing) String() string {
	s := ""
	for _, q := range p.queue {
		s += fmt.Sprintf("\npod %s %v %v counts %v", q.Pod.UID, amountsOf(q.requests), q.Pod.Spec.NodeSelector, q.Counts)
	}
	for _, n := range p.nodes {
		s += fmt.Sprintf("\nnode %v %v", n.labels, n.free)
	}
	return s
}
