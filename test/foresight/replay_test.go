package foresight

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler/simcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/foresight/trace"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
)

var (
	podsFile  = flag.String("pods", "", "the list of pods that TestReplay plays (package trace has its format); without it, six hours of its own")
	output    = flag.String("replay", "", "directory for TestReplay's replay.svg and replay.json")
	priceList = flag.String("prices", "0.504,0.0405,0.00445 0.297,0.0405,0.00445 0.101,0.0405,0.00445",
		"prices for an hour, of a VM of 8 CPUs and 64 GiB, and on the virtual node of a CPU and of a GB. The defaults are about those of E8s v5 (list price, reserved for a year, spot) and of Container Instances in East US in 2025, in US dollars")
)

const (
	vmBoot, vmJitter, vmReady = 2 * time.Minute, time.Minute, 10 * time.Second

	placeholder, row = "placeholder", "row" // the placeholders' label app, and the label with a pod's row

	ownDay = 6 * time.Hour
	// settle is how long the pods of a window are left alone before it is measured. steep is the window's length.
	settle, steep = 5 * time.Minute, 20 * time.Minute
)

// strategy is a way to use VMs and the virtual node.
type strategy struct {
	name string
	open opener
	// preferred is set if the pods tolerate the virtual node and prefer VMs, and the default scheduler places them.
	preferred bool
	// headroom are the VMs for which there are placeholders, as a share of the VMs at the start.
	headroom float64
	returns  bool
}

var strategies = []strategy{
	{name: "VMs only", open: closed},
	{name: "preferred affinity", open: closed, preferred: true},
	{name: "preferred affinity, placeholders", open: closed, preferred: true, headroom: 0.1},
	{name: "ours as shipped", open: ours},
	{name: "ours, Overflow, makeRoom, Return", open: overflowing, headroom: 0.1, returns: true},
}

// amounts are the CPUs and the GB that all pods request, the CPUs of VMs, the CPUs that pods on VMs request, and the CPUs
// and the GB that pods on the virtual node request: at a time, or times hours.
type amounts [6]float64

const asked, askedGB, ofVMs, used, virtual, virtualGB = 0, 1, 2, 3, 4, 5

// replay plays a list of pods with a strategy.
type replay struct {
	*player
	strategy
	rows    []trace.Pod
	began   time.Time
	next    int               // the first row whose pod is not created yet
	ends    map[int]time.Time // when the row's pod ends; zero: not known yet
	uids    map[int]types.UID // of the row's pod
	placed  map[types.UID]bool
	serial  int
	planner *returnplan.Planner
	round   time.Time // the next round of Return
	last    time.Time
	rates   amounts // since last

	hours     amounts   // times hours
	minutes   []amounts // at each minute
	waits     []float64 // of the pods, in minutes
	misplaced int       // pods in a pool while a node of a better pool had room
	onVirtual int       // pods on the virtual node
	burstSoon int       // those of them that burst while a VM could still be added
	evictions int       // by Return and by the autoscaler
	maxVMs    int
}

// size is a number of VMs of the user pool and of the system pool.
type size [2]int

// sizeOf makes a fifth of the VMs system VMs, and at least one.
func sizeOf(n int) size {
	system := max(n/5, 1)
	return size{max(n-system, 0), system}
}

