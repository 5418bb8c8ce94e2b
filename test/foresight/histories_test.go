package foresight

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/static"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
	"poolpriority.dev/scheduler/test/devcluster/autoscaler/simcluster"
	"poolpriority.dev/scheduler/test/seed"
)

// scenario returns a cluster with the groups, and the flags of the real autoscaler, after two minutes.
func scenario(t testing.TB, groups ...simcluster.Group) *player {
	return scenarioOf(t, func(*simcluster.Options) {}, groups...)
}

// scenarioOf is like scenario, with other options.
func scenarioOf(t testing.TB, change func(*simcluster.Options), groups ...simcluster.Group) *player {
	options := simcluster.Options{
		Seed: 1, Start: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), Groups: groups, Autoscaler: autoscaler.Real(), VirtualNode: true,
		LoopTime: 300 * time.Millisecond, SchedulerDelay: schedulerDelay, DeleteDelay: 5 * time.Second, Linger: time.Minute, SizeCache: time.Minute,
	}
	change(&options)
	p := newPlayer(t, options)
	p.play(2*time.Minute, ours)
	return p
}

func vms(agentPool, mode string, nodes, maximum, priority int, taints ...corev1.Taint) simcluster.Group {
	return simcluster.Group{Name: groupName(agentPool), Nodes: nodes, Max: maximum, Priority: priority, Template: node(mode, agentPool, "2", taints...), Boot: time.Minute}
}

// add creates n pods, each of which fills a VM.
func (p *player) add(name string, n int, changes ...func(*corev1.Pod)) {
	for i := range n {
		p.AddPod(pod(fmt.Sprint(name, "-", i), "1500m", changes...))
	}
}

// burst returns how many of the pods that add created with the name were let in.
func (p *player) burst(name string) int {
	n := 0
	for i := 0; p.Pod(fmt.Sprint(name, "-", i)) != nil; i++ {
		if _, ok := p.at[fmt.Sprint(name, "-", i)]; ok {
			n++
		}
	}
	return n
}

func (p *player) expectBurst(t *testing.T, name string, want int) {
	t.Helper()
	if got := p.burst(name); got != want {
		t.Errorf("%d pods %s have burst, want %d; %s", got, name, want, p.says())
	}
	for _, early := range p.early {
		t.Error(early)
	}
}

