package lease

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/test/must"
)

// TestLeadership: a scheduler may bind while its lease lasts by both clocks. Once the lease has expired, the scheduler
// may never bind again.
func TestLeadership(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name string
		l    func() *Leadership
		want error
	}{
		{name: "the only scheduler", l: func() *Leadership { return nil }},
		{name: "not yet", l: NewLeadership, want: ErrNotLeading},
		{name: "leading", l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(time.Hour)); return l }},
		{name: "renewed", l: func() *Leadership {
			l := NewLeadership()
			l.Extend(now.Add(time.Minute))
			l.Extend(now.Add(time.Hour))
			return l
		}},
		{name: "the lease has run out", want: ErrNotLeading, l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(-time.Second)); return l }},
		{name: "and is free", want: ErrNotLeading, l: func() *Leadership {
			l := NewLeadership()
			l.Extend(now.Add(-time.Second))
			l.Extend(now.Add(time.Hour))
			return l
		}},
		{name: "given up", want: ErrNotLeading, l: func() *Leadership { l := NewLeadership(); l.Extend(now.Add(time.Hour)); l.End(); return l }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel, err := tc.l().Bound(t.Context())
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

// TestLeadershipEnds: a binding that is under way is cancelled when the lease expires or is released.
func TestLeadershipEnds(t *testing.T) {
	for _, end := range []func(*Leadership){func(l *Leadership) { l.Extend(time.Now().Add(20 * time.Millisecond)) }, (*Leadership).End} {
		l := NewLeadership()
		l.Extend(time.Now().Add(time.Hour))
		ctx, cancel, err := l.Bound(t.Context())
		must.NoError(t, err)
		defer cancel()
		end(l)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrNotLeading) {
			t.Errorf("ended by %v, want %v", context.Cause(ctx), ErrNotLeading)
		}
	}
}

// TestBindMany: a binding that the rate limit delays for longer than the lease lasts is sent if the lease is renewed
// meanwhile. A binding that is delayed beyond the end of the leadership is not sent.
func TestBindMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		server := roundTripper(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
				Body: io.NopCloser(strings.NewReader(`{"kind": "Status", "apiVersion": "v1", "status": "Success"}`))}, nil
		})
		l := NewLeadership()
		pods := must.Get(typedcorev1.NewForConfig(l.Config(&rest.Config{Transport: server}, 20, 1)))(t)
		const many, lease = 40, time.Second // two seconds' worth of bindings
		l.Extend(time.Now().Add(lease))
		results := make(chan error, many)
		bind := func() {
			for range many {
				go func() {
					ctx, cancel, err := l.Bound(t.Context())
					if err == nil {
						err = pods.Pods("default").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}, metav1.CreateOptions{})
						cancel()
					}
					results <- err
				}()
			}
		}
		bind()
		for end := time.Now().Add(5 * lease / 2); time.Now().Before(end); l.Extend(time.Now().Add(lease)) {
			time.Sleep(lease / 10)
		}
		for range many {
			must.NoError(t, <-results)
		}
		bind()
		time.Sleep(lease / 8)
		l.End() // the process was stopped
		failed := 0
		for range many {
			if err := <-results; err != nil {
				failed++
			}
		}
		if sent := int(asked.Load()) - many; failed != many-sent || sent < 2 || sent > 4 {
			t.Errorf("after the lease %d bindings failed; before its end %d were sent", failed, sent)
		}
	})
}

// roundTripper answers requests by a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestFenceOfAllThatChanges: writes, such as preemption's deletions, are sent only while the process leads. Reads are
// always sent.
func TestFenceOfAllThatChanges(t *testing.T) {
	var methods []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "Pod", "apiVersion": "v1"}`))
	}))
	defer server.Close()
	client := must.Get(kubernetes.NewForConfig(&rest.Config{Host: server.URL}))(t)
	l := NewLeadership()
	must.NoError(t, l.Fence(client.CoreV1().RESTClient()))
	own := must.Get(typedcorev1.NewForConfig(l.Config(&rest.Config{Host: server.URL}, 5, 10)))(t)
	remove := func() error {
		err := client.CoreV1().Pods("default").Delete(t.Context(), "victim", metav1.DeleteOptions{})
		if ofOwn := own.Pods("default").Delete(t.Context(), "victim", metav1.DeleteOptions{}); errors.Is(ofOwn, ErrNotLeading) != errors.Is(err, ErrNotLeading) {
			t.Errorf("a client with its own limiter: %v; others: %v", ofOwn, err)
		}
		return err
	}
	if err := remove(); !errors.Is(err, ErrNotLeading) {
		t.Errorf("before the lease: %v", err)
	}
	l.Extend(time.Now().Add(time.Hour))
	if err := remove(); err != nil {
		t.Errorf("with the lease: %v", err)
	}
	l.End()
	if err := remove(); !errors.Is(err, ErrNotLeading) {
		t.Errorf("after the lease: %v", err)
	}
	if err := client.AppsV1().Deployments("default").Delete(t.Context(), "d", metav1.DeleteOptions{}); !errors.Is(err, ErrNotLeading) {
		t.Errorf("another group of the client's after the lease: %v", err)
	}
	_, err := own.Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
	if _, ofClient := client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); ofClient != nil || err != nil {
		t.Errorf("reading after the lease: %v, %v", ofClient, err)
	}
	if got := strings.Join(methods, " "); got != "DELETE DELETE GET GET" {
		t.Errorf("the API server was asked %s", got)
	}
	if err := l.Fence(fake.NewClientset().CoreV1().RESTClient()); err == nil {
		t.Error("a client without connections is fenced")
	}
}
