package virtual

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/devcluster/autoscaler"
)

// TestJudge shows how a judge that knows the future uses the cluster, and that it tells gates apart: one that believes the
// status lets pods in early, one that holds everything never does and holds in vain.
func TestJudge(t *testing.T) {
	believing, early := judged(10, func(c *Cluster, pod *corev1.Pod) bool {
		for _, g := range c.LastWrite().Status.NodeGroups {
			if c.Fits(pod, g.Name) && g.Health.CloudProviderTarget < g.Health.MaxSize && g.ScaleUp.Status != "Backoff" {
				return false
			}
		}
		return len(c.LastWrite().Status.NodeGroups) > 0
	})
	if believing == 0 || early == 0 {
		t.Errorf("a gate that believes the status let in %d pods, %d of them early", believing, early)
	}
	knowing, early := judged(3, func(c *Cluster, pod *corev1.Pod) bool { return !tooEarly(c, pod.Name) })
	if knowing == 0 || early != 0 {
		t.Errorf("a gate that knows the future let in %d pods, %d of them early", knowing, early)
	}
	t.Logf("a gate that believes the status let in %d pods, one that knows the future %d", believing, knowing)
}

// judged plays histories with the gate, and returns how many pods it let in and how many of them early.
func judged(histories int, opens func(*Cluster, *corev1.Pod) bool) (let, early int) {
	for seed := range histories {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		c := randomCluster(r)
		for i := range 40 {
			disturb(c, r, i)
			for until := c.Now().Add(time.Duration(r.IntN(120)) * time.Second); ; c.Step() {
				for _, pod := range c.Pending() {
					if !opens(c, pod) {
						continue
					}
					let++
					if tooEarly(c, pod.Name) {
						early++
					}
					c.Burst(pod.Name)
				}
				if next, ok := c.Next(); !ok || next.After(until) {
					break
				}
			}
		}
	}
	return let, early
}

// tooEarly reports whether the autoscaler would order a VM that the pod fits, were the pod kept pending.
func tooEarly(c *Cluster, pod string) bool {
	for _, order := range c.Ahead([]string{pod}, 10, 0) {
		if c.Fits(c.Pod(pod), order.Group) {
			return true
		}
	}
	return false
}

func randomCluster(r *rand.Rand) *Cluster {
	options := Options{
		Seed: r.Uint64(), Autoscaler: autoscaler.Real(), VirtualNode: true, PodTriggers: r.IntN(2) == 0,
		LoopTime: time.Duration(30+r.IntN(3000)) * time.Millisecond, SchedulerDelay: 10 * time.Millisecond, DeleteDelay: 5 * time.Second,
		DrainTime: time.Duration(r.IntN(60)) * time.Second, Linger: time.Duration(r.IntN(3)) * time.Minute, SizeCache: time.Duration(r.IntN(2)) * time.Minute,
	}
	options.Autoscaler.UnneededTime, options.Autoscaler.DelayAfterAdd = time.Minute, time.Minute
	taint := corev1.Taint{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
	for i := range 2 + r.IntN(3) {
		g := Group{
			Name: fmt.Sprint("group", i), Max: 1 + r.IntN(5), Priority: 10 * r.IntN(3), Template: template("user"),
			Boot: time.Duration(10+r.IntN(200)) * time.Second, Jitter: time.Minute, ReadyAfter: time.Duration(r.IntN(30)) * time.Second,
		}
		if i > 0 && r.IntN(3) == 0 {
			g.Template = template("user", taint)
		}
		options.Groups = append(options.Groups, g)
	}
	return New(options)
}

// disturb makes one thing happen: pods come or go, a cloud fails or recovers, the autoscaler is restarted.
func disturb(c *Cluster, r *rand.Rand, i int) {
	group := c.Groups()[r.IntN(len(c.Groups()))].Name
	switch n := r.IntN(20); {
	case n < 8:
		for j := range 1 + r.IntN(8) {
			c.AddPod(pod(fmt.Sprint("p", i, "-", j), "1500m"))
		}
	case n < 13:
		for _, p := range c.Pods() {
			if r.IntN(4) > 0 {
				c.DeletePod(p.Name)
			}
		}
	case n < 16:
		faults := []Fault{{}, {}, {Refusal: "QuotaExceeded"}, {NeverRegisters: true}, {ErrorCode: "AllocationFailed"}, {NoVM: true}}
		c.SetGroup(group, func(g *Group) { g.Fault = faults[r.IntN(len(faults))] })
	case n < 17:
		if nodes := c.Nodes(); len(nodes) > 1 {
			c.LoseVM(nodes[0].Name)
		}
	case n < 18:
		c.Kill()
		c.Start()
	}
}
