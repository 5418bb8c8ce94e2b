package simcluster

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// two returns a cluster with two groups, first and second. Both are empty. A loop takes a second.
func two(change func(*Options)) *Cluster {
	options := Options{
		Groups: []Group{
			{Name: "first", Max: 3, Priority: 20, Template: template("user"), Boot: 2 * time.Minute},
			{Name: "second", Max: 3, Priority: 10, Template: template("user"), Boot: 2 * time.Minute},
		},
		LoopTime: time.Second, DeleteDelay: 5 * time.Second,
	}
	if change != nil {
		change(&options)
	}
	return New(options)
}

func fault(f Fault) func(*Options) {
	return func(o *Options) { o.Groups[0].Fault = f }
}

// TestStatusIsOfTheLoopsStart: counts and time are those of the loop's start. Targets are those after the loop's
// orders.
func TestStatusIsOfTheLoopsStart(t *testing.T) {
	c := two(func(o *Options) { o.Groups[0].Boot = 500 * time.Millisecond })
	c.AddPod(pod("a", "1500m"))
	for len(c.Orders()) == 0 {
		c.Step()
	}
	c.RunLoops(1)
	w := c.LastWrite()
	health := w.Status.Of("first").Health
	if len(c.Nodes()) != 1 || health.CloudProviderTarget != 1 || health.NodeCounts.Registered.Total != 0 {
		t.Errorf("%d nodes; the status says %+v", len(c.Nodes()), health)
	}
	if w.At.Sub(w.Begun) != time.Second || c.ConfigMap().Annotations["cluster-autoscaler.kubernetes.io/last-updated"] != w.Begun.String() {
		t.Errorf("begun %v, written %v: %v", w.Begun, w.At, c.ConfigMap().Annotations)
	}
	if got := w.Status.Of("first").ScaleUp.Status; got != "InProgress" {
		t.Error(got)
	}
}

// TestTargetWithoutVMs: a stockout raises the target, and no VM is created. After the provision time, the target of a
// group with a node is lowered. The target of a group without nodes never is.
func TestTargetWithoutVMs(t *testing.T) {
	for nodes, want := range []int{1, 1} {
		c := two(func(o *Options) {
			o.Groups[0].Nodes = nodes
			o.Groups[0].Fault = Fault{NoVM: true}
			o.Autoscaler = autoscaler.Real()
			o.Autoscaler.UnneededTime = 0
		})
		if nodes == 1 {
			c.AddPod(pod("filler", "1900m"))
		}
		c.Run(20 * time.Second)
		c.AddPod(pod("a", "1500m"))
		c.Run(5 * time.Minute)
		if got := c.Target("first"); got != nodes+1 {
			t.Fatalf("the target is %d", got)
		}
		c.Run(12 * time.Minute)
		if got := c.Target("first"); got != want {
			t.Errorf("a group of %d nodes has target %d after the provision time, want %d", nodes, got, want)
		}
	}
}

// TestTakenBack: a scale-up of which no VM was created times out. Version 1.36 lowers the target by the scale-up, and no
// longer counts on its nodes, so that it grows the next group. If VMs exist that never register, 1.36 finds the scale-up
// complete as soon as they count as unregistered for too long: it deletes them, and grows the same group again at once,
// without a backoff.
func TestTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		minor       int
		fault       Fault
		want        string        // the group that is grown next
		atMost      time.Duration // after the provision time
		wantBackoff bool
	}{
		"1.35, no VM":                       {35, Fault{NoVM: true}, "second", 2 * time.Minute, true},
		"1.36, no VM":                       {36, Fault{NoVM: true}, "second", 30 * time.Second, true},
		"1.35, a VM that does not register": {35, Fault{NeverRegisters: true}, "second", time.Minute, true},
		"1.36, a VM that does not register": {36, Fault{NeverRegisters: true}, "first", 30 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := two(func(o *Options) {
				o.Groups[0].Nodes, o.Groups[0].Fault = 1, tc.fault
				o.Autoscaler = autoscaler.Real()
				o.Autoscaler.UnneededTime, o.Autoscaler.Minor = 0, tc.minor
			})
			c.AddPod(pod("filler", "1900m"))
			c.Run(20 * time.Second)
			c.AddPod(pod("a", "1500m"))
			for len(c.Orders()) < 2 && c.Step() {
			}
			orders := c.Orders()
			if late := orders[1].At.Sub(orders[0].At) - 15*time.Minute; orders[1].Group != tc.want || late < 0 || late > tc.atMost {
				t.Errorf("orders %v, want %s within %v after the provision time", orders, tc.want, tc.atMost)
			}
			c.RunLoops(1)
			if g := c.LastWrite().Status.Of("first"); (g.ScaleUp.BackoffInfo.ErrorCode == "timeout") != tc.wantBackoff {
				t.Errorf("%+v", g.ScaleUp)
			} else if suspended := g.Health.NodeCounts.Registered.Suspended; (suspended != nil) != (tc.minor >= 36) {
				t.Errorf("%v suspended nodes", suspended)
			}
			c.RunLoops(1)
			if got := c.Target("first"); tc.want == "second" && got != 1 || got > 2 {
				t.Errorf("the first group's target is %d", got)
			}
		})
	}
}

