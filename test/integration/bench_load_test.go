package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var (
	nodeCount    = flag.Int("nodes", 2000, "nodes of BenchmarkLoad and BenchmarkSoak; every tenth has room for the stream")
	waitingCount = flag.Int("waiting", 10000, "pods that wait")
	updateRate   = flag.Float64("updates", 300, "status updates of bound pods, a second")
	streamRate   = flag.Float64("stream", 20, "unrelated pods that fit, a second")
	churnRate    = flag.Float64("come", 5, "nodes that come and go, a second, for a fifth of the time")
	lasts        = flag.Duration("lasts", 10*time.Minute, "how long BenchmarkLoad's load lasts")
	turnLasts    = flag.Duration("turn", 30*time.Second, "how long each shorter measurement of BenchmarkLoad lasts")
	pairs        = flag.Int("pairs", 5, "pairs of turns with and without waiting pods")
	stories      = flag.String("stories", "pairs,specs,ends,gate,load", "what BenchmarkLoad measures")
)

const (
	verbosity   = "--v=2"     // of manifests/base
	streamLives = time.Minute // from the binding
	kinds       = 20
	budget      = 100             // of overlays/aks
	unbound     = 2 * time.Minute // for which a measurement waits for the stream's last pods
)

// busy is a cluster whose nodes nobody manages, under a load that it makes itself. Every tenth node has room for the
// stream, the unrelated pods. Such a node is in no pool, and the waiting pods cannot use it. All other nodes are full.
// Each node has a DaemonSet's pod of priority 0, and every tenth a placeholder of priority -10.
type busy struct {
	*crowd
	scheduler string                                // the pods' schedulerName
	group     func(i int) (name, pool, mode string) // of a node

	groups map[string]int // their sizes

	mu          sync.Mutex
	made, bound map[string]time.Time // by the name of a pod; made has the stream's pods only
	tried       map[string]bool      // waiting pods that are bound or have a condition
	serial      atomic.Int64
	open        atomic.Bool
}

func startBusy(b *testing.B, options devcluster.Options, group func(i int) (name, pool, mode string)) *busy {
	b.Helper()
	l := &busy{crowd: startCrowdWith(b, options), scheduler: devcluster.SchedulerName, group: group,
		made: map[string]time.Time{}, bound: map[string]time.Time{}, tried: map[string]bool{}}
	for _, priority := range []int32{-10, 0, 50, 100, 1000} {
		must.Do(b)(l.client.SchedulingV1().PriorityClasses().Create(l.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class(priority)}, Value: priority}, metav1.CreateOptions{}))
	}
	l.each(*nodeCount, func(i int) error {
		name, pool, mode := l.group(i)
		if err := l.addNodeOf(name, mode, l.labelled(i, pool)); err != nil {
			return err
		}
		errs := []error{l.fill(i, "daemon", "100m", 0)}
		if i%10 == 1 {
			errs = append(errs, l.fill(i, "placeholder", "100m", -10))
		}
		if !hasRoom(i) {
			errs = append(errs, l.fill(i, "full", "3200m", 1000), l.fill(i, "part", "600m", 1000))
		}
		return errors.Join(errs...)
	})
	for app, saw := range map[string]func(*corev1.Pod){"stream": l.saw, "waiting": l.saw, "daemon": l.end, "placeholder": l.end} {
		b.Cleanup(l.watchPods(app, saw))
	}
	return l
}

