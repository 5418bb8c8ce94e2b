package cli

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/refusal"
)

func crowd(t *testing.T) []runtime.Object {
	said := func(code string) string { return sentenceOf(t, code) }
	in := func(namespace string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = namespace } }
	return []runtime.Object{
		pod("web-1", time.Hour, on(time.Hour, userNode, "user", "2000")),
		pod("web-2", time.Hour, on(time.Hour, systemNode, "system", "1000")),
		pod("web-3", 30*time.Minute, recorded(20*time.Minute, open)),
		pod("web-4", 5*time.Minute, recorded(4*time.Minute, open), func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodPending, refusal.ReasonProviderFailed, quotaReached
		}),
		pod("web-5", time.Minute, reported(50*time.Second, said("PoolGrowing"))),
		pod("db-0", 3*time.Minute, reported(3*time.Minute, said("PersistentVolume")), claims("data")),
		pod("web-6", time.Second),
		pod("big", 2*time.Minute, condition(2*time.Minute, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/6 nodes are available: 6 Insufficient cpu.")),
		pod("bare", time.Hour, on(time.Hour, systemNode, "", ""), func(p *corev1.Pod) { p.Annotations = nil }),
		pod("cart-1", time.Hour, on(time.Hour, systemNode, "system", "1000"), in("shop")),
		pod("other", time.Hour, on(time.Hour, userNode, "", ""), func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }),
	}
}

func TestPods(t *testing.T) {
	w := growing(t)
	s := newServer(t, append(crowd(t), w.published(5*time.Second))...)
	for _, n := range w.nodes {
		s.put(n)
	}
	var all []string
	for _, args := range [][]string{{}, {"-A"}, {"-n", "shop"}, {"--held"}, {"--pool", "aci"}, {"--pool", "aci", "--no-headers"}, {"-o", "wide"}, {"-o", "name"}, {"-n", "empty"}} {
		all = append(all, s.run(append([]string{"pods"}, args...)...))
	}
	golden(t, "pods", strings.Join(all, "\n"))
	golden(t, "pods-yaml", s.run("pods", "--pool", "aci", "-o", "yaml"))
}

// TestForgedAnnotations: what users write in the scheduler's annotations reaches no terminal as control characters, and
// long values are not printed.
func TestForgedAnnotations(t *testing.T) {
	forged := gate.Record{Reason: "\x1b]0;owned\a\x1b[2J\u009b31m", Waited: "\r\x1b[1A"}
	w := growing(t)
	s := newServer(t, pod("web-3", 30*time.Minute, recorded(20*time.Minute, forged)), w.published(5*time.Second),
		pod("web-4", 30*time.Minute, recorded(20*time.Minute, gate.Record{Reason: strings.Repeat("long", 5000)})))
	for _, n := range w.nodes {
		s.put(n)
	}
	for _, args := range [][]string{{"pods"}, {"pods", "--color=always"}, {"explain", "pod/web-3"}, {"explain", "pod/web-3", "--color=always"}, {"pods", "-o", "yaml"}, {"explain", "pod/web-4"}} {
		out := s.run(args...)
		for _, control := range []string{"\x1b]", "\x1b[2J", "\x1b[1A", "\a", "\r", "\u009b", "longlong"} {
			if strings.Contains(out, control) {
				t.Errorf("%v: the output has %q:\n%s", args, control, out)
			}
		}
	}
}
