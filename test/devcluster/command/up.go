package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
)

// The shipped files that devcluster up uses, in the directory of the manifests.
const (
	shippedConfig = "overlays/aks/config.yaml"
	shippedRights = "rbac"
	example       = "workloads/web.yaml"
)

// playground is the cluster that devcluster up runs, with its settings.
type playground struct {
	*flags
	out     io.Writer
	options devcluster.Options
	// If scheduler is set, this project's scheduler and controller run. config is their configuration file; "" means
	// the shipped configuration for AKS.
	scheduler         bool
	manifests, config string
}

// defaultPools returns the pools of an AKS cluster with one user pool and one system pool.
func defaultPools() []devcluster.Pool {
	cpu, memory, boot := resource.MustParse("1900m"), resource.MustParse("6Gi"), metav1.Duration{Duration: 2 * time.Second}
	return []devcluster.Pool{
		{Name: "userpool", Mode: "user", Nodes: 1, Min: 1, Max: 3, CPU: cpu, Memory: memory, Priority: 20, BootDelay: boot},
		{Name: "systempool", Mode: "system", Nodes: 1, Min: 1, Max: 2, CPU: cpu, Memory: memory, Priority: 10, BootDelay: boot},
	}
}

func newUp(f *flags) *cobra.Command {
	var poolsFile string
	p := &playground{flags: f}
	autoscaler := &devcluster.AutoscalerOptions{}
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster with the scheduler, and keep it running until Ctrl-C or devcluster down",
		Long: `Start a cluster and keep it running until Ctrl-C or devcluster down: a control plane, node pools, a virtual node, a simulated cluster
autoscaler, and, each with the rights that it ships with, the scheduler and its controller. It prints what to try.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pools := defaultPools()
			if poolsFile != "" {
				var err error
				if pools, err = devcluster.LoadPools(poolsFile); err != nil {
					return err
				}
			}
			p.out, p.options = cmd.OutOrStdout(), devcluster.Options{Pools: pools, VirtualNode: true, Autoscaler: autoscaler}
			return p.up(cmd.Context())
		},
	}
	command.Flags().StringVar(&poolsFile, "pools", "", "YAML file with a list of pools ({name, mode, nodes, min, max, cpu, memory, labels, taints, priority, bootDelay, startupTaint, startupFor})")
	command.Flags().DurationVar(&autoscaler.Interval, "autoscaler-interval", time.Second, "time between two loops of the simulated cluster autoscaler")
	command.Flags().DurationVar(&autoscaler.UnneededTime, "unneeded-time", 30*time.Second, "how long a VM is unneeded before it is removed; 0 keeps all")
	command.Flags().BoolVar(&p.scheduler, "scheduler", true, "run the scheduler and its controller; false: none, to run one's own")
	command.Flags().StringVar(&p.manifests, "manifests", "manifests", "directory of the shipped manifests")
	command.Flags().StringVar(&p.config, "config", "", "the scheduler's configuration file; default: "+shippedConfig+" of the manifests")
	return command
}

func (p *playground) up(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := filepath.Abs(p.dir)
	if err != nil {
		return err
	}
	if running, err := readState(dir); err == nil && alive(running.PID) {
		return fmt.Errorf("a cluster runs in %s already (process %d); stop it with devcluster down", p.dir, running.PID)
	}
	p.options.Dir, p.options.BinDir = filepath.Join(dir, clusterDir), filepath.Join(p.bin, "tools")
	fmt.Fprintln(p.out, "Starting etcd, kube-apiserver, kube-controller-manager and KWOK …")
	start := time.Now()
	// A signal must not end the cluster's context, because Stop stops the processes in order.
	cluster, err := devcluster.Start(context.WithoutCancel(ctx), p.options)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	if err := writeState(dir, state{PID: os.Getpid(), Children: cluster.PIDs()}); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(dir, stateFile))
	ours, err := p.startOurs(ctx, cluster)
	defer func() {
		for _, component := range ours {
			component.Stop()
		}
	}()
	if err == nil {
		children := cluster.PIDs()
		for _, component := range ours {
			children = append(children, component.PID())
		}
		err = writeState(dir, state{PID: os.Getpid(), Children: children})
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	if ctx.Err() == nil {
		p.invite(cluster, time.Since(start))
	}
	return p.wait(ctx, cluster, ours)
}

// startOurs starts the scheduler and its controller. With --scheduler=false, it starts nothing. It returns the running
// components; the last started is the first.
func (p *playground) startOurs(ctx context.Context, cluster *devcluster.Cluster) ([]*devcluster.Component, error) {
	if !p.scheduler {
		return nil, nil
	}
	fmt.Fprintln(p.out, "Starting the scheduler and its controller …")
	if p.config == "" {
		p.config = filepath.Join(p.manifests, shippedConfig)
	}
	return cluster.StartOurs(ctx, p.bin, p.config, filepath.Join(p.manifests, shippedRights))
}

// invite prints commands that the user can try.
func (p *playground) invite(cluster *devcluster.Cluster, took time.Duration) {
	kubectl := filepath.Join(p.bin, "tools", "kubectl")
	if p.scheduler {
		fmt.Fprintf(p.out, "Ready after %.1f s, with %s. In another terminal, from this directory:\n\n", took.Seconds(), p.config)
	} else {
		fmt.Fprintf(p.out, "Ready after %.1f s, without a scheduler: pods wait until there is one. In another terminal, from this directory:\n\n", took.Seconds())
	}
	fmt.Fprintf(p.out, "  export KUBECONFIG=%s\n", cluster.KubeConfig())
	if p.scheduler {
		fmt.Fprintf(p.out, "  %s apply -f %s\n", kubectl, filepath.Join(p.manifests, example))
		fmt.Fprintf(p.out, "  %s scale deployment web --replicas=20\n", kubectl)
		fmt.Fprintf(p.out, "  %s\n", filepath.Join(p.bin, "kubectl-pools"))
	} else {
		fmt.Fprintf(p.out, "  %s get nodes\n", kubectl)
	}
	fmt.Fprintf(p.out, "\nThe logs are in %s. Ctrl-C, or devcluster down, stops everything.\n", cluster.Dir())
}

// wait waits until the context is cancelled or one of the processes has ended.
func (p *playground) wait(ctx context.Context, cluster *devcluster.Cluster, ours []*devcluster.Component) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			fmt.Fprintln(p.out, "Stopping …")
			return nil
		case <-ticker.C:
		}
		err := cluster.Failed()
		for _, component := range ours {
			if err == nil {
				err = component.Failed()
			}
		}
		if err != nil {
			fmt.Fprintln(p.out, "One of the processes has ended. Stopping the others …")
			return err
		}
	}
}
