package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
)

// crowd is a cluster with thousands of nodes. KWOK does not manage these nodes, because their heartbeats would keep the
// API server busy.
type crowd struct {
	*env
	client kubernetes.Interface // without a client-side rate limit
}

func startCrowd(b *testing.B) *crowd { return startCrowdWith(b, devcluster.Options{}) }

func startCrowdWith(b *testing.B, options devcluster.Options) *crowd {
	b.Helper()
	// The nodes have no leases, and stay Ready for this time.
	options.ControllerManagerArgs = []string{"--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"}
	e := startWith(b, options)
	config := rest.CopyConfig(e.Config)
	config.QPS = -1
	client := must.Get(kubernetes.NewForConfig(config))(b)
	return &crowd{env: e, client: client}
}

// each calls the function for 0 to n-1, sixteen at a time.
func (c *crowd) each(n int, do func(i int) error) {
	c.Helper()
	var work sync.WaitGroup
	errs := make(chan error, 16)
	for worker := range 16 {
		work.Go(func() {
			for i := worker; i < n; i += 16 {
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	work.Wait()
	select {
	case err := <-errs:
		c.Fatal(err)
	default:
	}
}

// populate makes the nodes, and podsPerNode pods on each.
func (c *crowd) populate(nodes, podsPerNode int) {
	c.Helper()
	began := time.Now()
	c.each(nodes, func(i int) error {
		if err := c.addNode(i); err != nil {
			return err
		}
		for n := range podsPerNode {
			if err := c.addPod(fmt.Sprintf("pod-%d-%d", i, n), "app", fmt.Sprintf("node-%d", i), "100m", "128Mi"); err != nil {
				return err
			}
		}
		return nil
	})
	c.Logf("%d nodes and %d pods were made in %.0f s", nodes, nodes*podsPerNode, time.Since(began).Seconds())
}

// addNode makes a ready node of 4 CPUs. Three of five nodes are user nodes, and two are system nodes.
func (c *crowd) addNode(i int) error {
	mode := "user"
	if i%5 > 2 {
		mode = "system"
	}
	return c.addNodeOf(fmt.Sprintf("node-%d", i), mode)
}

func (c *crowd) addNodeOf(name, mode string, changes ...func(*corev1.Node)) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		devcluster.ModeLabel: mode, corev1.LabelOSStable: "linux", corev1.LabelHostname: name}}}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110")}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}}
	for _, change := range changes {
		change(node)
	}
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, node, metav1.CreateOptions{})
	return err
}

// addPod makes a pod. If node is not "", the pod is bound to this node.
func (c *crowd) addPod(name, app, node, cpu, memory string, changes ...func(*corev1.PodSpec)) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "image", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}}
	for _, change := range changes {
		change(&pod.Spec)
	}
	_, err := c.client.CoreV1().Pods(namespace).Create(c.ctx, pod, metav1.CreateOptions{})
	return err
}

// removePods deletes the app's pods without a grace period, and waits until they are gone.
func (c *crowd) removePods(app string) {
	c.Helper()
	selected := metav1.ListOptions{LabelSelector: "app=" + app}
	c.Eventually(5*time.Minute, func() string {
		if err := c.client.CoreV1().Pods(namespace).DeleteCollection(c.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, selected); err != nil {
			return err.Error()
		}
		list, err := c.client.CoreV1().Pods(namespace).List(c.ctx, selected)
		if err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%d pods of %s are left", len(list.Items), app)
		}
		return ""
	})
}

// watchPods calls changed each time one of the app's pods is added or updated, until stop is called. The calls are
// serial.
func (c *crowd) watchPods(app string, changed func(*corev1.Pod)) (stop func()) {
	c.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app=" + app }))
	informer := factory.Core().V1().Pods().Informer()
	must.Do(c)(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { changed(obj.(*corev1.Pod)) }, UpdateFunc: func(_, obj any) { changed(obj.(*corev1.Pod)) }}))
	done := make(chan struct{})
	factory.Start(done)
	factory.WaitForCacheSync(c.ctx.Done())
	return func() { close(done); factory.Shutdown() }
}

// cpu returns the CPU time, user and system, that the process has used.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat := must.ReadFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	// The second field is the command's name in parentheses, the 14th and the 15th are in hundredths of a second
	// (proc(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n := must.Get(strconv.ParseInt(field, 10, 64))(t)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func middle(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
