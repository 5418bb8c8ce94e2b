package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/foresight/trace"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

var replayFile = flag.String("replay", root+"/.devcluster/replay.json", "the part of a day that BenchmarkReplay plays; make replay writes it")

// BenchmarkReplay plays a part of a day on the embedded cluster, ten times as fast as in virtual time. It fails if the
// core-hours differ by more than 10 %.
func BenchmarkReplay(b *testing.B) {
	const speed = 10
	var w trace.Window
	must.NoError(b, json.Unmarshal(must.ReadFile(b, *replayFile), &w))
	second := func(seconds int) time.Duration { return time.Duration(seconds) * time.Second / speed }
	var pools []devcluster.Pool
	for i, mode := range []string{"user", "system"} {
		p := vms(mode+"pool", mode, w.VMs[i], i, w.Max[i], 20-10*i)
		p.CPU, p.Memory, p.BootDelay = resource.MustParse(trace.CPU), resource.MustParse(trace.Memory), metav1.Duration{Duration: second(w.Boot)}
		pools = append(pools, p)
	}
	e := start(b, &devcluster.AutoscalerOptions{Interval: second(10), UnneededTime: second(600), DelayAfterAdd: second(600), DeleteDelay: second(5)}, pools...)
	config := replaced(b, "testdata/aks-no-grace.yaml", "{unknownGrace: 0s}", "{unknownGrace: 0s, provisionGrace: 90s, backoffGrace: 12s, declineGrace: 6s}")
	e.schedule(config, suite.UserTier(w.Max[0]), suite.SystemTier(w.Max[1]), suite.VirtualTier())
	pods, serial := e.Client.CoreV1().Pods(namespace), 0
	began, vmHours, virtualHours := time.Now(), 0.0, 0.0
	for last := began; time.Since(began) < second(w.Seconds); time.Sleep(100 * time.Millisecond) {
		now := time.Now()
		for ; serial < len(w.Pods) && !now.Before(began.Add(second(w.Pods[serial].Created))); serial++ {
			of := &w.Pods[serial]
			pod := of.Object(fmt.Sprint("pod-", serial))
			pod.Spec.SchedulerName, pod.Spec.TerminationGracePeriodSeconds = devcluster.SchedulerName, ptr.To[int64](0)
			must.Do(b)(pods.Create(e.ctx, pod, metav1.CreateOptions{}))
		}
		virtual := 0.0
		for _, pod := range must.Get(e.Referee.Pods.List(labels.Everything()))(b) {
			var i int
			if n, _ := fmt.Sscanf(pod.Name, "pod-%d", &i); n == 0 {
				continue
			}
			of := &w.Pods[i]
			end := began.Add(second(of.Ended))
			if of.Service == "" && pod.Status.StartTime != nil {
				end = pod.Status.StartTime.Add(second(of.Ended - of.Created))
			}
			if (of.Service != "" || pod.Status.StartTime != nil) && !end.After(now) {
				_ = pods.Delete(e.ctx, pod.Name, metav1.DeleteOptions{}) // it may be gone already
			}
			if pod.Spec.NodeName == devcluster.VirtualNodeName {
				virtual += float64(of.CPU) / 1000
			}
		}
		if now.After(began.Add(second(w.Settle))) {
			hours := now.Sub(last).Hours() * speed
			vmHours += hours * trace.Cores * float64(e.pool("userpool").Target()+e.pool("systempool").Target())
			virtualHours += hours * virtual
		}
		last = now
	}
	b.Logf("core-hours of VMs: %.1f, %.1f in virtual time; on the virtual node: %.1f, %.1f in virtual time", vmHours, w.VMHours, virtualHours, w.VirtualHours)
	all, want := vmHours+virtualHours, w.VMHours+w.VirtualHours
	for _, diff := range []float64{vmHours - w.VMHours, virtualHours - w.VirtualHours, all - want} {
		if math.Abs(diff) > want/10 {
			b.Errorf("the core-hours differ by %.1f of %.1f", diff, want)
		}
	}
	e.Referee.Judge()
	for _, m := range e.Referee.Misplaced() {
		b.Error(m.Why)
	}
}
