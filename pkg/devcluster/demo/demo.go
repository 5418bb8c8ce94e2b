// Package demo plays experiments on the embedded cluster with the scheduler binary, its shipped configuration and its
// shipped rights, and judges what the scheduler did.
package demo

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/devcluster"
	"poolpriority.dev/scheduler/pkg/devcluster/referee"
	"poolpriority.dev/scheduler/pkg/gate"
)

// columnWidth is the width of a pool's column in the timeline.
const columnWidth = 18

//go:embed *.yaml
var manifests embed.FS

// Options say where the demo finds things.
type Options struct {
	// Dir is where the clusters keep their files.
	Dir string
	// BinDir has tools/ and pool-priority-scheduler.
	BinDir string
	// Manifests is the directory of the shipped manifests.
	Manifests string
	Out       io.Writer
}

// experiment is a cluster, a workload and the replicas that it is scaled to.
type experiment struct {
	title, manifest string
	pools           []devcluster.Pool
	tiers           []referee.Tier
	replicas        []int32
	want            []int // pods by tier in the end
	timeout         time.Duration
}

// Run plays all experiments. It returns an error if the order was wrong in any of them.
func Run(ctx context.Context, o Options) error {
	start := time.Now()
	var errs []error
	for i, e := range experiments() {
		if err := e.run(ctx, o, i); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.title, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	fmt.Fprintf(o.Out, "The demo took %.0f s.\n", time.Since(start).Seconds())
	return errors.Join(errs...)
}

func experiments() []experiment {
	boot := metav1.Duration{Duration: 2 * time.Second}
	cpu, memory := resource.MustParse("1900m"), resource.MustParse("6Gi")
	small := resource.MustParse("850m")
	mode := func(want string) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == want }
	}
	virtual := referee.Tier{Name: "aci", Owns: func(n *corev1.Node) bool { return n.Name == devcluster.VirtualNodeName }}
	return []experiment{{
		title:    "Ordered pools: 1 → 20 replicas over the user pool, the system pool and the virtual node",
		manifest: "ordered.yaml",
		pools: []devcluster.Pool{
			{Name: "userpool", Mode: "user", Nodes: 1, Min: 1, Max: 3, CPU: cpu, Memory: memory, Priority: 20, BootDelay: boot},
			{Name: "systempool", Mode: "system", Nodes: 1, Min: 1, Max: 2, CPU: cpu, Memory: memory, Priority: 10, BootDelay: boot},
		},
		tiers:    []referee.Tier{{Name: "user", Max: 3, Owns: mode("user")}, {Name: "system", Max: 2, Owns: mode("system")}, virtual},
		replicas: []int32{1, 6, 20},
		want:     []int{9, 6, 5},
		timeout:  time.Minute,
	}, {
		title:    "The pixelrobots manifest: 1 → 17 replicas that must run in one agent pool or on the virtual node",
		manifest: "burst-required.yaml",
		pools: []devcluster.Pool{
			{Name: "agentpool", Mode: "user", Nodes: 1, Min: 1, Max: 2, CPU: small, Memory: memory, Priority: 20, BootDelay: boot},
			{Name: "systempool", Mode: "system", Nodes: 1, Min: 1, Max: 2, CPU: cpu, Memory: memory, Priority: 10, BootDelay: boot},
		},
		tiers:    []referee.Tier{{Name: "user", Max: 2, Owns: mode("user")}, {Name: "system", Max: 2, Owns: mode("system")}, virtual},
		replicas: []int32{1, 17},
		want:     []int{16, 0, 1},
		timeout:  time.Minute,
	}}
}

func (e *experiment) run(ctx context.Context, o Options, number int) error {
	fmt.Fprintf(o.Out, "\n%s\n%s\n", e.title, strings.Repeat("─", len([]rune(e.title))))
	start := time.Now()
	cluster, err := devcluster.Start(context.WithoutCancel(ctx), devcluster.Options{
		Dir: filepath.Join(o.Dir, fmt.Sprintf("demo-%d", number+1)), BinDir: filepath.Join(o.BinDir, "tools"),
		Pools: e.pools, VirtualNode: true, Autoscaler: &devcluster.AutoscalerOptions{Interval: time.Second},
	})
	if err != nil {
		return err
	}
	defer cluster.Stop()
	fmt.Fprintf(o.Out, "The control plane and its nodes are up after %.1f s. ", time.Since(start).Seconds())
	config, rbac := filepath.Join(o.Manifests, "overlays/aks/config.yaml"), filepath.Join(o.Manifests, "rbac")
	controller, err := cluster.StartController(ctx, filepath.Join(o.BinDir, devcluster.ControllerName), config, rbac)
	if err != nil {
		return err
	}
	defer controller.Stop()
	if err := waitForGateTaint(ctx, cluster, controller); err != nil {
		return fmt.Errorf("%w (the controller's log is %s)", err, controller.Log())
	}
	scheduler, err := cluster.StartScheduler(ctx, filepath.Join(o.BinDir, devcluster.SchedulerName), config, rbac)
	if err != nil {
		return err
	}
	defer scheduler.Stop()
	fmt.Fprintf(o.Out, "The scheduler and the controller run with overlays/aks/config.yaml, each as its own ServiceAccount.\n\n")

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	show, err := newShow(ctx, cluster, e.tiers, o.Out)
	if err != nil {
		return err
	}
	deployment, err := loadDeployment(e.manifest)
	if err != nil {
		return err
	}
	for i, replicas := range e.replicas {
		show.replicas = replicas
		if i == 0 {
			deployment.Spec.Replicas = &replicas
			_, err = cluster.Client.AppsV1().Deployments(deployment.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
		} else {
			_, err = cluster.Client.AppsV1().Deployments(deployment.Namespace).UpdateScale(ctx, deployment.Name, &autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: deployment.Name}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("scaling to %d replicas: %w", replicas, err)
		}
		if err := show.until(ctx, e.timeout, int(replicas), scheduler.Failed); err != nil {
			return fmt.Errorf("%w (the scheduler's log is %s)", err, scheduler.Log())
		}
	}
	return e.verdict(show, o.Out)
}

// waitForGateTaint waits until the controller has hidden the virtual node.
func waitForGateTaint(ctx context.Context, cluster *devcluster.Cluster, controller *devcluster.Component) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := controller.Failed(); err != nil {
			return err
		}
		node, err := cluster.Client.CoreV1().Nodes().Get(ctx, devcluster.VirtualNodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("getting the virtual node: %w", err)
		}
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == configv1.GateTaintKey }) {
			return nil
		}
	}
	return errors.New("the controller did not put the gate taint on the virtual node")
}

