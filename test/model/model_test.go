// Package model compares the gate with a deliberately naive statement of its rules, over random histories of the
// autoscaler's status, of pods and of time. The statement keeps the whole history and looks through all of it each time.
package model

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/capacity/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

var (
	decisions = flag.Int("decisions", 200000, "decisions that TestGate compares")
	seed      = flag.Uint64("seed", 0, "seed of TestGate; 0 takes a random one")
)

const (
	staleAfter, unknownGrace, provisionGrace = 3 * time.Minute, 15 * time.Minute, 15 * time.Minute
	backoffGrace, declineGrace               = 2 * time.Minute, 5 * time.Minute
	backoffMemory                            = 5 * time.Minute
)

// groupStatus is what the autoscaler says of one group.
type groupStatus struct {
	target, present, max int
	backoff, unhealthy   bool
}

// moment is a status at a time: missing, garbage, initializing, unhealthy (the cluster) or running with groups.
type moment struct {
	at     time.Time
	kind   string
	made   int // how often the ConfigMap was made anew before
	groups map[string]groupStatus
}

// nodeKind is what the nodes of a pool are like, as far as pods care.
type nodeKind struct {
	disk    string
	tainted bool
	cpu     int64
}

type podKind struct {
	disk      string // "" asks for none
	tolerates bool
	cpu       int64
	virtual   bool // asks for the virtual node itself
	hostNet   bool
	init      bool
	burst     string
	since     time.Time
}

// history is a random run.
type history struct {
	r       *rand.Rand
	now     time.Time
	moments []moment
	unknown map[int]time.Time // since when a pool has been Unknown without a break, by the naive statement
	kinds   [2][]nodeKind     // by regular pool
	v2      bool
	maxPods int32
	wait    time.Duration
	hold    time.Duration
	came    [2]time.Time // when a node of a pool became ready last
}

var groupsOf = [2][]string{{"aks-user-1-vmss", "user/Standard_D2s_v5"}, {"aks-system-2-vmss"}}

func (h *history) last() *moment { return &h.moments[len(h.moments)-1] }

// state is rules G3 and G4 for one pool at the time now.
func (h *history) state(p int, now time.Time) capacity.State {
	last := h.last()
	if last.kind != "running" || now.Sub(last.at) >= staleAfter {
		return capacity.Unknown
	}
	growing, canGrow, any := false, false, false
	for _, name := range groupsOf[p] {
		g, ok := last.groups[name]
		if !ok {
			continue
		}
		any = true
		upcoming := g.target - g.present
		switch {
		case upcoming > 0 && now.Sub(h.lastProgress(name)) < provisionGrace:
			growing = true
		case g.target >= g.max:
		case h.inBackoff(name, now):
		case h.skipped(name, now):
		default:
			canGrow = true
		}
	}
	switch {
	case growing:
		return capacity.Growing
	case canGrow:
		return capacity.CanGrow
	case !any:
		return capacity.Unknown
	default:
		return capacity.Full
	}
}

// sights are the moments at which the group was in the status.
func (h *history) sights(name string) []moment {
	var sights []moment
	for _, m := range h.moments {
		if _, ok := m.groups[name]; ok && m.kind == "running" {
			sights = append(sights, m)
		}
	}
	return sights
}

// lastProgress is when the group was last ordered a node, got one, or had none to wait for.
func (h *history) lastProgress(name string) time.Time {
	var progress time.Time
	sights := h.sights(name)
	for i, m := range sights {
		g := m.groups[name]
		if i == 0 || g.target > sights[i-1].groups[name].target || g.present > sights[i-1].groups[name].present || g.present >= g.target {
			progress = m.at
		}
	}
	return progress
}

// sinceItsStart returns the sights since the last other autoscaler began: one says so, or the ConfigMap was gone.
func (h *history) sinceItsStart(name string) []moment {
	var sights []moment
	for _, m := range h.moments {
		if m.kind == "initializing" || m.kind == "missing" {
			sights = nil
		} else if _, ok := m.groups[name]; ok && m.kind == "running" {
			sights = append(sights, m)
		}
	}
	return sights
}