// TestVMsThatFailToBeMade: an error of a VM puts its group in backoff at once.
func TestVMsThatFailToBeMade(t *testing.T) {
	c := two(fault(Fault{ErrorCode: "AllocationFailed"}))
	c.AddPod(pod("a", "1500m"))
	c.Run(30 * time.Second)
	if up := c.LastWrite().Status.Of("first").ScaleUp; up.Status != "Backoff" || up.BackoffInfo.ErrorCode != "AllocationFailed" {
		t.Errorf("%+v", up)
	}
	if orders := c.Orders(); len(orders) != 2 || orders[1].Group != "second" || c.Target("first") != 0 {
		t.Errorf("orders %v, the first group's target is %d", orders, c.Target("first"))
	}
}

// TestBackoffDoubles: the backoffs last 5, 10, 20, 30 and 30 minutes.
func TestBackoffDoubles(t *testing.T) {
	c := two(func(o *Options) {
		o.Groups = o.Groups[:1]
		o.Groups[0].Fault = Fault{Refusal: "QuotaExceeded"}
		o.Autoscaler = autoscaler.Real()
	})
	c.AddPod(pod("a", "1500m"))
	c.Run(time.Minute)
	begin := c.Now()
	for _, w := range writes(c, 90*time.Minute) {
		if w.Status.Of("first").ScaleUp.Status != "Backoff" {
			t.Fatalf("not in back-off after %v", w.Begun.Sub(begin))
		}
	}
	// The autoscaler has tried at 0, 5, 15, 35 and 65 minutes. The cloud accepts orders from minute 91 on, and the next
	// try is at 95.
	c.SetGroup("first", func(g *Group) { g.Fault = Fault{} })
	c.Run(3 * time.Minute)
	if len(c.Orders()) != 0 {
		t.Errorf("orders %v", c.Orders())
	}
	c.Run(3 * time.Minute)
	if len(c.Orders()) != 1 {
		t.Errorf("orders %v", c.Orders())
	}
}

// TestUnhealthy: an unhealthy group is not grown. In an unhealthy cluster, no group is grown.
func TestUnhealthy(t *testing.T) {
	c := two(func(o *Options) { o.Groups[0].Unhealthy = true })
	c.AddPod(pod("a", "1500m"))
	c.Run(30 * time.Second)
	if orders := c.Orders(); len(orders) != 1 || orders[0].Group != "second" {
		t.Errorf("orders %v", orders)
	}
	if g := c.LastWrite().Status.Of("first"); g.Health.Status != "Unhealthy" || g.ScaleUp.Status != "Unhealthy" {
		t.Errorf("%+v", g)
	}
	c.SetUnhealthy(true)
	c.AddPod(pod("b", "1500m"))
	c.Run(time.Minute)
	if got := c.LastWrite().Status.ClusterWide.Health.Status; got != "Unhealthy" || len(c.Orders()) != 1 {
		t.Errorf("the cluster is %s, orders %v", got, c.Orders())
	}
}