func (s strategy) play(t testing.TB, number uint64, rows []trace.Pod, lasts time.Duration, first, most size, jitter time.Duration) *replay {
	options := simcluster.Options{
		Seed: number, Autoscaler: autoscaler.Real(), VirtualNode: true, LoopTime: 300 * time.Millisecond,
		SchedulerDelay: schedulerDelay, DeleteDelay: 5 * time.Second, DrainTime: 30 * time.Second, Linger: time.Minute, SizeCache: time.Minute,
	}
	for i, mode := range []string{"user", "system"} {
		template := node(mode, mode, trace.CPU)
		template.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse(trace.Memory)
		options.Groups = append(options.Groups, simcluster.Group{
			Name: groupName(mode), Min: i, Nodes: first[i], Max: most[i], Priority: 20 - 10*i, Template: template, Boot: vmBoot, Jitter: jitter, ReadyAfter: vmReady,
		})
	}
	if s.preferred {
		options.Choose = preferred
	}
	r := &replay{player: newPlayer(t, options), strategy: s, rows: rows, ends: map[int]time.Time{}, uids: map[int]types.UID{}, placed: map[types.UID]bool{}}
	r.quick = true
	r.planner = returnplan.NewPlanner([]*returnplan.Rules{nil, nil, {StableFor: 5 * time.Minute, PerMinute: 2, PerWorkload: 1, Interval: 10 * time.Second}}) // the defaults
	if s.preferred {
		r.UpdateNode(simcluster.VirtualNode, func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }) // without the gate taint
	}
	for range int(math.Ceil(2 * s.headroom * float64(first[0]+first[1]))) {
		r.add(placeholder, -1, &trace.Pod{CPU: 3900, Memory: 29 << 10, Service: placeholder}) // half a VM
	}
	r.began, r.last, r.watch = r.Now(), r.Now(), r.observe
	r.player.play(lasts, r.opens)
	r.observe()
	for _, pod := range r.Pods() {
		if pod.Spec.NodeName == "" && !isPlaceholder(pod) {
			r.waited(pod)
		}
	}
	slices.Sort(r.waits)
	return r
}

// add creates the pod of a row.
func (r *replay) add(app string, at int, of *trace.Pod) {
	r.serial++
	pod := of.Object(fmt.Sprint(app, "-", r.serial))
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, UID: types.UID(app), Controller: ptr.To(true)}
	if of.Service == "" {
		owner.APIVersion, owner.Kind, owner.Name, owner.UID = "batch/v1", "Job", pod.Name, types.UID(pod.Name)
	}
	if app == placeholder {
		pod.Spec.Priority = ptr.To[int32](-1)
	} else if r.preferred {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: simcluster.ProviderTaint, Operator: corev1.TolerationOpExists}}
	}
	pod.OwnerReferences, pod.Labels[row] = []metav1.OwnerReference{owner}, fmt.Sprint(at)
	r.AddPod(pod)
}

// observe counts the time since the last look, judges where pods were placed since then, and lets pods end and come.
func (r *replay) observe() {
	now := r.Now()
	r.count(now)
	var ended []*corev1.Pod
	for _, pod := range r.Pods() {
		at, _ := strconv.Atoi(pod.Labels[row])
		if at < 0 {
			continue
		}
		if before := r.uids[at]; before != "" && before != pod.UID {
			r.evictions++
			if r.rows[at].Service == "" {
				delete(r.ends, at)
			}
		}
		r.uids[at] = pod.UID
		if pod.Spec.NodeName != "" && !r.placed[pod.UID] {
			r.placed[pod.UID] = true
			r.waited(pod)
			r.judge(pod)
			if of := &r.rows[at]; of.Service == "" {
				r.ends[at] = now.Add(time.Duration(of.Ended-of.Created) * time.Second)
			}
		}
		if end := r.ends[at]; !end.IsZero() && !end.After(now) {
			ended = append(ended, pod)
			delete(r.ends, at)
			delete(r.uids, at)
		}
	}
	for _, pod := range ended {
		if pod.Spec.NodeName == "" {
			r.waited(pod)
		}
		r.DeletePod(pod.Name)
	}
	r.alarm = time.Time{}
	for ; r.next < len(r.rows); r.next++ {
		of := &r.rows[r.next]
		if created := r.began.Add(time.Duration(of.Created) * time.Second); created.After(now) {
			r.alarm = created
			break
		}
		if of.Service != "" {
			r.ends[r.next] = r.began.Add(time.Duration(of.Ended) * time.Second)
		}
		r.add(of.Object("").Labels["app"], r.next, of)
	}
	for _, end := range r.ends {
		r.alarm = nodegroups.Earliest(r.alarm, end)
	}
	if r.returns && !now.Before(r.round) {
		r.round = now.Add(10 * time.Second)
		r.returnPods()
	}
	r.rates = r.measure()
}

func (r *replay) waited(pod *corev1.Pod) {
	r.waits = append(r.waits, r.Now().Sub(pod.CreationTimestamp.Time).Minutes())
}