// skipped reports whether the group counts as full because it has been unhealthy for the grace: the autoscaler skips it.
func (h *history) skipped(name string, now time.Time) bool {
	var from time.Time
	for _, m := range h.sinceItsStart(name) {
		if !m.groups[name].unhealthy {
			from = time.Time{}
		} else if from.IsZero() {
			from = m.at
		}
	}
	return !from.IsZero() && now.Sub(from) >= backoffGrace
}

// inBackoff reports whether the group counts as full because it fails to grow: seen in back-off, by sights no more than
// the memory apart and the last of them no longer ago, for the grace, without having grown since.
func (h *history) inBackoff(name string, now time.Time) bool {
	var from, to time.Time
	all := h.sights(name)
	sights := h.sinceItsStart(name)
	if len(sights) == 0 {
		return false
	}
	before := all[:len(all)-len(sights)]
	for i, m := range sights {
		g := m.groups[name]
		if i > 0 {
			before = append(before, sights[i-1])
		}
		if n := len(before); n > 0 && g.target > before[n-1].groups[name].target {
			from, to = time.Time{}, time.Time{}
		}
		if g.backoff {
			if from.IsZero() || m.at.Sub(to) > backoffMemory {
				from = m.at
			}
			to = m.at
		}
	}
	if from.IsZero() || now.Sub(from) < backoffGrace {
		return false
	}
	shown := sights[len(sights)-1].groups[name].backoff
	return shown || now.Sub(to) < backoffMemory
}

// lastRise is when a group of the pool that is in the status was last seen to grow.
func (h *history) lastRise(p int) time.Time {
	var rise time.Time
	for _, name := range groupsOf[p] {
		if _, ok := h.last().groups[name]; !ok {
			continue
		}
		sights := h.sights(name)
		for i := 1; i < len(sights); i++ {
			if sights[i].groups[name].target > sights[i-1].groups[name].target && sights[i].at.After(rise) {
				rise = sights[i].at
			}
		}
	}
	return rise
}

// freshSince is since when there has been a running status without a break.
func (h *history) freshSince() time.Time {
	since := h.last().at
	for i := len(h.moments) - 1; i >= 0 && h.moments[i].kind == "running"; i-- {
		if since.Sub(h.moments[i].at) >= staleAfter {
			break
		}
		since = h.moments[i].at
	}
	return since
}

func (h *history) usable(p int, pod podKind) bool {
	if len(h.kinds[p]) == 0 {
		return true // by its selector alone, which names a label that pods here never contradict
	}
	for _, k := range h.kinds[p] {
		if (pod.disk == "" || pod.disk == k.disk) && (!k.tainted || pod.tolerates) && pod.cpu <= k.cpu && !pod.virtual {
			return true
		}
	}
	return false
}

// open is rules G2 and G6 to G9 at the time now, if nothing but time goes by.
func (h *history) open(pod podKind, now time.Time, burstPods int) bool {
	if pod.burst == "Never" {
		return false
	}
	if pod.burst != "Always" && (pod.hostNet || (pod.init && !h.v2)) {
		return false
	}
	if h.maxPods > 0 && burstPods >= int(h.maxPods) {
		return false
	}
	if pod.virtual {
		return true
	}
	if h.wait > 0 && !pod.since.IsZero() && now.Sub(pod.since) >= h.wait {
		return true
	}
	if h.hold > 0 && !pod.since.IsZero() { // G18
		quiet := true // since nothing came that the pod could use
		for p := range groupsOf {
			quiet = quiet && !(h.usable(p, pod) && now.Sub(h.came[p]) < h.hold)
		}
		if held := now.Sub(pod.since); held >= 2*h.hold || held >= h.hold && quiet {
			return true
		}
	}
	for p := range groupsOf {
		if !h.usable(p, pod) {
			continue
		}
		switch h.state(p, now) {
		case capacity.Growing:
			return false
		case capacity.Unknown:
			if since, ok := h.unknown[p]; !ok || now.Sub(since) < unknownGrace {
				return false
			}
		case capacity.CanGrow:
			declined := !pod.since.IsZero()
			for _, t := range []time.Time{pod.since, h.freshSince(), h.lastRise(p)} {
				declined = declined && now.Sub(t) >= declineGrace
			}
			if !declined {
				return false
			}
		}
	}
	return true
}