// end deletes a pod that was preempted, as its kubelet would. As long as the victim is there, the scheduler tries the pod
// that preempted it again whenever any pod ends.
func (l *busy) end(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		go l.retry(func() error {
			err := l.client.CoreV1().Pods(namespace).Delete(l.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

func (l *busy) ours() bool { return l.scheduler == devcluster.SchedulerName }

func class(priority int32) string { return fmt.Sprintf("load-%d", priority) }

// fill makes a pod on the node.
func (l *busy) fill(i int, app, cpu string, priority int32) error {
	name, _, _ := l.group(i)
	return l.addPod(fmt.Sprintf("%s-%d", app, i), app, name, cpu, "10Mi", func(spec *corev1.PodSpec) { spec.PriorityClassName = class(priority) })
}

func hasRoom(i int) bool { return i%10 == 0 }

// labelled gives the node its AKS pool. A node for the stream has a taint that only the stream tolerates.
func (l *busy) labelled(i int, pool string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Labels[devcluster.AgentPoolLabel] = pool
		if hasRoom(i) {
			n.Labels["load"] = "room"
			n.Spec.Taints = []corev1.Taint{{Key: "load", Value: "room", Effect: corev1.TaintEffectNoSchedule}}
		}
	}
}

func (l *busy) saw(p *corev1.Pod) {
	l.end(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Spec.NodeName != "" && l.bound[p.Name].IsZero() {
		l.bound[p.Name] = time.Now()
		if p.Labels["app"] == "stream" {
			time.AfterFunc(streamLives, func() {
				l.retry(func() error {
					return l.client.CoreV1().Pods(namespace).Delete(l.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
				})
			})
		}
	}
	if p.Spec.NodeName != "" || slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
		l.tried[p.Name] = true
	}
}

// retry calls do until it succeeds, for a minute: the API server may be down.
func (l *busy) retry(do func() error) {
	for i := 0; i < 60 && l.ctx.Err() == nil && do() != nil; i++ {
		time.Sleep(time.Second)
	}
}

// every calls do at the rate, each time in a goroutine of its own, until the context ends.
func every(ctx context.Context, rate float64, do func(i int)) {
	if rate <= 0 {
		return
	}
	ticker := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			go do(i)
		}
	}
}

// addStream makes a pod of the stream, which ends streamLives after it was bound.
func (l *busy) addStream(int) {
	name, began := fmt.Sprintf("stream-%d", l.serial.Add(1)), time.Now()
	if l.addPod(name, "stream", "", "10m", "10Mi", func(spec *corev1.PodSpec) {
		spec.SchedulerName, spec.PriorityClassName = l.scheduler, class(100)
		spec.NodeSelector = map[string]string{"load": "room"}
		spec.Tolerations = []corev1.Toleration{{Key: "load", Operator: corev1.TolerationOpExists}}
	}) == nil {
		l.mu.Lock()
		l.made[name] = began
		l.mu.Unlock()
	}
}

// update writes a bound pod's status, as a kubelet does.
func (l *busy) update(i int) {
	_, _ = l.client.CoreV1().Pods(namespace).Patch(l.ctx, fmt.Sprintf("daemon-%d", i%*nodeCount), types.MergePatchType,
		fmt.Appendf(nil, `{"status":{"message":"update %d"}}`, i), metav1.PatchOptions{}, "status")
}

// churn lets nodes come, and go after 30 s, for a fifth of the duration. No waiting pod can use them, except that ten
// have room for one kind.
func (l *busy) churn(ctx context.Context, lasts time.Duration) {
	coming, cancel := context.WithTimeout(ctx, lasts/5)
	defer cancel()
	_, _, mode := l.group(1)
	special := max(1, int(*churnRate*lasts.Seconds()/5/10))
	every(coming, *churnRate, func(i int) {
		name := fmt.Sprintf("come-%d", l.serial.Add(1))
		_ = l.addNodeOf(name, "", func(n *corev1.Node) {
			l.labelled(0, "otherpool")(n)
			n.Labels["load"] = "other"
			if i%special == 0 {
				n.Spec.Taints, n.Labels[devcluster.AgentPoolLabel], n.Labels[devcluster.ModeLabel] = nil, "smallpool", mode
				n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("300m")
			}
		})
		time.Sleep(30 * time.Second)
		l.retry(func() error { return l.client.CoreV1().Nodes().Delete(l.ctx, name, metav1.DeleteOptions{}) })
	})
}

// wait makes the pods that wait, of a number of kinds and of three priorities, and waits until each was tried. Each
// kind has a node affinity of the given size.
func (l *busy) wait(pods, kinds, bytes int) {
	l.Helper()
	began, first := time.Now(), int(l.serial.Add(int64(pods)))
	l.mu.Lock()
	l.tried = map[string]bool{}
	l.mu.Unlock()
	l.each(pods, func(i int) error {
		cpu := "500m"
		if i%kinds == 0 {
			cpu = "250m" // fits the ten nodes
		}
		return l.addPod(fmt.Sprintf("waiting-%d", first+i), "waiting", "", cpu, fmt.Sprintf("%dMi", 100+i%kinds), func(spec *corev1.PodSpec) {
			spec.SchedulerName, spec.PriorityClassName = l.scheduler, class([]int32{0, 50, 100}[i%3])
			var names []string
			for k := range bytes / 60 {
				names = append(names, fmt.Sprintf("%050d-%09d", k, i%kinds))
			}
			if len(names) > 0 {
				spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: names}}}}}}}
			}
		})
	})
	l.Eventually(15*time.Minute, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.tried) < pods {
			return fmt.Sprintf("%d of %d pods were tried", len(l.tried), pods)
		}
		return ""
	})
	l.Logf("%s: %d pods of %d kinds wait after %.0f s", l.scheduler, pods, kinds, time.Since(began).Seconds())
	time.Sleep(12 * time.Second) // until no pod is in backoff
}

