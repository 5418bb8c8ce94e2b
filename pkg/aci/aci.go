// Package aci says what a virtual node runs, bills and leaves out of a pod: on Azure Container Instances or, as far as
// it differs, on another provider. It is pure.
package aci

import corev1 "k8s.io/api/core/v1"

// Platform is what runs the pods of a virtual node.
type Platform int

const (
	// V1 is the connector of AKS's virtual node add-on, V2 that of virtual nodes v2, and Other that of another
	// provider.
	V1 Platform = iota
	V2
	Other
)

// AzureFilesDriver is the CSI driver of Azure Files, which a pod may use without a claim.
const AzureFilesDriver = "file.csi.azure.com"

// virtualizationLabel marks the nodes of AKS virtual nodes v2.
const virtualizationLabel, virtualNodesV2 = "virtualization", "virtualnode2"

// PlatformOf returns the platform of nodes of which it is known whether they run pods on Azure Container Instances, and
// whether they are virtual nodes v2.
func PlatformOf(onACI, v2 bool) Platform {
	switch {
	case !onACI:
		return Other
	case v2:
		return V2
	}
	return V1
}

// IsV2 reports whether a node with the labels is a virtual node v2, which can run more.
func IsV2(labels map[string]string) bool { return labels[virtualizationLabel] == virtualNodesV2 }

// IsExtendedResource reports whether a node that does not list the resource has none of it. A node that has not
// reported yet may list none of the others.
func IsExtendedResource(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
}
