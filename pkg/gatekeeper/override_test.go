package gatekeeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

// setOverride writes the override's ConfigMap. If data is nil, it deletes the ConfigMap.
func (w *world) setOverride(uid types.UID, data map[string]string) {
	w.Helper()
	configMaps := w.client.CoreV1().ConfigMaps("pool-priority-system")
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: gate.OverrideConfigMap, Namespace: "pool-priority-system", UID: uid}, Data: data}
	var err error
	if data == nil {
		err = configMaps.Delete(w.Context(), cm.Name, metav1.DeleteOptions{})
	} else if _, err = configMaps.Update(w.Context(), cm, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = configMaps.Create(w.Context(), cm, metav1.CreateOptions{})
	}
	must.NoError(w.TB, err)
}

// publishes waits until the published state has this override, and a problem with the override that contains the text.
// If problem is empty, there must be no such problem.
func (w *world) publishes(override gate.OverriddenGate, problem string) {
	w.Helper()
	w.eventually(func() string {
		cm, err := w.client.CoreV1().ConfigMaps("pool-priority-system").Get(w.Context(), "pool-priority-status", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		state, err := published.Decode(cm)
		if err != nil {
			return err.Error()
		}
		if state.View == nil || state.View.Override.Gate != override {
			return fmt.Sprintf("published: %s, want the override %q", cm.Data[published.ViewKey], override)
		}
		found := slices.ContainsFunc(state.View.Problems, func(p string) bool { return strings.Contains(p, gate.OverrideConfigMap) })
		if found != (problem != "") || !strings.Contains(strings.Join(state.View.Problems, "\n"), problem) {
			return fmt.Sprintf("problems %q, want %q", state.View.Problems, problem)
		}
		return ""
	})
}

// says waits for the next event about the override, which must contain want.
func (w *world) says(want string) {
	w.Helper()
	for deadline := time.After(10 * time.Second); ; {
		select {
		case event := <-w.recorder.Events:
			if !strings.Contains(event, "GateOverrid") {
				continue
			}
			if !strings.Contains(event, want) {
				w.Fatalf("the event says %q, not %q", event, want)
			}
			return
		case <-deadline:
			w.Fatalf("no event says %q", want)
		}
	}
}

// TestOverride: an override takes effect at once, is published, and causes an event. It ends at its end time. If the
// ConfigMap becomes invalid, this is a problem, and the override stays in force, also with a new leader.
func TestOverride(t *testing.T) {
	w := newWorld(t)
	w.run()
	w.setStatus(1, 1)
	p, asks := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now()), pod("asks")
	asks.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	w.addPod(p)
	w.Lead()
	is := func(w *world, p *v1.Pod, open bool, code string) {
		t.Helper()
		w.eventually(func() string {
			if v := w.Decide(p, Snapshot{}, gate.Wait{}).Burst[2]; v.Open != open || v.Reason.Code != code {
				return fmt.Sprintf("%s: %+v, want open %v by %s", p.Name, v, open, code)
			}
			return ""
		})
	}
	is(w, p, false, "PoolCanGrow")
	is(w, asks, true, "SelectedByPod")
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Gatekeeper.Failed(p, true)
	w.Hold(klog.Background(), p, &d, nil)

	w.setOverride("first", map[string]string{"gate": "Open"})
	w.eventually(func() string {
		if !w.wasActivated("p") {
			return "the pod is not requeued"
		}
		return ""
	})
	is(w, p, true, "OverriddenOpen")
	w.publishes(gate.OverrideOpen, "")
	w.says("Normal GateOverridden Open: burst pools are open for all pods that may burst")

	w.setOverride("first", map[string]string{"gate": "open"})
	w.publishes(gate.OverrideOpen, `is invalid: gate: the value is "open"; set Closed or Open. Until it is corrected, the override that was read before stays in force: Open`)
	is(w, p, true, "OverriddenOpen")
	w.says("Warning GateOverrideUnreadable")

	next := newWorld(t, everything(t, w)...)
	next.run()
	is(next, p, true, "OverriddenOpen")
	next.setOverride("second", map[string]string{"gate": "open"}) // a new ConfigMap: the first override ends
	is(next, p, false, "PoolCanGrow")

	until := w.clock.Now().Add(30 * time.Second)
	w.setOverride("first", map[string]string{"gate": "Closed", "until": until.UTC().Format(time.RFC3339)})
	is(w, asks, false, "OverriddenClosed")
	w.publishes(gate.OverrideClosed, "")
	w.says("Normal GateOverridden Closed until 2026-11-21T")
	is(w, asks, true, "SelectedByPod")
	if now := w.clock.Now(); now.Before(until.Truncate(time.Second)) {
		t.Errorf("it ended at %v, before %v", now, until)
	}
	w.publishes("", "")
	w.says("Normal GateOverrideEnded the override ended at 2026-11-21T")
	w.setOverride("", nil)
	w.setOverride("third", map[string]string{"gate": "Closed"})
	is(w, asks, false, "OverriddenClosed")
	w.setOverride("", nil)
	is(w, asks, true, "SelectedByPod")
	w.publishes("", "")
}

// everything returns all ConfigMaps of the world, for the next leader.
func everything(t *testing.T, w *world) []runtime.Object {
	t.Helper()
	list := must.Get(w.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
	var objects []runtime.Object
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return objects
}

// TestOverrideThatCannotBeRead: while the ConfigMap cannot be read, the last leader's override stays in force, and this
// is a problem.
func TestOverrideThatCannotBeRead(t *testing.T) {
	var forbidden atomic.Bool
	forbidden.Store(true)
	client := fake.NewClientset()
	client.PrependReactor("list", "configmaps", func(action k8stesting.Action) (bool, runtime.Object, error) {
		restrictions := action.(k8stesting.ListAction).GetListRestrictions()
		if name, ok := restrictions.Fields.RequiresExactMatch("metadata.name"); !ok || name != gate.OverrideConfigMap || !forbidden.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no"))
	})
	w := newWorldOf(t, client, func(*configv1.PoolPriorityArgs) {}, nil)
	w.forbidden = true
	last := published.Status{Memory: published.Memory{Written: w.clock.Now(), Override: published.Override{Override: gate.Override{Gate: gate.OverrideClosed}}}}
	data := must.Get(last.Encode())(t)
	must.Do(t)(w.client.CoreV1().ConfigMaps("pool-priority-system").Create(t.Context(),
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pool-priority-status"}, Data: data}, metav1.CreateOptions{}))
	w.run()
	w.setStatus(1, 1)
	w.Lead()
	w.publishes(gate.OverrideClosed, "Check that the scheduler may get, list and watch it. Until it can be read, the override that was read before stays in force: Closed")
	forbidden.Store(false)
	w.publishes("", "") // the ConfigMap does not exist
}

// TestOverrideIsWatchedAlone: the informer lists only the override's ConfigMap, in the namespace of the published
// state.
func TestOverrideIsWatchedAlone(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) { args.StatusConfigMap = "elsewhere/pool-priority-status" })
	w.eventually(func() string {
		for _, action := range w.client.Actions() {
			if list, ok := action.(k8stesting.ListAction); ok && action.GetNamespace() == "elsewhere" {
				if name, exact := list.GetListRestrictions().Fields.RequiresExactMatch("metadata.name"); !exact || name != gate.OverrideConfigMap {
					t.Fatalf("it lists %v", list.GetListRestrictions())
				}
				return ""
			}
		}
		return "it lists nothing"
	})
}