// boundSince returns the times from the moment until each of the app's pods was bound after it, in order.
func (l *busy) boundSince(app string, moment time.Time) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var after []time.Duration
	for name, at := range l.bound {
		if strings.HasPrefix(name, app) && at.After(moment) {
			after = append(after, at.Sub(moment))
		}
	}
	slices.Sort(after)
	return after
}

// waits returns how long the stream's pods waited that were made between the moments, sorted. A pod that is not bound
// yet counts with its age.
func (l *busy) waits(from, to time.Time) (waits []time.Duration, missing int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, made := range l.made {
		if made.Before(from) || made.After(to) {
			continue
		}
		until := l.bound[name]
		if until.IsZero() {
			until = time.Now()
			missing++
		}
		waits = append(waits, until.Sub(made))
	}
	slices.Sort(waits)
	return waits, missing
}

// turn is what was measured while the stream ran.
type turn struct {
	waits          []time.Duration
	missing, bound int
	took, cpu      time.Duration
	idle, memory   float64
	before, after  string // the scheduler's metrics
}

func (t turn) at(percent int) time.Duration { return t.waits[len(t.waits)*percent/100] }

// milliCPU is the scheduler's CPU time in ms for each pod that it bound.
func (t turn) milliCPU() float64 { return 1000 * t.cpu.Seconds() / float64(t.bound) }

// grew returns by how much the metric grew in the turn, by the value of the label.
func (t turn) grew(name, label string) map[string]float64 {
	grew := series(t.after, name, label)
	for value, n := range series(t.before, name, label) {
		grew[value] -= n
	}
	return grew
}

// series returns the sums of a metric by the value of the label, or under "" if the metric has no such label.
func series(metrics, name, label string) map[string]float64 {
	sums, value := map[string]float64{}, regexp.MustCompile(`\b`+label+`="([^"]*)"`)
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(metrics, -1) {
		n, _ := strconv.ParseFloat(m[2], 64)
		sums[append(value.FindStringSubmatch(m[1]), "", "")[1]] += n
	}
	return sums
}

// measure runs the stream, the updates and what else is given, and waits until the stream's pods are bound.
func (l *busy) measure(lasts time.Duration, during ...func(context.Context)) turn {
	l.Helper()
	pid := l.env.scheduler.PID()
	ctx, cancel := context.WithTimeout(l.ctx, lasts)
	defer cancel()
	t := turn{before: l.metrics()}
	began, used := time.Now(), cpu(l, pid)
	idle := idleTime(l)
	var work sync.WaitGroup
	for _, do := range append(during, func(ctx context.Context) { every(ctx, *streamRate, l.addStream) }, func(ctx context.Context) { every(ctx, *updateRate, l.update) }) {
		work.Go(func() { do(ctx) })
	}
	work.Wait()
	<-ctx.Done()
	t.took, t.cpu, t.memory = time.Since(began), cpu(l, pid)-used, resident(l, pid)
	t.idle = (idleTime(l) - idle) / t.took.Seconds() / float64(runtime.NumCPU())
	ended := time.Now()
	for t.waits, t.missing = l.waits(began, ended); t.missing > 0 && time.Since(ended) < unbound; t.waits, t.missing = l.waits(began, ended) {
		time.Sleep(100 * time.Millisecond)
	}
	t.after, t.bound = l.metrics(), len(l.boundSince("", began))
	return t
}

