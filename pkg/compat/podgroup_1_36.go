//go:build kubernetes_1_36 || kubernetes_1_37

package compat

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// PodGroup returns the name of the group of pods that the pod names, and whether it names one. kube-scheduler schedules
// the pods of a group together.
func PodGroup(pod *corev1.Pod) (name string, ok bool) {
	if group := pod.Spec.SchedulingGroup; group != nil {
		return ptr.Deref(group.PodGroupName, "without a name"), true
	}
	return "", false
}
