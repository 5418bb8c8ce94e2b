package gate

import (
	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// azureFilesInTree is the in-tree provisioner of Azure Files volumes. The CSI driver aci.AzureFilesDriver also
// provisions Azure Files volumes.
const azureFilesInTree = "kubernetes.io/azure-file"

// Volumes looks up PersistentVolumeClaims, PersistentVolumes and the provisioners of StorageClasses.
type Volumes struct {
	// PVC and Volume return nil if the object does not exist. Provisioner returns the provisioner of the StorageClass
	// with the name, or "".
	PVC         func(namespace, name string) *corev1.PersistentVolumeClaim
	Volume      func(name string) *corev1.PersistentVolume
	Provisioner func(class string) string
}

// LooksAtVolumes reports whether any gate depends on the type of a pod's persistent volumes. On Azure Container
// Instances, only virtual nodes v2 run pods with persistent volumes.
func LooksAtVolumes(pools pool.List, view *nodegroups.View) bool {
	for i := range pools.Burst() {
		if pools.At(i).OnACI() && isV2(pools.At(i), view.Pools[i].NodeTemplates) {
			return true
		}
	}
	return false
}

// AzureFiles reports whether the pod has persistent volumes and all of them are Azure Files volumes. For an unbound
// PersistentVolumeClaim, AzureFiles checks the provisioner of the claim's StorageClass.
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