// waitAWhile lets time go by.
func (h *history) waitAWhile() {
	h.now = h.now.Add(time.Duration(h.r.IntN(100)*h.r.IntN(20)) * time.Second / 10)
}

// write appends what the autoscaler writes now, if anything.
func (h *history) write() {
	if h.r.IntN(4) == 0 {
		return
	}
	m := moment{at: h.now, kind: "running", groups: map[string]groupStatus{}}
	if len(h.moments) > 0 {
		m.made = h.last().made
		if h.last().kind == "missing" {
			m.made++
		}
	}
	switch n := h.r.IntN(30); {
	case n == 0:
		m.kind = "missing"
	case n == 1:
		m.kind = "garbage"
	case n == 2:
		m.kind = "initializing"
	case n == 3:
		m.kind = "unhealthy"
	default:
		for p := range groupsOf {
			for _, name := range groupsOf[p] {
				if h.r.IntN(15) > 0 {
					m.groups[name] = h.evolve(name)
				}
			}
		}
	}
	h.moments = append(h.moments, m)
}

// evolve is the next status of a group: mostly a small change of what it was.
func (h *history) evolve(name string) groupStatus {
	g := groupStatus{max: 3}
	if sights := h.sights(name); len(sights) > 0 {
		g = sights[len(sights)-1].groups[name]
	}
	switch h.r.IntN(10) {
	case 0, 1, 2:
		g.target = min(g.target+1, g.max)
	case 3, 4, 5, 6:
		g.present = min(g.present+1, g.target)
	case 7:
		g.target = h.r.IntN(g.max + 1)
		g.present = min(g.present, g.target)
	}
	g.backoff = h.r.IntN(4) == 0
	if g.unhealthy = g.unhealthy && h.r.IntN(4) > 0; !g.unhealthy {
		g.unhealthy = h.r.IntN(25) == 0
	}
	return g
}

func (m *moment) configMap(serial int) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(m.made + 1)), Annotations: map[string]string{clusterautoscaler.LastUpdatedAnnotation: fmt.Sprint(serial)}}}
	status := "autoscalerStatus: Running\nnodeGroups:\n"
	for name, g := range m.groups {
		health, scaleUp := "Healthy", "NoActivity"
		if g.unhealthy {
			health = "Unhealthy"
		}
		if g.backoff {
			scaleUp = "Backoff"
		}
		status += fmt.Sprintf("- name: %s\n  health: {status: %s, cloudProviderTarget: %d, maxSize: %d, nodeCounts: {registered: {ready: %d}}}\n  scaleUp: {status: %s}\n",
			name, health, g.target, g.max, g.present, scaleUp)
	}
	switch m.kind {
	case "missing":
		return nil
	case "garbage":
		status = "{"
	case "initializing":
		status = "autoscalerStatus: Initializing"
	case "unhealthy":
		status = "autoscalerStatus: Running\nclusterWide: {health: {status: Unhealthy}}\nnodeGroups: [{name: aks-user-1-vmss, health: {maxSize: 3}}]\n"
	}
	cm.Data = map[string]string{clusterautoscaler.StatusKey: status}
	return cm
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// subject is the code under test, fed with the same history.
type subject struct {
	rule    gate.Rule
	tracker *clusterautoscaler.Tracker
	sources []clusterautoscaler.Source
	view    *capacity.View
}

