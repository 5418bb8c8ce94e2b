package simcluster

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

const (
	user, system, gpu = "aks-userpool-20654782-vmss", "aks-systempool-33037761-vmss", "aks-gpupool-11111111-vmss"
	mode              = "kubernetes.azure.com/mode"
)

// template returns a node with 2 CPUs and this value of the label mode.
func template(of string, taints ...corev1.Taint) *corev1.Node {
	return NewNode("2", map[string]string{mode: of}, taints...)
}

var pod = NewPod

// recorded returns a cluster like that of the recorded runs. Nodes come at once, loops take 30 ms, and the system node
// is full.
func recorded(change func(*Options)) *Cluster {
	options := Options{
		Groups: []Group{
			{Name: user, Max: 3, Priority: 20, Template: template("user")},
			{Name: system, Min: 1, Max: 2, Nodes: 1, Priority: 10, Template: template("system")},
		},
		Autoscaler: autoscaler.Real(), LoopTime: 30 * time.Millisecond, DeleteDelay: 5 * time.Second, VirtualNode: true, PodTriggers: true,
	}
	options.Autoscaler.UnneededTime = 0
	if change != nil {
		change(&options)
	}
	c := New(options)
	c.AddPod(pod("filler", "1900m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{mode: "system"} }))
	c.Run(15 * time.Second)
	return c
}

func toleratesProvider(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Key: ProviderTaint, Operator: corev1.TolerationOpExists}}
}

func toleratesAll(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// withoutGateTaint removes the gate taint from the virtual node.
func withoutGateTaint(c *Cluster) { c.removeTaint(VirtualNode, GateTaint) }

// growsWithin checks that the first order is for the group and comes within the limit.
func growsWithin(t *testing.T, c *Cluster, group string, limit time.Duration) {
	t.Helper()
	begin := c.Now()
	for len(c.Orders()) == 0 && c.Now().Before(begin.Add(time.Hour)) {
		c.Step()
	}
	orders := c.Orders()
	if len(orders) == 0 || orders[0].Group != group || orders[0].At.Sub(begin) > limit {
		t.Fatalf("orders %v, began %v, want %s within %v", orders, begin, group, limit)
	}
}

func orderedNothing(t *testing.T, c *Cluster) {
	t.Helper()
	c.Run(65 * time.Second)
	if orders := c.Orders(); len(orders) > 0 {
		t.Fatalf("orders %v", orders)
	}
}

// writes runs the cluster for d and returns the statuses that the autoscaler's loops wrote during d.
func writes(c *Cluster, d time.Duration) []Write {
	var result []Write
	until, ended := c.Now().Add(d), c.Loops()
	for next, ok := c.Next(); ok && !next.After(until); next, ok = c.Next() {
		if c.Step(); c.Loops() > ended {
			ended, result = c.Loops(), append(result, c.LastWrite())
		}
	}
	c.RunUntil(until)
	return result
}

// TestWrites: writes returns the last status of the time, and no status from before.
func TestWrites(t *testing.T) {
	c := recorded(nil)
	begin, loops := c.Now(), c.Loops()
	got := writes(c, time.Minute)
	if n := len(got); n == 0 || n != c.Loops()-loops || !got[0].At.After(begin) || got[n-1].At != c.LastWrite().At {
		t.Errorf("%d of %d statuses, from %v on: %v", n, c.Loops()-loops, begin, got)
	}
}

func TestRunA(t *testing.T) {
	c := recorded(nil)
	withoutGateTaint(c)
	c.AddPod(pod("pending", "1500m", toleratesProvider))
	orderedNothing(t, c)
	if c.Pod("pending").Spec.NodeName != "" {
		t.Error("the pod is not pending")
	}
}

func TestRunB(t *testing.T) {
	c := recorded(nil)
	c.AddPod(pod("pending", "1500m"))
	growsWithin(t, c, user, 13*time.Second)
	c.Run(20 * time.Second)
	for i := range 5 {
		c.AddPod(pod(string(rune('a'+i)), "1500m"))
	}
	c.Run(20 * time.Second)
	orders := c.Orders()
	if len(orders) != 3 || orders[1].Group != user || orders[1].Nodes != 2 || orders[2].Group != system || orders[2].Nodes != 1 {
		t.Fatalf("orders %v, want 1 and 2 of the user pool, then 1 of the system pool", orders)
	}
	// A loop makes one order, and the next loop follows at once.
	if d := orders[2].At.Sub(orders[1].At); d != 30*time.Millisecond {
		t.Errorf("the second order came %v after the first", d)
	}
	if n := len(c.Pending()); n != 2 {
		t.Errorf("%d pods are pending, want 2", n)
	}
}

func TestRunC(t *testing.T) {
	t.Run("C1: a cordoned virtual node is skipped", func(t *testing.T) {
		c := recorded(nil)
		withoutGateTaint(c)
		c.UpdateNode(VirtualNode, func(n *corev1.Node) { n.Spec.Unschedulable = true })
		c.AddPod(pod("pending", "1500m", toleratesProvider))
		growsWithin(t, c, user, 13*time.Second)
	})
	t.Run("C2: a taint of our own hides it", func(t *testing.T) {
		c := recorded(nil)
		c.AddPod(pod("pending", "1500m", toleratesProvider))
		growsWithin(t, c, user, 13*time.Second)
	})
	t.Run("C2b: not from a pod that tolerates everything", func(t *testing.T) {
		c := recorded(nil)
		c.AddPod(pod("pending", "1500m", toleratesAll))
		orderedNothing(t, c)
	})
	t.Run("C4: a pod that requires another node", func(t *testing.T) {
		c := recorded(nil)
		withoutGateTaint(c)
		c.AddPod(pod("pending", "1500m", toleratesProvider, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}}}}}}}}
		}))
		growsWithin(t, c, user, 13*time.Second)
	})
	t.Run("C6, C7: only the reason Unschedulable counts", func(t *testing.T) {
		c := recorded(nil)
		c.AddPod(pod("pending", "1500m", func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" }))
		orderedNothing(t, c)
		c.UpdatePod("pending", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulerError}}
		})
		orderedNothing(t, c)
		c.UpdatePod("pending", func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{unschedulable(c.Now())} })
		growsWithin(t, c, user, 11*time.Second)
	})
}

