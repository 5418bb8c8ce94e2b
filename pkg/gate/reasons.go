package gate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

var (
	// waitingReasons are those for which a gate is closed that may open without any change of the pod.
	waitingReasons = []nodegroups.Reason{
		ReasonCanGrow, ReasonGrowing, ReasonUnknown, ReasonUnseen, ReasonRoom, ReasonEarly, ReasonVictims, ReasonRefused, ReasonProbed, ReasonRateLimited, ReasonFailureLimit, ReasonBudget,
		ReasonOverridden, reasonOverrideUnread,
	}
	// lastingReasons are those for which it is closed for good, beside what a virtual kubelet cannot run: the pod, its namespace or the
	// configuration would have to change.
	lastingReasons = []nodegroups.Reason{ReasonOptOut, reasonValue, reasonSpread, ReasonTemplate, reasonNamespace, reasonTooLarge}
	// openReasons are those for which it is open.
	openReasons = []nodegroups.Reason{reasonOpen, reasonAsked, reasonWaited, reasonHeldLong, reasonOverriddenOpen}
)

// ClosedReasons returns all reasons for which a gate is closed, those first for which it may open without any change of the pod. They are
// without details.
func ClosedReasons() []nodegroups.Reason {
	all := slices.Concat(waitingReasons, lastingReasons)
	for _, feature := range aci.Features() {
		all = append(all, reasonUnsupported(feature))
	}
	return all
}

// OpenReasons returns all reasons for which a gate is open.
func OpenReasons() []nodegroups.Reason { return slices.Clone(openReasons) }

// PlainPod is a pod without constraints, requests and tolerations that has just been made. Whether a gate is open for it is what is told of a burst
// pool where no pod is asked about.
func PlainPod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}
}

// Waits reports whether a gate that is closed for the reason with the code may open without any change of the pod.
func Waits(code string) bool {
	return slices.ContainsFunc(waitingReasons, func(r nodegroups.Reason) bool { return r.Code == code })
}
