package cli

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/published"
)

// growing is a world with a full user pool. A second node of the system pool is on its way.
func growing(t *testing.T, change ...func(*configv1.PoolPriorityArgs)) *world {
	w := newWorld(t, change...).vms(3, 1)
	w.write(10*time.Minute, 3*time.Minute, nodeGroup(userGroup, 2, 3, 3), nodeGroup(systemGroup, 1, 1, 2))
	w.write(2*time.Minute, 40*time.Second, nodeGroup(userGroup, 3, 3, 3), nodeGroup(systemGroup, 1, 1, 2))
	w.write(35*time.Second, 0, nodeGroup(userGroup, 3, 3, 3), nodeGroup(systemGroup, 2, 1, 2))
	w.change = usage(use(9, "5100m", "5700m", "9Gi", "18Gi"), use(3, "1700m", "1900m", "3Gi", "6Gi"))
	w.held = published.Held{Total: 11, Oldest: date.Add(-41 * time.Second), By: []published.HeldBy{{Pool: "system", Reason: gate.ReasonGrowing.Code, Pods: 9}, {Pool: "aci", Reason: "PersistentVolume", Pods: 2}}}
	return w
}

// full is a world in which no pool can grow.
func full(t *testing.T, change ...func(*configv1.PoolPriorityArgs)) *world {
	w := newWorld(t, change...).vms(3, 2)
	w.write(20*time.Minute, 0, nodeGroup(userGroup, 3, 3, 3), nodeGroup(systemGroup, 2, 2, 2))
	w.change = usage(use(9, "5100m", "5700m", "9Gi", "18Gi"), use(6, "3400m", "3800m", "6Gi", "12Gi"))
	w.use = aci.Use{Pods: 4, MilliCPU: 2000, Memory: 4 << 30}
	return w
}

// dead is a world whose autoscaler has written nothing for nine minutes.
func dead(t *testing.T) *world {
	w := newWorld(t).vms(3, 2)
	w.write(30*time.Minute, 9*time.Minute, nodeGroup(userGroup, 3, 3, 3), nodeGroup(systemGroup, 1, 1, 2))
	for ago := 8 * time.Minute; ago >= 0; ago -= time.Minute {
		w.evaluate(ago)
	}
	w.change = func(v *published.View) {
		v.Problems = []string{"pool user, system: " + w.view.Pools[0].Reason.Sentence + ": last change seen at 2026-11-21T14:34:08Z"}
	}
	w.held = published.Held{Total: 2, Oldest: date.Add(-8 * time.Minute), By: []published.HeldBy{{Pool: "user", Reason: gate.ReasonUnknown.Code, Pods: 2}}}
	return w
}

// refusing is a world that is full and in which the provider of aci refuses pods.
func refusing(t *testing.T) *world {
	w := full(t)
	w.provider = breaker.Status{State: breaker.Refusing, Since: date.Add(-3 * time.Minute), Until: date.Add(50 * time.Second), Failed: 3,
		Code: "ContainerGroupQuotaReached", Message: "Resource type 'StandardCores' container group quota '100' exceeded in region 'westeurope'."}
	return w.evaluate(0)
}

// throttled is a world that is full and whose burst pool has got as many pods as its rate allows.
func throttled(t *testing.T) *world {
	w := full(t)
	for i := range 100 {
		w.provider.Creates = append(w.provider.Creates, breaker.Create{UID: types.UID(fmt.Sprint(i)), At: date.Add(-2 * time.Minute)})
	}
	return w.evaluate(0)
}

// overridden is a world in which an operator has closed the gate.
func overridden(t *testing.T) *world {
	override := gate.Override{Gate: gate.OverrideClosed, Until: date.Add(2 * time.Hour)}
	return changed(growing(t), func(v *published.View) { v.Override = override })
}

func observe(args *configv1.PoolPriorityArgs) { args.Mode = configv1.ModeObserve }

// worlds are the clusters that the tests show, by name.
var worlds = map[string]func(t *testing.T) *world{
	"growing": func(t *testing.T) *world { return growing(t) },
	"full":    func(t *testing.T) *world { return full(t) },
	"dead":    dead, "refusing": refusing, "throttled": throttled, "overridden": overridden,
	"observe": func(t *testing.T) *world { return growing(t, observe) },
	"spent": func(t *testing.T) *world {
		w := full(t)
		w.use = aci.Use{Pods: 100, MilliCPU: 50000, Memory: 100 << 30}
		return w
	},
	"tenants": func(t *testing.T) *world {
		w := spentIn(t, "shop")
		change := w.change
		w.change = func(v *published.View) {
			change(v)
			v.Shares[2]["web"] = aci.Use{Pods: 19}
			v.Capacity.Pools[2].Provider = breaker.Status{State: breaker.Open, Closings: []breaker.Closing{
				{Scope: breaker.Scope{Namespace: "blog"}, Code: "Late", Message: "a pod has not started within 15m0s", Until: date.Add(time.Minute)},
				{Scope: breaker.Scope{MilliCPU: 31000, Memory: 8_000_000_000}, Code: "ServiceUnavailable", Message: "no capacity", Until: date},
			}}
		}
		return w
	},
	"tainted": func(t *testing.T) *world { // the virtual node has a taint that the pool does not tolerate
		w := full(t)
		w.nodes[0].Spec.Taints = append(w.nodes[0].Spec.Taints, corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule})
		return w.evaluate(0)
	},
	"empty": func(t *testing.T) *world { // the first pool fails to grow, the second has no node yet, and the virtual node is gone
		w := newWorld(t).vms(1, 0)
		w.nodes = w.nodes[1:]
		return w.write(10*time.Minute, 0, nodeGroup(userGroup, 1, 1, 3, backoff), nodeGroup(systemGroup, 0, 0, 2))
	},
}

func TestStatus(t *testing.T) {
	for name, make := range worlds {
		t.Run(name, func(t *testing.T) {
			w := make(t)
			s := newServer(t, w.published(5*time.Second))
			if name == "tainted" { // of three pods there, two have ended
				s.put(w.nodes[0])
				for name, phase := range map[string]corev1.PodPhase{"a": corev1.PodSucceeded, "b": corev1.PodFailed, "c": corev1.PodRunning} {
					s.put(pod(name, 0, on(0, w.nodes[0].Name, "aci", "0"), func(p *corev1.Pod) { p.Status.Phase = phase }))
				}
			}
			got := s.run()
			if name == "growing" {
				got += "\n" + s.run("-o", "wide") + "\n" + s.run("status", "aci", "user") + "\n" + s.run("status", "gpu") + "\n" + s.run("-o", "name")
				golden(t, "status-json", s.run("-o", "json"))
				golden(t, "status-yaml", s.run("-o", "yaml", "status", "system"))
			}
			golden(t, "status-"+name, got)
		})
	}
}
