package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"poolpriority.dev/scheduler/pkg/devcluster"
)

// BenchmarkMemory compares the resident memory of the scheduler with the AKS configuration with that of the same binary with the
// default profile, on the same control plane.
func BenchmarkMemory(b *testing.B) {
	const nodes, podsPerNode, rounds = 5000, 10, 5
	// Nobody renews the nodes' leases.
	e := startWith(b, devcluster.Options{ControllerManagerArgs: []string{"--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"}})
	config := rest.CopyConfig(e.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	populateAll(b, e, client, nodes, podsPerNode)
	controller := e.control("testdata/no-leader-election.yaml")
	// What a process holds depends on when it last collected garbage: medians of several starts, of the ratios too.
	var mine, theirs, ratios []float64
	for range rounds {
		stock, err := e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), "testdata/stock-scheduler.yaml", e.rbac)
		if err != nil {
			b.Fatal(err)
		}
		ours, err := e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), "testdata/no-leader-election.yaml", e.rbac)
		if err != nil {
			stock.Stop()
			b.Fatal(err)
		}
		time.Sleep(30 * time.Second) // both have listed everything
		mine, theirs = append(mine, resident(b, ours.PID())), append(theirs, resident(b, stock.PID()))
		ratios = append(ratios, mine[len(mine)-1]/theirs[len(theirs)-1])
		ours.Stop()
		stock.Stop()
	}
	b.Logf("ours %.0f MiB, default %.0f MiB", mine, theirs)
	for _, list := range [][]float64{mine, theirs, ratios} {
		slices.Sort(list)
	}
	m, d, ratio := mine[rounds/2], theirs[rounds/2], ratios[rounds/2]
	mark := "ok"
	if ratio > 1.05 {
		mark = "MISSED"
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "\nfigure\tours\tdefault\tratio\ttarget\t\nresident memory, %d nodes, %d pods\t%.0f MiB\t%.0f MiB\t%.2f\t≤ 1.05\t%s\n", nodes, nodes*podsPerNode, m, d, ratio, mark)
	fmt.Fprintf(table, "the same, the controller\t%.0f MiB\t\t\t\t\n", resident(b, controller.PID()))
	if err := table.Flush(); err != nil {
		b.Fatal(err)
	}
}

// populateAll makes so many nodes that nobody manages, each with so many pods.
func populateAll(b *testing.B, e *env, client kubernetes.Interface, nodes, podsPerNode int) {
	b.Helper()
	began := time.Now()
	var work sync.WaitGroup
	errs := make(chan error, 16)
	for worker := range 16 {
		work.Go(func() {
			for i := worker; i < nodes; i += 16 {
				if err := populate(e, client, i, podsPerNode); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	work.Wait()
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
	b.Logf("%d nodes and %d pods were made in %.0f s", nodes, nodes*podsPerNode, time.Since(began).Seconds())
}

// populate makes a node that nobody manages, with pods.
func populate(e *env, client kubernetes.Interface, i, pods int) error {
	mode := "user"
	if i%5 > 2 {
		mode = "system"
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{devcluster.ModeLabel: mode, corev1.LabelOSStable: "linux"}}}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110")}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}}
	if _, err := client.CoreV1().Nodes().Create(e.ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	for n := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d-%d", i, n), Labels: map[string]string{"app": "app"}}}
		pod.Spec.NodeName = node.Name
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "image", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}}}}
		if _, err := client.CoreV1().Pods(namespace).Create(e.ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// resident returns the process's resident memory in MiB.
func resident(t testing.TB, pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes / 1024
		}
	}
	t.Fatalf("process %d has no VmRSS", pid)
	return 0
}