// TestTooManyUnready: the cluster is unhealthy if more than three nodes and more than 45 % of all nodes are unready.
func TestTooManyUnready(t *testing.T) {
	c := two(func(o *Options) {
		o.Groups[0].Nodes, o.Groups[0].Max = 8, 10
		o.Autoscaler = autoscaler.Real()
		o.Autoscaler.UnneededTime = 0
	})
	c.Run(16 * time.Minute) // before, a node that is not ready counts as not started
	for i, node := range c.Nodes()[:4] {
		if got := c.LastWrite().Status.ClusterWide.Health.Status; got != "Healthy" {
			t.Fatalf("%s with %d unready nodes", got, i)
		}
		c.SetReady(node.Name, false)
		c.Run(20 * time.Second)
	}
	c.AddPod(pod("big", "1900m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{mode: "user"} }))
	for i := range 5 {
		c.AddPod(pod(fmt.Sprint("p", i), "1900m"))
	}
	c.Run(time.Minute)
	if got := c.LastWrite().Status; got.ClusterWide.Health.Status != "Unhealthy" || got.Of("first").Health.Status != "Unhealthy" || len(c.Orders()) != 0 {
		t.Errorf("%+v, orders %v", got.ClusterWide.Health, c.Orders())
	}
	c.SetReady(c.Nodes()[0].Name, true)
	c.Run(time.Minute)
	if len(c.Orders()) == 0 {
		t.Error("nothing was ordered by a healthy cluster")
	}
}

// TestIgnoredPods: pods for which the autoscaler orders no node, at first or ever.
func TestIgnoredPods(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		delay  time.Duration // --new-pod-scale-up-delay
		minor  int
		after  time.Duration // when the order is made; 0: never
	}{
		"any pod":                                   {change: func(*corev1.Pod) {}, after: 10 * time.Second},
		"priority -10":                              {change: func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](-10) }, after: 10 * time.Second},
		"priority -11 is expendable":                {change: func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](-11) }},
		"the annotation asks for a minute":          {change: annotated("1m"), after: 70 * time.Second},
		"the annotation cannot lower the option":    {change: annotated("1s"), delay: 30 * time.Second, after: 40 * time.Second},
		"the annotation is no duration":             {change: annotated("soon"), after: 10 * time.Second},
		"the option":                                {change: func(*corev1.Pod) {}, delay: 30 * time.Second, after: 40 * time.Second},
		"nominated to a node that is":               {change: func(p *corev1.Pod) { p.Status.NominatedNodeName = VirtualNode }},
		"nominated to a node that is not":           {change: func(p *corev1.Pod) { p.Status.NominatedNodeName = "gone" }, after: 10 * time.Second},
		"nominated to a node that is, 1.36":         {change: func(p *corev1.Pod) { p.Status.NominatedNodeName = VirtualNode }, minor: 36},
		"nominated to a node that is not, 1.36":     {change: func(p *corev1.Pod) { p.Status.NominatedNodeName = "gone" }, minor: 36},
		"nominated to none, 1.36":                   {change: func(*corev1.Pod) {}, minor: 36, after: 10 * time.Second},
		"one that is being deleted":                 {change: func(p *corev1.Pod) { p.DeletionTimestamp = &p.CreationTimestamp }},
		"one that is larger than any group's nodes": {change: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"size": "large"} }},
	} {
		t.Run(name, func(t *testing.T) {
			c := two(func(o *Options) {
				o.VirtualNode, o.LoopTime = true, 0
				o.Autoscaler = autoscaler.Real()
				o.Autoscaler.NewPodDelay, o.Autoscaler.Minor = tc.delay, tc.minor
			})
			begin := c.Now()
			c.AddPod(pod("a", "1500m", tc.change))
			c.Run(2 * time.Minute)
			switch orders := c.Orders(); {
			case tc.after == 0 && len(orders) > 0:
				t.Errorf("ordered after %v", orders[0].At.Sub(begin))
			case tc.after > 0 && (len(orders) == 0 || orders[0].At.Sub(begin) != tc.after):
				t.Errorf("orders %v, want one after %v", orders, tc.after)
			}
		})
	}
}

func annotated(delay string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{autoscaler.ScaleUpDelay: delay} }
}

// TestLingeringNodes: the target falls when the deletion is accepted. The Node remains, with its taint.
func TestLingeringNodes(t *testing.T) {
	c := two(func(o *Options) {
		o.Linger, o.Groups[0].Nodes = 2*time.Minute, 1
		o.Autoscaler = autoscaler.Real()
		o.Autoscaler.UnneededTime = time.Minute
	})
	for c.Target("first") == 1 {
		c.Step()
	}
	c.RunLoops(2)
	health := c.LastWrite().Status.Of("first").Health
	if len(c.Nodes()) != 1 || !autoscaler.HasTaint(c.Nodes()[0], autoscaler.ToBeDeletedTaint) || health.CloudProviderTarget != 0 || health.NodeCounts.Registered.Total != 1 {
		t.Errorf("%d nodes; the status says %+v", len(c.Nodes()), health)
	}
	c.Run(2 * time.Minute)
	if len(c.Nodes()) != 0 {
		t.Error("the node is there")
	}
}

