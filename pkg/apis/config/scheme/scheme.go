// Package scheme registers PoolPriorityArgs with the scheduler's own configuration.
package scheme

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	schedconversion "k8s.io/kubernetes/pkg/scheduler/apis/config/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// Register adds PoolPriorityArgs to the scheduler's scheme. The scheduler then decodes the arguments strictly, completes
// the configuration (configv1.Complete), sets the arguments' defaults, and writes the result with --write-config-to.
// Register must run before the scheduler reads a configuration. Otherwise, the plugin gets its arguments as undecoded
// bytes.
func Register() {
	// The first scheme decodes files, and the second converts plugin arguments between versions. PoolPriorityArgs is
	// both the v1 version and the internal version.
	for _, s := range []*runtime.Scheme{schedscheme.Scheme, schedconversion.GetPluginArgConversionScheme()} {
		for _, gv := range []schema.GroupVersion{schedconfigv1.SchemeGroupVersion, schedconfig.SchemeGroupVersion} {
			s.AddKnownTypes(gv, &configv1.PoolPriorityArgs{})
		}
		s.AddTypeDefaultingFunc(&configv1.PoolPriorityArgs{}, func(obj any) {
			configv1.SetDefaults_PoolPriorityArgs(obj.(*configv1.PoolPriorityArgs))
		})
	}
	schedscheme.Scheme.AddTypeDefaultingFunc(&schedconfigv1.KubeSchedulerConfiguration{}, func(obj any) {
		config := obj.(*schedconfigv1.KubeSchedulerConfiguration)
		configv1.Complete(config)
		schedconversion.SetObjectDefaults_KubeSchedulerConfiguration(config)
	})
}
