package gatekeeper

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/must"
)

// waitingPod returns the i-th pod, which has one of 20 sizes. Every third pod belongs to a Job that counts failures.
func waitingPod(i int, since time.Time) *v1.Pod {
	p := withCondition(pod(fmt.Sprint("p", i)), v1.ConditionFalse, v1.PodReasonUnschedulable, since)
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse(fmt.Sprintf("%dm", 100+i%20))}}}}
	if i%3 == 0 {
		ofJob(p, fmt.Sprint("job", i%7))
	}
	return p
}

// cycles simulates the scheduling cycles of a scheduler. It tries the pods that the gatekeeper requeued, and the pods
// in the channel.
type cycles struct {
	w     *world
	pods  chan string // pods that an event of the cluster requeues
	tried int
}

// next returns the next pod to try, or "". A pod is tried as often as it was requeued.
func (q *cycles) next() string {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	if n := len(q.w.activated); n > 0 {
		name := q.w.activated[0]
		q.w.activated = q.w.activated[1:]
		return name[len("default/"):]
	}
	select {
	case name := <-q.pods:
		return name
	default:
		return ""
	}
}

// schedule tries pods, one after another, until stopped returns true. If the gate is open for a pod, the pod is
// deleted, as if it were bound. Otherwise it is held.
func (q *cycles) schedule(stopped func() bool) error {
	for !stopped() {
		name := q.next()
		if name == "" {
			time.Sleep(time.Millisecond)
			continue
		}
		p, err := q.w.pods.Pods("default").Get(name)
		if err != nil {
			continue // deleted while it was in the queue
		}
		q.tried++
		d := q.w.Decide(p, Snapshot{}, gate.Wait{})
		if !d.Opens() {
			var wait *gate.Wait
			if q.tried%5 == 0 {
				wait = &gate.Wait{ReplicaSet: "web"}
			}
			q.w.Gatekeeper.Failed(p, true)
			q.w.Hold(klog.Background(), p, &d, wait, false)
			continue
		}
		q.w.held.Release(p.UID)
		if err := q.w.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the pod, and waits until it is no longer in the lister.
func (w *world) remove(name string) error {
	if err := w.client.CoreV1().Pods("default").Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if _, err := w.pods.Pods("default").Get(name); err != nil {
			return nil
		}
	}
	return errors.New(name + " is listed although it is deleted")
}

// ask calls the methods that goroutines other than the gatekeeper's loop call, until stopped returns true.
func (w *world) ask(stopped func() bool) {
	for r := rand.New(rand.NewPCG(1, 1)); !stopped(); {
		uid := types.UID(fmt.Sprint("p", r.IntN(2000)))
		w.held.Lookup(uid)
		if p, err := w.pods.Pods("default").Get(string(uid)); err == nil {
			w.Waited(p)
			w.SchedulerSignature(p)
			w.Rollout(p)
		}
		time.Sleep(100 * time.Microsecond)
		if r.IntN(100) == 0 {
			w.gauges()
		}
	}
}

// change makes one random change of the cluster, the i-th.
func (w *world) change(r *rand.Rand, i int, q *cycles) {
	w.Helper()
	name := fmt.Sprint("p", r.IntN(2000))
	pods := w.client.CoreV1().Pods("default")
	switch r.IntN(8) {
	case 0:
		w.setStatus(1+2*r.IntN(2), 3) // three VMs are ordered: all are ready, or two are not
	case 1:
		w.setStatus(1, 1)
	case 2:
		if err := w.remove(name); err != nil && !apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
	case 3:
		w.addPod(waitingPod(2000+i, w.clock.Now()))
		q.pods <- fmt.Sprint("p", 2000+i)
	case 4:
		if p, err := pods.Get(w.Context(), name, metav1.GetOptions{}); err == nil { // unless it was deleted
			p.Labels = map[string]string{"changed": fmt.Sprint(i)}
			if _, err := pods.Update(w.Context(), p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				w.Fatal(err)
			}
		}
	case 5:
		w.setOverride(map[string]string{"gate": []string{string(gate.OverrideClosed), "garbage"}[r.IntN(2)]})
	case 6:
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"agentpool": "other"}}}
		must.Do(w.TB)(w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{}))
	default: // an event of the cluster requeues pods
		for range 50 {
			q.pods <- fmt.Sprint("p", r.IntN(2000))
		}
	}
	time.Sleep(5 * time.Millisecond)
}

// TestCrowdThatChanges: 2,000 pods wait. Meanwhile pods are added, changed and deleted, the pool fills and empties, the
// gate is overridden, and scheduling cycles run. Once the pool is full, the gate opens for every pod: no pod is lost
// between a cycle and a concurrent sync. No deleted pod remains held. Run this test with the race detector.
func TestCrowdThatChanges(t *testing.T) {
	const crowd, steps = 2000, 150
	var pods []runtime.Object
	var names []string
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i := range crowd {
		p := waitingPod(i, start)
		pods, names = append(pods, p), append(names, p.Name)
	}
	w := newSlowWorld(t, pods...)
	w.setStatus(1, 1)
	w.run()
	w.Lead()
	var others sync.WaitGroup
	done := make(chan struct{})
	stopped := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	q := &cycles{w: w, pods: make(chan string, 10*crowd)}
	failed := make(chan error, 1)
	for _, name := range names {
		q.pods <- name
	}
	others.Go(func() { failed <- q.schedule(stopped) })
	others.Go(func() { w.ask(stopped) })

	r := rand.New(rand.NewPCG(2026, 11))
	for i := range steps {
		w.change(r, i, q)
	}
	w.setOverride(map[string]string{"gate": string(gate.OverrideClosed)})
	w.setOverride(nil)
	w.setStatus(3, 3)
	for n := crowd + steps; n > 0; {
		w.eventually(func() string {
			left, err := w.pods.List(labels.Everything())
			if err != nil {
				return err.Error()
			}
			if len(left) < n {
				n = len(left)
				return ""
			}
			d := w.Decide(left[0], Snapshot{}, gate.Wait{})
			_, held := w.held.Lookup(left[0].UID)
			return fmt.Sprintf("%d pods wait although the pool is full, such as %s (held: %v, decided now: %+v)", n, left[0].Name, held, d.Burst[2])
		})
	}
	close(done)
	others.Wait()
	must.NoError(t, <-failed)
	w.eventually(func() string {
		if left := w.held.Count(); left > 0 {
			return fmt.Sprintf("%d pods that are gone are held", left)
		}
		return ""
	})
	t.Logf("%d cycles", q.tried)
	if q.tried < crowd {
		t.Errorf("only %d cycles for %d pods", q.tried, crowd)
	}
}
