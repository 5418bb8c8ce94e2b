package foresight

import (
	"flag"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler/simcluster"
)

var story = flag.Uint64("story", 1, "seed of the history that TestStory tells; with -v")

// TestStory logs one history, step by step. Logging must not change the results of the history.
func TestStory(t *testing.T) {
	p, r := newHistory(t, *story)
	s := &storyteller{T: t, player: p}
	p.watch = s.tell
	p.live(r, func(p *player, pod *corev1.Pod) (bool, string) {
		open, why := ours(p, pod)
		if open {
			s.tellBurst(pod, why)
		}
		return open, why
	})
	if alone := history(t, *story, ours); !reflect.DeepEqual(alone, p.tally) {
		t.Errorf("it went otherwise when nobody watched: %+v, want %+v", alone, p.tally)
	}
	for _, early := range p.early {
		t.Error(early)
	}
}

// storyteller logs what is new at each look.
type storyteller struct {
	*testing.T
	*player
	said           string
	writes, orders int
	groups         []simcluster.Group
}

func (s *storyteller) tell() {
	now := s.player.Now().Format("15:04:05.000")
	if groups := s.Groups(); !reflect.DeepEqual(groups, s.groups) {
		s.groups = groups
		for _, g := range groups {
			s.Logf("%s %s: at most %d, priority %d, boot %v, taint %q for %v, fault %+v, unhealthy %v", now, g.Name, g.Max, g.Priority, g.Boot, g.StartupTaint, g.StartupFor, g.Fault, g.Unhealthy)
		}
	}
	if said := s.says(); said != s.said {
		s.said = said
		s.Logf("%s %s", now, said)
	}
	if w, _ := s.Written(); w != nil && s.Writes() != s.writes {
		s.Logf("%s a status, of a loop that began %s: %s %s; %d of %d pods are pending", now, w.Begun.Format("15:04:05.000"), w.Status.AutoscalerStatus,
			w.Status.ClusterWide.Health.Status, len(s.Pending()), len(s.Pods()))
	}
	s.writes = s.Writes()
	for _, o := range s.Orders()[s.orders:] {
		s.Logf("%s order of %d %s", o.At.Format("15:04:05.000"), o.Nodes, o.Group)
		s.orders++
	}
}

func (s *storyteller) tellBurst(pod *corev1.Pod, why string) {
	s.Logf("%s %s bursts: %s, waiting since %s, looked %s, pauses %v", s.player.Now().Format("15:04:05.000"), pod.Name, why, s.waiting[pod.UID].Format(time.TimeOnly),
		s.view.Pools[0].ScannedBefore.Format("15:04:05.000"), s.view.Pools[0].Outages)
	for i := range s.sources {
		for _, g := range s.view.Pools[i].Groups {
			s.Logf("   %s %s %s moved %s touched %s", g.Name, g.State, g.Reason.Code, g.LastActivity.Format(time.TimeOnly), g.LastChanged.Format(time.TimeOnly))
		}
	}
}
