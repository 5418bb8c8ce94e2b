package demo

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/devcluster/referee"
)

const (
	// tick is the interval at which the cluster is observed.
	tick = 100 * time.Millisecond
	// scaleTimeout limits the time from a change of the replicas until all pods run and are judged.
	scaleTimeout = time.Minute
)

// trial is an experiment on a running cluster.
type trial struct {
	experiment
	Options
	cluster    *devcluster.Cluster
	components []*devcluster.Component // the scheduler is the first
	referee    *referee.Referee
	tiers      []referee.Tier
	start      time.Time
	asked      int    // replicas
	line       string // printed last
	steps      []picture.Step
}

// begin starts the referee. It also starts this project's scheduler and controller as the manifests install them, or
// else the default scheduler.
func (t *trial) begin(ctx context.Context) error {
	version, err := t.cluster.Client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("asking for the version: %w", err)
	}
	said := "The scheduler and the controller run with overlays/aks/config.yaml, each as its own ServiceAccount."
	if t.ours() {
		t.components, err = t.cluster.StartOurs(ctx, t.BinDir, filepath.Join(t.Manifests, "overlays/aks/config.yaml"), filepath.Join(t.Manifests, "rbac"))
	} else {
		t.components, err = t.cluster.StartDefaultScheduler(ctx)
		said = fmt.Sprintf("kube-scheduler %s runs with its default profile, and nothing of ours.", version)
	}
	if err != nil {
		return err
	}
	for _, p := range t.Pools {
		t.tiers = append(t.tiers, referee.Tier{Name: p.Mode, Max: p.Max, Owns: func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == p.Mode }})
	}
	t.tiers = append(t.tiers, referee.Tier{Name: "aci", Owns: func(n *corev1.Node) bool { return n.Name == devcluster.VirtualNodeName }})
	if t.referee, err = referee.Watch(ctx, t.cluster.Client, t.tiers); err != nil {
		return err
	}
	if !t.ours() {
		t.referee.Scheduler = corev1.DefaultSchedulerName
	}
	t.start = time.Now()
	fmt.Fprintf(t.Out, "%s\n\n  time  replicas  user (pods, VMs)    system (pods, VMs)  aci (pods)          pending  gate\n", said)
	return nil
}

