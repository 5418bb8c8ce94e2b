package refusal

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// OwnerOf returns the UID of the pod's controller, or "".
func OwnerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
	}
	return ""
}

// TemplateOf returns what tells the template that the pod is made of from others: what controls the pod and, where that may change its
// template, which one it is. It is empty for a pod that nothing controls: there is no other like it.
func TemplateOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	if owner.Kind == "ReplicaSet" || owner.Kind == "Job" {
		return string(owner.UID) // their templates do not change
	}
	if revision := pod.Labels[appsv1.ControllerRevisionHashLabelKey]; revision != "" {
		return string(owner.UID) + "/" + revision
	}
	return string(owner.UID) + "/" + shape(pod)
}

// shape is a hash of what providers look at of the pod's containers, without what differs between pods of one template: the mounts of the
// token's volume, whose name is random.
func shape(pod *corev1.Pod) string {
	var containers []corev1.Container
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			c.VolumeMounts, c.Env = nil, nil
			containers = append(containers, c)
		}
	}
	data, err := json.Marshal(containers)
	if err != nil {
		return "" // it does not fail
	}
	hash := fnv.New64a()
	_, _ = hash.Write(data) // nor does this
	return strconv.FormatUint(hash.Sum64(), 36)
}
