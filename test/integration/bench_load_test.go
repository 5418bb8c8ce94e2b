package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
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
	stories      = flag.String("stories", "pairs,ends,gate,load", "what BenchmarkLoad measures")
	blockProfile = flag.String("blockprofile", "", "file for the block profile of our scheduler under the load: where goroutines wait for locks")
)

const (
	streamLives = time.Minute
	kinds       = 20
	budget      = 100 // of overlays/aks
	unbound     = 2 * time.Minute
)

// busy is a cluster whose nodes nobody manages, under a load that it makes itself. Every tenth node has room for the
// stream, the unrelated pods, and the waiting pods cannot use it. All other nodes are full. Each node has a DaemonSet's
// pod of priority 0, and every tenth a placeholder of priority -10.
type busy struct {
	*crowd
	scheduler string                                // the pods' schedulerName
	group     func(i int) (name, pool, mode string) // of a node

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
	for _, app := range []string{"stream", "waiting"} {
		b.Cleanup(l.watchPods(app, l.saw))
	}
	return l
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Spec.NodeName != "" && l.bound[p.Name].IsZero() {
		l.bound[p.Name] = time.Now()
	}
	if p.Labels["app"] == "waiting" && (p.Spec.NodeName != "" || slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable })) {
		l.tried[p.Name] = true
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

// addStream makes a pod of the stream, which lives for streamLives.
func (l *busy) addStream(int) {
	name := fmt.Sprintf("stream-%d", l.serial.Add(1))
	l.mu.Lock()
	l.made[name] = time.Now()
	l.mu.Unlock()
	err := l.addPod(name, "stream", "", "10m", "10Mi", func(spec *corev1.PodSpec) {
		spec.SchedulerName, spec.PriorityClassName = l.scheduler, class(100)
		spec.NodeSelector = map[string]string{"load": "room"}
		spec.Tolerations = []corev1.Toleration{{Key: "load", Operator: corev1.TolerationOpExists}}
	})
	if err != nil { // while the API server is down
		l.mu.Lock()
		delete(l.made, name)
		l.mu.Unlock()
		return
	}
	time.AfterFunc(streamLives, func() {
		l.mu.Lock()
		missing := l.bound[name].IsZero()
		l.mu.Unlock()
		for i := 0; i < 20 && !missing && l.ctx.Err() == nil && l.client.CoreV1().Pods(namespace).Delete(l.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}) != nil; i++ {
			time.Sleep(time.Second)
		}
	})
}

// update writes a bound pod's status, as a kubelet does.
func (l *busy) update(i int) {
	n := i % *nodeCount
	status := fmt.Appendf(nil, `{"status":{"message":"update %d"}}`, i)
	_, _ = l.client.CoreV1().Pods(namespace).Patch(l.ctx, fmt.Sprintf("daemon-%d", n), types.MergePatchType, status, metav1.PatchOptions{}, "status")
}

// churn lets nodes come, and go after 30 s, for a fifth of the duration. No waiting pod can use them, except that ten
// have room for one kind.
func (l *busy) churn(ctx context.Context, lasts time.Duration) {
	coming, cancel := context.WithTimeout(ctx, lasts/5)
	defer cancel()
	_, _, mode := l.group(0)
	special := max(1, int(*churnRate*lasts.Seconds()/5/10))
	every(coming, *churnRate, func(i int) {
		name := fmt.Sprintf("come-%d", l.serial.Add(1))
		_ = l.addNodeOf(name, mode, func(n *corev1.Node) {
			l.labelled(0, "otherpool")(n)
			n.Labels["load"] = "other"
			if i%special == 0 {
				n.Spec.Taints, n.Labels[devcluster.AgentPoolLabel] = nil, "smallpool"
				n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("300m")
			}
		})
		time.Sleep(30 * time.Second)
		for l.ctx.Err() == nil && l.client.CoreV1().Nodes().Delete(l.ctx, name, metav1.DeleteOptions{}) != nil {
			time.Sleep(time.Second)
		}
	})
}

// wait makes the pods that wait, of 20 kinds and three priorities, and waits until each was tried.
func (l *busy) wait() {
	l.Helper()
	began, first := time.Now(), int(l.serial.Add(int64(*waitingCount)))-*waitingCount
	l.each(*waitingCount, func(i int) error {
		cpu := "500m"
		if i%kinds == 0 {
			cpu = "250m" // fits the ten nodes
		}
		return l.addPod(fmt.Sprintf("waiting-%d", first+i), "waiting", "", cpu, fmt.Sprintf("%dMi", 100+i%kinds), func(spec *corev1.PodSpec) {
			spec.SchedulerName, spec.PriorityClassName = l.scheduler, class([]int32{0, 50, 100}[i%3])
		})
	})
	l.Eventually(15*time.Minute, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		tried := 0
		for i := range *waitingCount {
			if l.tried[fmt.Sprintf("waiting-%d", first+i)] {
				tried++
			}
		}
		if tried < *waitingCount {
			return fmt.Sprintf("%d of %d pods were tried", tried, *waitingCount)
		}
		return ""
	})
	l.Logf("%s: %d pods wait after %.0f s", l.scheduler, *waitingCount, time.Since(began).Seconds())
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

