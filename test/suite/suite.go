// Package suite has helpers for tests that place pods on a cluster, embedded or real.
package suite

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
)

// Namespace is the namespace of the tests' pods.
const Namespace = metav1.NamespaceDefault

// Suite is a test on a cluster.
type Suite struct {
	testing.TB
	// Referee judges the placements; nil if the test uses no referee.
	Referee *referee.Referee
	// Waiting is called again and again while Eventually waits; it may be nil.
	Waiting func()

	ctx    context.Context
	client kubernetes.Interface
}

// New returns the test's suite.
func New(ctx context.Context, t testing.TB, client kubernetes.Interface) Suite {
	return Suite{TB: t, ctx: ctx, client: client}
}

// UserTier returns the tier of AKS's user pools, with at most this number of VMs.
func UserTier(maximum int) referee.Tier {
	return referee.Tier{Name: "user", Max: maximum, Owns: func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == "user" }}
}

// SystemTier returns the tier of AKS's system pools, with at most this number of VMs.
func SystemTier(maximum int) referee.Tier {
	return referee.Tier{Name: "system", Max: maximum, Owns: func(n *corev1.Node) bool { return n.Labels[devcluster.ModeLabel] == "system" }}
}

// VirtualTier returns the tier of the virtual node.
func VirtualTier() referee.Tier {
	return referee.Tier{Name: "aci", Owns: func(n *corev1.Node) bool { return n.Name == devcluster.VirtualNodeName }}
}

// Eventually waits until check returns "". After the timeout, Eventually fails the test with the last complaint that
// check returned.
func (s *Suite) Eventually(timeout time.Duration, check func() string) {
	s.Helper()
	deadline := time.Now().Add(timeout)
	for {
		if s.Waiting != nil {
			s.Waiting()
		}
		complaint := check()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("after %v: %s", timeout, complaint)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Stays checks that check returns "" for the duration.
func (s *Suite) Stays(duration time.Duration, check func() string) {
	s.Helper()
	for deadline := time.Now().Add(duration); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if complaint := check(); complaint != "" {
			s.Fatal(complaint)
		}
	}
}

// RightOrder waits until the referee has judged total placements. It fails the test if a placement was wrong. It
// returns the number of pods in each tier.
func (s *Suite) RightOrder(total int) []int {
	s.Helper()
	var byTier []int
	var violations []string
	s.Eventually(30*time.Second, func() string {
		byTier, violations = s.Referee.Judge()
		judged := 0
		for _, n := range byTier {
			judged += n
		}
		if judged < total {
			return fmt.Sprintf("%d of %d placements were judged: %v", judged, total, byTier)
		}
		return ""
	})
	for _, v := range violations {
		s.Error(v)
	}
	return byTier
}

// Deployment returns a Deployment whose pods name this project's scheduler and request this amount of CPU.
func Deployment(name string, replicas int32, cpu string, changes ...func(*corev1.PodTemplateSpec)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SchedulerName: devcluster.SchedulerName,
					Containers: []corev1.Container{{Name: "web", Image: "web", Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi")}}}},
				},
			},
		},
	}
	for _, change := range changes {
		change(&d.Spec.Template)
	}
	return d
}

// ToleratesVirtualNode makes pods tolerate the virtual node's own taint, as the articles in README.md advise.
func ToleratesVirtualNode(t *corev1.PodTemplateSpec) {
	t.Spec.Tolerations = append(t.Spec.Tolerations, corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists})
}

// Selects gives pods a node selector.
func Selects(key, value string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		if t.Spec.NodeSelector == nil {
			t.Spec.NodeSelector = map[string]string{}
		}
		t.Spec.NodeSelector[key] = value
	}
}

// Create creates the Deployment.
func (s *Suite) Create(d *appsv1.Deployment) {
	s.Helper()
	must.Do(s)(s.client.AppsV1().Deployments(Namespace).Create(s.ctx, d, metav1.CreateOptions{}))
}

// Load reads a Deployment from a file, and sets the schedulerName of its pods to this project's scheduler.
func Load(t testing.TB, path string) *appsv1.Deployment {
	t.Helper()
	data := must.ReadFile(t, path)
	d := &appsv1.Deployment{}
	must.NoError(t, yaml.UnmarshalStrict(data, d))
	d.Namespace = Namespace
	d.Spec.Template.Spec.SchedulerName = devcluster.SchedulerName
	return d
}

