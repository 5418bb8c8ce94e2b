package gatekeeper

import (
	"cmp"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxWarned bounds how many owners warnOfDelay remembers. If there are more owners, the owners whose pods were held
// least recently may get the event again.
const maxWarned = 1000

// warnOfDelay writes an event on a held pod that the autoscaler ignores for longer than holdLimit. Such a pod gets no VM
// of its own, although it waits for one. Only one pod of each owner gets the event.
func (g *Gatekeeper) warnOfDelay(pod *v1.Pod) {
	delay := gate.OwnDelay(pod)
	if g.rule.HoldLimit == 0 || delay <= g.rule.HoldLimit {
		return
	}
	owner := cmp.Or(refusal.OwnerOf(pod), pod.UID)
	if _, warned := g.warned.Get(owner); !warned {
		g.warned.Add(owner, nil)
		g.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, "DelayExceedsHoldLimit", "Holding",
			"the cluster autoscaler ignores the pod for %s (annotation %s), so that it adds no VM for the pod before holdLimit (%s) lets the pod burst. If the pod is to get a VM, shorten the delay or raise capacity.holdLimit",
			delay, gate.DelayAnnotation, g.rule.HoldLimit)
	}
}