// TestHistories plays histories that are typical of real clusters.
func TestHistories(t *testing.T) {
	const minute, hour = time.Minute, time.Hour
	t.Run("a stockout of the first pool: nothing bursts until the second is full, too", func(t *testing.T) {
		first := vms("general", "user", 1, 3, 20)
		first.Fault = simcluster.Fault{ErrorCode: "AllocationFailed"}
		p := scenario(t, first, vms("system", "system", 1, 4, 10))
		p.add("web", 8)
		p.play(2*minute, ours)
		p.expectBurst(t, "web", 0)
		p.play(20*minute, ours)
		p.expectBurst(t, "web", 3) // 1 + 4 on VMs
	})
	t.Run("a gang that completes after six minutes", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 1, 4, 20))
		p.SetGroup(groupName("general"), func(g *simcluster.Group) { g.Boot = 3 * minute })
		for i := range 4 { // nothing is ordered for pods that the autoscaler does not see
			p.stopped[fmt.Sprint("gang-", i)] = p.Now().Add(6 * minute)
		}
		p.add("gang", 4, func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{gate.DelayAnnotation: "6m"}
		})
		p.play(6*minute+30*time.Second, ours)
		p.expectBurst(t, "gang", 0)
		p.play(6*minute, ours)
		p.expectBurst(t, "gang", 0)
	})
	t.Run("a GPU group that rises every four minutes for six hours", func(t *testing.T) {
		gpu := vms("gpu", "user", 1, 100, 10, gpuTaint)
		p := scenario(t, vms("general", "user", 2, 2, 20), gpu)
		p.add("full", 2)
		p.play(minute, ours)
		for i := range 90 {
			p.add(fmt.Sprint("gpu", i), 1, toleratesGPU)
			name := fmt.Sprint("web", i)
			if i%10 == 5 {
				p.add(name, 1)
			}
			p.play(10*time.Second, ours)
			if i%10 == 5 && p.burst(name) != 1 {
				t.Errorf("%s waits beside a tainted group that grows for others; %s", name, p.says())
			}
			p.play(4*minute-10*time.Second, ours)
		}
		p.expectBurst(t, "gpu50", 0)
	})
	t.Run("beside a tainted group whose taint is known, a plain pod bursts within 2 s of the last VM's being full", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 2, 2, 20), vms("gpu", "user", 1, 4, 10, gpuTaint))
		p.play(2*minute, ours) // the first GPU VM is three minutes old
		p.add("full", 2)
		p.play(2*time.Second, ours)
		p.add("web", 3)
		p.play(2*time.Second, ours)
		p.expectBurst(t, "web", 3)
	})
	t.Run("beside one at zero of which nothing is known: declineGrace and two loops, and 2 s for the next of the kind", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 2, 2, 20), vms("gpu", "user", 0, 4, 10, gpuTaint))
		p.delay = -1
		p.add("full", 2)
		p.play(2*time.Second, ours)
		p.add("web", 3)
		p.play(declineGrace-time.Second, ours)
		p.expectBurst(t, "web", 0)
		p.play(2*10*time.Second+3*time.Second, ours)
		p.expectBurst(t, "web", 3)
		p.add("next", 3)
		p.play(2*time.Second, ours)
		p.expectBurst(t, "next", 3)
	})
	t.Run("beside one at zero, with the autoscaler's events: two loops and 5 s, for each pod by its own event", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 2, 2, 20), vms("gpu", "user", 0, 4, 10, gpuTaint))
		p.add("full", 2)
		p.play(2*time.Second, ours)
		for _, name := range []string{"web", "next"} {
			p.add(name, 3)
			p.expectBurst(t, name, 0)
			p.play(2*10*time.Second+5*time.Second, ours)
			p.expectBurst(t, name, 3)
		}
		if p.kinds.Known() {
			t.Error("the decline is remembered for other pods")
		}
	})
	t.Run("an event from the time when VMs were on their way does not count, and the autoscaler writes no second one", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 1, 2, 20), vms("gpu", "user", 0, 4, 10, gpuTaint))
		p.add("web", 4)
		p.play(time.Minute+20*time.Second, ours) // the second VM is full
		if n := len(p.Pending()); n != 2 {
			t.Fatalf("%d pods are pending", n)
		}
		p.play(30*time.Second, ours)
		p.expectBurst(t, "web", 0)
		p.play(declineGrace, ours)
		p.expectBurst(t, "web", 2)
	})
	t.Run("beside one at zero that was seen before: at once", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 2, 2, 20), vms("gpu", "user", 1, 4, 10, gpuTaint))
		p.play(20*minute, ours) // the GPU VM is removed, because no pod needs it
		if p.Target(groupName("gpu")) != 0 {
			t.Fatal("the GPU group is not at zero")
		}
		p.add("full", 2)
		p.play(3*minute, ours)
		p.add("web", 3)
		p.play(2*time.Second, ours)
		p.expectBurst(t, "web", 3)
		p.add("gpu", 1, toleratesGPU)
		p.play(5*minute, ours)
		p.expectBurst(t, "gpu", 0)
	})
	t.Run("a Windows group", func(t *testing.T) {
		windows := vms("npwin", "user", 1, 3, 10)
		windows.Name, windows.Template.Labels[corev1.LabelOSStable] = "aksnpwin", "windows"
		p := scenario(t, vms("general", "user", 1, 1, 20), windows)
		onWindows := func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} }
		onLinux := func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"} }
		p.add("windows", 3, onWindows)
		p.add("linux", 2, onLinux)
		p.play(5*time.Second, ours)
		p.expectBurst(t, "linux", 1)
		p.play(5*minute, ours)
		p.expectBurst(t, "windows", 0)
	})
	t.Run("a static pool at two of three for ten days", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 2, 2, 20))
		p.static = &static.MaxNodes{Nodes: 3, MinWait: provisionGrace}
		p.Stop() // there is no autoscaler
		p.add("web", 3)
		p.play(14*minute, ours)
		p.expectBurst(t, "web", 0)
		p.play(2*minute, ours)
		p.expectBurst(t, "web", 1)
		for day := range 10 {
			p.play(24*hour, ours)
			name := fmt.Sprint("day", day)
			p.add(name, 1)
			p.play(provisionGrace+minute, ours)
			p.expectBurst(t, name, 1)
		}
	})
	t.Run("pools that fail in turn", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 1, 3, 20), vms("system", "system", 1, 3, 10))
		p.add("web", 4)
		faults := []simcluster.Fault{{Refusal: "QuotaExceeded"}, {NeverRegisters: true}}
		for i := 0; i < 60 && p.burst("web") < 2; i++ {
			p.SetGroup(groupName("general"), func(g *simcluster.Group) { g.Fault = faults[i%2] })
			p.SetGroup(groupName("system"), func(g *simcluster.Group) { g.Fault = faults[(i+1)%2] })
			p.play(4*minute, ours)
		}
		for i := range 4 {
			name := fmt.Sprint("web-", i)
			if held := p.Now().Sub(p.Pod(name).CreationTimestamp.Time); p.Pod(name).Spec.NodeName == "" && held > holdLimit+minute {
				t.Errorf("%s has been held for %v", name, held)
			}
		}
		if got := p.burst("web"); got != 2 {
			t.Errorf("%d have burst, want 2", got)
		}
	})
	t.Run("a pod that is to be ignored for a day", func(t *testing.T) {
		p := scenario(t, vms("general", "user", 1, 3, 20))
		p.add("full", 1)
		p.add("web", 1, func(pod *corev1.Pod) { pod.Annotations = map[string]string{gate.DelayAnnotation: "24h"} })
		p.play(holdLimit-minute, ours)
		p.expectBurst(t, "web", 0)
		p.play(holdLimit+2*minute, ours)
		p.expectBurst(t, "web", 1)
	})
	t.Run("a VM whose start-up taint goes 40 s after Ready", func(t *testing.T) {
		slow := vms("general", "user", 1, 2, 20)
		slow.StartupTaint, slow.StartupFor = "example.com/agent-not-there", 40*time.Second
		p := scenario(t, slow)
		p.play(16*minute, ours) // the first VM is then old enough to serve as a template
		p.add("web", 2)
		p.play(5*minute, ours)
		p.expectBurst(t, "web", 0)
		p.add("more", 1)
		p.play(2*time.Second, ours)
		p.expectBurst(t, "more", 1)
	})
}