// count adds the amounts since the last look.
func (r *replay) count(now time.Time) {
	for i, rate := range r.rates {
		r.hours[i] += rate * now.Sub(r.last).Hours()
	}
	for r.began.Add(time.Duration(len(r.minutes)) * time.Minute).Before(now) {
		r.minutes = append(r.minutes, r.rates)
	}
	r.last = now
}

func (r *replay) measure() (now amounts) {
	vms := 0
	for _, g := range r.Groups() {
		vms += r.Target(g.Name)
	}
	r.maxVMs, now[ofVMs] = max(r.maxVMs, vms), trace.Cores*float64(vms)
	for _, pod := range r.Pods() {
		at, _ := strconv.Atoi(pod.Labels[row])
		if at < 0 {
			continue
		}
		cpu, gb := float64(r.rows[at].CPU)/1000, float64(r.rows[at].Memory<<20)/1e9
		now[asked], now[askedGB] = now[asked]+cpu, now[askedGB]+gb
		if pod.Spec.NodeName == simcluster.VirtualNode {
			now[virtual], now[virtualGB] = now[virtual]+cpu, now[virtualGB]+gb
		} else if pod.Spec.NodeName != "" {
			now[used] += cpu
		}
	}
	return now
}

// vms returns the VMs of the first pools that may take pods now, with their pods, or without placeholders.
func (r *replay) vms(pools int, placeholders bool) autoscaler.Snapshot {
	nodes := slices.DeleteFunc(r.Nodes(), func(n *corev1.Node) bool { return r.pools.Of(n) >= pools || !autoscaler.Ready(n) })
	return autoscaler.Filters{}.Snapshot(nodes, slices.DeleteFunc(r.Pods(), func(p *corev1.Pod) bool { return !placeholders && isPlaceholder(p) }))
}

func isPlaceholder(pod *corev1.Pod) bool { return pod.Labels["app"] == placeholder }

// judge judges where a pod was placed.
func (r *replay) judge(pod *corev1.Pod) {
	nodes := r.Nodes()
	on := r.pools.Of(nodes[slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == pod.Spec.NodeName })])
	if better, _ := r.vms(on, true).Fits(pod, 0); better != "" {
		r.misplaced++
	}
	if pod.Spec.NodeName != simcluster.VirtualNode {
		return
	}
	r.onVirtual++
	if slices.ContainsFunc(r.Groups(), func(g simcluster.Group) bool { return r.Target(g.Name) < g.Max && r.Fits(pod, g.Name) }) {
		r.burstSoon++
	}
}

// opens asks the gate after it has looked for placeholders that the pod can preempt.
func (r *replay) opens(p *player, pod *corev1.Pod) (bool, string) {
	if isPlaceholder(pod) || r.preferred {
		return false, ""
	}
	if r.headroom > 0 && r.makeRoom(pod) {
		return false, "MakeRoom"
	}
	return r.open(p, pod)
}

// makeRoom preempts placeholders if the pod fits a VM without them, and reports whether it does.
func (r *replay) makeRoom(pod *corev1.Pod) bool {
	name, _ := r.vms(r.pools.Regular(), false).Fits(pod, 0)
	for _, other := range r.Pods() {
		if name == "" || other.Spec.NodeName != name || !isPlaceholder(other) {
			continue
		}
		if there, _ := r.vms(r.pools.Regular(), true).Fits(pod, 0); there == "" {
			r.ReplacePod(other)
		}
	}
	return name != ""
}

// returnPods is a round of Return.
func (r *replay) returnPods() {
	members, byUID := map[types.UID][]returnplan.Member{}, map[types.UID]*corev1.Pod{}
	var pods []returnplan.Pod
	for _, pod := range r.Pods() {
		app := types.UID(pod.Labels["app"])
		m := returnplan.Member{UID: pod.UID, Owner: app, Bound: pod.Spec.NodeName != "", Ready: pod.Spec.NodeName != ""}
		if pod.Spec.NodeName == simcluster.VirtualNode {
			m.Rank = r.pools.Regular()
			if returnplan.Stays(pod) == "" {
				pods = append(pods, returnplan.Pod{UID: pod.UID, Created: pod.CreationTimestamp.Time, Owner: app, Workload: app, Below: m.Rank})
			}
		}
		members[app], byUID[pod.UID] = append(members[app], m), pod
	}
	r.planner.Arrive(r.Now(), members)
	room := r.vms(r.pools.Regular(), true)
	evict, _ := r.planner.Round(r.Now(), r.pools.Regular(), pods, func(p returnplan.Pod) (bool, string) {
		name, _ := room.Fits(byUID[p.UID], 0)
		return name != "" && room.Place(byUID[p.UID], name) == nil, ""
	})
	for _, p := range evict {
		r.planner.Evicted(r.Now(), r.pools.Regular(), p, members[p.Workload])
		r.ReplacePod(byUID[p.UID])
	}
}

