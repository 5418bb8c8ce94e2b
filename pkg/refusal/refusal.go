// Package refusal determines from a pod whether the provider behind a virtual kubelet refused the pod, and why.
package refusal

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReasonProviderFailed is the reason in the status of a pod that virtual-kubelet could not create. Source:
// virtual-kubelet v1.11, node/pod.go. The ACI connector never changes the status of such a pod again, even if the pod's
// container group changes (azure-aci v1.6.4).
const ReasonProviderFailed = "ProviderFailed"

// Cause is why a provider refused a pod.
type Cause string

const (
	// PoolError is a refusal because of the pool, such as a quota, a lack of capacity, throttling, or an error of the
	// provider.
	PoolError Cause = "Pool"
	// PodError is a refusal because of the pod. The provider would also refuse another pod of the same template.
	PodError Cause = "Pod"
	// NeitherError is a refusal that does not concern other pods, such as the refusal to create the same container
	// group twice.
	NeitherError Cause = "Neither"
	// Unknown is a refusal with an unknown code.
	Unknown Cause = "Unknown"
)

// Refusal describes why a provider refused a pod.
type Refusal struct {
	// Code is the provider's error code, such as ContainerGroupQuotaReached, or an error code of this package. If there
	// is no error code, Code is the HTTP status, such as HTTP429. If there is no HTTP status, Code is the reason in the
	// status of a failed pod, which may be empty.
	Code  string
	Cause Cause
	// Message is the provider's message, shortened.
	Message string
	// MayPass is set for a PodError that may pass without a change of the pod. Examples are an image or a secret that
	// did not exist yet. It is also set for a PodError with an unknown code.
	MayPass bool
}

// OfCapacity reports whether the region has no capacity, perhaps only for pods of the same size.
func (r *Refusal) OfCapacity() bool {
	return r.Code == codeUnavailable || r.Code == "InsufficientCapacity"
}

// Of returns why the provider refused the pod, and whether it did. A pod was refused if virtual-kubelet reports a
// refusal. A pod also counts as refused if it failed before any container ran, and was neither deleted nor disrupted.
func Of(pod *corev1.Pod) (Refusal, bool) {
	if !Refused(pod) {
		return Refusal{}, false
	}
	r := classify(ofProvider(pod))
	if r.Code == "" && pod.Status.Reason != ReasonProviderFailed {
		r.Code = pod.Status.Reason[:min(len(pod.Status.Reason), maxCode)]
	}
	return r, true
}

// Refused reports whether the provider refused the pod, as Of does.
func Refused(pod *corev1.Pod) bool {
	return pod.Status.Reason == ReasonProviderFailed || pod.Status.Phase == corev1.PodFailed && !Began(pod) && pod.DeletionTimestamp == nil && !isDisrupted(pod)
}

// maxCode bounds the bytes of a code that the provider chose, and maxAuthor those of what the pod's author wrote.
const maxCode, maxAuthor = 80, 128 << 10

