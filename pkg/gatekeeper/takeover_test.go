package gatekeeper

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/test/must"
)

// TestRestore: a gatekeeper starts with the published pool states unless they are too old, and with the published state
// of a burst pool's provider. When it becomes the leader, it restores the times at which pods became unschedulable.
// Until then, these times are unknown.
func TestRestore(t *testing.T) {
	for _, tc := range []struct {
		name string
		age  time.Duration
		want bool
	}{
		{"a minute old", time.Minute, true},
		{"as old as unknownGrace", 15 * time.Minute, true},
		{"older than unknownGrace", 15*time.Minute + time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			g, now := w.Gatekeeper, w.clock.Now()
			since := now.Add(-tc.age - time.Hour).Truncate(time.Second)
			state := &published.Status{
				View: &published.View{Args: &configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "system", NodeSelector: &metav1.LabelSelector{}}, {Name: "gone", NodeSelector: &metav1.LabelSelector{}}}},
					Capacity: nodegroups.View{Pools: []nodegroups.Pool{{State: nodegroups.Unknown, Since: since}, {State: nodegroups.Full}}}},
				Memory: published.Memory{Written: now.Add(-tc.age), Unschedulable: map[types.UID]time.Time{"gated": since, "gone": since},
					BurstPools: map[string]breaker.Memory{"aci": {State: breaker.Refusing, Since: now, Until: now.Add(5 * time.Minute), Backoffs: 3, Code: "HTTP429"}},
					Returns:    map[types.UID]returnplan.Pause{"web": {InARow: 2, Until: since}}},
			}
			data := must.Get(state.Encode())(t)
			must.Do(t)(w.client.CoreV1().ConfigMaps("pool-priority-system").Create(t.Context(),
				&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pool-priority-status"}, Data: data}, metav1.CreateOptions{}))
			created := since.Add(-24 * time.Hour)
			waiting := func(name string) *v1.Pod {
				return withCondition(pod(name), v1.ConditionFalse, v1.PodReasonUnschedulable, created)
			}
			for _, name := range []string{"gated", "plain"} {
				must.NoError(t, w.config.Informers.Core().V1().Pods().Informer().GetIndexer().Add(waiting(name)))
			}
			view := g.restore(t.Context())
			if got := view.Pools[1].State == nodegroups.Unknown && view.Pools[1].Since.Equal(since); got != tc.want {
				t.Errorf("started from the published state: %v, want %v: %+v", got, tc.want, view.Pools[1])
			}
			g.evaluate(t.Context(), view)
			if got := g.view.Load().Pools[2].Provider; got.State != breaker.Refusing {
				t.Errorf("the provider starts from %+v", got)
			}
			select {
			case event := <-w.recorder.Events:
				t.Errorf("it is told again: %s", event)
			default:
			}
			g.takeOver(t.Context())
			g.held.Add(waiting("plain"), "", &gate.Decision{Burst: make([]gate.Verdict, 3)}, nil, now)
			for _, name := range []string{"gated", "plain"} {
				if got := g.held.Since(waiting(name), now).Unschedulable; !got.IsZero() {
					t.Errorf("before it leads, %s waits since %v, want not known", name, got)
				}
			}
			g.leading.Store(true)
			g.takeOver(t.Context())
			select {
			case <-g.TookOver():
			default:
				t.Error("Return waits for ever")
			}
			if g.Pauses()["web"].InARow != 2 {
				t.Errorf("the pauses of Return are %v", g.Pauses())
			}
			if got := g.held.Since(waiting("gated"), now).Unschedulable; !got.Equal(since) {
				t.Errorf("the pod that had gates waits since %v, want what was published: %v", got, since)
			}
			if got := g.held.Since(waiting("plain"), now).Unschedulable; !got.Equal(created) {
				t.Errorf("the other pod waits since %v, want what the API says: %v", got, created)
			}
			if got := g.held.Since(waiting("gone"), now).Unschedulable; !got.Equal(created) {
				t.Error("the clock of a pod that is gone is kept")
			}
		})
	}
}

// TestTakeOverWithoutAnAnswer: if the published state cannot be read, takeOver ends after takeOverTimeout.
func TestTakeOverWithoutAnAnswer(t *testing.T) {
	w := newWorld(t)
	g := w.Gatekeeper
	client := fake.NewClientset()
	client.PrependReactor("get", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
	g.publisher = publishing.New(publishing.Config{Args: w.config.Args, Client: client.CoreV1()})
	now := w.clock.Now()
	if g.restore(t.Context()); w.clock.Since(now) < takeOverTimeout {
		t.Errorf("a scheduler that starts tries to read it for %v", w.clock.Since(now))
	}
	now = w.clock.Now()
	g.leading.Store(true)
	for _, tc := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {takeOverTimeout - 1, false}, {takeOverTimeout, true}} {
		w.clock.SetTime(now.Add(tc.after))
		again := g.takeOver(t.Context())
		if g.loop.takenOver != tc.want || again.IsZero() != tc.want {
			t.Errorf("after %v: taken over %v, again at %v; want %v", tc.after, g.loop.takenOver, again, tc.want)
		}
	}
}