// preferred scores nodes as the default profile of kube-scheduler 1.35 does: by node affinity and by the default spread
// over hosts, which a Job's pods do not have (podtopologyspread, buildDefaultConstraints), both with the weight 2, and by
// the least and the balanced use of CPU and memory. The affinity prefers the user pool to the system pool to the virtual
// node, 2:1:0, and the best node gets 100.
func preferred(pod *corev1.Pod, nodes []*corev1.Node, pods []*corev1.Pod) string {
	used, alike := map[string]trace.Pod{}, map[string]float64{}
	for _, other := range append(pods, pod) {
		u, requests := used[other.Spec.NodeName], other.Spec.Containers[0].Resources.Requests
		u.CPU, u.Memory = u.CPU+requests.Cpu().MilliValue(), u.Memory+requests.Memory().Value()
		used[other.Spec.NodeName] = u
		if other.Labels["app"] == pod.Labels["app"] && other != pod {
			alike[other.Spec.NodeName]++
		}
	}
	spread := func(n *corev1.Node) float64 { return alike[n.Name]*math.Log(float64(len(nodes)+2)) + 2 }
	affinity := func(n *corev1.Node) float64 { return map[string]float64{"user": 2, "system": 1}[n.Labels[modeLabel]] }
	least, most, preference := math.Inf(1), 0.0, math.SmallestNonzeroFloat64
	for _, n := range nodes {
		least, most, preference = min(least, spread(n)), max(most, spread(n)), max(preference, affinity(n))
	}
	own := pod.Spec.Containers[0].Resources.Requests
	best, name := -1.0, ""
	for _, n := range nodes {
		cpu := float64(used[n.Name].CPU+own.Cpu().MilliValue()) / float64(n.Status.Allocatable.Cpu().MilliValue())
		memory := float64(used[n.Name].Memory+own.Memory().Value()) / float64(n.Status.Allocatable.Memory().Value())
		score := 2*100*affinity(n)/preference + 100*(2-cpu-memory)/2 + 100*(1-math.Abs(cpu-memory)/2)
		if metav1.GetControllerOf(pod).Kind != "Job" {
			score += 2 * 100 * (most + least - spread(n)) / most
		}
		if score > best {
			best, name = score, n.Name
		}
	}
	return name
}

// prices are for an hour: of a VM, and on the virtual node of a CPU and a GB.
type prices [3]float64

func (p prices) of(hours *amounts) float64 {
	return hours[ofVMs]/trace.Cores*p[0] + hours[virtual]*p[1] + hours[virtualGB]*p[2]
}