func (t turn) at(percent int) time.Duration {
	return t.waits[min(len(t.waits)-1, len(t.waits)*percent/100)]
}

// milliCPU is the scheduler's CPU time in ms for each pod that it bound.
func (t turn) milliCPU() float64 {
	return float64(t.cpu.Microseconds()) / 1000 / float64(max(1, t.bound))
}

// spent is the number of scheduling attempts beyond one for each pod that was bound.
func (t turn) spent() int {
	return int(t.sum("scheduler_schedule_attempts_total")) - t.bound
}

func (t turn) sum(name string) float64 {
	total := 0.0
	for _, n := range t.by(name, "") {
		total += n
	}
	return total
}

// by returns by how much the metric grew in the turn, by the value of the label.
func (t turn) by(name, label string) map[string]float64 {
	grew := map[string]float64{}
	series, value := regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (\S+)$`), regexp.MustCompile(`\b`+label+`="([^"]*)"`)
	for sign, metrics := range map[float64]string{-1: t.before, 1: t.after} {
		for _, m := range series.FindAllStringSubmatch(metrics, -1) {
			n, _ := strconv.ParseFloat(m[2], 64)
			grew[append(value.FindStringSubmatch(m[1]), "", "")[1]] += sign * n
		}
	}
	return grew
}

// measure runs the stream, the updates and what else is given, and waits until the stream's pods are bound.
func (l *busy) measure(lasts time.Duration, during ...func(context.Context)) turn {
	l.Helper()
	pid := l.env.scheduler.PID()
	ctx, cancel := context.WithTimeout(l.ctx, lasts)
	defer cancel()
	t := turn{before: l.metrics()}
	began, used := time.Now(), cpu(l, pid)
	idle, total := machine(l)
	var work sync.WaitGroup
	for _, do := range append(during, func(ctx context.Context) { every(ctx, *streamRate, l.addStream) }, func(ctx context.Context) { every(ctx, *updateRate, l.update) }) {
		work.Go(func() { do(ctx) })
	}
	work.Wait()
	<-ctx.Done()
	t.took, t.cpu, t.memory = time.Since(began), cpu(l, pid)-used, resident(l, pid)
	idleNow, totalNow := machine(l)
	t.idle = 100 * (idleNow - idle) / (totalNow - total)
	ended := time.Now()
	for t.waits, t.missing = l.waits(began, ended); t.missing > 0 && time.Since(ended) < unbound; t.waits, t.missing = l.waits(began, ended) {
		time.Sleep(100 * time.Millisecond)
	}
	t.after, t.bound = l.metrics(), len(l.boundSince("", began))
	return t
}

// machine returns the machine's idle time and the time of all its processors.
func machine(t testing.TB) (idle, total float64) {
	t.Helper()
	for i, field := range strings.Fields(strings.SplitN(string(must.ReadFile(t, "/proc/stat")), "\n", 2)[0])[1:9] {
		n := must.Get(strconv.ParseFloat(field, 64))(t)
		total += n
		if i == 3 || i == 4 { // idle, and idle while it waits for a disk: proc(5)
			idle += n
		}
	}
	return idle, total
}

// say writes the autoscaler's status: the user pool can grow, or no pool can.
func (l *busy) say(open bool) {
	l.Helper()
	l.open.Store(open)
	count, maximum := map[string]int{}, 0
	for i := range *nodeCount {
		name, _, _ := l.group(i)
		count[name[:strings.LastIndexByte(name, '-')+len("-vmss")]]++
	}
	var groups []string
	for _, group := range slices.Sorted(maps.Keys(count)) {
		maximum = count[group]
		if !open && strings.Contains(group, "user") {
			maximum += 10
		}
		groups = append(groups, groupStatus(group, count[group], count[group], maximum))
	}
	l.groupsSay(groups...)
}

