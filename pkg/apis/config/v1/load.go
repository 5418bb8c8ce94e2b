package v1

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// PluginName is the name of the plugin that PoolPriorityArgs configures.
const PluginName = "PoolPriority"

// ConfigAnnotation is an annotation of the scheduler's and the controller's pods. Its value is their
// KubeSchedulerConfiguration, which a downwardAPI volume mounts as a file. The annotation is in the pod template, so
// that each ReplicaSet keeps the configuration that it was created with. The API server limits the annotations of an
// object to 256 KiB.
const ConfigAnnotation = "poolpriority.dev/config"

// ErrEmpty is the error for an empty configuration file. If the pod has no ConfigAnnotation, the file in the
// downwardAPI volume is empty.
var ErrEmpty = errors.New("the configuration is empty: the pod has no annotation " + ConfigAnnotation +
	". With kustomize, add the component manifests/components/config and generate the ConfigMap pool-priority-config in the same kustomization")

// Load decodes a KubeSchedulerConfiguration with Decode, and judges it (Judge). It returns the profile that configures the
// plugin, and the plugin's arguments in this profile. The arguments are defaulted and validated.
func Load(data []byte) (*configv1.KubeSchedulerProfile, *PoolPriorityArgs, error) {
	config, err := Decode(data)
	if err != nil {
		return nil, nil, err
	}
	profile, err := Judge(config)
	if !slices.ContainsFunc(config.Profiles, func(p configv1.KubeSchedulerProfile) bool { return argsOf(&p) != nil }) {
		err = errors.Join(err, fmt.Errorf("no profile configures the plugin %s", PluginName))
	}
	if err != nil {
		return nil, nil, err
	}
	args := argsOf(profile)
	args.Installation, _ = InstallationOf(config.LeaderElection.ResourceName)
	args.Unelected = !ptr.Deref(config.LeaderElection.LeaderElect, true)
	return profile, args, nil
}

// Decode reads a KubeSchedulerConfiguration without the scheduler's own packages. Like the scheduler's decoder, it
// rejects unknown and duplicate fields, also in the arguments of Kubernetes' own plugins and of PoolPriority. For an
// empty configuration it returns ErrEmpty. Decode sets the defaults of PoolPriority's arguments in every profile. If a
// profile enables the plugin without arguments, Decode adds arguments. It calls Complete. If there is only one profile,
// Decode sets the default of its schedulerName. It sets no other defaults.
func Decode(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, ErrEmpty
	}
	obj, _, err := serializer.NewCodecFactory(newScheme(), serializer.EnableStrict).UniversalDecoder(configv1.SchemeGroupVersion).Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding the configuration: %w", explain(data, err))
	}
	config, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("the configuration is a %T, not a KubeSchedulerConfiguration", obj)
	}
	Complete(config)
	if len(config.Profiles) == 1 && config.Profiles[0].SchedulerName == nil {
		config.Profiles[0].SchedulerName = ptr.To(corev1.DefaultSchedulerName)
	}
	for i := range config.Profiles {
		setDefaultArgs(&config.Profiles[i])
	}
	return config, nil
}

// newScheme returns a scheme with the types that a configuration may contain. It does not call configv1.AddToScheme: in
// a program that links the scheduler, AddToScheme also adds the scheduler's defaults and conversions.
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

// setDefaultArgs sets the defaults of the plugin's arguments in the profile. If the profile enables the plugin without
// arguments, setDefaultArgs adds arguments first.
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
	return slices.ContainsFunc(setsOf(profile), func(set configv1.PluginSet) bool {
		return slices.ContainsFunc(set.Enabled, func(plugin configv1.Plugin) bool { return plugin.Name == PluginName })
	})
}

// setsOf returns the plugins at each extension point.
func setsOf(profile *configv1.KubeSchedulerProfile) []configv1.PluginSet {
	p := ptr.Deref(profile.Plugins, configv1.Plugins{})
	return []configv1.PluginSet{p.PreEnqueue, p.QueueSort, p.PreFilter, p.Filter, p.PostFilter, p.PreScore, p.Score, p.Reserve, p.Permit, p.PreBind, p.Bind, p.PostBind, p.MultiPoint}
}

// argsOf returns the plugin's arguments in the profile; nil if the profile has none.
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
