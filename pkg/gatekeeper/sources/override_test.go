package sources

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2/ktesting"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

// stillInformer is an informer that does not run.
type stillInformer struct {
	cache.SharedIndexInformer
	synced bool
}

func (i *stillInformer) HasSynced() bool { return i.synced }

// TestOverride: which override is in force, why the ConfigMap cannot be used, and the events, also with the next leader.
func TestOverride(t *testing.T) {
	const id, kept = "mine/" + gate.OverrideConfigMap, "the override that was read before stays in force: "
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	logged := func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
	recorder, began := events.NewFakeRecorder(10), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	var informer *stillInformer
	var o *Override
	leads := func() {
		informer = &stillInformer{SharedIndexInformer: coreinformers.NewFilteredConfigMapInformer(fake.NewClientset(), "mine", 0, cache.Indexers{}, nil)}
		o = &Override{id: id, object: &watched{informer: informer, key: id}, recorder: recorder}
	}
	leads()
	denied := errors.New("no right")
	for _, tc := range []struct {
		name      string
		after     time.Duration
		anew      bool   // another scheduler leads
		uid, data string // of the ConfigMap; without a UID, there is none
		unread    bool   // the ConfigMap has not been read
		failure   error  // of reading it
		want      gate.OverriddenGate
		problem   string
		event     string
		due       time.Duration // 0: never
	}{
		{name: "not read yet", unread: true, want: gate.OverrideUnread, due: overrideRetry},
		{name: "none"},
		{name: "open", uid: "1", data: "Open", want: gate.OverrideOpen, event: "Normal GateOverridden Open: burst pools are open for all pods that may burst"},
		{name: "the same", uid: "1", data: "Open", want: gate.OverrideOpen},
		{name: "misspelt", uid: "1", data: "open", want: gate.OverrideOpen, problem: `is invalid: gate: the value is "open"; set Closed or Open. Until it is corrected, ` + kept + "Open"},
		{name: "the next leader has not read it", anew: true, unread: true, want: gate.OverrideOpen, due: overrideRetry},
		{name: "the next leader may not read it", unread: true, failure: denied, want: gate.OverrideOpen, due: overrideRetry,
			problem: "cannot be read: no right. Check that the scheduler may list and watch it. Until it can be read, " + kept + "Open"},
		{name: "still misspelt for the next leader", uid: "1", data: "open", want: gate.OverrideOpen, problem: kept + "Open"},
		{name: "a new ConfigMap, misspelt", uid: "2", data: "open", problem: "there is no override"},
		{name: "closed for a minute", uid: "2", data: "Closed until 2026-11-21T10:01:00Z", want: gate.OverrideClosed, event: "Normal GateOverridden Closed until 2026-11-21T10:01:00Z: burst pools get no more pods", due: time.Minute},
		{name: "a minute later", after: time.Minute, uid: "2", data: "Closed until 2026-11-21T10:01:00Z", event: "Normal GateOverrideEnded the override ended at 2026-11-21T10:01:00Z"},
		{name: "closed", uid: "2", data: "Closed", want: gate.OverrideClosed, event: "Normal GateOverridden Closed: "},
		{name: "deleted"},
	} {
		now := began.Add(tc.after)
		if tc.anew {
			var last published.Memory
			o.Remember(&last)
			leads()
			o.Restore(&last)
		}
		informer.synced = !tc.unread
		o.object.failure.Store(nil)
		if tc.failure != nil {
			o.object.failure.Store(&tc.failure)
		}
		var objects []any
		if tc.uid != "" {
			said, end, ends := strings.Cut(tc.data, " until ")
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: gate.OverrideConfigMap, UID: types.UID(tc.uid)}, Data: map[string]string{"gate": said}}
			if ends {
				cm.Data["until"] = end
			}
			objects = append(objects, cm)
		}
		must.NoError(t, informer.GetStore().Replace(objects, ""))
		o.Observe(logger, now)
		o.Report(false, now)
		o.Report(true, now)
		event := ""
		if len(recorder.Events) > 0 {
			event = <-recorder.Events
		}
		_, problem := o.Problem()
		if got := o.Current.Load().Gate; got != tc.want || (problem == "") != (tc.problem == "") || !strings.HasSuffix(problem, tc.problem) || (event == "") != (tc.event == "") || !strings.HasPrefix(event, tc.event) || len(recorder.Events) > 0 {
			t.Errorf("%s: the override is %q, the problem %q, the event %q; want %+v", tc.name, got, problem, event, tc)
		}
		if due := o.Due(now); due.IsZero() != (tc.due == 0) || tc.due > 0 && !due.Equal(now.Add(tc.due)) {
			t.Errorf("%s: due at %v, want after %v", tc.name, due, tc.due)
		}
		if tc.name == "none" && logged() != "" { // it was never overridden
			t.Errorf("logged:\n%s", logged())
		}
	}
}

// TestWatchOverride: the informer lists only the override's ConfigMap, in the namespace of the published state. That it
// may not list is a problem.
func TestWatchOverride(t *testing.T) {
	logger, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset()
	client.PrependReactor("list", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		restrictions := action.(clienttesting.ListAction).GetListRestrictions()
		if name, exact := restrictions.Fields.RequiresExactMatch("metadata.name"); !exact || name != gate.OverrideConfigMap || action.GetNamespace() != "elsewhere" {
			t.Errorf("it lists %v in %s", restrictions, action.GetNamespace())
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no right"))
	})
	config, _ := karpenterConfig(client)
	config.Args.StatusConfigMap = "elsewhere/pool-priority-status"
	o := NewOverride(ctx, config)
	must.Eventually(t, "the failure is seen", o.Settled)
	o.Observe(logger, time.Now())
	if _, problem := o.Problem(); !strings.Contains(problem, "no right. Check that the scheduler may list and watch it") {
		t.Errorf("the problem is %q", problem)
	}
}
