// Package aci describes which parts of a pod a virtual node runs, bills and ignores on Azure Container Instances, and
// where other providers differ. The package is pure.
package aci

import corev1 "k8s.io/api/core/v1"

// Platform is the implementation that runs the pods of a virtual node.
type Platform int

const (
	// V1 is the connector of AKS's virtual node add-on, V2 is the connector of virtual nodes v2, and Other is the
	// connector of any other provider.
	V1 Platform = iota
	V2
	Other
)

// AzureFilesDriver is the CSI driver of Azure Files. A pod may use it without a claim.
const AzureFilesDriver = "file.csi.azure.com"

// virtualizationLabel, with the value virtualNodesV2, marks the nodes of AKS virtual nodes v2.
const virtualizationLabel, virtualNodesV2 = "virtualization", "virtualnode2"

// PlatformOf returns the platform of nodes. onACI is set if the nodes run pods on Azure Container Instances, and v2 if
// they are virtual nodes v2.
func PlatformOf(onACI, v2 bool) Platform {
	switch {
	case !onACI:
		return Other
	case v2:
		return V2
	}
	return V1
}

// IsV2 reports whether a node with the labels is a virtual node v2. Virtual nodes v2 run more features than the add-on
// does.
func IsV2(labels map[string]string) bool { return labels[virtualizationLabel] == virtualNodesV2 }

// IsExtendedResource reports whether a node that does not list the resource has none of it. For CPU, memory and
// ephemeral storage this is unknown: a new node may not have reported them yet.
func IsExtendedResource(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
}
