package gatekeeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
)

// TestNamespaceIsLabelled: a pod whose namespace may not burst, or is not known yet, is held, and woken when that changes.
func TestNamespaceIsLabelled(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"burst": "yes"}}
	})
	w.setStatus(3, 3)
	w.run("namespaces")
	w.Lead()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	w.addPod(p)
	verdict := func() gate.Verdict { return w.Decide(p, Snapshot{}, gate.Wait{}).Burst[2] }
	w.eventually(func() string {
		if v := verdict(); v.Open || v.Reason.Code != "NamespaceNotSelected" {
			return fmt.Sprintf("while the namespace is not known: %+v", v)
		}
		return ""
	})
	hold := func() {
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		w.Hold(klog.Background(), p, &d, nil)
	}
	hold()
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"burst": "no"}}}
	if _, err := w.client.CoreV1().Namespaces().Create(w.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if v := verdict(); v.Open || w.wasActivated("p") {
		t.Errorf("with another label: %+v", v)
	}
	before := w.Signature(p)
	namespace.Labels["burst"] = "yes"
	if _, err := w.client.CoreV1().Namespaces().Update(w.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(func() string {
		if !w.wasActivated("p") {
			return "the pod was not woken when its namespace was labelled"
		}
		return ""
	})
	if v := verdict(); !v.Open {
		t.Errorf("with the label: %+v", v)
	}
	if fmt.Sprint(before) == fmt.Sprint(w.Signature(p)) {
		t.Error("the pod's signature is that of a pod that may not burst")
	}
}

// TestRunsDifferently: one event for each owner says what a burst pool leaves out of its pods.
func TestRunsDifferently(t *testing.T) {
	w := newWorld(t)
	for _, n := range []*v1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "vm", Labels: map[string]string{"agentpool": "userpool"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}},
	} {
		if err := w.config.Informers.Core().V1().Nodes().Informer().GetIndexer().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	yes := true
	bound := func(name, node, owner string, plain bool) *v1.Pod {
		p := pod(name)
		p.Spec.NodeName = node
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "uid-" + pod(owner).UID, Controller: &yes}}
		}
		p.Spec.Containers = []v1.Container{{Name: "c"}}
		if !plain {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", SubPath: "a"}}
		}
		return p
	}
	w.warnOfDifferences(bound("standby", "virtual", "web", false)) // it does not lead yet
	w.Lead()
	for _, tc := range []struct {
		pod  *v1.Pod
		want bool
	}{
		{bound("plain", "virtual", "plain", true), false},
		{bound("on-a-vm", "vm", "web", false), false},
		{bound("gone", "gone", "web", false), false},
		{bound("first", "virtual", "web", false), true},
		{bound("second", "virtual", "web", false), false},
		{bound("of-another", "virtual", "api", false), true},
		{bound("bare", "virtual", "", false), true},
	} {
		w.warnOfDifferences(tc.pod)
		select {
		case event := <-w.recorder.Events:
			if !tc.want || !strings.Contains(event, "Warning RunsDifferently in the pool aci (Azure Container Instances) it runs without subPath") {
				t.Errorf("%s: %s", tc.pod.Name, event)
			}
		default:
			if tc.want {
				t.Errorf("%s: no event", tc.pod.Name)
			}
		}
	}
	for i := range 2 * maxWarned {
		if w.warned.first(pod(fmt.Sprint(i)).UID); len(w.warned.owners) > maxWarned {
			t.Fatalf("%d owners are remembered", len(w.warned.owners))
		}
	}
}