// idleTime returns the idle time of all processors together, in hundredths of a second: proc(5).
func idleTime(t testing.TB) float64 {
	return must.Get(strconv.ParseFloat(strings.Fields(string(must.ReadFile(t, "/proc/stat")))[4], 64))(t)
}

// say writes the autoscaler's status: the user pool can grow, or no pool can.
func (l *busy) say(open bool) {
	l.Helper()
	l.open.Store(open)
	var groups []string
	for name, n := range l.groups {
		maximum := n
		if !open && strings.Contains(name, "user") {
			maximum += 10
		}
		groups = append(groups, groupStatus(name, n, n, maximum))
	}
	l.groupsSay(groups...)
}

// BenchmarkLoad measures what ships under the load of a busy cluster, with its configuration file, and the in-tree
// profile under the same load. See the flags for the sizes, and docs/performance.md for the results.
//
//   - pairs: the stream beside the waiting pods and the updates, and without waiting pods, in turns.
//   - specs: the stream beside waiting pods of one spec, of as many specs as pods, and of a few large specs.
//   - ends: fifty pods end within a second, on nodes that the waiting pods cannot use, and on nodes that they can use.
//   - gate: the gate opens, and the budget has room for a hundred of the waiting pods, twice; before that, the benchmark
//     itself starts as many pods on the virtual node.
//   - return: a hundred pods are on the virtual node, and fifty VMs get room for them, with Return and without.
//   - load: everything at once, while nodes come and go.
func BenchmarkLoad(b *testing.B) {
	pools := []devcluster.Pool{{Name: "userpool", Mode: "user"}, {Name: "systempool", Mode: "system"}, {Name: "roompool"}}
	l := startBusy(b, devcluster.Options{}, func(i int) (string, string, string) {
		pool := pools[i%5/3]
		if hasRoom(i) {
			pool = pools[2]
		}
		return fmt.Sprintf("%s%06d", pool.Group(), i), pool.Name, pool.Mode
	})
	l.groups = map[string]int{}
	for i := range *nodeCount {
		_, pool, _ := l.group(i)
		l.groups[(&devcluster.Pool{Name: pool}).Group()]++
	}
	l.say(true)
	go every(l.ctx, 1.0/30, func(int) { // the status of an autoscaler that writes none is stale after 3 minutes
		if l.open.Load() {
			l.say(true)
		}
	})
	// The benchmark has the gate opened more often than the rate of creates allows.
	shipped := replaced(b, aksConfig, "          limits: {pods", "          creates: {per5Minutes: 0, perHour: 0}\n          limits: {pods")
	l.control(shipped)
	l.waitGated(true)
	fmt.Printf("\n%d nodes, %d waiting pods, %g updates a second\n%-24s %-26s  p50 ms  p99 ms  not bound  bound/s  more attempts  CPU ms a pod  idle\n",
		*nodeCount, *waitingCount, *updateRate, "scheduler", "measured")
	for _, l.scheduler = range []string{devcluster.SchedulerName, corev1.DefaultSchedulerName} {
		config := shipped
		if !l.ours() {
			config = "testdata/default-profile.yaml"
		}
		l.env.scheduler = must.Get(l.StartScheduler(l.ctx, filepath.Join(*bin, devcluster.SchedulerName), config, l.rbac, verbosity))(b)
		l.measured()
		l.env.scheduler.Stop()
		l.removePods("waiting")
		for i := range 50 { // those that ended
			_, _ = l.fill(parts(i), "part", "600m", 1000), l.fill(i*10%*nodeCount, "daemon", "100m", 0)
		}
	}
}

