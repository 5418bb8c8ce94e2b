package providers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxWarned bounds how many owners WarnOfDifferences remembers. If there are more owners, the owners whose pods were
// bound least recently may get the event again.
const maxWarned = 5000

// reasonDifferently and eventOften are the reasons of the events that WarnOfDifferences writes.
const reasonDifferently, eventOften = "RunsDifferently", "BurstsOften"

// An owner bursts often if it bursts more than often times in an hour. Pods that burst within together of the last one that
// counted do not count: the owner grew.
const often, together = 10, time.Minute

// WarnOfDifferences writes an event on a pod that was just bound to a burst node. The event lists the features of the
// pod that the burst pool's provider ignores, and the protections that the pod loses in the pool (lost). Only one pod
// of each owner gets the event. Another event says that the owner bursts often.
func (p *Providers) WarnOfDifferences(pod *v1.Pod, lost func(*pool.Pool) []string) {
	if !p.config.Leading() {
		return // the leader writes the event
	}
	node, err := p.config.Nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return
	}
	i := p.config.Pools.Of(node)
	if !p.config.Pools.IsBurst(i) {
		return
	}
	in, service := p.config.Pools.At(i), "Azure Container Instances"
	if !in.OnACI() {
		service = "the virtual kubelet"
	}
	p.warnOfRepeats(pod, in.Name)
	without := append(lost(in), aci.Differences(pod, aci.PlatformOf(in.OnACI(), aci.IsV2(node.Labels)))...)
	if len(without) == 0 {
		return
	}
	told := [2]string{in.Name, string(cmp.Or(refusal.OwnerOf(pod), pod.UID))}
	if _, known := p.warned.Get(told); !known {
		p.warned.Add(told, nil)
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, reasonDifferently, "Binding",
			"in burst pool %s, %s runs the pod without %s", in.Name, service, strings.Join(without, "; without "))
	}
}

// warnOfRepeats writes an event on a pod that was just bound to a node of a burst pool if its owner bursts often. Pods
// that end by themselves, such as those of Jobs, burst as often as they like.
func (p *Providers) warnOfRepeats(pod *v1.Pod, in string) {
	owner, now := metav1.GetControllerOfNoCopy(pod), p.config.Clock.Now()
	if owner == nil || pod.Spec.RestartPolicy == v1.RestartPolicyNever || pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure {
		return
	}
	known, _ := p.bursts.Get(refusal.OwnerOf(pod))
	times, _ := known.([]time.Time)
	if n := len(times); n > 0 && now.Sub(times[n-1]) < together {
		return
	}
	times = append(slices.Clone(times[max(0, len(times)-often):]), now)
	if len(times) > often && now.Sub(times[0]) <= time.Hour {
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeNormal, eventOften, "Binding",
			"the pod's owner has burst to pool %s more than %d times in an hour. If it did not grow, a component such as a descheduler deletes its pods again and again", in, often)
		times = nil
	}
	p.bursts.Add(refusal.OwnerOf(pod), times)
}
