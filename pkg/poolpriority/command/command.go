// Package command holds the command of the scheduler.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	componentbaseconfig "k8s.io/component-base/config"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // for the metrics of API calls
	_ "k8s.io/component-base/metrics/prometheus/version"  // for the metric of the version
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/apis/config/scheme"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/compat/outoftree"
	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/poolpriority"
	"poolpriority.dev/scheduler/pkg/version"
)

// defaultLease is the lease that kube-scheduler uses if its configuration names no lease.
const defaultLease = "kube-system/kube-scheduler"

// New returns the command pool-priority-scheduler. It does the same as app.NewSchedulerCommand, and also tells the
// plugin whether this process is the leader.
func New() *cobra.Command {
	opts := options.NewOptions()
	command := &cobra.Command{
		Use: "pool-priority-scheduler",
		Long: `A kube-scheduler that fills node pools in order and opens burst pools (AKS virtual nodes) only when the pools before
them can grow no more. The order is set in the arguments of the PoolPriority plugin, in the KubeSchedulerConfiguration
that --config names. Pods opt in by schedulerName.`,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() },
		RunE: func(command *cobra.Command, _ []string) error {
			if f := command.Flags().Lookup("version"); f != nil && f.Value.String() != "false" {
				_, err := fmt.Fprintln(command.OutOrStdout(), command.Name(), "version", version.String())
				return err
			}
			features := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
			if err := logsapi.ValidateAndApply(opts.Logs, features); err != nil {
				return err
			}
			cliflag.PrintFlags(command.Flags())
			return run(server.SetupSignalContext(), opts, features)
		},
	}
	sets := opts.Flags
	verflag.AddFlags(sets.FlagSet("global"))
	globalflag.AddGlobalFlags(sets.FlagSet("global"), command.Name(), logs.SkipLoggingConfigurationFlags())
	for _, set := range sets.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(command.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(command, *sets, columns)
	return command
}

func run(ctx context.Context, opts *options.Options, features featuregate.FeatureGate) error {
	scheme.Register()
	file, err := read(opts.ConfigFile)
	if err != nil {
		return err
	}
	if err := placeLease(opts, file); err != nil {
		return err
	}
	leadership := lease.NewLeadership()
	factory := poolpriority.NewFactory(leadership)
	factory.Lease = func() string { return opts.ComponentConfig.LeaderElection.ResourceName } // from the file or the flag
	config, scheduler, err := app.Setup(ctx, opts, append(outoftree.Plugins(), app.WithPlugin(poolpriority.Name, factory.New))...)
	if err != nil {
		return err
	}
	if config.LeaderElection != nil && config.LeaderElection.Lock.Describe() == defaultLease && configured(config.ComponentConfig.Profiles) {
		return fmt.Errorf("leaderElection: %s is the lease of the cluster's default scheduler, which would stop while this scheduler holds the lease: leave out resourceName and resourceNamespace", defaultLease)
	}
	if err := version.CheckServer(klog.FromContext(ctx), config.Client.Discovery()); err != nil {
		return err
	}
	go poolpriority.WatchServer(ctx, config.Client.Discovery())
	if err := leadership.Fence(config.Client.CoreV1().RESTClient()); err != nil {
		return err
	}
	if config.LeaderElection != nil {
		if err := checkRights(ctx, config.KubeConfig, config.ComponentConfig.LeaderElection); err != nil {
			return err
		}
		config.LeaderElection.Lock = lease.Announce(config.LeaderElection.Lock, leadership)
		// Name labels the metric leader_election_master_status. Its default, "kube-scheduler", also labels the metric of
		// the cluster's default scheduler.
		config.LeaderElection.Name = config.ComponentConfig.LeaderElection.ResourceName
	} else {
		leadership.Extend(time.Now().AddDate(100, 0, 0)) // without leader election, no other process leads
	}
	if mutable, ok := features.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	factory.Wrap(ctx, scheduler, config.ComponentConfig.Profiles)
	return app.Run(ctx, config, scheduler)
}

// read reads the file before the plugin is created. It returns an error if the file is empty, or if several profiles in
// it configure the plugin. If the file has another mistake, it returns nil, because app.Setup reports the mistake. It
// also returns nil if the file is not regular, because such a file may be readable only once.
func read(file string) (*schedconfigv1.KubeSchedulerConfiguration, error) {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
		return nil, nil //nolint:nilerr // app.Setup reports it
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil //nolint:nilerr // app.Setup reports it
	}
	config, err := configv1.Decode(data)
	if errors.Is(err, configv1.ErrEmpty) {
		return nil, fmt.Errorf("%s: %w", file, err)
	} else if err != nil {
		return nil, nil //nolint:nilerr // app.Setup reports it
	}
	return config, configv1.CheckProfiles(config)
}

// placeLease sets the name of the leader's lease to pool-priority-scheduler, and the lease's namespace to the namespace
// of this process. If the file or a flag sets one of them, placeLease keeps it. Without placeLease, kube-scheduler
// would use the lease of the cluster's default scheduler. If the file does not configure the plugin, placeLease changes
// nothing.
func placeLease(opts *options.Options, file *schedconfigv1.KubeSchedulerConfiguration) error {
	if file == nil || !configv1.Configures(file) {
		return nil
	}
	flags := opts.Flags.FlagSet("leader election")
	for _, f := range []struct{ flag, said, value string }{
		{"leader-elect-resource-name", file.LeaderElection.ResourceName, configv1.DefaultInstallation},
		{"leader-elect-resource-namespace", file.LeaderElection.ResourceNamespace, configv1.PodNamespace()},
	} {
		if f.said != "" || flags.Changed(f.flag) {
			continue
		}
		if err := flags.Set(f.flag, f.value); err != nil { // a flag overrides the file
			return fmt.Errorf("setting --%s: %w", f.flag, err)
		}
	}
	return nil
}

// checkRights waits until this process has the rights to its lease. If the process loses these rights later, it exits.
// Otherwise, a standby that can never become the leader would be Ready.
func checkRights(ctx context.Context, config *rest.Config, election componentbaseconfig.LeaderElectionConfiguration) error {
	client, err := kubernetes.NewForConfig(config) // not the scheduler's client, which cannot write before this process leads
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	rights := &lease.Rights{Client: client, Namespace: election.ResourceNamespace, Name: election.ResourceName, Clock: clock.RealClock{}}
	if err := rights.Await(ctx); err != nil {
		return err
	}
	go rights.Watch(ctx, func(err error) {
		klog.FromContext(ctx).Error(err, "Exiting: this scheduler can no longer lead")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	})
	return nil
}

// configured reports whether a profile configures the plugin.
func configured(profiles []schedconfig.KubeSchedulerProfile) bool {
	return slices.ContainsFunc(profiles, func(profile schedconfig.KubeSchedulerProfile) bool {
		return slices.ContainsFunc(profile.PluginConfig, func(c schedconfig.PluginConfig) bool { return c.Name == poolpriority.Name })
	})
}
