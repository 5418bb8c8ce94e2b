package gate

import (
	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// azureFilesInTree is the in-tree provisioner of Azure Files. The CSI driver aci.AzureFilesDriver provisions them, too.
const azureFilesInTree = "kubernetes.io/azure-file"

// Volumes looks up the volumes and provisioners behind the PersistentVolumeClaims of pods.
type Volumes struct {
	// PVC and Volume return nil if the object does not exist. Provisioner returns the provisioner of the StorageClass
	// with the name, or "".
	PVC         func(namespace, name string) *corev1.PersistentVolumeClaim
	Volume      func(name string) *corev1.PersistentVolume
	Provisioner func(class string) string
}

// LooksAtVolumes reports whether the gate of a burst pool can depend on the volumes behind a pod's claims. Only virtual
// nodes v2 on Azure Container Instances run pods with such volumes.
func LooksAtVolumes(pools pool.List, view *nodegroups.View) bool {
	for i := range pools.Burst() {
		if pools.At(i).OnACI() && isV2(pools.At(i), view.Pools[i].NodeTemplates) {
			return true
		}
	}
	return false
}

// AzureFiles reports whether the pod claims persistent volumes and all of them are Azure Files. For a claim that is not
// bound yet, the provisioner of its StorageClass decides.
func (v *Volumes) AzureFiles(pod *corev1.Pod) bool {
	found := false
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.PersistentVolumeClaim != nil:
			pvc := v.PVC(pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
			if pvc == nil || !v.isAzureFiles(&pvc.Spec) {
				return false
			}
		case volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil:
			if !v.isAzureFiles(&volume.Ephemeral.VolumeClaimTemplate.Spec) {
				return false
			}
		default:
			continue
		}
		found = true
	}
	return found
}

func (v *Volumes) isAzureFiles(pvc *corev1.PersistentVolumeClaimSpec) bool {
	if pvc.VolumeName != "" {
		volume := v.Volume(pvc.VolumeName)
		return volume != nil && (volume.Spec.AzureFile != nil || volume.Spec.CSI != nil && volume.Spec.CSI.Driver == aci.AzureFilesDriver)
	}
	if pvc.StorageClassName == nil {
		return false
	}
	provisioner := v.Provisioner(*pvc.StorageClassName)
	return provisioner == aci.AzureFilesDriver || provisioner == azureFilesInTree
}
