package poolpriority

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestLeadership: a scheduler binds while its lease lasts, by either clock no longer, and never again once it has run out.
func TestLeadership(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name string
		l    func() *Leadership
		want error
	}{
		{name: "the only scheduler", l: func() *Leadership { return nil }},
		{name: "not yet", l: NewLeadership, want: errNotLeading},
		{name: "leading", l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(time.Hour)); return l }},
		{name: "renewed", l: func() *Leadership {
			l := NewLeadership()
			l.Extend(now.Add(time.Minute))
			l.Extend(now.Add(time.Hour))
			return l
		}},
		{name: "the lease has run out", want: errNotLeading, l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(-time.Second)); return l }},
		{name: "and is free", want: errNotLeading, l: func() *Leadership {
			l := NewLeadership()
			l.Extend(now.Add(-time.Second))
			l.Extend(now.Add(time.Hour))
			return l
		}},
		{name: "given up", want: errNotLeading, l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(time.Hour)); l.End(); return l }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel, err := tc.l().bound(t.Context())
			if !errors.Is(err, tc.want) {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			if err != nil {
				return
			}
			defer cancel()
			if _, ok := ctx.Deadline(); ok {
				t.Error("the binding has a deadline: it would be refused if its turn is later")
			}
		})
	}
	l := NewLeadership()
	l.Extend(now.Add(time.Hour))
	suspended := now.Round(0).Add(2 * time.Hour) // the monotonic clock stood still
	if !l.Ended(suspended) {
		t.Error("two hours later by the wall clock, a lease of an hour has not ended")
	}
}

// TestLeadershipEnds: a binding under way ends with the lease, and when it is given up.
func TestLeadershipEnds(t *testing.T) {
	for _, end := range []func(*Leadership){func(l *Leadership) { l.Extend(time.Now().Add(20 * time.Millisecond)) }, (*Leadership).End} {
		l := NewLeadership()
		l.Extend(time.Now().Add(time.Hour))
		ctx, cancel, err := l.bound(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer cancel()
		end(l)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errNotLeading) {
			t.Errorf("ended by %v, want %v", context.Cause(ctx), errNotLeading)
		}
	}
}

// configured is a handle with a client's configuration.
type configured struct {
	fwk.Handle
	config *rest.Config
	client kubernetes.Interface
}

func (c *configured) KubeConfig() *rest.Config        { return c.config }
func (c *configured) ClientSet() kubernetes.Interface { return c.client }

// TestBindMany: bindings that wait for their turn for longer than a lease lasts are made as long as it is renewed, and those that
// have their turn after it are not sent.
func TestBindMany(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Success"}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, QPS: 50, Burst: 1}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, aks(t))
	l := NewLeadership()
	h.plugin.leadership = l
	if h.plugin.binder, err = l.pods(&configured{config: config, client: client}); err != nil {
		t.Fatal(err)
	}
	const lease = 200 * time.Millisecond
	l.Extend(time.Now().Add(lease))
	bind := func(n int, results chan<- *fwk.Status) {
		for range n {
			go func() { results <- h.plugin.Bind(h.ctx, nil, pod("p").Obj(), "user") }()
		}
	}
	results := make(chan *fwk.Status)
	bind(50, results) // a second's worth
	for done := 0; done < 50; {
		select {
		case status := <-results:
			if done++; !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
		case <-time.After(lease / 4):
		}
		l.Extend(time.Now().Add(lease))
	}
	bind(50, results)
	for asked.Load() < 52 {
		time.Sleep(time.Millisecond)
	}
	l.End() // the process was stopped
	before := asked.Load()
	failed := 0
	for range 50 {
		if status := <-results; !status.IsSuccess() {
			failed++
		}
	}
	if sent := asked.Load() - before; failed < 40 || sent > 1 {
		t.Errorf("after the lease %d bindings failed and %d were sent", failed, sent)
	}
}

// TestBindAfterTheLease: nothing is sent to the API server once the lease has run out.
func TestBindAfterTheLease(t *testing.T) {
	h := newHarness(t, aks(t))
	client := h.sched.Profiles[ourProfile].ClientSet().(*fake.Clientset)
	h.plugin.leadership = NewLeadership()
	h.plugin.leadership.Extend(time.Now().Add(-time.Second))
	before := len(client.Actions())
	if status := h.plugin.Bind(h.ctx, nil, pod("p").Obj(), "user"); status.IsSuccess() || !errors.Is(status.AsError(), errNotLeading) {
		t.Errorf("status %v, want %v", status, errNotLeading)
	}
	if actions := client.Actions()[before:]; len(actions) > 0 {
		t.Errorf("the API server was asked: %v", actions)
	}
	response, err := (&fence{leadership: h.plugin.leadership}).RoundTrip(httptest.NewRequest(http.MethodPost, "/", http.NoBody))
	if !errors.Is(err, errNotLeading) {
		t.Errorf("a request whose turn came late: %v, %v", response, err)
	}
}