// TestReplay plays a list of pods with each strategy, and with VMs for at most 50, 80 and 110 % of the peak, which is what
// the autoscaler orders without a maximum. At the start there are VMs for the median load.
func TestReplay(t *testing.T) {
	number := seed.Of(t, 1)
	rows, lasts := trace.Own(number, int(ownDay.Seconds())), ownDay
	if *podsFile != "" {
		rows, lasts = must.Get(trace.Read(*podsFile))(t), trace.Day*time.Second
	}
	free := strategies[0].play(t, number, rows, lasts, sizeOf(2), sizeOf(1000), vmJitter)
	loads := make([]float64, len(free.minutes))
	for i, at := range free.minutes {
		loads[i] = at[asked]
	}
	slices.Sort(loads)
	median := int(math.Ceil(float64(free.maxVMs) * loads[len(loads)/2] / loads[len(loads)-1]))
	shares := []int{50, 80, 110}
	played := make([]*replay, len(shares)*len(strategies))
	sizes := func(i int) (first, most size) {
		n := max(2, (free.maxVMs*shares[i]+99)/100)
		return sizeOf(min(median, n)), sizeOf(n)
	}
	workqueue.ParallelizeUntil(t.Context(), runtime.GOMAXPROCS(0), len(played), func(i int) {
		first, most := sizes(i / len(strategies))
		played[i] = strategies[i%len(strategies)].play(t, number, rows, lasts, first, most, vmJitter)
	})
	t.Logf("%d pods request %.0f core-hours, at most %.0f CPUs; the autoscaler orders at most %d VMs without a maximum; %d for the median load",
		len(rows), free.hours[asked], loads[len(loads)-1], free.maxVMs, median)
	var list []prices
	for text := range strings.FieldsSeq(*priceList) {
		var p prices
		must.Do(t)(fmt.Sscanf(text, "%g,%g,%g", &p[0], &p[1], &p[2]))
		list = append(list, p)
		onVirtual := p.of(&amounts{virtual: free.hours[asked], virtualGB: free.hours[askedGB]}) / free.hours[asked] // for a core-hour
		t.Logf("at %v for an hour, a VM is cheaper than the virtual node if pods request more than %.0f %% of its CPUs", p, 100*p[0]/trace.Cores/onVirtual)
	}
	for i, r := range played {
		if i%len(strategies) == 0 {
			_, most := sizes(i / len(strategies))
			t.Logf("at most %d VMs, %d %% of the peak: core-hours of VMs, used there, on the virtual node | waiting: pod-minutes, p50, p99 (minutes) | order violations, bursts, early bursts | evictions | cost", most[0]+most[1], shares[i/len(strategies)])
		}
		r.report(t, list)
		if r.preferred {
			if *podsFile == "" && (r.misplaced == 0 || r.burstSoon == 0) {
				t.Errorf("%s: the order is never violated: it is not judged", r.name)
			}
			continue
		}
		// Two loops: one begins before the autoscaler looks at the pod, and one sees the VM.
		longest := vmBoot + vmJitter + vmReady + 2*(10*time.Second+300*time.Millisecond)
		if r.misplaced+r.burstSoon+len(r.early)+r.price > 0 || shares[i/len(strategies)] > 100 && r.onVirtual > 0 {
			t.Errorf("%s: %d order violations, %d early bursts, %d bursts: %v", r.name, r.misplaced, r.burstSoon+r.price, r.onVirtual, r.early)
		}
		if p99 := r.wait(0.99); i%len(strategies) > 0 && p99 > longest.Minutes() {
			t.Errorf("%s: p99 of waiting is %.1f minutes, want at most %.1f", r.name, p99, longest.Minutes())
		}
	}
	if *output != "" {
		must.NoError(t, os.MkdirAll(*output, 0o755))
		draw(t, played[len(strategies):2*len(strategies)], lasts)
		window(t, played[len(strategies)+3], number)
	}
}

func (r *replay) wait(quantile float64) float64 {
	return r.waits[int(quantile*float64(len(r.waits)-1))]
}

func (r *replay) report(t testing.TB, list []prices) {
	sum := 0.0
	for _, w := range r.waits {
		sum += w
	}
	cost := ""
	for _, p := range list {
		cost += fmt.Sprintf(" %.0f", p.of(&r.hours))
	}
	t.Logf("%-32s %5.0f %5.0f %5.0f | %6.0f %5.1f %6.1f | %4d %4d %4d | %3d |%s", r.name, r.hours[ofVMs], r.hours[used], r.hours[virtual],
		sum, r.wait(0.5), r.wait(0.99), r.misplaced, r.onVirtual, r.burstSoon, r.evictions, cost)
}