// row prints a turn.
func (l *busy) row(name string, t turn, more string) {
	fmt.Printf("%-24s %-26s %7d %7d %10d %8.1f %14d %13.2f %3.0f %%  %s\n", l.scheduler, name, t.at(50).Milliseconds(), t.at(99).Milliseconds(), t.missing,
		float64(t.bound)/t.took.Seconds(), int(t.grew("scheduler_schedule_attempts_total", "-")[""])-t.bound, t.milliCPU(), t.idle, more)
}

// measured measures the stories with the scheduler that runs.
func (l *busy) measured() {
	l.Helper()
	wants := func(story string) bool { return strings.Contains(*stories, story) }
	var with, without, cpuWith, cpuWithout []float64
	for round := range *pairs {
		if !wants("pairs") {
			break
		}
		alone := l.measure(*turnLasts)
		l.row("pair, nobody waits", alone, "")
		l.wait(*waitingCount, kinds, 0)
		beside := l.measure(*turnLasts)
		without, with = append(without, alone.at(99).Seconds()), append(with, beside.at(99).Seconds())
		cpuWithout, cpuWith = append(cpuWithout, alone.milliCPU()), append(cpuWith, beside.milliCPU())
		l.row("pair, beside the waiting", beside, fmt.Sprintf("medians of %d: p99 %.2f of that without them, or %+.0f ms; CPU %.2f",
			round+1, ratios(with, without), 1000*(middle(with)-middle(without)), ratios(cpuWith, cpuWithout)))
		l.removePods("waiting")
		l.removePods("stream")
	}
	for _, of := range []struct{ pods, kinds, bytes int }{{*waitingCount, 1, 1 << 10}, {*waitingCount, *waitingCount, 1 << 10}, {*waitingCount / 20, *waitingCount / 20, 100 << 10}} {
		if !wants("specs") {
			break
		}
		l.wait(of.pods, of.kinds, of.bytes)
		t := l.measure(*turnLasts)
		l.row(fmt.Sprintf("%d specs of %d KiB", of.kinds, of.bytes>>10), t, fmt.Sprintf("beside %d pods; %.0f MiB", of.pods, t.memory))
		l.removePods("waiting")
		l.removePods("stream")
	}
	if l.ours() && wants("return") {
		l.returns()
	}
	if !wants("ends") && !wants("gate") && !wants("load") {
		return
	}
	l.wait(*waitingCount, kinds, 0)
	some := min(50, *nodeCount/10)
	if wants("ends") {
		l.row(fmt.Sprintf("%d pods end elsewhere", some), l.measure(*turnLasts, l.ends(some, "daemon", func(i int) int { return i * 10 % *nodeCount })), "")
		began := time.Now()
		t := l.measure(*turnLasts, l.ends(some, "part", parts))
		l.row(fmt.Sprintf("%d pods end where some fit", some), t, l.boundAfter(began.Add(5*time.Second), some))
	}
	for range 2 {
		if !l.ours() || !wants("gate") {
			break
		}
		l.say(false)
		time.Sleep(5 * time.Second)
		// As many pods start without the scheduler: what the cluster needs for it delays the stream, too.
		start := func(i int) error {
			return l.addPod(fmt.Sprintf("bound-%d", l.serial.Add(1)), "bound", devcluster.VirtualNodeName, "500m", "100Mi")
		}
		alone := l.measure(*turnLasts, func(context.Context) { time.Sleep(5 * time.Second); l.each(budget, start) })
		l.row(fmt.Sprintf("%d pods start", budget), alone, "bound by the benchmark, while the gate is closed")
		l.removePods("bound")
		must.NoError(l, l.client.CoreV1().Pods(namespace).DeleteCollection(l.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
			metav1.ListOptions{LabelSelector: "app=waiting", FieldSelector: "spec.nodeName=" + devcluster.VirtualNodeName}))
		time.Sleep(15 * time.Second)
		var opened time.Time
		t := l.measure(*turnLasts, func(context.Context) { time.Sleep(5 * time.Second); opened = time.Now(); l.say(true) })
		l.row("the gate opens", t, fmt.Sprintf("p99 %+.0f ms; %s; enqueued by event: %v", 1000*(t.at(99)-alone.at(99)).Seconds(), l.boundAfter(opened, min(budget, *waitingCount)),
			t.grew("scheduler_queue_incoming_pods_total", "event")))
	}
	if wants("load") {
		t := l.measure(*lasts, func(ctx context.Context) { l.churn(ctx, *lasts) })
		l.row("the load", t, "")
		fmt.Printf("%.0f %% of a CPU, %.0f MiB", 100*t.cpu.Seconds()/t.took.Seconds(), t.memory)
		for _, metric := range [][2]string{{"rest_client_requests_total", "method"}, {"scheduler_event_handling_duration_seconds_count", "event"}, {"scheduler_event_handling_duration_seconds_sum", "event"}} {
			fmt.Printf("\n%s, a second:", metric[0])
			grew := t.grew(metric[0], metric[1])
			for _, value := range slices.Sorted(maps.Keys(grew)) {
				fmt.Printf("  %s %.4g", value, grew[value]/t.took.Seconds())
			}
		}
		fmt.Println()
	}
}

