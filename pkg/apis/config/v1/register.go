package v1

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	configv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedconfigv1 "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"
)

// Register makes PoolPriorityArgs known to the scheduler's configuration: it is decoded strictly, defaulted, and written
// out again by --write-config-to. It must run before a configuration is read; the scheduler would otherwise hand the
// plugin undecoded bytes.
func Register() error {
	// The first scheme decodes files, the second converts plugin arguments between versions. One Go type serves as
	// the v1 and as the internal form.
	for _, s := range []*runtime.Scheme{scheme.Scheme, schedconfigv1.GetPluginArgConversionScheme()} {
		if err := addToScheme(s); err != nil {
			return fmt.Errorf("registering PoolPriorityArgs: %w", err)
		}
	}
	return nil
}

func addToScheme(s *runtime.Scheme) error {
	for _, gv := range []schema.GroupVersion{configv1.SchemeGroupVersion, schedconfig.SchemeGroupVersion} {
		s.AddKnownTypes(gv, &PoolPriorityArgs{})
	}
	s.AddTypeDefaultingFunc(&PoolPriorityArgs{}, func(obj any) { SetDefaults_PoolPriorityArgs(obj.(*PoolPriorityArgs)) })
	return nil
}

// PluginName is the name of the plugin whose arguments PoolPriorityArgs are.
const PluginName = "PoolPriority"

// Load reads a KubeSchedulerConfiguration as the scheduler does and returns the profile that configures the plugin, and the
// arguments in it, defaulted and validated. Register must have been called.
func Load(data []byte) (*schedconfig.KubeSchedulerProfile, *PoolPriorityArgs, error) {
	config, err := decode(data)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckProfiles(config); err != nil {
		return nil, nil, err
	}
	for i := range config.Profiles {
		if args := argsOf(&config.Profiles[i]); args != nil {
			if err := Validate(args).ToAggregate(); err != nil {
				return nil, nil, fmt.Errorf("profile %q: %w", config.Profiles[i].SchedulerName, err)
			}
			return &config.Profiles[i], args, nil
		}
	}
	return nil, nil, fmt.Errorf("no profile configures the plugin %s", PluginName)
}

// Configured reports whether a profile configures the plugin.
func Configured(config *schedconfig.KubeSchedulerConfiguration) bool {
	return slices.ContainsFunc(config.Profiles, func(p schedconfig.KubeSchedulerProfile) bool { return argsOf(&p) != nil })
}

// CheckProfiles returns an error if several profiles configure the plugin: they would publish over each other's state of the pools,
// and there is one controller.
func CheckProfiles(config *schedconfig.KubeSchedulerConfiguration) error {
	var names []string
	for i := range config.Profiles {
		if argsOf(&config.Profiles[i]) != nil {
			names = append(names, config.Profiles[i].SchedulerName)
		}
	}
	if len(names) > 1 {
		return fmt.Errorf("the profiles %s configure the plugin %s, and only one may: run a scheduler for each list of pools", strings.Join(names, ", "), PluginName)
	}
	return nil
}

func decode(data []byte) (*schedconfig.KubeSchedulerConfiguration, error) {
	obj, _, err := scheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding the configuration: %w", err)
	}
	config, ok := obj.(*schedconfig.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("the configuration is a %T, not a KubeSchedulerConfiguration", obj)
	}
	return config, nil
}

// argsOf returns the plugin's arguments in the profile, nil if it has none.
func argsOf(profile *schedconfig.KubeSchedulerProfile) *PoolPriorityArgs {
	for _, plugin := range profile.PluginConfig {
		if args, ok := plugin.Args.(*PoolPriorityArgs); ok && plugin.Name == PluginName {
			return args
		}
	}
	return nil
}
