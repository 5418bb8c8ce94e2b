package gating

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/test/compat"
)

func TestFreedBy(t *testing.T) {
	bound, nominated := st.MakePod().Node("n").Req(map[v1.ResourceName]string{"cpu": "2"}), st.MakePod().NominatedNodeName("n").Obj()
	running, smaller := bound.Obj().DeepCopy(), st.MakePod().Node("n").Req(map[v1.ResourceName]string{"cpu": "1"}).Obj()
	running.Status.Phase = v1.PodRunning
	node, cordoned, annotated := st.MakeNode().Name("n").Obj(), st.MakeNode().Name("n").Unschedulable(true).Obj(), st.MakeNode().Name("n").Annotation("a", "b").Obj()
	for _, tc := range []struct {
		name     string
		events   []fwk.ClusterEvent
		old, now any
		want     string
	}{
		{"a pod ended", []fwk.ClusterEvent{framework.EventAssignedPodDelete}, bound.Obj(), nil, "n"},
		{"a nomination ended", []fwk.ClusterEvent{framework.EventAssignedPodDelete}, nominated, nil, "n"},
		{"a pod became smaller", compat.BoundPodEvents(smaller, bound.Obj()), bound.Obj(), smaller, "n"},
		{"a pod's status changed", compat.BoundPodEvents(running, bound.Obj()), bound.Obj(), running, ""},
		{"a pod was bound", []fwk.ClusterEvent{framework.EventAssignedPodAdd}, nil, running, ""},
		{"a node came", []fwk.ClusterEvent{{Resource: fwk.Node, ActionType: fwk.Add}}, nil, node, "n"},
		{"a node went", []fwk.ClusterEvent{{Resource: fwk.Node, ActionType: fwk.Delete}}, node, nil, ""},
		{"a node was uncordoned", framework.NodeSchedulingPropertiesChange(node, cordoned), cordoned, node, "n"},
		{"a node was cordoned", framework.NodeSchedulingPropertiesChange(cordoned, node), node, cordoned, ""},
		{"a node was annotated", framework.NodeSchedulingPropertiesChange(annotated, node), node, annotated, ""},
	} {
		got := ""
		for _, event := range tc.events {
			got += freedBy(event, tc.old, tc.now)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
