package suite

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"poolpriority.dev/scheduler/test/must"
)

// Everything lists all objects of the cluster with the keys of their annotations, and the nodes' taints. It leaves out
// events, and the pods and ReplicaSets of tests.
func (s *Suite) Everything(kubeConfig string) []string {
	s.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeConfig))(s)
	config.QPS, config.Burst = 200, 400
	client := must.Get(metadata.NewForConfig(config))(s)
	lists := must.Get(s.client.Discovery().ServerPreferredResources())(s)
	kinds := must.Get(discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "create"}}, lists)))(s)
	var all []string
	for gvr := range kinds {
		if gvr.Resource == "events" {
			continue
		}
		objects, err := client.Resource(gvr).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			s.Fatal(gvr, err)
		}
		for i := range objects.Items {
			o := &objects.Items[i]
			if o.Namespace == Namespace && (gvr.Resource == "pods" || gvr.Resource == "replicasets") {
				continue
			}
			var keys []string
			for key := range o.Annotations {
				if !strings.HasPrefix(key, "virtual-kubelet.io/") { // virtual-kubelet writes these when its node changes
					keys = append(keys, key)
				}
			}
			slices.Sort(keys)
			all = append(all, fmt.Sprint(gvr.GroupResource(), " ", o.Namespace, "/", o.Name, " ", keys))
		}
	}
	nodes := must.Get(s.client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{}))(s)
	for _, node := range nodes.Items {
		for _, taint := range node.Spec.Taints {
			all = append(all, "taint of "+node.Name+": "+taint.ToString())
		}
	}
	slices.Sort(all)
	return all
}

// Settled waits until the result of Everything does not change any more, and returns this result. Kubernetes'
// controllers take a while to create objects in a new namespace.
func (s *Suite) Settled(kubeConfig string) []string {
	s.Helper()
	var last []string
	s.Eventually(30*time.Second, func() string {
		now := s.Everything(kubeConfig)
		diff := cmp.Diff(last, now)
		last = now
		return diff
	})
	return last
}

// NothingLeft waits until Everything returns before, and no pod has an annotation of this project.
func (s *Suite) NothingLeft(kubeConfig string, before []string) {
	s.Helper()
	s.Eventually(60*time.Second, func() string {
		if diff := cmp.Diff(before, s.Everything(kubeConfig)); diff != "" {
			return "the objects differ (-before,+after):\n" + diff
		}
		for _, pod := range s.Pods("") {
			for key := range pod.Annotations {
				if strings.Contains(key, "poolpriority.dev/") || key == corev1.PodDeletionCost {
					return fmt.Sprintf("pod %s has the annotation %s", pod.Name, key)
				}
			}
		}
		return ""
	})
}

// Streamed creates pods until the test calls end. If the scheduler needed more than longest to bind one of these pods,
// end fails the test.
func (s *Suite) Streamed(longest time.Duration, changes ...func(*corev1.PodTemplateSpec)) (end func()) {
	stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
	go func() { slowest <- s.stream("stream", stop, changes...) }()
	return func() {
		s.Helper()
		close(stop)
		waited := <-slowest
		if waited > longest {
			s.Errorf("a pod waited %v for its node meanwhile, want at most %v", waited, longest)
		}
		s.Logf("no pod waited for longer than %v for its node", waited.Round(100*time.Millisecond))
	}
}

// stream creates a pod every half second until stop is closed, and returns the longest time until a pod was bound.
func (s *Suite) stream(app string, stop <-chan struct{}, changes ...func(*corev1.PodTemplateSpec)) time.Duration {
	made := map[string]time.Time{}
	var slowest time.Duration
	look := func() {
		pods, err := s.client.CoreV1().Pods(Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return
		}
		for _, pod := range pods.Items {
			if at, ok := made[pod.Name]; ok && pod.Spec.NodeName != "" {
				slowest = max(slowest, time.Since(at))
				delete(made, pod.Name)
				// The pods must not fill the pools.
				if err := s.client.CoreV1().Pods(pod.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
					s.Logf("deleting pod %s: %v", pod.Name, err)
				}
			}
		}
	}
	d := Deployment(app, 1, "1m", changes...)
	var last time.Time
	for n := 0; ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-stop:
			for deadline := time.Now().Add(30 * time.Second); len(made) > 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
				look()
			}
			for _, at := range made {
				slowest = max(slowest, time.Since(at))
			}
			if err := s.client.CoreV1().Pods(Namespace).DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=" + app}); err != nil {
				s.Logf("deleting the pods of %s: %v", app, err)
			}
			for deadline := time.Now().Add(60 * time.Second); len(s.Pods(app)) > 0 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			}
			return slowest
		default:
		}
		look()
		if time.Since(last) < 500*time.Millisecond {
			continue
		}
		last = time.Now()
		n++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", app, n), Labels: d.Spec.Template.Labels}, Spec: d.Spec.Template.Spec}
		if _, err := s.client.CoreV1().Pods(Namespace).Create(s.ctx, pod, metav1.CreateOptions{}); err == nil {
			made[pod.Name] = last
		}
	}
}