// draw draws the CPUs over time, with a chart for each strategy.
func draw(t testing.TB, played []*replay, lasts time.Duration) {
	const every = 10 // minutes
	var charts []picture.Chart
	for _, r := range played {
		lines := []picture.Line{{Name: "CPUs of VMs"}, {Name: "on the virtual node"}, {Name: "requested"}}
		for i := 0; i < len(r.minutes); i += every {
			for l, amount := range []int{ofVMs, virtual, asked} {
				lines[l].Points = append(lines[l].Points, [2]float64{float64(i) / 60, math.Round(r.minutes[i][amount])})
			}
		}
		charts = append(charts, picture.Chart{Title: fmt.Sprintf("%s: %.0f core-hours of VMs, %.0f on the virtual node", r.name, r.hours[ofVMs], r.hours[virtual]), Lines: lines})
	}
	must.NoError(t, os.WriteFile(filepath.Join(*output, "replay.svg"), picture.Charts("A day with five strategies", "VMs for at most 80 % of the peak; a grey line every six hours", "h", lasts.Hours(), charts, []float64{6, 12, 18}), 0o644))
}

// window plays the twenty minutes in which most CPUs are added, and writes what BenchmarkReplay plays again.
func window(t testing.TB, r *replay, number uint64) {
	from, steepest := 0, 0.0
	for at := settle; int((at + steep).Minutes()) < len(r.minutes); at += time.Minute {
		if rise := r.minutes[int((at + steep).Minutes())][asked] - r.minutes[int(at.Minutes())][asked]; rise > steepest {
			from, steepest = int((at - settle).Seconds()), rise
		}
	}
	w := trace.Window{Settle: int(settle.Seconds()), Seconds: int((settle + steep).Seconds()), Boot: int((vmBoot + vmReady).Seconds())}
	for i := range w.Max {
		w.Max[i] = r.Groups()[1-i].Max // sorted by name
	}
	w.Pods, w.VMs = trace.Clip(r.rows, from, from+w.Seconds), sizeOf(int(r.minutes[from/60][ofVMs])/trace.Cores)
	again := strategies[3].play(t, number, w.Pods, settle+steep, w.VMs, w.Max, 0)
	for _, at := range again.minutes[w.Settle/60:] {
		w.VMHours, w.VirtualHours = w.VMHours+at[ofVMs]/60, w.VirtualHours+at[virtual]/60
	}
	t.Logf("from %v on, %.0f CPUs are added in %v: %.1f core-hours of VMs, %.1f on the virtual node", time.Duration(from+w.Settle)*time.Second, steepest, steep, w.VMHours, w.VirtualHours)
	must.NoError(t, os.WriteFile(filepath.Join(*output, "replay.json"), must.Get(json.Marshal(w))(t), 0o644))
}

// TestRead: the columns are read by their names, and an error names the line and the column.
func TestRead(t *testing.T) {
	const header = "created_s,ended_s,cpu_milli,memory_mib,"
	for text, want := range map[string]string{
		header + "app\n5,90,100,64,web\n":          "[{5 90 100 64 web}]",
		header + "app\r\n5,90,100,64,web\r\n":      "[{5 90 100 64 web}]",
		header + "qos\n5,90,100,64,BE\n":           "[{5 90 100 64 }]",
		header + "app\n":                           "line 1 must be created_s,ended_s",
		"":                                         "line 1 must be created_s,ended_s",
		"5,90,100,64,web\n5,90,100,64,web\n":       "line 1 must be created_s,ended_s",
		header + "app,x\n5,90,100,64,web,x\n":      "line 1 must be created_s,ended_s",
		header + "app\n5,90,100,64\n":              "line 2: wrong number of fields",
		header + "app\n5,90,1,1,a\n-1,90,1,1,a\n":  `line 3: created_s is "-1", and must be a whole number from 0 to 86399`,
		header + "app\n90,90,100,64,web\n":         `line 2: ended_s is "90", and must be a whole number from 91`,
		header + "app\n5,90,7821,64,web\n":         `line 2: cpu_milli is "7821", and must be a whole number from 1 to 7820`,
		header + "app\n5,90,100,1.5,web\n":         `line 2: memory_mib is "1.5", and must be a whole number`,
		header + "app\n5,99999999999999999999,1,1": "line 2: wrong number of fields",
	} {
		file := filepath.Join(t.TempDir(), "pods.csv")
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		pods, err := trace.Read(file)
		if got := fmt.Sprint(pods, err); !strings.Contains(got, want) {
			t.Errorf("%q is read as %s, want %s", text, got, want)
		}
	}
}
