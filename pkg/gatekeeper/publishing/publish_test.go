package publishing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

// reportOf returns a report about three pools. The first pool has this state.
func reportOf(state nodegroups.State) *Report {
	view := &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}
	view.Pools[0].State = state
	return &Report{View: view}
}

func TestPublisher(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := fake.NewClientset()
	var fail error
	writes := make(chan string, 100)
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "get" {
			return false, nil, nil
		}
		if fail != nil {
			writes <- "failed"
			return true, nil, fail
		}
		writes <- a.GetVerb()
		return false, nil, nil
	})
	fakeClock := testingclock.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	config := configOf(t, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"agentpool": "userpool"}}})
	config.Client, config.Clock = client.CoreV1(), fakeClock
	p := New(config)
	if s, err := p.Load(ctx); s != nil || err != nil {
		t.Fatalf("Load() = %v, %v before anything was published", s, err)
	}
	go p.Run(ctx)
	// submit adds pods to the usage and submits a report. If wait is positive, it waits until the publisher pauses, and
	// then advances the clock by wait.
	submit := func(state nodegroups.State, pods int, wait time.Duration) {
		for i := range pods {
			config.Usage.See(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}, Spec: v1.PodSpec{NodeName: "n"}})
		}
		p.Submit(reportOf(state))
		must.Eventually(t, "the publisher waits for something", func() bool { return wait == 0 || fakeClock.HasWaiters() })
		fakeClock.Step(wait)
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-writes:
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("nothing, want %s", want)
		}
	}
	submit(nodegroups.CanGrow, 1, publishInterval)
	expect("patch")
	submit(nodegroups.Full, 1, publishInterval)
	expect("patch")
	submit(nodegroups.Full, 1, publishInterval)
	time.Sleep(20 * time.Millisecond)
	if len(writes) > 0 {
		t.Errorf("%s although nothing changed", <-writes)
	}
	submit(nodegroups.Full, 2, publishInterval)
	time.Sleep(20 * time.Millisecond)
	if len(writes) > 0 {
		t.Errorf("%s at once although only figures changed", <-writes)
	}
	fakeClock.Step(figuresInterval)
	expect("patch") // without a new report
	submit(nodegroups.Full, 2, published.Heartbeat)
	expect("patch") // the published state must not grow old
	for !fakeClock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	fakeClock.Step(publishInterval)
	fail = errors.New("no")
	submit(nodegroups.Growing, 2, 2*publishInterval)
	expect("failed")
	for !fakeClock.HasWaiters() { // the publisher retries without a new report
		time.Sleep(time.Millisecond)
	}
	expect("failed")
	fail = nil
	fakeClock.Step(4 * publishInterval)
	expect("patch")
	s, err := p.Load(ctx)
	if err != nil || s.View.Capacity.Pools[0].State != nodegroups.Growing || s.Memory.Written.IsZero() {
		t.Errorf("Load() = %+v, %v", s, err)
	}
}

// TestStopInTheMiddleOfAWrite: a write that fails because the context ended is not logged.
func TestStopInTheMiddleOfAWrite(t *testing.T) {
	var lines []string
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})))
	client := fake.NewClientset()
	client.PrependReactor("patch", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, context.Canceled
	})
	config := configOf(t)
	config.Client, config.Clock = client.CoreV1(), clock.RealClock{}
	p := New(config)
	p.Submit(reportOf(nodegroups.Full))
	p.Run(ctx)
	if len(lines) > 0 {
		t.Errorf("it says %q", lines)
	}
}
