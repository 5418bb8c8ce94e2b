// Package command holds the command of the controller.
package command

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/leaderelection"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/version"
)

const (
	// leaseName is the name of the controller's ServiceAccount. It is also the default name of the leader election
	// lease.
	leaseName = "pool-priority-controller"

	// leaseDuration, renewDeadline and retryPeriod are the settings of the leader election lease. The scheduler's lease
	// has the same settings.
	leaseDuration, renewDeadline, retryPeriod = 10 * time.Second, 7 * time.Second, time.Second

	// reconcileTimeout is the timeout of one call of a reconciler.
	reconcileTimeout = 2 * time.Minute

	// cleanupRate is the maximum number of requests per second of the command cleanup. The rate is high because the
	// command may have to patch every pod of a large cluster.
	cleanupRate = 500
)

var errNoConfig = errors.New("--config is required: name the scheduler's configuration file")

type options struct {
	config, namespace, lease      string
	healthAddress, metricsAddress string
	leaderElect                   bool
}

// New returns the command pool-priority-controller.
func New() *cobra.Command {
	o := options{}
	logging := logsapi.NewLoggingConfiguration()
	command := &cobra.Command{
		Use:     "pool-priority-controller",
		Short:   "Keep the gate taint on burst nodes, add its toleration to the pods there, and correct deletion costs",
		Version: version.String(),
		Args:    cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			ctrl.SetLogger(klog.Background())
			return run(ctrl.SetupSignalHandler(), o)
		},
	}
	command.AddCommand(newCleanup(&o))
	fs := command.Flags()
	command.PersistentFlags().StringVar(&o.config, "config", "", "the scheduler's configuration file (KubeSchedulerConfiguration); required")
	command.PersistentFlags().StringVar(&o.namespace, "namespace", configv1.PodNamespace(), "namespace of the leader's lease and of the controller's ServiceAccount; default: the controller pod's namespace")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "act only while leading")
	fs.StringVar(&o.lease, "leader-elect-resource-name", leaseName, "name of the leader's lease")
	fs.StringVar(&o.healthAddress, "health-address", ":8081", "address that serves /healthz and /readyz; 0 turns the server off")
	fs.StringVar(&o.metricsAddress, "metrics-address", ":8443", "address that serves /metrics by HTTPS, to clients with the right to get this path; 0 turns the server off")
	logsapi.AddFlags(logging, fs)                                  // the logging flags of the scheduler, such as --v and --logging-format
	command.PersistentFlags().AddGoFlag(flag.Lookup("kubeconfig")) // controller-runtime defines this flag
	return command
}

func run(ctx context.Context, o options) error {
	profile, args, pools, err := load(o.config)
	if err != nil {
		return err
	}
	restConfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the cluster's address: %w", err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := version.CheckServer(klog.FromContext(ctx), client.Discovery()); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if o.leaderElect {
		rights := &lease.Rights{Client: client, Namespace: o.namespace, Name: o.lease, Clock: clock.RealClock{}}
		if err := rights.Await(ctx); err != nil {
			return err
		}
		go rights.Watch(ctx, end)
	}
	lock := &watchedLock{clock: clock.RealClock{}}
	costs := &controller.DeletionCost{}
	m, err := newManager(restConfig, lock, costs, o)
	if err != nil {
		return err
	}
	if err := errors.Join(setUp(ctx, m, costs, profile, args, pools), setUpProbes(ctx, m, lock, o.leaderElect, args)); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err // rights.Watch passes an error to end if the process has lost the rights to its lease
	}
	return nil
}

