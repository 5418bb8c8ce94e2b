package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
)

// defaultScheduler is the name of the binary of Kubernetes' own scheduler.
const defaultScheduler = "kube-scheduler"

// StartDefaultScheduler runs kube-scheduler without a configuration file, so with its default profile. kube-scheduler
// has the rights that the API server gives system:kube-scheduler. StartDefaultScheduler returns when kube-scheduler
// serves its probes.
func (c *Cluster) StartDefaultScheduler(ctx context.Context) ([]*Component, error) {
	return withFreePorts(func() ([]*Component, error) { return c.startDefaultScheduler(ctx) })
}

func (c *Cluster) startDefaultScheduler(ctx context.Context) ([]*Component, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	kubeConfig := c.defaultSchedulerKubeConfig()
	p, err := StartProcess(defaultScheduler, filepath.Join(c.options.BinDir, defaultScheduler), c.options.Dir, nil,
		"--kubeconfig="+kubeConfig, "--authentication-kubeconfig="+kubeConfig, "--authorization-kubeconfig="+kubeConfig, "--authentication-skip-lookup",
		"--leader-elect=false", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port))
	if err != nil {
		return nil, fmt.Errorf("%w (make tools builds it)", err)
	}
	s := &Component{Process: p}
	if err := s.listens(ctx, port); err != nil {
		return nil, err
	}
	return []*Component{s}, nil
}

func (c *Cluster) defaultSchedulerKubeConfig() string {
	return filepath.Join(c.options.Dir, defaultScheduler+".kubeconfig")
}
