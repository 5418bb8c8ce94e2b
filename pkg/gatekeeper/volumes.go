package gatekeeper

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

const (
	// azureFilesDriver and azureFilesInTree provision Azure Files.
	azureFilesDriver = "file.csi.azure.com"
	azureFilesInTree = "kubernetes.io/azure-file"
)

// volumes tells what is behind the persistent volume claims of pods. The scheduler watches these objects anyway.
type volumes struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

func newVolumes(factory informers.SharedInformerFactory) volumes {
	return volumes{
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		classes: factory.Storage().V1().StorageClasses().Lister(),
	}
}

// azureFiles reports whether the pod claims persistent volumes and all of them are Azure Files: by the volume, or by the
// class of one that is not bound yet.
func (v volumes) azureFiles(pod *v1.Pod) bool {
	found := false
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.PersistentVolumeClaim != nil:
			claim, err := v.claims.PersistentVolumeClaims(pod.Namespace).Get(volume.PersistentVolumeClaim.ClaimName)
			if err != nil || !v.isAzureFiles(&claim.Spec) {
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

func (v volumes) isAzureFiles(claim *v1.PersistentVolumeClaimSpec) bool {
	if claim.VolumeName != "" {
		volume, err := v.volumes.Get(claim.VolumeName)
		return err == nil && (volume.Spec.AzureFile != nil || volume.Spec.CSI != nil && volume.Spec.CSI.Driver == azureFilesDriver)
	}
	if claim.StorageClassName == nil {
		return false
	}
	class, err := v.classes.Get(*claim.StorageClassName)
	return err == nil && (class.Provisioner == azureFilesDriver || class.Provisioner == azureFilesInTree)
}