// newManager returns the manager. The manager uses lock for leader election, and lock wraps a Lease lock. Its cache calls
// costs.Transform.
func newManager(restConfig *rest.Config, lock *watchedLock, costs *controller.DeletionCost, o options) (ctrl.Manager, error) {
	m, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: clientgoscheme.Scheme, Logger: klog.Background(),
		LeaderElection: o.leaderElect, LeaderElectionID: o.lease, LeaderElectionResourceLockInterface: lock, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: ptr.To(leaseDuration), RenewDeadline: ptr.To(renewDeadline), RetryPeriod: ptr.To(retryPeriod),
		Cache:                  cache.Options{DefaultTransform: costs.Transform},
		Controller:             controllerconfig.Controller{ReconciliationTimeout: reconcileTimeout},
		HealthProbeBindAddress: o.healthAddress,
		Metrics: metricsserver.Options{
			BindAddress: o.metricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
			// A Prometheus scrape does not need HTTP/2. With HTTP/2, any client that reaches the port could send many
			// requests at once.
			TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if !o.leaderElect {
		return m, nil
	}
	if lock.Interface, err = leaderelection.NewResourceLock(restConfig, m, leaderelection.Options{
		LeaderElection: true, LeaderElectionID: o.lease, LeaderElectionNamespace: o.namespace, RenewDeadline: renewDeadline,
	}); err != nil {
		return nil, fmt.Errorf("making the leader's lock: %w", err)
	}
	return m, nil
}

// setUpProbes adds the checks of /healthz and /readyz. /readyz fails until the caches have synced. With leader election,
// it also fails if the API server does not answer requests for the lease.
func setUpProbes(ctx context.Context, m ctrl.Manager, lock *watchedLock, leaderElect bool, args *configv1.PoolPriorityArgs) error {
	kinds := []client.Object{&corev1.Node{}}
	if args.Mode != configv1.ModeObserve {
		kinds = append(kinds, &corev1.Pod{})
	}
	synced, err := cachesSynced(ctx, m.GetCache(), kinds...)
	if err != nil {
		return err
	}
	errs := []error{m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("caches", synced)}
	if leaderElect {
		errs = append(errs, m.AddReadyzCheck("leader-election", lock.check))
	}
	return errors.Join(errs...)
}

// setUpMetrics registers the metrics in controller-runtime's registry.
func setUpMetrics(gauges metrics.StableCollector) error {
	var errs []error
	for _, m := range controller.Metrics() {
		m.Create(nil)
		errs = append(errs, ctrlmetrics.Registry.Register(m))
	}
	gauges.Create(nil, gauges)
	controller.BeginMetrics()
	return errors.Join(append(errs, ctrlmetrics.Registry.Register(gauges))...)
}

// setUp adds the reconcilers that the configuration enables. In mode Observe it adds only the reconciler GateTaint.
// This reconciler then removes all gate taints of the installation.
func setUp(ctx context.Context, m ctrl.Manager, costs *controller.DeletionCost, profile *schedconfigv1.KubeSchedulerProfile, args *configv1.PoolPriorityArgs, pools pool.List) error {
	observe, recorder := args.Mode == configv1.ModeObserve, m.GetEventRecorderFor(leaseName)
	taint := &controller.GateTaint{Client: m.GetClient(), Pools: pools, Off: !*args.GateTaint || observe, Recorder: recorder, Clock: clock.RealClock{}}
	errs := []error{taint.SetupWithManager(m), setUpMetrics(taint.Gauges(m.Elected()))}
	if observe {
		return errors.Join(errs...)
	}
	errs = append(errs, (&controller.Tolerations{Client: m.GetClient(), Pools: pools}).SetupWithManager(m))
	if args.ScaleIn.DeletionCosts != configv1.CostsNone {
		costs.Client, costs.Pools, costs.SchedulerName, costs.Others, costs.Recorder = m.GetClient(), pools, *profile.SchedulerName, args.ScaleIn.DeletionCosts == configv1.CostsAll, recorder
		errs = append(errs, costs.SetupWithManager(ctx, m))
	}
	return errors.Join(errs...)
}

// load reads the scheduler's configuration file. It returns the profile that configures the plugin PoolPriority, the
// plugin's arguments, and the pools in these arguments.
func load(file string) (*schedconfigv1.KubeSchedulerProfile, *configv1.PoolPriorityArgs, pool.List, error) {
	if file == "" {
		return nil, nil, pool.List{}, errNoConfig
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, pool.List{}, fmt.Errorf("reading the configuration: %w", err)
	}
	profile, args, err := configv1.Load(data)
	if err != nil {
		return nil, nil, pool.List{}, fmt.Errorf("%s: %w", file, err)
	}
	pools, err := pool.ListOf(args)
	return profile, args, pools, err
}

// newClient returns a client without a cache, for the command cleanup. rate is the maximum number of requests per second.
func newClient(rate float32) (client.Client, error) {
	restConfig, err := config.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's address: %w", err)
	}
	restConfig.QPS, restConfig.Burst = rate, int(rate)
	c, err := client.New(restConfig, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return c, nil
}