// ofProvider returns the pod's message without what the pod's author wrote, which a provider may quote. Otherwise, an
// image with an error code in its name would be refused for this code. If the author wrote too much to look for, the
// message counts as empty.
func ofProvider(pod *corev1.Pod) string {
	message := pod.Status.Message[:min(len(pod.Status.Message), maxRead)]
	telling := func(text string) bool {
		return slices.ContainsFunc([]*regexp.Regexp{written, status, credentials, unreachable}, func(r *regexp.Regexp) bool { return r.MatchString(text) })
	}
	if !telling(message) {
		return message
	}
	data, _ := json.Marshal([]any{pod.Spec, pod.Annotations}) // does not fail
	var spec any
	if len(data) > maxAuthor || json.Unmarshal(data, &spec) != nil {
		return ""
	}
	var quoted []string
	forEachText(spec, func(text string) {
		if !telling(text) {
			return
		}
		inJSON, _ := json.Marshal(text) // does not fail
		inGo := strconv.Quote(text)
		quoted = append(quoted, text, inGo[1:len(inGo)-1], string(inJSON[1:len(inJSON)-1]))
	})
	slices.SortFunc(quoted, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, text := range quoted {
		message = strings.ReplaceAll(message, text, "…")
	}
	return message
}

// forEachText calls visit for each string and key of a value that was read from JSON.
func forEachText(value any, visit func(string)) {
	switch v := value.(type) {
	case string:
		visit(v)
	case []any:
		for _, item := range v {
			forEachText(item, visit)
		}
	case map[string]any:
		for key, item := range v {
			visit(key)
			forEachText(item, visit)
		}
	}
}

// isDisrupted reports whether Kubernetes ended the pod, by eviction, by preemption, or together with its node.
func isDisrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// Started reports whether the pod is running, or has ended after one of its containers ran. Do not change a pod before
// it starts: the ACI connector may then create its container group twice, and lose the pod.
func Started(pod *corev1.Pod) bool {
	phase := pod.Status.Phase
	return pod.Status.Reason != ReasonProviderFailed && (phase == corev1.PodRunning || phase == corev1.PodSucceeded || phase == corev1.PodFailed && hasRun(pod))
}

// Began reports whether any container of the pod has run, such as an init container. The provider has then accepted the
// pod.
func Began(pod *corev1.Pod) bool {
	return Started(pod) || pod.Status.Reason != ReasonProviderFailed && hasRun(pod)
}

// MayStart reports whether a pod on a burst pool's node may still start. Such a pod has neither started nor been
// refused, and is not ending. If the virtual kubelet removes the refusal from the pod's status, the pod may start after
// all.
func MayStart(pod *corev1.Pod) bool {
	return pod.Status.Reason != ReasonProviderFailed && pod.Status.Phase != corev1.PodFailed && pod.DeletionTimestamp == nil && !Began(pod)
}

// IsAbandoned reports whether the pod was deleted before it began. Whatever keeps it, such as a finalizer, it uses no
// budget.
func IsAbandoned(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil && !Began(pod) }

// TimeToStart returns how long a pod may take to start. late is how many times in a row a pod of the same owner was
// late. TimeToStart doubles startWithin that many times, but at most four times.
func TimeToStart(startWithin time.Duration, late int) time.Duration {
	return startWithin << min(max(late, 0), 4)
}

func hasRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil && !s.State.Terminated.StartedAt.IsZero() || s.LastTerminationState.Terminated != nil
	})
}

// BoundAtAnnotation is the annotation with the time at which the scheduler bound a pod to a burst node, in RFC 3339.
// The scheduler writes the annotation in the Binding. The pod's status does not have this time, because the ACI
// connector drops the condition PodScheduled. When the pod runs, the connector sets the condition again, with the time
// of the pod's creation (azure-aci v1.6.4).
const BoundAtAnnotation = "poolpriority.dev/bound-at"

// BoundAt returns when the pod was bound, but at most now. This is the latest of three times: the annotation
// BoundAtAnnotation, the condition PodScheduled and the creation timestamp. The annotation counts only if the pod has a
// node.
func BoundAt(pod *corev1.Pod, now time.Time) time.Time {
	at := pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	said, err := time.Parse(time.RFC3339, pod.Annotations[BoundAtAnnotation])
	if err == nil && pod.Spec.NodeName != "" && said.After(at) {
		at = said
	}
	if at.After(now) {
		return now
	}
	return at
}

// OwnerOf returns the key of the controller of a pod or ReplicaSet, or "" if it has none.
func OwnerOf(object metav1.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return KeyOf(object.GetNamespace(), owner.UID)
	}
	return ""
}

// maxUID is the longest UID of an owner in a key. The API server bounds none.
const maxUID = 64

// KeyOf returns the key of an owner. An object may name any UID as its owner's, also one of another namespace. The key
// has the namespace, so that such an object does not count as one of the other namespace's.
func KeyOf(namespace string, owner types.UID) types.UID {
	if len(owner) > maxUID {
		owner = types.UID(fmt.Sprintf("%x", sha256.Sum256([]byte(owner))))
	}
	return types.UID(namespace) + "/" + owner
}
