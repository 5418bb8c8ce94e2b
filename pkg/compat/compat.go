// Package compat holds the code that differs between the supported minor versions of Kubernetes. go.mod is for the
// oldest minor version, and hack/kubernetes has a module file for each newer minor version. A build tag for each newer
// minor version selects the files of this package. KUBERNETES_MINOR in the Makefile selects the module file and the
// build tag.
package compat

import "k8s.io/component-base/version"

// Minor is the minor version of Kubernetes that is built in, such as "1.35".
const Minor = version.DefaultKubeBinaryVersion

// InTree are the names of Kubernetes' own plugins.
var InTree = append([]string{
	"SchedulingGates", "PrioritySort", "NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
	"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity", "DynamicResources",
	"DefaultPreemption", "NodeResourcesBalancedAllocation", "ImageLocality", "DefaultBinder", "NodeDeclaredFeatures", "GangScheduling",
}, inTreeSince...)
