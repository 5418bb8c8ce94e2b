package v1

import (
	"fmt"

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