func newSubject(t *testing.T, h *history) *subject {
	ca := &configv1.ClusterAutoscalerSource{}
	selector := matching("type", "virtual-kubelet")
	if h.v2 {
		selector.MatchLabels["virtualization"] = "virtualnode2"
	}
	configs := []configv1.Pool{
		{Name: "user", NodeSelector: matching("agentpool", "user"), ClusterAutoscaler: ca},
		{Name: "system", NodeSelector: matching("agentpool", "system"), ClusterAutoscaler: ca},
		{Name: "aci", NodeSelector: selector, Burst: &configv1.Burst{MaxPods: h.maxPods, WaitLimit: metav1.Duration{Duration: h.wait}}},
	}
	pools, err := pool.NewList(configs)
	if err != nil {
		t.Fatal(err)
	}
	s := &subject{
		rule:    gate.Rule{Pools: pools, UnknownGrace: unknownGrace, DeclineGrace: declineGrace, HoldLimit: h.hold},
		tracker: clusterautoscaler.NewTracker(clusterautoscaler.Graces{StaleAfter: staleAfter, Provision: provisionGrace, Backoff: backoffGrace}),
		view:    &capacity.View{Pools: make([]capacity.Pool, 3)},
	}
	for i := range 2 {
		s.sources = append(s.sources, clusterautoscaler.Source{Tracker: s.tracker, Groups: clusterautoscaler.GroupsOf(&configs[i])})
	}
	return s
}

// look makes the view anew, as the plugin does: at each status, and when its own Until has come.
func (s *subject) look(h *history, now time.Time) {
	view := &capacity.View{Pools: make([]capacity.Pool, 3)}
	for i, source := range s.sources {
		j := source.Judge(nil, now)
		j.Unseen = false // the kinds in the history are all there are
		p := &view.Pools[i]
		*p = capacity.Pool{Judgement: j, Since: now, LastReady: h.came[i]}
		if old := &s.view.Pools[i]; old.State == p.State {
			p.Since = old.Since
		}
		for _, k := range h.kinds[i] {
			shape := capacity.Shape{Labels: map[string]string{"disk": k.disk}, Allocatable: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(k.cpu, resource.DecimalSI)}}
			if k.tainted {
				shape.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
			}
			p.Shapes = append(p.Shapes, shape)
		}
	}
	s.view = view
}

func (k podKind) pod() *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{}, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(k.cpu, resource.DecimalSI)}}}}}}
	if k.disk != "" {
		p.Spec.NodeSelector["disk"] = k.disk
	}
	if k.virtual {
		p.Spec.NodeSelector["type"] = "virtual-kubelet"
	}
	if k.tolerates {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	p.Spec.HostNetwork = k.hostNet
	if k.init {
		p.Spec.InitContainers = []corev1.Container{{}}
	}
	if k.burst != "" {
		p.Annotations = map[string]string{gate.BurstAnnotation: k.burst}
	}
	return p
}

func randomPod(r *rand.Rand, now time.Time) podKind {
	k := podKind{cpu: int64(1 + r.IntN(5)), tolerates: r.IntN(2) == 0, virtual: r.IntN(12) == 0, hostNet: r.IntN(15) == 0, init: r.IntN(8) == 0}
	k.disk = []string{"", "", "", "ssd", "hdd"}[r.IntN(5)]
	k.burst = []string{"", "", "", "", "Always", "Never"}[r.IntN(6)]
	if r.IntN(4) > 0 {
		k.since = now.Add(-time.Duration(r.IntN(1500)) * time.Second)
	}
	return k
}