func loadDeployment(name string) (*appsv1.Deployment, error) {
	data, err := manifests.ReadFile(name)
	if err != nil {
		return nil, err
	}
	d := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(data, d); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	d.Namespace = metav1.NamespaceDefault
	return d, nil
}

func (e *experiment) verdict(s *show, out io.Writer) error {
	got, violations := s.referee.Judge()
	parts := make([]string, len(e.tiers))
	same := true
	for i, t := range e.tiers {
		parts[i] = fmt.Sprintf("%s %d", t.Name, got[i])
		same = same && got[i] == e.want[i]
	}
	for _, v := range violations {
		fmt.Fprintln(out, "WRONG:", v)
	}
	switch {
	case len(violations) > 0:
		return fmt.Errorf("the order was wrong %d times", len(violations))
	case !same:
		return fmt.Errorf("pods by pool are %v, not %v", got, e.want)
	}
	fmt.Fprintf(out, "\nVerdict: right. Pods by pool: %s; the order was never wrong, and the virtual node opened when no pool could grow.\n", strings.Join(parts, ", "))
	return nil
}

// show prints a line whenever something changes.
type show struct {
	out      io.Writer
	tiers    []referee.Tier
	referee  *referee.Referee
	start    time.Time
	replicas int32
	last     string
}

func newShow(ctx context.Context, cluster *devcluster.Cluster, tiers []referee.Tier, out io.Writer) (*show, error) {
	r, err := referee.Watch(ctx, cluster.Client, tiers)
	if err != nil {
		return nil, err
	}
	s := &show{out: out, tiers: tiers, referee: r, start: time.Now()}
	header := fmt.Sprintf("%6s  %8s", "time", "replicas")
	for _, t := range tiers {
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
	ticker := time.NewTicker(100 * time.Millisecond)
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
		running := s.line()
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

// line prints the state of the cluster if it is not as it was, and returns the number of running pods.
func (s *show) line() int {
	nodes, err := s.referee.Nodes.List(labels.Everything())
	if err != nil {
		return 0
	}
	pods, err := s.referee.Pods.List(labels.Everything())
	if err != nil {
		return 0
	}
	tierOf := map[string]int{}
	vms := make([]int, len(s.tiers))
	for _, node := range nodes {
		for i, t := range s.tiers {
			if t.Owns(node) {
				tierOf[node.Name] = i
				vms[i]++
				break
			}
		}
	}
	bound := make([]int, len(s.tiers))
	pending, running := 0, 0
	state := "–"
	for _, pod := range pods {
		if pod.Spec.SchedulerName != devcluster.SchedulerName {
			continue
		}
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
		if pod.Spec.NodeName == "" {
			pending++
			if said := gateState(pod); said != "" {
				state = said
			}
		} else if i, ok := tierOf[pod.Spec.NodeName]; ok {
			bound[i]++
		}
	}
	if bound[len(bound)-1] > 0 {
		state = "open: no earlier pool can grow"
	}
	text := fmt.Sprintf("%8d", s.replicas)
	for i, t := range s.tiers {
		cell := fmt.Sprint(bound[i])
		if t.Max > 0 {
			cell += fmt.Sprintf(", %d of %d", vms[i], t.Max)
		}
		text += fmt.Sprintf("  %-*s", columnWidth, cell)
	}
	text += fmt.Sprintf("  %7d  %s", pending, state)
	if text != s.last {
		s.last = text
		fmt.Fprintf(s.out, "%5.1fs  %s\n", time.Since(s.start).Seconds(), text)
	}
	return running
}

// gateState finds the gate's sentence in what the scheduler said of a pending pod.
func gateState(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled {
			continue
		}
		for reason, short := range map[capacity.Reason]string{
			gate.ReasonCanGrow: "an earlier pool can grow",
			gate.ReasonGrowing: "nodes of an earlier pool are on their way",
			gate.ReasonUnknown: "it is unknown whether an earlier pool can grow",
			gate.ReasonOptOut:  "the pod opts out",
		} {
			if strings.Contains(c.Message, reason.Sentence) {
				return "closed: " + short
			}
		}
	}
	return ""
}
