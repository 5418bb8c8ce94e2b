package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/devcluster/referee"
)

// columnWidth is the width of a pool's column in the timeline.
const columnWidth = 18

// tick is how often a show looks.
const tick = 100 * time.Millisecond

// show prints a line whenever something changes, and remembers it.
type show struct {
	*experiment
	out      io.Writer
	referee  *referee.Referee
	start    time.Time
	replicas int32
	last     string
	steps    []picture.Step
}

func newShow(ctx context.Context, cluster *devcluster.Cluster, e *experiment, out io.Writer) (*show, error) {
	r, err := referee.Watch(ctx, cluster.Client, e.tiers)
	if err != nil {
		return nil, err
	}
	r.Scheduler = e.scheduler
	s := &show{experiment: e, out: out, referee: r, start: time.Now()}
	header := fmt.Sprintf("%6s  %8s", "time", "replicas")
	for _, t := range e.tiers {
		header += fmt.Sprintf("  %-*s", columnWidth, t.Name+" "+bounds(t))
	}
	fmt.Fprintf(out, "%s  %7s  %s\n", header, "pending", "gate")
	return s, nil
}

func bounds(t referee.Tier) string {
	if t.Max == 0 {
		return "(pods)"
	}
	return "(pods, VMs)"
}

// until prints what happens until all replicas run and have been judged.
func (s *show) until(ctx context.Context, timeout time.Duration, replicas int, failed func() error) error {
	deadline := time.Now().Add(timeout)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		if err := failed(); err != nil {
			return err
		}
		running := s.look()
		judged, _ := s.referee.Judge()
		total := 0
		for _, n := range judged {
			total += n
		}
		if running == replicas && total >= replicas {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d replicas ran after %v", running, replicas, timeout)
		}
	}
}

// watch prints what happens until so long after the start.
func (s *show) watch(ctx context.Context, duration time.Duration) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for time.Since(s.start) < duration {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
			s.look()
		}
	}
	return nil
}

// look prints the state of the cluster if it is not as it was, and returns the number of running pods.
func (s *show) look() int {
	step, running, err := s.step()
	if err != nil {
		return 0
	}
	state := "–"
	switch {
	case !s.ours():
		state = "none"
	case step.Gate != picture.NotAsked:
		state = string(step.Gate) + ": " + step.Reason
	}
	text := fmt.Sprintf("%8d", step.Replicas)
	for i, t := range s.tiers {
		cell := fmt.Sprint(step.Pods[i])
		if t.Max > 0 {
			cell += fmt.Sprintf(", %d of %d", step.VMs[i], t.Max)
		}
		text += fmt.Sprintf("  %-*s", columnWidth, cell)
	}
	text += fmt.Sprintf("  %7d  %s", step.Pending, state)
	if text != s.last {
		s.last = text
		s.steps = append(s.steps, step)
		fmt.Fprintf(s.out, "%5.1fs  %s\n", step.Seconds, text)
	}
	return running
}

// step is the state of the cluster, and the number of running pods.
func (s *show) step() (picture.Step, int, error) {
	now := seconds(time.Since(s.start))
	nodes, err := s.referee.Nodes.List(labels.Everything())
	if err != nil {
		return picture.Step{}, 0, err
	}
	pods, err := s.referee.Pods.List(labels.Everything())
	if err != nil {
		return picture.Step{}, 0, err
	}
	step := picture.Step{Seconds: now, Replicas: int(s.replicas), Pods: make([]int, len(s.tiers)), VMs: make([]int, len(s.tiers))}
	tierOf := map[string]int{}
	for _, node := range nodes {
		for i, t := range s.tiers {
			if t.Owns(node) {
				tierOf[node.Name] = i
				if t.Max > 0 {
					step.VMs[i]++
				}
				break
			}
		}
	}
	running := 0
	for _, pod := range pods {
		if pod.Spec.SchedulerName != s.scheduler {
			continue
		}
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
		if pod.Spec.NodeName == "" {
			step.Pending++
			if why := heldBy(pod); why != "" {
				step.Gate, step.Reason = picture.Closed, why
			}
		} else if i, ok := tierOf[pod.Spec.NodeName]; ok {
			step.Pods[i]++
		}
	}
	if s.ours() && step.Pods[len(step.Pods)-1] > 0 {
		step.Gate, step.Reason = picture.Open, "no earlier pool can grow"
	}
	return step, running, nil
}

// seconds is a duration to a hundredth.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*100) / 100 }

// seen is all that was seen until now.
func (s *show) seen() picture.Run {
	run := picture.Run{Title: s.name, Load: s.load, Gated: s.ours(), Steps: s.steps, Seconds: seconds(time.Since(s.start)), Wrong: []picture.Placement{}}
	for _, t := range s.tiers {
		run.Pools = append(run.Pools, picture.Pool{Name: t.Name, MaxVMs: t.Max})
	}
	for _, m := range s.referee.Misplaced() {
		run.Wrong = append(run.Wrong, picture.Placement{Seconds: max(seconds(m.At.Sub(s.start)), 0), Pool: m.Tier, Why: m.Why})
	}
	return run
}

// heldBy finds the gate's sentence in what the scheduler said of a pending pod.
func heldBy(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled {
			continue
		}
		for reason, short := range map[nodegroups.Reason]string{
			gate.ReasonCanGrow: "an earlier pool can grow",
			gate.ReasonGrowing: "nodes of an earlier pool are on their way",
			gate.ReasonUnknown: "it is unknown whether an earlier pool can grow",
			gate.ReasonOptOut:  "the pod opts out",
		} {
			if strings.Contains(c.Message, reason.Sentence) {
				return short
			}
		}
	}
	return ""
}
