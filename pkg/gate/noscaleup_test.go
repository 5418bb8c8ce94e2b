package gate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestNoScaleUp: the cluster autoscaler's event that it adds no node for the pod opens the gate before declineGrace, if
// nothing has happened since that could change the autoscaler's decision. It opens the gate for its own pod only.
func TestNoScaleUp(t *testing.T) {
	const second = time.Second
	type world struct {
		user, system nodegroups.Pool
		request      Request
		event        nodegroups.NoScaleUp
	}
	gpu, full := 1, 0 // groups of pool user
	for _, tc := range []struct {
		name   string
		change func(w *world)
		want   bool
	}{
		{"it counts", func(*world) {}, true},
		{"without the right to read events", func(w *world) { w.request.NoScaleUp = nil }, false},
		{"an event that arrived before the pod's wait began", func(w *world) { w.request.NoRoomSince = ago(10 * second) }, false},
		{"the pod was nominated since", func(w *world) { w.request.IgnoredUntil = ago(9 * second) }, false},
		{"the pod was nominated before", func(w *world) { w.request.IgnoredUntil = ago(20 * second) }, true},
		{"the pod waits for something else", func(w *world) { w.request.NoRoomSince = time.Time{} }, false},
		{"the autoscaler ignores the pod", func(w *world) { w.request.Pod.Spec.Priority = ptr.To[int32](-11) }, false},
		{"the autoscaler ignores the pod for now", func(w *world) { w.request.Pod.Annotations = map[string]string{DelayAnnotation: "2h"} }, false},
		{"the group that can grow changed since", func(w *world) { w.user.Groups[gpu].LastChanged = ago(9 * second) }, false},
		{"a group that is full changed since", func(w *world) { w.user.Groups[full].LastChanged = ago(9 * second) }, false},
		{"a group of another pool changed since", func(w *world) { w.system.Groups[0].LastChanged = ago(9 * second) }, false},
		{"a VM came since", func(w *world) { w.user.Groups[full].LastActivity = ago(9 * second) }, false},
		{"VMs are on their way", func(w *world) { w.user.Groups[full].State = nodegroups.Growing }, false},
		{"VMs are starting, and the status is lost", func(w *world) {
			w.system.Groups[0].State, w.system.Groups[0].Starting, w.system.Groups[0].Since = nodegroups.Unknown, 1, ago(time.Hour)
		}, false},
		{"a group that the pod cannot use changed since", func(w *world) {
			w.system.Groups[0].LastChanged, w.system.Groups[0].State = ago(9*second), nodegroups.Growing
			w.system.Groups[0].NodeTemplates = []nodegroups.NodeTemplate{{Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}}}
		}, true},
		{"the group's nodes are known and fit the pod", func(w *world) { w.user.Groups[gpu].NodeTemplates = []nodegroups.NodeTemplate{{}} }, false},
		{"the group is in backoff", func(w *world) { w.user.Groups[gpu].BackingOff = true }, false},
		{"no status after the event", func(w *world) { w.user.LastStatus.Seen = ago(10 * second) }, false},
		{"a second group that can grow", func(w *world) { w.system.Groups[0].State = nodegroups.CanGrow }, true},
		{"the other pool is unknown", func(w *world) {
			w.system.Groups[0].State, w.system.Groups[0].Since = nodegroups.Unknown, ago(time.Minute)
		}, false},
		{"the other pool is a NodePool", func(w *world) {
			w.system.Groups[0].State, w.system.Groups[0].ByEvent, w.system.LastStatus = nodegroups.CanGrow, true, nodegroups.LastStatus{}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := func(states ...nodegroups.State) nodegroups.Pool {
				groups := make([]nodegroups.Group, len(states))
				for i := range groups {
					groups[i] = nodegroups.Group{GroupStatus: nodegroups.GroupStatus{Name: string(rune('a' + i)), State: states[i]}, Since: ago(time.Hour), LastActivity: ago(time.Minute), LastChanged: ago(time.Minute)}
				}
				p := of(groups...)
				p.LastStatus = nodegroups.LastStatus{Seen: ago(5 * second), Groups: 3, AtMax: 2, EventsSince: ago(time.Hour)}
				return p
			}
			w := world{user: pool(nodegroups.Full, nodegroups.CanGrow), system: pool(nodegroups.Full),
				request: Request{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p", CreationTimestamp: metav1.NewTime(ago(time.Hour))}}, NoRoomSince: ago(30 * second)},
				event:   nodegroups.NoScaleUp{At: ago(10 * second).Truncate(second), Seen: ago(10 * second), Groups: 3, AtMax: 2}}
			w.request.NoScaleUp = func(pod *corev1.Pod) nodegroups.NoScaleUp {
				if pod.UID != "p" {
					t.Errorf("the event of pod %s is asked for", pod.UID)
				}
				return w.event
			}
			tc.change(&w)
			view := &nodegroups.View{Pools: []nodegroups.Pool{w.user, w.system, {}}}
			d := rule(t, nil).Decide(w.request, view, now)
			if d.Burst[2].Open != tc.want {
				t.Errorf("%+v, want open %v", d.Burst[2], tc.want)
			}
			for i := range d.Regular {
				if len(d.Regular[i].Declined) > 0 {
					t.Errorf("the decline of %v would be remembered for other pods", d.Regular[i].Declined)
				}
			}
		})
	}
}