// TestStaleSizes: the autoscaler uses the old target for a minute, and counts the deleted VMs as upcoming nodes.
func TestStaleSizes(t *testing.T) {
	c := two(func(o *Options) {
		o.SizeCache, o.Groups[0].Nodes = time.Minute, 3
		o.Autoscaler = autoscaler.Real()
		o.Autoscaler.UnneededTime = 25 * time.Second
	})
	for c.Target("first") == 3 {
		c.Step()
	}
	for c.Target("first") != 0 {
		c.Step()
	}
	gone := c.Now()
	c.AddPod(pod("a", "1500m"))
	c.RunLoops(2)
	if health := c.LastWrite().Status.Of("first").Health; health.CloudProviderTarget != 3 || health.NodeCounts.Registered.Total != 0 {
		t.Errorf("the status says %+v", health)
	}
	for len(c.Orders()) == 0 && c.Now().Sub(gone) < 5*time.Minute {
		c.Step()
	}
	if wait := c.Now().Sub(gone); wait < 15*time.Second || wait > 75*time.Second {
		t.Errorf("ordered after %v: %v", wait, c.Orders())
	}
}

// TestStartupTaints: a node whose taint has a prefix that the autoscaler knows counts as starting. With any other taint
// it counts as ready. The pod still fits on no node, and the autoscaler orders one VM after the other.
func TestStartupTaints(t *testing.T) {
	for taint, want := range map[string]int{"startup-taint.cluster-autoscaler.kubernetes.io/cni": 1, "example.com/preparing": 3} {
		c := two(func(o *Options) {
			o.Groups[0].Boot, o.Groups[0].StartupTaint, o.Groups[0].StartupFor = 10*time.Second, taint, 40*time.Second
		})
		c.AddPod(pod("a", "1500m"))
		c.Run(45 * time.Second)
		if got := c.Target("first"); got != want {
			t.Errorf("%s: the target is %d, want %d", taint, got, want)
		}
		if c.Pod("a").Spec.NodeName != "" {
			t.Errorf("%s: the pod is on a node that is not prepared", taint)
		}
		c.Run(time.Minute)
		if c.Pod("a").Spec.NodeName == "" {
			t.Errorf("%s: the pod is pending", taint)
		}
	}
}

// TestKilledWhileRemoving: the taint stays until the next autoscaler removes it.
func TestKilledWhileRemoving(t *testing.T) {
	c := two(func(o *Options) {
		o.Groups[0].Nodes = 1
		o.Autoscaler = autoscaler.Real()
		o.Autoscaler.UnneededTime = 30 * time.Second
	})
	tainted := func() bool { return autoscaler.HasTaint(c.Nodes()[0], autoscaler.ToBeDeletedTaint) }
	for !tainted() {
		c.Step()
	}
	c.Kill()
	c.Run(10 * time.Minute)
	if len(c.Nodes()) != 1 || !tainted() {
		t.Fatal("the node is not as it was left")
	}
	c.Start()
	c.RunLoops(1)
	if len(c.Nodes()) != 1 || tainted() {
		t.Error("the taint is there after a restart")
	}
}

// TestClone: a clone goes on as the original does, whichever runs first. Neither changes the other.
func TestClone(t *testing.T) {
	for seed := range uint64(20) {
		c := two(func(o *Options) {
			o.Seed, o.PodTriggers, o.DrainTime, o.Linger = seed+1, seed%2 == 0, 3*time.Second, time.Duration(seed%3)*time.Minute
			o.Autoscaler = autoscaler.Real()
			o.Autoscaler.UnneededTime, o.Autoscaler.DelayAfterAdd = time.Minute, time.Minute
			o.Groups[0].Jitter, o.Groups[1].Priority = time.Minute, 20
		})
		r := rand.New(rand.NewPCG(seed, 0))
		for i := range 30 {
			churn(c, r, i)
		}
		d := c.Clone()
		left, right := rand.New(rand.NewPCG(seed, 5)), rand.New(rand.NewPCG(seed, 5))
		for i := range 30 {
			churn(c, left, 100+i)
		}
		for i := range 30 {
			churn(d, right, 100+i)
		}
		if !reflect.DeepEqual(c.ConfigMap(), d.ConfigMap()) || !slices.Equal(c.Orders(), d.Orders()) || !reflect.DeepEqual(c.Pods(), d.Pods()) {
			t.Fatalf("seed %d: %v and %v, orders %v and %v", seed, c.ConfigMap(), d.ConfigMap(), c.Orders(), d.Orders())
		}
		if len(c.Orders()) < 3 {
			t.Errorf("seed %d: only orders %v", seed, c.Orders())
		}
	}
}

