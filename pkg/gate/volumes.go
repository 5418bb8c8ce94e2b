package gate

import (
	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// azureFilesInTree provisions Azure Files as aci.AzureFilesDriver does.
const azureFilesInTree = "kubernetes.io/azure-file"

// Volumes finds what is behind the persistent volume claims of pods.
type Volumes struct {
	// PVC and Volume return nil for one that does not exist, and Provisioner returns that of the class with the name,
	// or "".
	PVC         func(namespace, name string) *corev1.PersistentVolumeClaim
	Volume      func(name string) *corev1.PersistentVolume
	Provisioner func(class string) string
}

// LooksAtVolumes reports whether it matters for a burst pool what is behind the claims of a pod.
func LooksAtVolumes(pools pool.List, view *nodegroups.View) bool {
	for i := range pools.Burst() {
		if pools.At(i).OnACI() && isV2(pools.At(i), view.Pools[i].NodeTemplates) {
			return true
		}
	}
	return false
}

// AzureFiles reports whether the pod claims persistent volumes and all of them are Azure Files: by the volume, or by
// the class of one that is not bound yet.
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
