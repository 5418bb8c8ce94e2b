// Package alike computes keys of pods. Each function computes a key for one component, which treats pods with the same
// key alike. The components are the autoscaler, gate.Assessment, kube-scheduler, the Filter plugins, and the provider
// of a burst pool. The package has no state and does no I/O.
package alike

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// podGroupLabel marks the pods of a gang. Source: sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1,
// PodGroupLabel.
const podGroupLabel = "scheduling.x-k8s.io/pod-group"

// InGang reports whether the pod is a member of a gang.
func InGang(pod *corev1.Pod) bool {
	_, labelled := pod.Labels[podGroupLabel]
	_, grouped := compat.PodGroup(pod)
	return labelled || grouped
}

// HasProvisioningRequest reports whether a ProvisioningRequest is to get the pod its nodes. The cluster autoscaler then
// never scales up for the pod itself. Source: cluster-autoscaler/processors/provreq/pods_filter.go.
func HasProvisioningRequest(pod *corev1.Pod) bool {
	_, current := pod.Annotations["autoscaling.x-k8s.io/consume-provisioning-request"]
	_, deprecated := pod.Annotations["cluster-autoscaler.kubernetes.io/consume-provisioning-request"]
	return current || deprecated
}

// Autoscaler returns the pod's key for autoscalers and for the gate. If an autoscaler does not scale up for a pod, it
// does not scale up for any other pod with the same key. The key covers all fields of the pod that the autoscaler reads
// when it lists pods and simulates Filter plugins. These include the priority and the autoscaler's own annotations. The
// key also contains the result of Scheduler. If the nodes that the pod can use depend on other pods, on volumes, on
// resource claims, on a gang or on a ProvisioningRequest, the key is empty.
func Autoscaler(pod *corev1.Pod, azureFiles bool, notSelected []bool, tenant any) string {
	s := &pod.Spec
	if spread, near := TopologyKeys(pod); len(spread)+len(near) > 0 || InGang(pod) || HasProvisioningRequest(pod) || len(s.ResourceClaims) > 0 || aci.HasPVC(pod) {
		return ""
	}
	var nodeAffinity *corev1.NodeAffinity
	if a := s.Affinity; a != nil {
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return ""
		}
		nodeAffinity = a.NodeAffinity
	}
	var ports []corev1.ContainerPort
	for i := range s.Containers {
		for _, port := range s.Containers[i].Ports {
			if port.HostPort != 0 {
				ports = append(ports, port)
			}
		}
	}
	annotations := map[string]string{}
	for key, value := range pod.Annotations {
		if key == pool.BurstAnnotation || key == pool.OrderAnnotation || strings.HasPrefix(key, "cluster-autoscaler.kubernetes.io/") {
			annotations[key] = value
		}
	}
	return encode(resource.PodRequests(pod, resource.PodResourcesOptions{}), s.NodeSelector, nodeAffinity, s.Tolerations, ports, s.Priority, s.PreemptionPolicy,
		s.RuntimeClassName, annotations, Scheduler(pod, azureFiles, notSelected, tenant))
}

// View returns a key of the pod's fields on which a gate.Assessment depends. The caller must also compare
// Request.AzureFiles.
func View(pod *corev1.Pod) string {
	s := &pod.Spec
	spread, affinity := TopologyKeys(pod)
	return encode(resource.PodRequests(pod, resource.PodResourcesOptions{}), s.NodeSelector, RequiredNodeAffinity(pod), s.Tolerations, spread, affinity,
		aci.Billed(pod, true), aci.Billed(pod, false), aci.FeaturesOf(pod))
}

// TopologyKeys returns the keys of labels that the pod's nodes must have because of DoNotSchedule spread constraints,
// and because of required pod affinity.
func TopologyKeys(pod *corev1.Pod) (spread, affinity []string) {
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			spread = append(spread, c.TopologyKey)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		for _, term := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			affinity = append(affinity, term.TopologyKey)
		}
	}
	return spread, affinity
}

// Scheduler returns a fragment of the pod's signature for kube-scheduler. It covers the fields, other than requests,
// that determine whether the pod may use burst pools, how much of their budgets it uses, and what it preempts before it
// bursts. tenant is the pod's gate.Tenant.
func Scheduler(pod *corev1.Pod, azureFiles bool, notSelected []bool, tenant any) any {
	return append([]string{pool.BurstValue(pod), strconv.FormatBool(azureFiles), fmt.Sprint(notSelected, tenant, aci.Billed(pod, true), ptr.Deref(pod.Spec.Priority, 0))}, aci.FeaturesOf(pod)...)
}

// Filter returns the pod's key for Filter plugins that read only the pod and the node. requests are the pod's requests,
// as NodeResourcesFit counts them.
func Filter(pod *corev1.Pod, requests corev1.ResourceList) string {
	return encode(requests, pod.Spec.Tolerations, pod.Spec.NodeSelector, RequiredNodeAffinity(pod))
}

// Nearby returns a key of what InterPodAffinity and PodTopologySpread read of the pod, beside what Filter covers. They
// read all labels if other pods have a required anti-affinity, and else those that the pod's own rules name.
func Nearby(pod *corev1.Pod, all bool) string {
	rules, _ := json.Marshal([]any{pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints})
	read := maps.Clone(pod.Labels) // StatefulSets, for example, give each pod a label of its own
	maps.DeleteFunc(read, func(key, _ string) bool { return !all && !strings.Contains(string(rules), key) })
	return encode(rules, pod.Namespace, read)
}

// Template returns a key of the pod's template. The key contains the namespace and the UID of the pod's controller. If the controller's
// template may change, the key also contains the template's revision or a hash of the containers. If a burst pool's
// provider refuses one pod with a pod error, it refuses all pods with the same key. The key is empty for a pod without
// a controller, because no other pod has the same template.
func Template(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	of := string(refusal.KeyOf(pod.Namespace, owner.UID))
	if owner.Kind == "ReplicaSet" || owner.Kind == "Job" {
		return of // the template of a ReplicaSet or a Job does not change
	}
	if revision := pod.Labels[appsv1.ControllerRevisionHashLabelKey]; revision != "" {
		return of + "/" + revision
	}
	return of + "/" + containersOf(pod)
}

// Heir returns a key of the pods that continue each other's waiting: those of the same namespace, controller and template.
func Heir(pod *corev1.Pod) string {
	return encode(pod.Namespace, Template(pod), View(pod), pod.Spec.Priority, containersOf(pod))
}

// containersOf returns a hash of the pod's containers. It leaves out VolumeMounts and Env, because they may differ between
// pods of one template. For example, the volume of the ServiceAccount token has a random name.
func containersOf(pod *corev1.Pod) string {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range containers {
		containers[i].VolumeMounts, containers[i].Env = nil, nil
	}
	return encode(containers)
}

// RequiredNodeAffinity returns the pod's required node affinity, or nil.
func RequiredNodeAffinity(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// encode returns a hash of the parts, because users choose how large the parts of a pod are.
func encode(parts ...any) string {
	data, _ := json.Marshal(parts) // encoding API types does not fail
	hash := sha256.Sum256(data)
	return base64.RawStdEncoding.EncodeToString(hash[:])
}
