package refusal

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestFailedBeforeItRan: a pod that failed before any container ran counts as refused, unless Kubernetes ended it.
func TestFailedBeforeItRan(t *testing.T) {
	ran := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(time.Unix(1, 0))}}}
	for name, tc := range map[string]struct {
		status         corev1.PodStatus
		refused, began bool
	}{
		"it ran":            {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{ran}}, false, true},
		"nothing of it ran": {corev1.PodStatus{Reason: "InsufficientCapacity"}, true, false},
		"it was evicted":    {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}, false, false},
		"an init container": {corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{ran}}, false, true},
		"virtual-kubelet":   {corev1.PodStatus{Reason: ReasonProviderFailed, ContainerStatuses: []corev1.ContainerStatus{ran}}, true, false},
	} {
		tc.status.Phase = corev1.PodFailed
		pod := &corev1.Pod{Status: tc.status}
		if r, refused := Of(pod); refused != tc.refused || Began(pod) != tc.began {
			t.Errorf("%s: refused %v (%+v), began %v; want %v, %v", name, refused, r, Began(pod), tc.refused, tc.began)
		}
	}
}

// TestQuotedText: what the pod's author wrote is not the provider's word.
func TestQuotedText(t *testing.T) {
	const evil = `x" error code "ContainerGroupQuotaReached": status code 429`
	for _, quoted := range []string{evil, strings.ReplaceAll(evil, `"`, `\"`)} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Reason: ReasonProviderFailed, Message: `error code "OddImage": the image '` + quoted + `' is odd`}}
		container := corev1.Container{Image: "x"}
		if pod.Spec.Containers = []corev1.Container{container}; refusalOf(t, pod).Cause != PoolError {
			t.Error("the test shows nothing")
		}
		for _, write := range []func(*corev1.Container){
			func(c *corev1.Container) { c.Image = evil },
			func(c *corev1.Container) { c.Args = []string{evil} },
			func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Value: evil}} },
			func(c *corev1.Container) {
				c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: evil}}}
			},
		} {
			c := container
			write(&c)
			pod.Spec.Containers = []corev1.Container{c}
			if r := refusalOf(t, pod); r.Code != "OddImage" || r.Cause != Unknown {
				t.Errorf("%+v", r)
			}
		}
	}
}

// TestAuthorsText: annotations are the author's text, too. A message beside too much of it says nothing.
func TestAuthorsText(t *testing.T) {
	const evil = "AADSTS1"
	pod := &corev1.Pod{Status: corev1.PodStatus{Reason: ReasonProviderFailed, Message: "the GPU " + evil + " is odd"}}
	if refusalOf(t, pod).Cause != PoolError {
		t.Error("the test shows nothing")
	}
	pod.Annotations = map[string]string{"gpu": evil}
	if r := refusalOf(t, pod); r.Cause != Unknown {
		t.Errorf("%+v", r)
	}
	pod.Annotations = map[string]string{"gpu": strings.Repeat("long", maxAuthor/4)}
	if r := refusalOf(t, pod); r.Cause != Unknown {
		t.Errorf("beside %d bytes: %+v", maxAuthor, r)
	}
	if long := KeyOf("ns", types.UID(strings.Repeat("a", 1000))); len(long) > 80 || long == KeyOf("ns", types.UID(strings.Repeat("a", 1001))) {
		t.Errorf("the key of a long UID is %s", long)
	}
}

// TestQuotedInParts: what remains of one text must not become a code.
func TestQuotedInParts(t *testing.T) {
	const evil = `CoCode="A"de="ContainerGroupQuotaReached"`
	pod := &corev1.Pod{Status: corev1.PodStatus{Reason: ReasonProviderFailed, Message: `error code "OddImage": '` + evil + `' is odd`}}
	pod.Spec.Containers = []corev1.Container{{Args: []string{`Code="A"`, evil}}}
	if r := refusalOf(t, pod); r.Code != "OddImage" || r.Cause != Unknown {
		t.Errorf("%+v", r)
	}
}

func refusalOf(t *testing.T, pod *corev1.Pod) Refusal {
	r, refused := Of(pod)
	if !refused {
		t.Error("it is not refused")
	}
	return r
}

// TestBoundAt: users can write the annotation, so impossible times do not count.
func TestBoundAt(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	made := now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		node string
		said string
		want time.Time
	}{
		"the scheduler's":            {"aci", now.Add(-time.Minute).Format(time.RFC3339), now.Add(-time.Minute)},
		"by a clock that is ahead":   {"aci", now.Add(5 * time.Second).Format(time.RFC3339), now},
		"in the future":              {"aci", "2099-01-01T00:00:00Z", now},
		"before the pod was created": {"aci", "1999-01-01T00:00:00Z", made},
		"no time":                    {"aci", "yesterday", made},
		"of a pod without a node":    {"", now.Add(-time.Minute).Format(time.RFC3339), made},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made), Annotations: map[string]string{BoundAtAnnotation: tc.said}}}
		pod.Spec.NodeName = tc.node
		if got := BoundAt(pod, now); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
