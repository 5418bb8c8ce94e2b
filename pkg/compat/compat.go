// Package compat holds the code that differs between the supported minor versions of Kubernetes. go.mod is for the
// oldest minor version, and hack/kubernetes has a module file for each newer minor version. A build tag for each newer
// minor version selects the files of this package. KUBERNETES_MINOR in the Makefile selects the module file and the
// build tag.
package compat

import (
	"maps"

	"k8s.io/component-base/version"
)

// Minor is the minor version of Kubernetes that is built in, such as "1.35".
const Minor = version.DefaultKubeBinaryVersion

// SeesPodGroups reports whether this build sees which PodGroup a pod belongs to.
const SeesPodGroups = Minor != "1.35" // the field is new in 1.36

// PodLevelResize reports whether kube-scheduler counts a resize of a pod's own resources once the kubelet has done it. The
// feature is on by default since 1.36.
const PodLevelResize = Minor != "1.35"

// filters are the extension points of a plugin that filters nodes.
var filters = []string{"preFilter", "filter"}

// InTree has Kubernetes' own plugins by their names. Of the extension points preFilter, filter, postFilter and bind, it has
// those at which the plugin does something in any supported minor version.
var InTree = map[string][]string{
	"NodeUnschedulable": filters, "NodeName": filters, "TaintToleration": filters, "NodeAffinity": filters, "NodePorts": filters,
	"NodeResourcesFit": filters, "VolumeRestrictions": filters, "NodeVolumeLimits": filters, "VolumeBinding": filters, "VolumeZone": filters,
	"PodTopologySpread": filters, "InterPodAffinity": filters, "NodeDeclaredFeatures": filters, "DynamicResources": append(filters, "postFilter"),
	"DefaultPreemption": {"postFilter"}, "DefaultBinder": {"bind"}, "SchedulingGates": nil, "PrioritySort": nil, "GangScheduling": nil,
	"NodeResourcesBalancedAllocation": nil, "ImageLocality": nil,
}

func init() { maps.Copy(InTree, inTreeSince) }

// Points returns what InTree or OutOfTree has of the plugin, and whether the plugin is built in.
func Points(plugin string) (points []string, known bool) {
	if points, known = InTree[plugin]; !known {
		points, known = OutOfTree[plugin]
	}
	return points, known
}
