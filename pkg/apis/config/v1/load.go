package v1

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// PluginName is the name of the plugin that PoolPriorityArgs configure.
const PluginName = "PoolPriority"

// ConfigAnnotation is the annotation of the scheduler's and the controller's pods that holds their
// KubeSchedulerConfiguration. A downwardAPI volume gives it to them as a file, byte for byte. It is in the pod
// template, so that each ReplicaSet keeps the configuration that it was made with. The API server takes 256 KiB of
// annotations per object.
const ConfigAnnotation = "poolpriority.dev/config"

// ErrEmpty is returned for an empty configuration file: a downwardAPI volume shows a missing annotation that way.
var ErrEmpty = errors.New("the configuration is empty: the pod has no annotation " + ConfigAnnotation +
	". With kustomize, add the component manifests/components/config and generate the ConfigMap pool-priority-config beside it")

// Load reads a KubeSchedulerConfiguration as Decode does and returns the profile that configures the plugin, which has
// a scheduler's name, and the arguments in it, defaulted and validated.
func Load(data []byte) (*configv1.KubeSchedulerProfile, *PoolPriorityArgs, error) {
	config, err := Decode(data)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckProfiles(config); err != nil {
		return nil, nil, err
	}
	installation, invalid := InstallationOf(config.LeaderElection.ResourceName)
	if invalid != nil {
		return nil, nil, invalid
	}
	i := slices.IndexFunc(config.Profiles, configures)
	if i < 0 {
		return nil, nil, fmt.Errorf("no profile configures the plugin %s", PluginName)
	}
	profile := &config.Profiles[i]
	if nameOf(profile) == "" {
		return nil, nil, field.Required(field.NewPath("profiles").Index(i).Child("schedulerName"), "with several profiles, each needs a name")
	}
	args := argsOf(profile)
	if err := Validate(args).ToAggregate(); err != nil {
		return nil, nil, fmt.Errorf("profile %q: %w", nameOf(profile), err)
	}
	args.Installation = installation
	return profile, args, nil
}

func configures(profile configv1.KubeSchedulerProfile) bool { return argsOf(&profile) != nil }

// Configures reports whether a profile configures the plugin.
func Configures(config *configv1.KubeSchedulerConfiguration) bool {
	return slices.ContainsFunc(config.Profiles, configures)
}

// CheckProfiles returns an error if several profiles configure the plugin: they would publish over each other's state
// of the pools, and there is one controller.
func CheckProfiles(config *configv1.KubeSchedulerConfiguration) error {
	var names []string
	for i := range config.Profiles {
		if argsOf(&config.Profiles[i]) != nil {
			names = append(names, nameOf(&config.Profiles[i]))
		}
	}
	if len(names) > 1 {
		return fmt.Errorf("the profiles %s configure the plugin %s, and only one may: run a scheduler for each list of pools", strings.Join(names, ", "), PluginName)
	}
	return nil
}

// Decode reads a KubeSchedulerConfiguration without the scheduler's own packages, and refuses what the scheduler's
// decoder refuses: an unknown or a duplicate field, in the arguments of Kubernetes' own plugins and of PoolPriority,
// too. One that is empty is ErrEmpty. PoolPriority's arguments are there, defaulted, in every profile that enables the
// plugin. Of the rest only the name of a single profile is defaulted.
func Decode(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, ErrEmpty
	}
	obj, _, err := serializer.NewCodecFactory(newScheme(), serializer.EnableStrict).UniversalDecoder(configv1.SchemeGroupVersion).Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding the configuration: %w", err)
	}
	config, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("the configuration is a %T, not a KubeSchedulerConfiguration", obj)
	}
	if len(config.Profiles) == 1 && config.Profiles[0].SchedulerName == nil {
		config.Profiles[0].SchedulerName = ptr.To(corev1.DefaultSchedulerName)
	}
	for i := range config.Profiles {
		setDefaultArgs(&config.Profiles[i])
	}
	return config, nil
}

// newScheme returns a scheme of what may be in a configuration. The types are listed and not added by
// configv1.AddToScheme: in a program that links the scheduler, that adds the scheduler's defaults and conversions, too.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(configv1.SchemeGroupVersion,
		&configv1.KubeSchedulerConfiguration{},
		&configv1.DefaultPreemptionArgs{},
		&configv1.DynamicResourcesArgs{},
		&configv1.InterPodAffinityArgs{},
		&configv1.NodeAffinityArgs{},
		&configv1.NodeResourcesBalancedAllocationArgs{},
		&configv1.NodeResourcesFitArgs{},
		&configv1.PodTopologySpreadArgs{},
		&configv1.VolumeBindingArgs{},
		&PoolPriorityArgs{},
	)
	return s
}

// setDefaultArgs defaults the plugin's arguments in the profile, and adds them if it enables the plugin and has none.
func setDefaultArgs(profile *configv1.KubeSchedulerProfile) {
	args := argsOf(profile)
	if args == nil {
		if !enables(profile) {
			return
		}
		args = &PoolPriorityArgs{}
		profile.PluginConfig = append(profile.PluginConfig, configv1.PluginConfig{Name: PluginName, Args: runtime.RawExtension{Object: args}})
	}
	SetDefaults_PoolPriorityArgs(args)
}

// enables reports whether the profile enables the plugin at any extension point.
func enables(profile *configv1.KubeSchedulerProfile) bool {
	p := profile.Plugins
	if p == nil {
		return false
	}
	return slices.ContainsFunc([]configv1.PluginSet{
		p.PreEnqueue, p.QueueSort, p.PreFilter, p.Filter, p.PostFilter, p.PreScore, p.Score, p.Reserve, p.Permit, p.PreBind, p.Bind, p.PostBind, p.MultiPoint,
	}, func(set configv1.PluginSet) bool {
		return slices.ContainsFunc(set.Enabled, func(plugin configv1.Plugin) bool { return plugin.Name == PluginName })
	})
}

// argsOf returns the plugin's arguments in the profile, nil if it has none.
func argsOf(profile *configv1.KubeSchedulerProfile) *PoolPriorityArgs {
	for _, plugin := range profile.PluginConfig {
		if args, ok := plugin.Args.Object.(*PoolPriorityArgs); ok && plugin.Name == PluginName {
			return args
		}
	}
	return nil
}

func nameOf(profile *configv1.KubeSchedulerProfile) string {
	return ptr.Deref(profile.SchedulerName, "")
}