// TestTakenBack: cluster autoscaler 1.36 takes back a scale-up that timed out. The group is then in backoff, and full
// after backoffGrace. When the backoff is over, the autoscaler tries again, and the group is growing. VMs that
// never register are replaced without a backoff, and the group grows all the time. No pod is let in early, or held for
// longer than its credit lasts.
func TestTakenBack(t *testing.T) {
	const minute = time.Minute
	for _, tc := range []struct {
		name    string
		maximum int
		fault   simcluster.Fault
		mended  time.Duration // when VMs come again; 0: never
		want    string        // the group's first states, with the minutes of their beginnings
		longest time.Duration // that a pod is held
	}{
		{"no VMs at the maximum size", 3, simcluster.Fault{NoVM: true}, 0,
			"0 BelowMaxSize, 0 Provisioning, 15 NodesMissing, 15 BackingOff, 17 Backoff, 25 BelowMaxSize, 27 Provisioning, 45 NodesMissing, 45 BackingOff, 47 Backoff, ", 20 * minute},
		{"no VMs below the maximum size", 100, simcluster.Fault{NoVM: true}, 0, "0 BelowMaxSize, 0 Provisioning, ", 20 * minute},
		{"no VMs, while the maximum size is reached later", 5, simcluster.Fault{NoVM: true}, 0,
			"0 BelowMaxSize, 0 Provisioning, 21 NodesMissing, 21 BackingOff, 23 Backoff, 31 BelowMaxSize, 33 Provisioning, ", 20 * minute},
		{"no VMs for half an hour", 5, simcluster.Fault{NoVM: true}, 30 * minute,
			"0 BelowMaxSize, 0 Provisioning, 21 NodesMissing, 21 BackingOff, 23 Backoff, 31 BelowMaxSize, 33 Provisioning, 34 BelowMaxSize, ", 20 * minute},
		{"VMs that never register", 5, simcluster.Fault{NeverRegisters: true}, 0, "0 BelowMaxSize, 0 Provisioning, ", 20 * minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := scenarioOf(t, func(o *simcluster.Options) {
				o.SizeCache, o.Autoscaler.Minor = 0, 36 // with Azure's cache, the target seems to rise when a VM is replaced
			}, vms("general", "user", 1, tc.maximum, 20))
			p.SetGroup(groupName("general"), func(g *simcluster.Group) { g.Fault = tc.fault })
			began, states, last := p.Now(), "", ""
			p.watch = func() {
				if code := p.view.Pools[0].Groups[0].Reason.Code; code != last {
					last, states = code, fmt.Sprintf("%s%d %s, ", states, p.Now().Sub(began)/minute, code)
				}
			}
			p.add("web", 3)
			var longest time.Duration
			for i := range 40 {
				p.play(3*minute, ours)
				if tc.mended > 0 && p.Now().Sub(began) >= tc.mended {
					p.SetGroup(groupName("general"), func(g *simcluster.Group) { g.Fault = simcluster.Fault{} })
				}
				for _, pod := range p.Pending() {
					longest = max(longest, p.Now().Sub(pod.CreationTimestamp.Time))
				}
				p.add(fmt.Sprint("later", i), 1)
			}
			if !strings.HasPrefix(states, tc.want) || longest > tc.longest {
				t.Errorf("states %s; want %s; a pod was held for %v, want at most %v; bursts %v", states, tc.want, longest, tc.longest, p.bursts)
			}
			p.expectBurst(t, "none", 0) // nothing is early
		})
	}
}

