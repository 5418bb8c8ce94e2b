package gatekeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

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
	p := newPublisher("system/status", client)
	if s, err := p.load(ctx); s != nil || err != nil {
		t.Fatalf("load() = %v, %v before anything was published", s, err)
	}
	go p.run(ctx, fakeClock)
	// submit hands over a state and, when the publisher is through with it, lets the time pass that it waits for.
	submit := func(state nodegroups.State, pods int, wait time.Duration) {
		view := &published.View{Args: &configv1.PoolPriorityArgs{}, Usage: []published.Usage{{Pods: pods}}}
		p.submit(&published.Status{Pools: []published.Pool{{Name: "user", State: state}}, View: view})
		for deadline := time.Now().Add(5 * time.Second); wait > 0 && !fakeClock.HasWaiters(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the publisher does not wait for anything")
			}
		}
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
	submit(nodegroups.Full, 1, 0)
	time.Sleep(20 * time.Millisecond)
	if len(writes) > 0 {
		t.Errorf("%s although nothing changed", <-writes)
	}
	submit(nodegroups.Full, 2, 0)
	time.Sleep(20 * time.Millisecond)
	if len(writes) > 0 {
		t.Errorf("%s at once although only figures changed", <-writes)
	}
	fakeClock.Step(figuresInterval)
	submit(nodegroups.Full, 2, publishInterval)
	expect("patch")
	fakeClock.Step(heartbeat)
	submit(nodegroups.Full, 2, publishInterval)
	expect("patch") // it must not grow old
	fail = errors.New("no")
	submit(nodegroups.Growing, 1, 2*publishInterval)
	expect("failed")
	for !fakeClock.HasWaiters() { // it tried again by itself
		time.Sleep(time.Millisecond)
	}
	expect("failed")
	fail = nil
	fakeClock.Step(4 * publishInterval)
	expect("patch")
	s, err := p.load(ctx)
	if err != nil || s.Pools[0].State != nodegroups.Growing || s.Memory.Written.IsZero() {
		t.Errorf("load() = %+v, %v", s, err)
	}
}

// TestStopInTheMiddleOfAWrite: an orderly stop is no error worth a line.
func TestStopInTheMiddleOfAWrite(t *testing.T) {
	var lines []string
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})))
	client := fake.NewClientset()
	client.PrependReactor("patch", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, context.Canceled
	})
	p := newPublisher("system/status", client)
	p.submit(&published.Status{})
	p.run(ctx, clock.RealClock{})
	if len(lines) > 0 {
		t.Errorf("it says %q", lines)
	}
}