// Scale sets the number of the Deployment's pods.
func (s *Suite) Scale(name string, replicas int32) {
	s.Helper()
	_, err := s.client.AppsV1().Deployments(Namespace).UpdateScale(s.ctx, name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
	must.NoError(s, err)
}

// Pods returns the pods of the app, or all pods if app is "".
func (s *Suite) Pods(app string) []corev1.Pod {
	s.Helper()
	options := metav1.ListOptions{}
	if app != "" {
		options.LabelSelector = "app=" + app
	}
	list := must.Get(s.client.CoreV1().Pods(Namespace).List(s.ctx, options))(s)
	return list.Items
}

// Placed counts the app's pods by the name of their pool. The key "" has the number of pending pods.
func (s *Suite) Placed(app string) map[string]int {
	s.Helper()
	pods := s.Pods(app) // before the nodes, so that the node of each pod is listed
	nodes := must.Get(s.client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{}))(s)
	poolOf := map[string]string{}
	for _, n := range nodes.Items {
		poolOf[n.Name] = n.Labels[devcluster.AgentPoolLabel]
		if n.Name == devcluster.VirtualNodeName {
			poolOf[n.Name] = "aci"
		}
	}
	counts := map[string]int{}
	for _, p := range pods {
		// If two schedulers bind pods to the same free capacity of a node, the kubelet rejects one of the pods. The
		// workload then creates another pod.
		if p.DeletionTimestamp == nil && !Over(&p) {
			counts[poolOf[p.Spec.NodeName]]++
		}
	}
	return counts
}

// Over reports whether the pod has succeeded or failed. Such a pod uses no resources.
func Over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// Lands waits until the app's pods are placed as wanted, by pool.
func (s *Suite) Lands(timeout time.Duration, app string, want map[string]int) {
	s.Helper()
	s.Eventually(timeout, func() string { return s.misplaced(app, want) })
}

// Keeps checks that the app's pods are placed as wanted for the duration.
func (s *Suite) Keeps(duration time.Duration, app string, want map[string]int) {
	s.Helper()
	s.Stays(duration, func() string { return s.misplaced(app, want) })
}

func (s *Suite) misplaced(app string, want map[string]int) string {
	s.Helper()
	if got := s.Placed(app); !Equal(got, want) {
		return fmt.Sprintf("pods of %s by pool: %v, want %v; %s", app, got, want, s.Said(app))
	}
	return ""
}

// Remain waits until the app has this number of pods. Terminating pods count.
func (s *Suite) Remain(timeout time.Duration, app string, want int) {
	s.Helper()
	s.Eventually(timeout, func() string {
		if n := len(s.Pods(app)); n != want {
			return fmt.Sprintf("%d pods of %s, want %d", n, app, want)
		}
		return ""
	})
}

// Told waits until the condition of a pending pod of the app has the text.
func (s *Suite) Told(app, text string) {
	s.Helper()
	s.Eventually(20*time.Second, func() string {
		if said := s.Said(app); !strings.Contains(said, text) {
			return fmt.Sprintf("a pod of %s was told %q, not %q", app, said, text)
		}
		return ""
	})
}

// Equal reports whether the counts are the same. A missing count is 0.
func Equal(a, b map[string]int) bool {
	a, b = maps.Clone(a), maps.Clone(b)
	for _, counts := range []map[string]int{a, b} {
		maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	}
	return maps.Equal(a, b)
}

// Said returns the name of a pending pod of the app, with the reason and the message of its condition PodScheduled.
func (s *Suite) Said(app string) string {
	for _, p := range s.Pods(app) {
		for _, c := range p.Status.Conditions {
			if p.Spec.NodeName == "" && c.Type == corev1.PodScheduled {
				return fmt.Sprintf("%s: %s: %s", p.Name, c.Reason, c.Message)
			}
		}
	}
	return ""
}

// Events returns the messages of the events in the tests' namespace that have this reason.
func (s *Suite) Events(reason string) []string {
	s.Helper()
	list := must.Get(s.client.CoreV1().Events(Namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=" + reason}))(s)
	var messages []string
	for _, event := range list.Items {
		messages = append(messages, event.Message)
	}
	return messages
}

// Tail returns at most the last n bytes.
func Tail(data []byte, n int) string {
	if len(data) > n {
		data = data[len(data)-n:]
	}
	return string(data)
}