// scaleIn removes VMs that were unneeded for 15 s, as in runs D and H.
func scaleIn(o *Options) {
	o.Autoscaler.ScanInterval, o.Autoscaler.DelayAfterDelete = 5*time.Second, 5*time.Second
	o.Autoscaler.UnneededTime, o.Autoscaler.DelayAfterAdd = 15*time.Second, 10*time.Second
}

func TestRunD(t *testing.T) {
	for name, tc := range map[string]struct {
		gated   bool
		changes []func(*corev1.Pod)
		want    int
	}{
		"D1: a VM is drained onto the virtual node":           {changes: []func(*corev1.Pod){toleratesProvider}, want: 0},
		"D2: without the toleration the VM is kept":           {want: 1},
		"D3: with a taint of our own on the virtual node too": {gated: true, changes: []func(*corev1.Pod){toleratesProvider}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := recorded(scaleIn)
			if !tc.gated {
				withoutGateTaint(c)
			}
			c.AddPod(pod("seed", "1500m"))
			c.Run(15 * time.Second)
			c.AddPod(pod("roaming", "300m", tc.changes...))
			c.Run(time.Second)
			if c.GroupOf(c.Pod("roaming").Spec.NodeName) != user {
				t.Fatalf("the pod is on %q", c.Pod("roaming").Spec.NodeName)
			}
			c.DeletePod("seed")
			c.Run(2 * time.Minute)
			if got := c.Target(user); got != tc.want {
				t.Errorf("the user pool has %d VMs, want %d", got, tc.want)
			}
			if pending := len(c.Pending()); pending != 1-tc.want {
				t.Errorf("%d pods are pending", pending)
			}
		})
	}
}

func TestRunE(t *testing.T) {
	c := recorded(nil)
	c.Kill()
	frozen := c.ConfigMap()
	c.Run(time.Minute)
	if !reflect.DeepEqual(c.ConfigMap(), frozen) {
		t.Error("the status changed after a kill")
	}
	c.Start()
	if s := c.ConfigMap().Data["status"]; !strings.Contains(s, "autoscalerStatus: Initializing") || strings.Contains(s, "nodeGroups") {
		t.Errorf("after a restart:\n%s", s)
	}
	if c.ConfigMap().UID != frozen.UID {
		t.Error("the ConfigMap was made anew")
	}
	c.RunLoops(1)
	if s := c.ConfigMap().Data["status"]; !strings.Contains(s, "autoscalerStatus: Running") {
		t.Errorf("after a loop:\n%s", s)
	}
	c.Stop()
	if c.ConfigMap() != nil {
		t.Error("the status is there after a polite stop")
	}
	c.Start()
	if c.ConfigMap().UID == frozen.UID {
		t.Error("the ConfigMap is the old one")
	}
}

func TestRunF(t *testing.T) {
	c := recorded(nil)
	c.SetGroup(user, func(g *Group) { g.Fault.Refusal = "QuotaExceeded: Total Regional Cores" })
	for _, name := range []string{"a", "b", "c"} {
		c.AddPod(pod(name, "1500m"))
	}
	c.Run(30 * time.Second)
	if orders := c.Orders(); len(orders) != 1 || orders[0].Group != system {
		t.Fatalf("orders %v, want one of the system pool", orders)
	}
	up := c.LastWrite().Status.Of(user).ScaleUp
	if up.Status != "Backoff" || up.BackoffInfo.ErrorCode != "cloudProviderError" || !strings.Contains(up.BackoffInfo.ErrorMessage, "QuotaExceeded") {
		t.Fatalf("%+v", up)
	}
	for _, w := range writes(c, time.Hour) { // backoffs of 5, 10, 20 and 30 minutes
		if w.Status.Of(user).ScaleUp.Status != "Backoff" {
			t.Fatalf("at %v: %s while pods are pending", w.Begun, w.Status.Of(user).ScaleUp.Status)
		}
	}
	c.DeletePod("a")
	c.DeletePod("b")
	c.DeletePod("c")
	c.Run(31 * time.Minute)
	if got := c.LastWrite().Status.Of(user).ScaleUp.Status; got != "NoActivity" {
		t.Errorf("the back-off is over and nothing is pending: %s", got)
	}
}