// churn adds or deletes a pod, and lets some time pass.
func churn(c *Cluster, r *rand.Rand, i int) {
	if pods := c.Pods(); len(pods) > 0 && r.IntN(2) == 0 {
		c.DeletePod(pods[r.IntN(len(pods))].Name)
	} else {
		c.AddPod(pod(fmt.Sprint("churn", i), "1100m"))
	}
	c.Run(time.Duration(r.IntN(90)) * time.Second)
}

// TestAhead: the orders that the autoscaler would make for a pod that burst too early.
func TestAhead(t *testing.T) {
	c := two(func(o *Options) { o.VirtualNode = true })
	c.AddPod(pod("a", "1500m"))
	c.Run(time.Second)
	c.Burst("a")
	orders := c.Ahead([]string{"a"}, 10, 0)
	if len(orders) != 1 || !c.Fits(c.Pod("a"), orders[0].Group) {
		t.Errorf("orders %v", orders)
	}
	if len(c.Orders()) != 0 || c.Pod("a").Spec.NodeName != VirtualNode {
		t.Error("the look ahead changed the cluster")
	}
	c.Run(time.Minute)
	if len(c.Orders()) != 0 {
		t.Errorf("orders %v", c.Orders())
	}
}

// TestRemovalLimits: at most ten VMs are removed at a time, and one of those with pods. No group falls below its
// minimum. No VM is removed soon after a scale-up of any group.
func TestRemovalLimits(t *testing.T) {
	removing := func(c *Cluster) (n int) {
		for _, node := range c.Nodes() {
			if autoscaler.HasTaint(node, autoscaler.ToBeDeletedTaint) {
				n++
			}
		}
		return n
	}
	// most runs for an hour. It returns the largest number of VMs that were being removed at a time.
	most := func(c *Cluster) (n int) {
		for until := c.Now().Add(time.Hour); c.Now().Before(until); c.Step() {
			n = max(n, removing(c))
		}
		return n
	}
	removal := func(o *Options) {
		o.Autoscaler = autoscaler.Real()
		o.Autoscaler.UnneededTime, o.DrainTime = time.Minute, 30*time.Second
		o.Groups[0].Nodes, o.Groups[0].Min, o.Groups[0].Max = 15, 2, 15
	}
	t.Run("empty ones", func(t *testing.T) {
		c := two(removal)
		if n := most(c); n != 10 || c.Target("first") != 2 {
			t.Errorf("%d VMs at a time, down to %d; want ten, down to 2", n, c.Target("first"))
		}
	})
	t.Run("with pods", func(t *testing.T) {
		c := two(removal)
		for i := range 15 { // one big pod for each node, and a small one that stays
			c.AddPod(pod(fmt.Sprint("big", i), "1700m"))
			c.AddPod(pod(fmt.Sprint("small", i), "200m"))
		}
		c.Run(5 * time.Second)
		for i := range 15 {
			c.DeletePod(fmt.Sprint("big", i))
		}
		if n := most(c); n != 1 || c.Target("first") != 2 {
			t.Errorf("%d VMs at a time, down to %d; want one, down to 2", n, c.Target("first"))
		}
		if len(c.Pending()) > 0 {
			t.Errorf("%d pods are pending", len(c.Pending()))
		}
	})
	t.Run("after a scale-up of another group", func(t *testing.T) {
		c := two(func(o *Options) {
			removal(o)
			o.Groups[1].Template = template("system")
		})
		c.AddPod(pod("a", "1500m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{mode: "system"} }))
		c.Run(30 * time.Second)
		begin := c.Now()
		for removing(c) == 0 {
			c.Step()
		}
		if d := c.Now().Sub(begin); d < 9*time.Minute || d > 11*time.Minute {
			t.Errorf("the first VM was tainted after %v, want ten minutes", d)
		}
	})
}
