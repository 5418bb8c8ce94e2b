package integration

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/demo/picture"
	"poolpriority.dev/scheduler/test/devcluster/referee"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
	"poolpriority.dev/scheduler/test/suite"
)

var (
	soakLasts = flag.Duration("soak", 3*time.Minute, "how long BenchmarkSoak lasts")
	soakFile  = flag.String("picture", root+"/.devcluster/soak.svg", "file for BenchmarkSoak's picture")
)

// BenchmarkSoak scales workloads of 20 kinds under the load, and kills a component every 30 s, in random order. The
// autoscaler scales two pools; the load's own nodes are in no pool. It fails if the referee finds a wrong placement, or
// if a pod is not placed in the end. The referee is blind while the API server is down and for some seconds after it is
// back, because it sees the changes late and in another order.
func BenchmarkSoak(b *testing.B) {
	const killEvery, blind = 30 * time.Second, 20 * time.Second
	user, system := vms("userpool", "user", 2, 2, 8, 20), vms("systempool", "system", 1, 1, 4, 10)
	user.CPU, system.CPU = resource.MustParse("4"), resource.MustParse("4")
	l := startBusy(b, devcluster.Options{Pools: []devcluster.Pool{user, system}, Autoscaler: &devcluster.AutoscalerOptions{Interval: 2 * time.Second, UnneededTime: 10 * time.Second}},
		func(i int) (string, string, string) { return fmt.Sprintf("node-%d", i), "plainpool", "" })
	l.args = []string{verbosity}
	l.refused = true // a starting API server forbids all requests for a moment
	ours := []*devcluster.Component{nil, l.controlServing(aksConfig)}
	l.schedule(aksConfig, suite.UserTier(8), suite.SystemTier(4),
		referee.Tier{Name: "no pool", Owns: func(n *corev1.Node) bool {
			return n.Labels[devcluster.ModeLabel] == "" && n.Name != devcluster.VirtualNodeName
		}}, suite.VirtualTier())
	l.Referee.BindingLag = 3 * time.Second // the machine is busy
	ours[0] = l.env.scheduler
	for i := range kinds {
		l.Create(suite.Deployment(fmt.Sprintf("kind-%d", i), 0, "500m"))
	}
	scale := func(kind, replicas int) error {
		_, err := l.Client.AppsV1().Deployments(namespace).UpdateScale(l.ctx, fmt.Sprintf("kind-%d", kind), &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("kind-%d", kind)}, Spec: autoscalingv1.ScaleSpec{Replicas: int32(replicas)}}, metav1.UpdateOptions{})
		return err
	}
	ctx, stop := context.WithCancel(l.ctx)
	defer stop()
	go every(ctx, *streamRate, l.addStream)
	go every(ctx, *updateRate, l.update)
	go l.churn(ctx, *soakLasts)
	again := func(start func(context.Context) error) error { time.Sleep(3 * time.Second); return start(l.ctx) }
	kills := map[string]func() error{
		"scheduler":  func() error { ours[0].Kill(); return ours[0].Restart() },
		"controller": func() error { ours[1].Kill(); return ours[1].Restart() },
		"autoscaler": func() error { l.Autoscaler.Kill(); return again(l.Autoscaler.Start) },
		"connector":  func() error { l.VirtualNode.Stop(); return again(l.VirtualNode.Start) },
		"API server": func() error { return l.RestartAPIServer(l.ctx) },
	}
	both := func(names ...string) []picture.Line { return []picture.Line{{Name: names[0]}, {Name: names[1]}} }
	charts := []picture.Chart{{Title: "memory, MiB", Lines: both("scheduler", "controller")}, {Title: "goroutines", Lines: both("scheduler", "controller")},
		{Title: "creation → binding of the unrelated pods of the last 20 s, ms", Lines: both("median", "longest")}}
	began, sampled, killed := time.Now(), time.Now(), time.Now()
	add := func(chart, line int, value float64) {
		points := &charts[chart].Lines[line].Points
		*points = append(*points, [2]float64{time.Since(began).Seconds(), value})
	}
	names, r := slices.Sorted(maps.Keys(kills)), seed.New(b, 1)
	restarts := 0 // by the kubelet, in a cluster
	var marks []float64
	var apiServer [][2]time.Time // when it was killed, and when it was back
	for ; time.Since(began) < *soakLasts; time.Sleep(time.Second) {
		replicas := r.IntN(2**waitingCount/kinds + 1)
		if time.Since(began)%(3*time.Minute) > 2*time.Minute {
			replicas = r.IntN(3) // the pools shrink
		}
		_ = scale(r.IntN(kinds), replicas)
		if time.Since(sampled) > 5*time.Second {
			for i, c := range ours {
				if err := c.Failed(); err != nil { // it lost its lease while the API server was down
					restarts++
					must.NoError(b, c.Restart())
				}
				add(0, i, resident(b, c.PID()))
				if status, metrics, err := l.scrape(c, l.Config.BearerToken); err == nil && status == http.StatusOK {
					add(1, i, series(string(metrics), "go_goroutines", "-")[""])
				}
			}
			if waits, _ := l.waits(time.Now().Add(-20*time.Second), time.Now().Add(-time.Second)); len(waits) > 0 {
				add(2, 0, float64(waits[len(waits)/2].Milliseconds()))
				add(2, 1, float64(waits[len(waits)-1].Milliseconds()))
			}
			sampled = time.Now()
		}
		if time.Since(killed) > killEvery && time.Since(began)+killEvery < *soakLasts {
			if len(marks)%len(names) == 0 { // each once, then each again
				r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			}
			name := names[len(marks)%len(names)]
			killed, marks = time.Now(), append(marks, time.Since(began).Seconds())
			must.NoError(b, kills[name]())
			if name == "API server" {
				apiServer = append(apiServer, [2]time.Time{killed, time.Now()})
			}
			b.Logf("%.0f s: the %s was killed, and started again after %v", marks[len(marks)-1], name, time.Since(killed).Round(time.Millisecond))
		}
		l.Referee.Judge()
	}
	stop()
	// All pods have room now.
	for kind := range kinds {
		l.retry(func() error { return scale(kind, 2) })
	}
	l.Eventually(5*time.Minute, func() string {
		for _, c := range ours {
			if c.Failed() != nil {
				must.NoError(b, c.Restart())
			}
		}
		for kind := range kinds {
			pods := l.Pods(fmt.Sprintf("kind-%d", kind))
			if len(pods) != 2 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning }) {
				return fmt.Sprintf("kind-%d has %d pods, and 2 should run; %s", kind, len(pods), l.Said(fmt.Sprintf("kind-%d", kind)))
			}
		}
		if waits, missing := l.waits(began, time.Now()); missing > 0 {
			return fmt.Sprintf("%d of %d unrelated pods are lost", missing, len(waits))
		}
		return ""
	})
	waits, _ := l.waits(began, time.Now())
	byTier, _ := l.Referee.Judge()
	unjudged := 0
	for _, m := range l.Referee.Misplaced() {
		if slices.ContainsFunc(apiServer, func(down [2]time.Time) bool { return m.At.After(down[0]) && m.At.Before(down[1].Add(blind)) }) {
			unjudged++
		} else {
			b.Errorf("%.0f s: %v", m.At.Sub(began).Seconds(), m.Why)
		}
	}
	note := fmt.Sprintf("%d nodes, %d kills (grey lines), %v pods by pool; unrelated pods p50 %v, p99 %v", *nodeCount, len(marks), byTier,
		waits[len(waits)/2].Round(time.Millisecond), waits[len(waits)*99/100].Round(time.Millisecond))
	fmt.Printf("\nsoak of %v: %s; %d restarts without a kill; placements in doubt after a kill of the API server: %d\n", *soakLasts, note, restarts, unjudged)
	for _, chart := range charts[:2] {
		for _, line := range chart.Lines {
			fmt.Printf("%s, %s: %.0f at the start, %.0f at the end\n", chart.Title, line.Name, line.Points[0][1], line.Points[len(line.Points)-1][1])
		}
	}
	must.NoError(b, os.MkdirAll(filepath.Dir(*soakFile), 0o755))
	must.NoError(b, os.WriteFile(*soakFile, picture.Charts("Soak under load, with random kills", note, "s", soakLasts.Seconds(), charts, marks), 0o644))
}