func TestRunG(t *testing.T) {
	c := recorded(nil)
	c.AddPod(pod("bound", "1500m", func(p *corev1.Pod) { p.Spec.NodeName = VirtualNode }))
	orderedNothing(t, c)
}

// TestRunH: the status shows the groups at their maximum from the taint until the first loop after the deletion.
func TestRunH(t *testing.T) {
	c := recorded(scaleIn)
	for _, name := range []string{"a", "b", "c", "d"} {
		c.AddPod(pod(name, "1500m"))
	}
	c.Run(time.Minute)
	sizes := func(s autoscaler.Status) [2]int {
		return [2]int{s.Of(user).Health.CloudProviderTarget, s.Of(system).Health.CloudProviderTarget}
	}
	if got := sizes(c.LastWrite().Status); got != [2]int{3, 2} {
		t.Fatalf("sizes %v", got)
	}
	for _, p := range c.Pods() {
		c.DeletePod(p.Name)
	}
	tainted := func() (n int) {
		for _, node := range c.Nodes() {
			if autoscaler.HasTaint(node, autoscaler.ToBeDeletedTaint) {
				n++
			}
		}
		return n
	}
	for tainted() == 0 {
		c.Step()
	}
	at, begun := c.Now(), c.Loops()
	if n := tainted(); n != 4 {
		t.Fatalf("%d nodes are tainted, want four", n)
	}
	for len(c.Nodes()) > 2 { // one VM of the system pool and the virtual node
		if got := sizes(c.LastWrite().Status); got != [2]int{3, 2} {
			t.Fatalf("sizes %v before the deletion", got)
		}
		if !c.Step() {
			t.Fatal("nothing happens any more")
		}
	}
	if d := c.Now().Sub(at); d != 5*time.Second {
		t.Errorf("the VMs went %v after the taint", d)
	}
	if n := c.Loops() - begun; n < 2 {
		t.Errorf("%d loops ended between taint and deletion, want two at least", n)
	}
	if c.Target(user) != 0 || sizes(c.LastWrite().Status) != [2]int{3, 2} {
		t.Errorf("after the deletion: target %d, status %v", c.Target(user), sizes(c.LastWrite().Status))
	}
	quiet := c.Clone()
	for quiet.LastWrite().Begun.Before(at.Add(5 * time.Second)) {
		quiet.Step()
	}
	if got := sizes(quiet.LastWrite().Status); got != [2]int{0, 1} {
		t.Errorf("the first loop after the deletion says %v", got)
	}
	for range 5 {
		c.AddPod(pod("spike"+string(rune('0'+len(c.Pods()))), "1500m"))
	}
	if orders := c.Ahead(nil, 3, 0); len(orders) == 0 || !c.Fits(c.Pods()[0], orders[0].Group) {
		t.Errorf("the autoscaler orders %v for the spike", orders)
	}
}

func TestRunL(t *testing.T) {
	c := recorded(func(o *Options) {
		o.Groups = append(o.Groups, Group{
			Name: gpu, Max: 4, Priority: 30, Template: template("user", corev1.Taint{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}),
		})
	})
	c.DeletePod("filler")
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		c.AddPod(pod(name, "1500m"))
	}
	c.Run(time.Minute)
	if n := len(c.Pending()); n != 3 {
		t.Fatalf("%d pods are pending, want three beside five on VMs", n)
	}
	for _, w := range writes(c, 10*time.Minute) {
		if g := w.Status.Of(gpu); g.ScaleUp.Status != "NoActivity" || g.Health.CloudProviderTarget != 0 || g.Health.MaxSize != 4 {
			t.Fatalf("%+v", g)
		}
	}
	if slices.ContainsFunc(c.Orders(), func(o Order) bool { return o.Group == gpu }) || c.Fits(c.Pod("a"), gpu) {
		t.Errorf("orders %v", c.Orders())
	}
}

func TestRunN(t *testing.T) {
	c := recorded(nil)
	c.SetGroup(user, func(g *Group) { g.Fault.Refusal = "QuotaExceeded" })
	c.AddPod(pod("a", "1900m"))
	c.AddPod(pod("b", "1900m"))
	c.Run(time.Minute)
	if got := c.LastWrite().Status.Of(user).ScaleUp.Status; got != "Backoff" {
		t.Fatalf("before the restart: %s", got)
	}
	c.DeletePod("a")
	c.DeletePod("b")
	c.Kill()
	c.Start()
	c.RunLoops(1)
	if g := c.LastWrite().Status.Of(user); g.ScaleUp.Status != "NoActivity" || g.Health.CloudProviderTarget != 0 {
		t.Errorf("after the restart: %+v", g)
	}
}