// BenchmarkLoad measures what ships under the load of a busy cluster, with its configuration file, and the in-tree
// profile under the same load. See the flags for the sizes, and docs/performance.md for the results.
//
//   - pairs: the stream beside the waiting pods and the updates, and without waiting pods, in turns.
//   - ends: fifty pods end within a second, on nodes that the waiting pods cannot use, and on nodes that they can use.
//   - gate: the gate opens, and the budget has room for a hundred of the waiting pods, twice.
//   - load: everything at once, while nodes come and go.
func BenchmarkLoad(b *testing.B) {
	pools := []devcluster.Pool{{Name: "userpool", Mode: "user"}, {Name: "systempool", Mode: "system"}, {Name: "roompool", Mode: "user"}}
	l := startBusy(b, devcluster.Options{}, func(i int) (string, string, string) {
		pool := pools[i%5/3]
		if hasRoom(i) {
			pool = pools[2]
		}
		return fmt.Sprintf("%s%06d", pool.Group(), i), pool.Name, pool.Mode
	})
	l.say(true)
	go every(l.ctx, 1.0/30, func(int) { // the status of an autoscaler that writes none is stale after 3 minutes
		if l.open.Load() {
			l.say(true)
		}
	})
	l.control(aksConfig)
	l.waitGated(true)
	fmt.Printf("\n%d nodes, %d waiting pods, %g updates a second\n%-24s %-26s  p50 ms  p99 ms  not bound  bound/s  more attempts  CPU ms a pod  idle\n",
		*nodeCount, *waitingCount, *updateRate, "scheduler", "measured")
	for _, l.scheduler = range []string{devcluster.SchedulerName, corev1.DefaultSchedulerName} {
		config := aksConfig
		if !l.ours() {
			config = "testdata/throughput/default.yaml"
		}
		l.env.scheduler = must.Get(l.StartScheduler(l.ctx, filepath.Join(*bin, devcluster.SchedulerName), config, l.rbac))(b)
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
		float64(t.bound)/t.took.Seconds(), t.spent(), t.milliCPU(), t.idle, more)
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
		l.wait()
		beside := l.measure(*turnLasts)
		without, with = append(without, alone.at(99).Seconds()), append(with, beside.at(99).Seconds())
		cpuWithout, cpuWith = append(cpuWithout, alone.milliCPU()), append(cpuWith, beside.milliCPU())
		l.row("pair, beside the waiting", beside, fmt.Sprintf("medians of %d: p99 %.2f of that without them, or %+.0f ms; CPU %.2f",
			round+1, ratios(with, without), 1000*(middle(with)-middle(without)), ratios(cpuWith, cpuWithout)))
		l.removePods("waiting")
		l.removePods("stream")
	}
	l.wait()
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
		must.NoError(l, l.client.CoreV1().Pods(namespace).DeleteCollection(l.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
			metav1.ListOptions{LabelSelector: "app=waiting", FieldSelector: "spec.nodeName=" + devcluster.VirtualNodeName}))
		time.Sleep(15 * time.Second)
		var opened time.Time
		t := l.measure(*turnLasts, func(context.Context) { time.Sleep(5 * time.Second); opened = time.Now(); l.say(true) })
		l.row("the gate opens", t, l.boundAfter(opened, min(budget, *waitingCount)))
	}
	if wants("load") {
		t := l.measure(*lasts, func(ctx context.Context) { l.churn(ctx, *lasts) })
		l.row("the load", t, "")
		fmt.Printf("\n%s under the load for %v: %.0f %% of a CPU, %.0f MiB; requests a second", l.scheduler, *lasts, 100*t.cpu.Seconds()/t.took.Seconds(), t.memory)
		requests := t.by("rest_client_requests_total", "method")
		for _, method := range slices.Sorted(maps.Keys(requests)) {
			fmt.Printf("; %s %.1f", method, requests[method]/t.took.Seconds())
		}
		fmt.Println("\nscheduler_event_handling_duration_seconds: events, mean")
		count, sum := t.by("scheduler_event_handling_duration_seconds_count", "event"), t.by("scheduler_event_handling_duration_seconds_sum", "event")
		for _, event := range slices.Sorted(maps.Keys(count)) {
			if count[event] > 0 {
				fmt.Printf("  %-40s %7.0f  %.3f ms\n", event, count[event], 1000*sum[event]/count[event])
			}
		}
		if *blockProfile != "" && l.ours() {
			status, profile, err := l.get(l.env.scheduler, "/debug/pprof/block", l.Config.BearerToken)
			if err != nil || status != http.StatusOK {
				l.Fatalf("the block profile: %v, status %d", err, status)
			}
			must.NoError(l, os.WriteFile(*blockProfile, profile, 0o600))
		}
	}
}

// ends returns what deletes this number of pods within a second, after 5 s.
func (l *busy) ends(n int, app string, node func(i int) int) func(context.Context) {
	return func(ctx context.Context) {
		time.Sleep(5 * time.Second)
		for i := range n {
			if err := l.client.CoreV1().Pods(namespace).Delete(ctx, fmt.Sprintf("%s-%d", app, node(i)), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				l.Error(err)
			}
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
	return fmt.Sprintf("%d waiting pods were bound after %v, %d in all", n, bound[n-1].Round(time.Millisecond), len(bound))
}
