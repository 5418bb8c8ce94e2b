package demo

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
)

//go:embed *.yaml
var manifests embed.FS

// run plays the experiment on a cluster of its own and returns what was seen, also if that was wrong. The earlier runs are those that it
// can be compared with.
func (e *experiment) run(ctx context.Context, o Options, number int, earlier []picture.Run) (picture.Run, error) {
	fmt.Fprintf(o.Out, "\n%s\n%s\n", e.title, strings.Repeat("─", len([]rune(e.title))))
	start := time.Now()
	cluster, err := devcluster.Start(context.WithoutCancel(ctx), devcluster.Options{
		Dir: filepath.Join(o.Dir, fmt.Sprintf("demo-%d", number+1)), BinDir: filepath.Join(o.BinDir, "tools"),
		Pools: e.pools, VirtualNode: true, Autoscaler: &devcluster.AutoscalerOptions{Interval: time.Second},
	})
	if err != nil {
		return picture.Run{}, err
	}
	defer cluster.Stop()
	fmt.Fprintf(o.Out, "The control plane and its nodes are up after %.1f s. ", time.Since(start).Seconds())
	begin := e.startOurs
	if !e.ours() {
		begin = e.startDefault
	}
	scheduler, stop, err := begin(ctx, o, cluster)
	if err != nil {
		return picture.Run{}, err
	}
	defer stop()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	show, err := newShow(ctx, cluster, e, o.Out)
	if err != nil {
		return picture.Run{}, err
	}
	if err := e.play(ctx, cluster, show, scheduler); err != nil {
		return show.seen(), fmt.Errorf("%w (the scheduler's log is %s)", err, scheduler.Log())
	}
	if e.ours() {
		return show.seen(), e.verdict(show, o)
	}
	return e.compare(ctx, show, o, earlier)
}

// startOurs starts our controller and scheduler as the manifests install them.
func (e *experiment) startOurs(ctx context.Context, o Options, cluster *devcluster.Cluster) (*devcluster.Component, func(), error) {
	config, rbac := filepath.Join(o.Manifests, "overlays/aks/config.yaml"), filepath.Join(o.Manifests, "rbac")
	controller, err := cluster.StartController(ctx, filepath.Join(o.BinDir, devcluster.ControllerName), config, rbac)
	if err != nil {
		return nil, nil, err
	}
	if err := waitForGateTaint(ctx, cluster, controller); err != nil {
		controller.Stop()
		return nil, nil, fmt.Errorf("%w (the controller's log is %s)", err, controller.Log())
	}
	scheduler, err := cluster.StartScheduler(ctx, filepath.Join(o.BinDir, devcluster.SchedulerName), config, rbac)
	if err != nil {
		controller.Stop()
		return nil, nil, err
	}
	fmt.Fprintf(o.Out, "The scheduler and the controller run with overlays/aks/config.yaml, each as its own ServiceAccount.\n\n")
	return scheduler, func() { scheduler.Stop(); controller.Stop() }, nil
}

// startDefault starts the cluster's default scheduler, and nothing of ours.
func (e *experiment) startDefault(ctx context.Context, o Options, cluster *devcluster.Cluster) (*devcluster.Component, func(), error) {
	scheduler, err := cluster.StartDefaultScheduler(ctx)
	if err != nil {
		return nil, nil, err
	}
	version, err := cluster.Client.Discovery().ServerVersion()
	if err != nil {
		scheduler.Stop()
		return nil, nil, fmt.Errorf("asking for the version: %w", err)
	}
	fmt.Fprintf(o.Out, "kube-scheduler %s runs with its default profile, and nothing of ours.\n\n", version)
	return scheduler, scheduler.Stop, nil
}

// play creates the Deployment and scales it, each time once the pods of the time before run.
func (e *experiment) play(ctx context.Context, cluster *devcluster.Cluster, show *show, scheduler *devcluster.Component) error {
	deployment, err := loadDeployment(e.manifest)
	if err != nil {
		return err
	}
	deployments := cluster.Client.AppsV1().Deployments(deployment.Namespace)
	for i, replicas := range e.replicas {
		show.replicas = replicas
		if i == 0 {
			deployment.Spec.Replicas = &replicas
			_, err = deployments.Create(ctx, deployment, metav1.CreateOptions{})
		} else {
			_, err = deployments.UpdateScale(ctx, deployment.Name, &autoscalingv1.Scale{
				ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: deployment.Name}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("scaling to %d replicas: %w", replicas, err)
		}
		if err := show.until(ctx, e.timeout, int(replicas), scheduler.Failed); err != nil {
			return err
		}
	}
	return nil
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
