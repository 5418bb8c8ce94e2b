//go:build !kubernetes_1_36 && !kubernetes_1_37

package compat

import corev1 "k8s.io/api/core/v1"

// InPodGroup reports whether the pod names a group of pods that kube-scheduler schedules together.
func InPodGroup(pod *corev1.Pod) bool { return pod.Spec.WorkloadRef != nil }
