package gatekeeper

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"poolpriority.dev/scheduler/pkg/gate"
)

// newVolumes returns a gate.Volumes that reads from the factory's listers. kube-scheduler's own volume plugins use the
// same listers.
func newVolumes(factory informers.SharedInformerFactory) gate.Volumes {
	pvcs, volumes, classes := factory.Core().V1().PersistentVolumeClaims().Lister(), factory.Core().V1().PersistentVolumes().Lister(), factory.Storage().V1().StorageClasses().Lister()
	return gate.Volumes{
		PVC: func(namespace, name string) *v1.PersistentVolumeClaim {
			pvc, _ := pvcs.PersistentVolumeClaims(namespace).Get(name) // nil if the informer does not have the claim
			return pvc
		},
		Volume: func(name string) *v1.PersistentVolume {
			volume, _ := volumes.Get(name) // nil if the informer does not have the volume
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
