// Package aci describes which features of a pod Azure Container Instances cannot run or ignores, and what it bills for
// the pod. It also describes other providers of virtual nodes. The package has no side effects.
package aci

import corev1 "k8s.io/api/core/v1"

// Platform is the implementation that runs the pods of a virtual node.
type Platform int

const (
	// V1 is the connector of AKS's virtual node add-on. V2 is the connector of virtual nodes v2. Other is the connector
	// of any other provider.
	V1 Platform = iota
	V2
	Other
)

// AzureFilesDriver is the CSI driver of Azure Files. A pod may use this driver without a PersistentVolumeClaim.
const AzureFilesDriver = "file.csi.azure.com"

// virtualizationLabel, with the value virtualNodesV2, marks the nodes of AKS virtual nodes v2.
const virtualizationLabel, virtualNodesV2 = "virtualization", "virtualnode2"

// PlatformOf returns the platform of nodes. onACI is set if the nodes run pods on Azure Container Instances. v2 is set
// if the nodes are virtual nodes v2.
func PlatformOf(onACI, v2 bool) Platform {
	switch {
	case !onACI:
		return Other
	case v2:
		return V2
	}
	return V1
}

// IsV2 reports whether a node with the labels is a virtual node v2. Virtual nodes v2 support more features than AKS's
// virtual node add-on.
func IsV2(labels map[string]string) bool { return labels[virtualizationLabel] == virtualNodesV2 }

// IsExtendedResource reports whether the resource is none of CPU, memory and ephemeral storage. A node that does not
// list an extended resource has none of it. A node that does not list CPU, memory or ephemeral storage may be new, and
// may report them later.
func IsExtendedResource(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
}
