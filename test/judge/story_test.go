package judge

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/devcluster/autoscaler/virtual"
)

var story = flag.Uint64("story", 0, "seed of the history that TestStory tells")

// TestStory tells one history, step by step.
func TestStory(t *testing.T) {
	if *story == 0 {
		t.Skip("no -story")
	}
	r := rand.New(rand.NewPCG(*story, 7))
	p := newPlayer(t, randomOptions(r))
	t.Logf("%+v", p.Groups())
	states := ""
	writes := 0
	tell := func(p *player, pod *corev1.Pod) (bool, string) {
		open, why := ours(p, pod)
		if open {
			t.Logf("%s %s bursts: %s, waiting since %s, looked %s, %v", p.Now().Format("15:04:05.000"), pod.Name, why, p.waiting[pod.UID].Format(time.TimeOnly), p.view.Pools[0].Looked.Format("15:04:05.000"), p.view.Pools[0].Pauses)
			for i := range p.sources {
				for _, g := range p.view.Pools[i].Groups {
					t.Logf("   %s %s %s moved %s touched %s fits %v", g.Name, g.State, g.Reason.Code, g.Moved.Format(time.TimeOnly), g.Touched.Format(time.TimeOnly), g.Name != "" && p.Fits(pod, g.Name))
				}
			}
		}
		return open, why
	}
	for i := range 40 {
		pods := len(p.Pods())
		disturb(p, r, i)
		d := time.Duration(r.IntN(180)) * time.Second
		t.Logf("%s disturbance %d: pods %d -> %d; running %v", p.Now().Format(time.TimeOnly), i, pods, len(p.Pods()), p.Running())
		for _, g := range p.Groups() {
			if g.Fault != (virtual.Fault{}) || g.Unhealthy {
				t.Logf("   %s %+v unhealthy %v", g.Name, g.Fault, g.Unhealthy)
			}
		}
		for end := p.Now().Add(d); p.Now().Before(end); {
			p.play(min(time.Second, end.Sub(p.Now())), tell)
			if s := p.says(); s != states {
				states = s
				t.Logf("%s %s", p.Now().Format(time.TimeOnly), s)
			}
			if p.Writes() != writes {
				writes = p.Writes()
				w, _ := p.Written()
				if w != nil {
					t.Logf("%s  write begun %s, %s pending %d", w.At.Format("15:04:05.000"), w.Begun.Format("15:04:05.000"), w.Status.ClusterWide.Health.Status, len(p.Pending()))
				}
			}
			for _, o := range p.Orders() {
				if o.At.After(p.Now().Add(-time.Second)) {
					t.Logf("%s order %s %d", o.At.Format("15:04:05.000"), o.Group, o.Nodes)
				}
			}
		}
		if len(p.early) > 0 {
			t.Fatal(p.early)
		}
	}
}