// returns measures the story return.
func (l *busy) returns() {
	l.Helper()
	for i := range budget / 4 {
		l.Create(suite.Deployment(fmt.Sprint("burst-", i), 4, "300m"))
	}
	l.Eventually(2*time.Minute, func() string {
		pods := must.Get(l.client.CoreV1().Pods(namespace).List(l.ctx, metav1.ListOptions{FieldSelector: "status.phase=Running,spec.nodeName=" + devcluster.VirtualNodeName}))(l)
		if n := len(pods.Items); n < budget {
			return fmt.Sprintf("%d of %d pods run on the virtual node", n, budget)
		}
		return ""
	})
	some := min(50, *nodeCount/10)
	for _, on := range []bool{false, true} {
		l.env.scheduler.Stop()
		config := aksConfig
		if on {
			config = replaced(l, aksConfig, "        burst:\n", "        burst:\n          return: {enabled: true, stableFor: 1s, evictionsPerMinute: 60}\n")
		}
		l.env.scheduler = must.Get(l.StartScheduler(l.ctx, filepath.Join(*bin, devcluster.SchedulerName), config, returnRBAC, verbosity))(l)
		time.Sleep(20 * time.Second)
		t := l.measure(*turnLasts, l.ends(some, "part", parts))
		l.row(fmt.Sprintf("VMs get room, return %v", on), t, fmt.Sprintf("%.0f MiB; rounds %v, evictions %v", t.memory, t.grew("pool_priority_return_rounds_total", "result"), t.grew("pool_priority_return_evictions_total", "result")))
		for i := range some {
			_ = l.fill(parts(i), "part", "600m", 1000)
		}
	}
}

// ends returns what deletes this number of pods within a second, after 5 s.
func (l *busy) ends(n int, app string, node func(i int) int) func(context.Context) {
	return func(ctx context.Context) {
		time.Sleep(5 * time.Second)
		for i := range n {
			_ = l.client.CoreV1().Pods(namespace).Delete(ctx, fmt.Sprintf("%s-%d", app, node(i)), metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// parts returns the nodes on which pods end, that waiting pods can use.
func parts(i int) int { return 2 + i/8*10 + i%8 }

// boundAfter says how long after the moment this number of waiting pods was bound.
func (l *busy) boundAfter(moment time.Time, n int) string {
	bound := l.boundSince("waiting", moment)
	if len(bound) < n {
		return fmt.Sprintf("%d of %d waiting pods were bound", len(bound), n)
	}
	return fmt.Sprintf("waiting pods were bound after: 1 %v, %d %v, %d in all", bound[0].Round(time.Millisecond), n, bound[n-1].Round(time.Millisecond), len(bound))
}

// ratios returns the median of the ratios.
func ratios(mine, theirs []float64) float64 {
	list := make([]float64, len(mine))
	for i := range mine {
		list[i] = mine[i] / theirs[i]
	}
	return middle(list)
}