func setFaults(p *player, fault simcluster.Fault) {
	for _, g := range p.Groups() {
		p.SetGroup(g.Name, func(g *simcluster.Group) { g.Fault = fault })
	}
}

// setProvisionGrace sets provisionGrace of the first pool, and the time after which the autoscaler gives a VM up.
func setProvisionGrace(p *player, grace time.Duration) {
	p.tracker = clusterautoscaler.NewTracker(3*time.Minute, grace)
	p.pools.At(0).Graces.Provision, p.sources[0].Graces.Provision = grace, grace
	for i := range p.sources {
		p.sources[i].Tracker = p.tracker
	}
}

// TestCredit: where VMs never serve pods, each pod is held for at most 20 min, and later pods of the kind only while one
// of them is the trial. Where VMs serve pods, however slowly, nothing bursts.
func TestCredit(t *testing.T) {
	const minute = time.Minute
	slow := func(g simcluster.Group, boot time.Duration) simcluster.Group { g.Boot = boot; return g }
	unready := func(g simcluster.Group) simcluster.Group { g.ReadyAfter = 2 * minute; return g }
	one := []simcluster.Group{vms("general", "user", 1, 50, 20)}
	noLimit := func(p *player) { p.rule.HoldLimit = 0 }
	dead := func(p *player) { noLimit(p); setFaults(p, simcluster.Fault{NeverRegisters: true}) }
	provisions := func(o *simcluster.Options) { o.Autoscaler.MaxNodeProvisionTime = 30 * minute }
	change := func(p *player, do func(node string)) { // new VMs, before they are ready
		for _, node := range p.Nodes() {
			if p.GroupOf(node.Name) == groupName("general") && node.CreationTimestamp.After(time.Date(2026, 11, 21, 10, 1, 0, 0, time.UTC)) {
				do(node.Name)
			}
		}
	}
	for _, tc := range []struct {
		name    string
		groups  []simcluster.Group
		options func(*simcluster.Options) // may be nil
		begin   func(p *player)           // before the pods come; may be nil
		pods    int
		each    func(p *player, i int) // called every half minute; may be nil
		burst   int                    // of the pods, in an hour, after at most 20 min
		later   int                    // of three pods of the kind that come after an hour, at once
	}{
		{"an autoscaler that dies after every loop", one, nil, dead, 3, func(p *player, i int) {
			if p.Kill(); i%2 > 0 {
				p.Start()
			}
		}, 2, 2},
		{"VMs that never register", one, nil, dead, 3, nil, 2, 2},
		{"the same, and the owner replaces its pods every three minutes", one, nil, dead, 3, func(p *player, i int) {
			for _, old := range p.Pending() {
				if i%6 == 5 {
					p.DeletePod(old.Name)
					p.AddPod(pod(old.Name, "1500m"))
				}
			}
		}, 2, 2},
		{"spot VMs that vanish before they are ready, and the autoscaler gives them up", []simcluster.Group{unready(one[0])}, nil, noLimit, 3, func(p *player, _ int) {
			change(p, p.RecreateVM)
		}, 2, 0},
		{"nodes that are smaller than the autoscaler believes", []simcluster.Group{unready(one[0])}, nil, noLimit, 3, func(p *player, _ int) {
			change(p, func(name string) {
				p.UpdateNode(name, func(n *corev1.Node) { n.Status.Allocatable = node("user", "general", "1").Status.Allocatable })
			})
		}, 2, 2},
		{"VMs that come only when they are ordered again, after 15 minutes", one, nil, dead, 3, func(p *player, i int) {
			if i == 28 {
				setFaults(p, simcluster.Fault{})
			}
		}, 0, 0},
		{"VMs that take 14 minutes", []simcluster.Group{slow(one[0], 14*minute)}, nil, nil, 5, nil, 0, 0},
		{"200 VMs in steps of 10 every two minutes", []simcluster.Group{slow(vms("general", "user", 1, 210, 20), 14*minute)}, nil, nil, 10, func(p *player, i int) {
			if i%4 == 3 && i < 76 {
				p.add(fmt.Sprint("step", i), 10)
			}
		}, 0, 0},
		{"three groups in turn, 14 minutes each", []simcluster.Group{slow(vms("general", "user", 1, 2, 30), 14*minute), slow(vms("more", "user", 0, 1, 20), 14*minute), slow(vms("system", "system", 0, 2, 10), 14*minute)}, nil, nil, 4, nil, 0, 0},
		{"two pools in turn, of which the first has provisionGrace 30m", []simcluster.Group{slow(vms("general", "user", 1, 2, 30), 25*minute), slow(vms("system", "system", 0, 2, 10), 14*minute)}, provisions, func(p *player) { setProvisionGrace(p, 30*minute) }, 3, nil, 0, 0},
		{"the same, and the first pool's VMs never come", []simcluster.Group{vms("general", "user", 1, 2, 30), slow(vms("system", "system", 0, 5, 10), 14*minute)}, func(o *simcluster.Options) {
			provisions(o)
			o.Autoscaler.Minor = 35 // 1.36 does not give the group up
		}, func(p *player) {
			setProvisionGrace(p, 30*minute)
			p.SetGroup(groupName("general"), func(g *simcluster.Group) { g.Fault = simcluster.Fault{NeverRegisters: true} })
		}, 3, nil, 0, 0},
		{"VMs that other pods take", []simcluster.Group{vms("general", "user", 1, 200, 20)}, nil, noLimit, 1, func(p *player, i int) {
			p.UpdatePod("web-0", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "ours" }) // no VM takes it
			if i%8 == 0 {
				p.add(fmt.Sprint("other", i), 1)
			}
		}, 0, 0},
		{"pods that the autoscaler ignores for 20 minutes", one, func(o *simcluster.Options) { o.Autoscaler.NewPodDelay = 20 * minute }, func(p *player) { p.rule.NewPodDelay = 20 * minute }, 3, nil, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := scenarioOf(t, func(o *simcluster.Options) {
				if o.SizeCache, o.Autoscaler.Minor = 0, 36; tc.options != nil {
					tc.options(o)
				}
			}, tc.groups...)
			if tc.begin != nil {
				tc.begin(p)
			}
			p.add("web", tc.pods)
			began := p.Now()
			for i := range 120 {
				if p.play(30*time.Second, ours); tc.each != nil {
					tc.each(p, i)
				}
			}
			p.expectBurst(t, "web", tc.burst)
			for name, at := range p.at {
				if held := at.Sub(began); held > 20*minute {
					t.Errorf("%s was held for %v; %s", name, held, p.says())
				}
			}
			p.add("later", 3)
			p.play(5*time.Second, ours)
			if got := p.burst("later"); got != tc.later { // the judge does not see that an ordered VM is of no use
				t.Errorf("%d later pods have burst, want %d", got, tc.later)
			}
		})
	}
}

// TestSpikes creates forty pods at different times of a scale-in. No pod bursts while a group that it fits can grow.
func TestSpikes(t *testing.T) {
	r := seed.New(t, 1)
	burst := 0
	for i := range 200 {
		p := scenario(t, vms("general", "user", 3, 3, 20), vms("system", "system", 2, 2, 10))
		p.add("old", 5)
		p.play(2*time.Minute, ours)
		for _, old := range p.Pods() {
			p.DeletePod(old.Name)
		}
		// The VMs are unneeded for ten minutes, then tainted, then deleted; their Nodes linger for a minute.
		p.play(9*time.Minute+50*time.Second+time.Duration(i)*500*time.Millisecond+time.Duration(r.IntN(500))*time.Millisecond, ours)
		p.add("spike", 40)
		p.play(5*time.Minute, ours)
		for _, early := range p.early {
			t.Errorf("spike %d: %s", i, early)
		}
		burst += p.burst("spike")
		if got := p.burst("spike"); got > 35 {
			t.Errorf("spike %d: %d of 40 pods have burst, and there is room for five on VMs", i, got)
		}
	}
	if burst == 0 {
		t.Error("nothing has ever burst")
	}
	t.Logf("%d of 8,000 pods have burst", burst)
}