// TestGate compares every decision, and checks that a held pod's wake-up is due no later than its gate opens by itself.
func TestGate(t *testing.T) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	r := rand.New(rand.NewPCG(s, 0))
	compared, opened, wakeUps := 0, 0, 0
	byState := map[capacity.State]int{}
	for compared < *decisions {
		h := newHistory(r)
		sub := newSubject(t, h)
		for i := 0; i < 60 && !t.Failed(); i++ {
			before := len(h.moments)
			h.waitAWhile()
			sub.catchUp(h)
			if r.IntN(10) == 0 {
				h.came[r.IntN(2)] = h.now
			}
			h.write()
			if len(h.moments) > before {
				_ = sub.tracker.Observe(h.last().configMap(i), h.now) // what it says of garbage is checked elsewhere
			}
			sub.look(h, h.now)
			h.noteUnknown(h.now)
			for p := range groupsOf {
				byState[sub.view.Pools[p].State]++
				if want := h.state(p, h.now); sub.view.Pools[p].State != want {
					t.Fatalf("pool %d is %s (%s), want %s; %d moments, the last: %+v", p, sub.view.Pools[p].State, sub.view.Pools[p].Reason.Detail, want, len(h.moments), *h.last())
				}
			}
			for range 10 {
				kind, burstPods := randomPod(r, h.now), r.IntN(5)
				compared++
				request := gate.Request{Pod: kind.pod(), UnschedulableSince: kind.since, BurstPods: []int{0, 0, burstPods}}
				decision := sub.rule.Decide(request, sub.view, h.now)
				got, want := decision.Burst[2], h.open(kind, h.now, burstPods)
				if got.Open != want {
					t.Fatalf("the gate is open: %v (%+v), want %v, for %+v", got.Open, got.Reason, want, kind)
				}
				if want {
					opened++
				} else if at, opens := h.opensAt(kind, burstPods); opens {
					wakeUps++
					due := capacity.Earliest(decision.Until(), sub.view.Until())
					if due.IsZero() || due.After(at) {
						t.Fatalf("the gate opens by itself after %v, and the wake-up is due at %v, for %+v (%+v)", at.Sub(h.now), due, kind, got)
					}
				}
			}
		}
	}
	t.Logf("%d decisions, %d open, %d that open by themselves later; pools by state: %v", compared, opened, wakeUps, byState)
	if opened == 0 || wakeUps == 0 || len(byState) != 4 {
		t.Error("the histories do not cover everything")
	}
}

func newHistory(r *rand.Rand) *history {
	h := &history{r: r, now: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), unknown: map[int]time.Time{},
		v2: r.IntN(2) == 0, maxPods: int32(r.IntN(2) * 3), wait: time.Duration(r.IntN(2)*r.IntN(600)) * time.Second, hold: time.Duration(r.IntN(2)*(60+r.IntN(900))) * time.Second}
	h.moments = []moment{{at: h.now, kind: "missing"}}
	for p := range h.kinds {
		for range r.IntN(3) {
			h.kinds[p] = append(h.kinds[p], nodeKind{disk: []string{"ssd", "hdd"}[r.IntN(2)], tainted: r.IntN(4) == 0, cpu: int64(2 + r.IntN(3))})
		}
	}
	return h
}

// catchUp lets the subject look when its view changes by itself, as its timer would.
func (s *subject) catchUp(h *history) {
	for until := s.view.Until(); !until.IsZero() && until.Before(h.now); until = s.view.Until() {
		s.look(h, until)
		h.noteUnknown(until)
	}
}

// noteUnknown keeps since when pools have been Unknown.
func (h *history) noteUnknown(now time.Time) {
	for p := range groupsOf {
		if h.state(p, now) != capacity.Unknown {
			delete(h.unknown, p)
		} else if _, ok := h.unknown[p]; !ok {
			h.unknown[p] = now
		}
	}
}

// opensAt looks for the time at which the gate opens if nothing but time goes by, second by second.
func (h *history) opensAt(pod podKind, burstPods int) (time.Time, bool) {
	if h.r.IntN(40) > 0 {
		return time.Time{}, false // it takes long: a sample is enough
	}
	future := &history{r: h.r, moments: h.moments, kinds: h.kinds, v2: h.v2, maxPods: h.maxPods, wait: h.wait, hold: h.hold, came: h.came, unknown: map[int]time.Time{}}
	for p, since := range h.unknown {
		future.unknown[p] = since
	}
	for at := h.now.Add(time.Second); at.Before(h.now.Add(40 * time.Minute)); at = at.Add(time.Second) {
		future.noteUnknown(at)
		if future.open(pod, at, burstPods) {
			return at, true
		}
	}
	return time.Time{}, false
}