// play creates the Deployment and scales it. After each step it waits until all pods run and are judged.
func (t *trial) play(ctx context.Context) error {
	deployments := t.cluster.Client.AppsV1().Deployments(metav1.NamespaceDefault)
	for _, t.asked = range t.Replicas {
		manifest := strings.Replace(t.Deployment, "replicas: 1", fmt.Sprint("replicas: ", t.asked), 1)
		_, err := deployments.Patch(ctx, t.Load, types.ApplyPatchType, []byte(manifest), metav1.PatchOptions{FieldManager: "demo"})
		if err != nil {
			return fmt.Errorf("scaling to %d replicas: %w", t.asked, err)
		}
		running := 0
		err = wait.PollUntilContextTimeout(ctx, tick, scaleTimeout, false, func(context.Context) (bool, error) {
			running = t.look()
			t.referee.Judge()
			return running == t.asked && t.referee.Unjudged() == 0, t.components[0].Failed()
		})
		if wait.Interrupted(err) {
			return fmt.Errorf("%d of %d replicas ran after %v", running, t.asked, scaleTimeout)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// look prints and records the state of the cluster if it has changed, and returns the number of running pods.
func (t *trial) look() int {
	step, running := t.step()
	state := "–"
	switch {
	case !t.ours():
		state = "none"
	case step.Gate != "":
		state = step.Gate + ": " + step.Reason
	}
	vms := func(i int) string { return fmt.Sprintf("%d, %d of %d", step.Pods[i], step.VMs[i], t.tiers[i].Max) }
	line := fmt.Sprintf("%8d  %-18s  %-18s  %-18d  %7d  %s", step.Replicas, vms(0), vms(1), step.Pods[2], step.Pending, state)
	if line != t.line {
		t.line = line
		t.steps = append(t.steps, step)
		fmt.Fprintf(t.Out, "%5.1fs  %s\n", step.Seconds, line)
	}
	return running
}

// closedReasons are the reasons why the gate is closed, with the words that the table shows. A later reason takes
// precedence over an earlier reason.
var closedReasons = []struct{ sentence, words string }{
	{gate.ReasonUnknown.Sentence, "it is unknown whether an earlier pool can grow"},
	{gate.ReasonGrowing.Sentence, "nodes of an earlier pool are on their way"},
	{gate.ReasonCanGrow.Sentence, "an earlier pool can grow"},
}

// step returns the state of the cluster and the number of running pods. It ignores the errors of the listers, because
// listers of informers do not fail.
func (t *trial) step() (picture.Step, int) {
	step := picture.Step{Seconds: t.seconds(time.Now()), Replicas: t.asked, Pods: make([]int, len(t.tiers)), VMs: make([]int, len(t.tiers))}
	podsOn, running, messages := map[string]int{}, 0, ""
	pods, _ := t.referee.Pods.List(labels.Everything())
	for _, pod := range pods {
		if pod.Labels["app"] != t.Load {
			continue
		}
		podsOn[pod.Spec.NodeName]++
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
		for _, c := range pod.Status.Conditions {
			messages += c.Message
		}
	}
	step.Pending = podsOn[""]
	nodes, _ := t.referee.Nodes.List(labels.Everything())
	for _, node := range nodes {
		for i, tier := range t.tiers {
			if tier.Owns(node) {
				step.Pods[i] += podsOn[node.Name]
				step.VMs[i] += min(tier.Max, 1) // the virtual node is no VM
			}
		}
	}
	for _, reason := range closedReasons {
		if strings.Contains(messages, reason.sentence) {
			step.Gate, step.Reason = picture.Closed, reason.words
		}
	}
	if t.ours() && step.Pods[2] > 0 {
		step.Gate, step.Reason = picture.Open, "no earlier pool can grow"
	}
	return step, running
}

// seconds returns the seconds since the start, rounded to hundredths.
func (t *trial) seconds(at time.Time) float64 {
	return math.Round(at.Sub(t.start).Seconds()*100) / 100
}

// seen returns the observations of the run until now.
func (t *trial) seen() picture.Run {
	run := picture.Run{
		Title: t.Name, Load: t.Load, Gated: t.ours(),
		Steps: t.steps, Seconds: t.seconds(time.Now()), Wrong: []picture.Placement{},
	}
	for _, tier := range t.tiers {
		run.Pools = append(run.Pools, picture.Pool{Name: tier.Name, MaxVMs: tier.Max})
	}
	for _, m := range t.referee.Misplaced() {
		run.Wrong = append(run.Wrong, picture.Placement{Seconds: max(t.seconds(m.At), 0), Pool: m.Tier, Why: m.Why})
	}
	return run
}

// verdict returns an error if the order was wrong, or if the pods are not in the wanted pools.
func (t *trial) verdict() error {
	n, violations := t.referee.Judge()
	for _, v := range violations {
		fmt.Fprintln(t.Out, "WRONG:", v)
	}
	switch {
	case len(violations) > 0:
		return fmt.Errorf("the order was wrong %d times", len(violations))
	case !slices.Equal(n, t.Want):
		return fmt.Errorf("pods by pool are %v, not %v", n, t.Want)
	}
	fmt.Fprintf(t.Out, "\nVerdict: right. Pods by pool: user %d, system %d, aci %d; "+
		"the order was never wrong, and the virtual node opened when no pool could grow.\n", n[0], n[1], n[2])
	return nil
}

// compare continues to watch until this run is as long as the earlier one with the same load, because the autoscaler
// may still add VMs. Then it prints the differences.
func (t *trial) compare(ctx context.Context, earlier []picture.Run) {
	i := slices.IndexFunc(earlier, func(r picture.Run) bool { return r.Load == t.Load })
	if i < 0 {
		return // the earlier run failed
	}
	rest := time.Duration(earlier[i].Seconds*float64(time.Second)) - time.Since(t.start)
	_ = wait.PollUntilContextTimeout(ctx, tick, rest, false, func(context.Context) (bool, error) { // it always times out
		t.look()
		return false, nil
	})
	run := t.seen()
	ours, theirs := earlier[i].Summary(), run.Summary()
	fmt.Fprintf(t.Out, "\nDifference: without us %d of %d VMs were used and %d of %d pods are on the virtual node; with us %d VMs and %d pods.\n"+
		"Pods that were placed while a better pool had room or could grow: without us %d, with us %d.\n",
		theirs.VMs, theirs.MaxVMs, theirs.Virtual, theirs.Replicas, ours.VMs, ours.Virtual, theirs.Wrong, ours.Wrong)
}
