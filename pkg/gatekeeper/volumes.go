package gatekeeper

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"poolpriority.dev/scheduler/pkg/gate"
)

// newVolumes returns a gate.Volumes that reads from the factory's listers. The scheduler watches these objects anyway.
func newVolumes(factory informers.SharedInformerFactory) gate.Volumes {
	pvcs, volumes, classes := factory.Core().V1().PersistentVolumeClaims().Lister(), factory.Core().V1().PersistentVolumes().Lister(), factory.Storage().V1().StorageClasses().Lister()
	return gate.Volumes{
		PVC: func(namespace, name string) *v1.PersistentVolumeClaim {
			pvc, _ := pvcs.PersistentVolumeClaims(namespace).Get(name) // nil if it is not known
			return pvc
		},
		Volume: func(name string) *v1.PersistentVolume {
			volume, _ := volumes.Get(name) // nil if it is not known
			return volume
		},
		Provisioner: func(name string) string {
			class, err := classes.Get(name)
			if err != nil {
				return ""
			}
			return class.Provisioner
		},
	}
}
