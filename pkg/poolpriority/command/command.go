// Package command holds the command of the scheduler.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
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
	profile, err := readConfig(opts)
	if err != nil {
		return fmt.Errorf("--config=%s: %w", opts.ConfigFile, err)
	}
	leadership := lease.NewLeadership()
	factory := poolpriority.NewFactory(leadership)
	factory.Lease = func() string { return opts.ComponentConfig.LeaderElection.ResourceName } // from the file or the flag
	config, scheduler, err := app.Setup(ctx, opts, append(outoftree.Plugins(), app.WithPlugin(poolpriority.Name, factory.New))...)
	if err != nil {
		return err
	}
	if profile != nil && config.LeaderElection != nil && config.LeaderElection.Lock.Describe() == defaultLease {
		if *profile.SchedulerName != corev1.DefaultSchedulerName { // a flag named the lease
			return configv1.ErrStockLease
		}
		klog.FromContext(ctx).Info("Replacing the cluster's default scheduler: this scheduler has its name and its lease")
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
		klog.FromContext(ctx).Info("Warning: leaderElection.leaderElect is false: two replicas would overwrite each other's bindings and state. Run only one")
		leadership.Extend(time.Now().AddDate(100, 0, 0)) // without leader election, no other process leads
	}
	if mutable, ok := features.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	factory.Wrap(ctx, scheduler, config.ComponentConfig.Profiles)
	return app.Run(ctx, config, scheduler)
}

// readConfig judges the configuration before kube-scheduler reads it (configv1.Judge). It returns the profile that configures
// the plugin, or nil. If there is such a profile, and the file names no lease, readConfig sets the leader's lease to
// pool-priority-scheduler in the namespace of this process, unless a flag names one. Else, kube-scheduler would use the
// lease of the cluster's default scheduler.
func readConfig(opts *options.Options) (*schedconfigv1.KubeSchedulerProfile, error) {
	if opts.ConfigFile == "" {
		return nil, nil
	}
	if info, err := os.Stat(opts.ConfigFile); err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("give a regular file, because it is read twice")
	}
	data, err := os.ReadFile(opts.ConfigFile)
	if err != nil {
		return nil, err
	}
	config, err := configv1.Decode(data)
	if err != nil {
		return nil, err
	}
	profile, err := configv1.Judge(config)
	if err != nil || profile == nil {
		return nil, err
	}
	flags := opts.Flags.FlagSet("leader election")
	for _, f := range []struct{ flag, said, value string }{
		{"leader-elect-resource-name", config.LeaderElection.ResourceName, configv1.DefaultInstallation},
		{"leader-elect-resource-namespace", config.LeaderElection.ResourceNamespace, configv1.PodNamespace()},
	} {
		if f.said != "" || flags.Changed(f.flag) {
			continue
		}
		if err := flags.Set(f.flag, f.value); err != nil { // a flag overrides the file
			return nil, fmt.Errorf("setting --%s: %w", f.flag, err)
		}
	}
	return profile, nil
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
