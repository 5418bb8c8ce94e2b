package devcluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// SchedulerName is the schedulerName with which pods opt in, and the name of the scheduler's binary and of its
	// ServiceAccount.
	SchedulerName = "pool-priority-scheduler"
	// ControllerName is the name of the controller's binary and of its ServiceAccount.
	ControllerName = "pool-priority-controller"
	// SchedulerNamespace is the namespace in which the manifests install the scheduler.
	SchedulerNamespace = "pool-priority-system"
)

// Component is a binary of this project that runs as a process beside the cluster. It has only the rights of its
// ServiceAccount.
type Component struct {
	*Process
	// Address is the host and port at which the component serves metrics by HTTPS. A scheduler serves its probes there,
	// too. For a controller that serves nothing, Address is empty.
	Address string
	// Health is the host and port at which a controller serves its probes by HTTP; empty if it serves none.
	Health string
}

// Apply applies a kustomization.
func (c *Cluster) Apply(ctx context.Context, dir string) error {
	return c.kubectl(ctx, "apply", "-k", dir)
}

func (c *Cluster) kubectl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.options.BinDir, "kubectl"), append([]string{"--kubeconfig=" + c.KubeConfig()}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// StartScheduler runs the scheduler binary with the configuration file, as an installation from the manifests does.
// rbac is the kustomization with the scheduler's ServiceAccount and rights. StartScheduler returns when the scheduler
// listens on its port.
func (c *Cluster) StartScheduler(ctx context.Context, binary, configFile, rbac string, args ...string) (*Component, error) {
	return withFreePorts(func() (*Component, error) { return c.startScheduler(ctx, binary, configFile, rbac, args...) })
}

func (c *Cluster) startScheduler(ctx context.Context, binary, configFile, rbac string, args ...string) (*Component, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	kubeConfig := c.ownFile(SchedulerName, configFile, ".kubeconfig")
	s, err := c.startOwn(ctx, SchedulerName, binary, configFile, rbac, append([]string{"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--v=3",
		"--authentication-skip-lookup", "--authentication-kubeconfig=" + kubeConfig, "--authorization-kubeconfig=" + kubeConfig}, args...)...)
	if err != nil {
		return nil, err
	}
	if err := s.listens(ctx, port); err != nil {
		return nil, err
	}
	return s, nil
}

// listens waits until the process listens on the port. If the process ends or a minute passes first, it stops the
// process.
func (s *Component) listens(ctx context.Context, port int) error {
	s.Address = fmt.Sprintf("127.0.0.1:%d", port)
	if err := poll(ctx, startTimeout, s.ended, func() error {
		connection, err := net.Dial("tcp", s.Address)
		if err != nil {
			return err
		}
		return connection.Close()
	}); err != nil {
		s.Stop()
		return fmt.Errorf("waiting for %s to listen: %w", s.name, err)
	}
	return nil
}

// StartServingController runs the controller as StartController does, and lets it serve metrics and probes.
func (c *Cluster) StartServingController(ctx context.Context, binary, configFile, rbac string) (*Component, error) {
	return withFreePorts(func() (*Component, error) {
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		health := fmt.Sprintf("127.0.0.1:%d", ports[1])
		s, err := c.StartController(ctx, binary, configFile, rbac, fmt.Sprintf("--metrics-address=127.0.0.1:%d", ports[0]), "--health-address="+health)
		if err != nil {
			return nil, err
		}
		s.Health = health
		return s, s.listens(ctx, ports[0])
	})
}

// StartController runs the controller binary. By default, the controller serves no metrics and no probes.
func (c *Cluster) StartController(ctx context.Context, binary, configFile, rbac string, args ...string) (*Component, error) {
	return c.startOwn(ctx, ControllerName, binary, configFile, rbac,
		append([]string{"--health-address=0", "--metrics-address=0", "--v=2", "--kubeconfig=" + c.ownFile(ControllerName, configFile, ".kubeconfig")}, args...)...)
}

// StartOurs runs the scheduler and the controller, whose binaries are in the directory, as an installation from the
// manifests does. Even if StartOurs returns an error, the returned components run.
func (c *Cluster) StartOurs(ctx context.Context, binDir, configFile, rbac string) ([]*Component, error) {
	controller, err := c.StartController(ctx, filepath.Join(binDir, ControllerName), configFile, rbac)
	if err != nil {
		return nil, err
	}
	scheduler, err := c.StartScheduler(ctx, filepath.Join(binDir, SchedulerName), configFile, rbac)
	if err != nil {
		return []*Component{controller}, err
	}
	return []*Component{scheduler, controller}, nil
}

// ownFile returns the path of a file for one of this project's binaries.
func (c *Cluster) ownFile(name, configFile, suffix string) string {
	return filepath.Join(c.options.Dir, name+"-"+strings.TrimSuffix(filepath.Base(configFile), ".yaml")+suffix)
}

// startOwn runs one of this project's binaries as the ServiceAccount with the name of the binary.
func (c *Cluster) startOwn(ctx context.Context, name, binary, configFile, rbac string, args ...string) (*Component, error) {
	if !c.rights[rbac] {
		// kubectl's validation would take most of the time. Other tests apply these files with validation.
		if err := c.kubectl(ctx, "apply", "--validate=false", "-k", rbac); err != nil {
			return nil, err
		}
		c.rights[rbac] = true
	}
	token, err := c.ServiceAccountToken(ctx, SchedulerNamespace, name)
	if err != nil {
		return nil, err
	}
	kubeConfig := c.ownFile(name, configFile, ".kubeconfig")
	if err := c.WriteKubeConfig(kubeConfig, token); err != nil {
		return nil, err
	}
	config := c.ownFile(name, configFile, ".yaml")
	if err := withKubeConfig(configFile, config, kubeConfig); err != nil {
		return nil, err
	}
	p, err := StartProcess(strings.TrimSuffix(filepath.Base(config), ".yaml"), binary, c.options.Dir, nil, append(args, "--config="+config)...)
	if err != nil {
		return nil, fmt.Errorf("%w (make build builds it)", err)
	}
	c.ours = append(c.ours, p)
	return &Component{Process: p}, nil
}

// Failed returns an error if the process has ended.
func (s *Component) Failed() error { return s.ended() }

// withKubeConfig copies a scheduler configuration and adds the kubeconfig.
func withKubeConfig(from, to, kubeConfig string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	if data, err = WithKubeConfig(data, kubeConfig); err != nil {
		return fmt.Errorf("adding the kubeconfig to %s: %w", from, err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return fmt.Errorf("writing the scheduler's configuration: %w", err)
	}
	return nil
}

// WithKubeConfig adds the kubeconfig's path to the KubeSchedulerConfiguration. The shipped files have none, because the
// scheduler finds its credentials by itself in a pod.
func WithKubeConfig(data []byte, kubeConfig string) ([]byte, error) {
	var config map[string]any
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, err
	}
	connection, _ := config["clientConnection"].(map[string]any)
	if connection == nil {
		connection = map[string]any{}
	}
	connection["kubeconfig"] = kubeConfig
	config["clientConnection"] = connection
	return yaml.Marshal(config)
}
