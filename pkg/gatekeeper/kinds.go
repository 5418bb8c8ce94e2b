package gatekeeper

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"poolpriority.dev/scheduler/pkg/gate"
)

const (
	// probeAfter is for how long what was learnt of a kind of pods is believed before one of them waits on a clock of its own; another one
	// does if nothing was heard of it for probeLimit.
	probeAfter, probeLimit = 5 * time.Minute, 10 * time.Minute
	// maxKinds bounds how many kinds are remembered.
	maxKinds = 5000
)

// kinds remembers which node groups decline which kinds of pods: what the autoscaler does not do for one pod, it does not do for another that
// it cannot tell apart.
type kinds struct {
	mu     sync.Mutex
	byKey  map[string]*kind
	probes map[types.UID]*kind // the pods that are or were probes, until they are bound or gone
}

// kind is what is known of one kind of pods.
type kind struct {
	declined map[string]time.Time // by gate.DeclineKey: when
	// probe is a pod that waits on a clock of its own, since then.
	probe   types.UID
	probing time.Time
}

func newKinds() *kinds { return &kinds{byKey: map[string]*kind{}, probes: map[types.UID]*kind{}} }

// known reports whether anything is remembered.
func (k *kinds) known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey) > 0
}

// learn takes in by which groups a pod of the kind is declined on a clock of its own at the time now. It reports whether that is new.
func (k *kinds) learn(key string, d *gate.Decision, now time.Time) bool {
	if key == "" {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := false
	for i := range d.Regular {
		for _, group := range d.Regular[i].Declined {
			known := k.byKey[key]
			if known == nil {
				if len(k.byKey) >= maxKinds {
					clear(k.byKey) // they are learnt anew
					clear(k.probes)
				}
				known = &kind{declined: map[string]time.Time{}}
				k.byKey[key] = known
			}
			name := gate.DeclineKey(i, group)
			if at, ok := known.declined[name]; !ok || now.Sub(at) > probeAfter {
				fresh = true
			}
			known.declined[name], known.probe = now, ""
		}
	}
	return fresh
}

// declined returns which groups decline the pod of the kind, and since when that is known, by gate.DeclineKey.
func (k *kinds) declined(key string, pod types.UID, now time.Time) map[string]time.Time {
	if key == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byKey[key]
	if known == nil {
		return nil
	}
	believed := make(map[string]time.Time, len(known.declined))
	for name, at := range known.declined {
		if now.Sub(at) <= probeAfter || !k.probe(known, pod, now) {
			believed[name] = at
		}
	}
	return believed
}

// probe reports whether the pod is the one of the kind that waits on a clock of its own.
func (k *kinds) probe(known *kind, pod types.UID, now time.Time) bool {
	if known.probe == "" || now.Sub(known.probing) > probeLimit {
		known.probe, known.probing = pod, now
		k.probes[pod] = known
	}
	return known.probe == pod
}

// forget takes in that the pod has been bound, or is gone: if it was a probe, the next pod of its kind is.
func (k *kinds) forget(pod types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.probes[pod]; ok {
		delete(k.probes, pod)
		if known.probe == pod {
			known.probe = ""
		}
	}
}

// podGroupLabel marks the pods of a gang. Source: sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1, PodGroupLabel.
const podGroupLabel = "scheduling.x-k8s.io/pod-group"

// kindOf returns what an autoscaler, and the gate, look at of the pod: equal for pods that they cannot tell apart. It is empty for one that is
// like no other: what it can use depends on other pods, on volumes or on a gang.
func (g *Gatekeeper) kindOf(pod *v1.Pod) string {
	s := &pod.Spec
	if _, gang := pod.Labels[podGroupLabel]; gang || s.WorkloadRef != nil || len(s.ResourceClaims) > 0 {
		return ""
	}
	for i := range s.Volumes {
		if s.Volumes[i].PersistentVolumeClaim != nil || s.Volumes[i].Ephemeral != nil {
			return ""
		}
	}
	for i := range s.TopologySpreadConstraints {
		if s.TopologySpreadConstraints[i].WhenUnsatisfiable == v1.DoNotSchedule {
			return ""
		}
	}
	var nodeAffinity *v1.NodeAffinity
	if a := s.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
			a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return ""
		}
		nodeAffinity = a.NodeAffinity
	}
	var ports []v1.ContainerPort
	for i := range s.Containers {
		for _, port := range s.Containers[i].Ports {
			if port.HostPort != 0 {
				ports = append(ports, port)
			}
		}
	}
	annotations := map[string]string{}
	for key, value := range pod.Annotations {
		if key == gate.BurstAnnotation || strings.HasPrefix(key, "cluster-autoscaler.kubernetes.io/") {
			annotations[key] = value
		}
	}
	data, err := json.Marshal([]any{
		resource.PodRequests(pod, resource.PodResourcesOptions{}), s.NodeSelector, nodeAffinity, s.Tolerations, ports, s.Priority, s.PreemptionPolicy,
		s.RuntimeClassName, annotations, g.Signature(pod),
	})
	if err != nil {
		return "" // it does not fail
	}
	return string(data)
}
