package pool

import (
	"cmp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"

	"poolpriority.dev/scheduler/test/must"
)

func selector(kv ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.MatchLabels[kv[i]] = kv[i+1]
	}
	return s
}

func TestRankOf(t *testing.T) {
	list, err := ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selector("mode", "user")},
		{Name: "linux", NodeSelector: selector("os", "linux")},
		{Name: "v2", NodeSelector: selector("virtualization", "virtualnode2"), Burst: &configv1.Burst{}},
		{Name: "v1", NodeSelector: selector("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	for _, tc := range []struct {
		name     string
		labels   map[string]string
		wantRank Rank
		wantPool int

		taint, version string
	}{
		{name: "first pool", labels: map[string]string{"mode": "user"}, wantRank: 0, wantPool: 0},
		{name: "two pools match: the first wins", labels: map[string]string{"mode": "user", "os": "linux"}, wantRank: 0, wantPool: 0},
		{name: "second pool", labels: map[string]string{"os": "linux"}, wantRank: 1, wantPool: 1},
		{name: "unlisted: after the regular pools, before the burst pools", labels: map[string]string{"os": "windows"}, wantRank: 2, wantPool: None},
		{name: "no labels", labels: nil, wantRank: 2, wantPool: None},
		{name: "first burst pool", labels: map[string]string{"virtualization": "virtualnode2", "type": "virtual-kubelet"}, wantRank: 3, wantPool: 2},
		{name: "second burst pool", labels: map[string]string{"type": "virtual-kubelet"}, wantRank: 4, wantPool: 3},
		{name: "a virtual kubelet that a regular pool's selector matches is never used", labels: map[string]string{"type": "virtual-kubelet", "os": "linux"}, wantRank: Excluded, wantPool: 1},
		{name: "a value beside virtual-kubelet says nothing", labels: map[string]string{"type": "metal"}, wantRank: 2, wantPool: None},
		{name: "its label was removed, but it has the taint", wantRank: 4, wantPool: 3, taint: "virtual-kubelet.io/provider"},
		{name: "its label was removed, but it has the version", labels: map[string]string{"type": "metal"}, wantRank: 4, wantPool: 3, version: "v1.25.0-vk-azure-aci-1.6.4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}
			if tc.taint != "" {
				node.Spec.Taints = []corev1.Taint{{Key: tc.taint}}
			}
			node.Status.NodeInfo.KubeletVersion = cmp.Or(tc.version, "v1.35.8")
			rank, pool := list.RankOf(node)
			if rank != tc.wantRank || pool != tc.wantPool {
				t.Errorf("RankOf() = %d, %d, want %d, %d", rank, pool, tc.wantRank, tc.wantPool)
			}
			if lacks := list.LacksLabel(node); lacks != (tc.taint != "" || tc.version != "") {
				t.Errorf("LacksLabel() = %v", lacks)
			}
			if rank != Excluded && list.PoolAt(rank) != pool {
				t.Errorf("PoolAt(%d) = %d, want %d", rank, list.PoolAt(rank), pool)
			}
		})
	}
	if list.Regular() != 2 || list.Len() != 4 || list.Ranks() != 5 || !list.HasBurst() {
		t.Errorf("Regular, Len, Ranks, HasBurst = %d, %d, %d, %v", list.Regular(), list.Len(), list.Ranks(), list.HasBurst())
	}
}

// TestExcludedByLabel: a regular pool that excludes virtual nodes by their label does not get one that lost the label.
func TestExcludedByLabel(t *testing.T) {
	vms := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"virtual-kubelet"}}}}
	list := must.Get(ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "vms", NodeSelector: vms}, {Name: "aci", NodeSelector: selector("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}}))(t)
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider"}}}}
	if i := list.Of(node); i != 1 || !list.LacksLabel(node) {
		t.Errorf("it is in pool %d", i)
	}
}

func TestRankOfWithoutBurstPool(t *testing.T) {
	list := must.Get(ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user", NodeSelector: selector("mode", "user")}}}))(t)
	if rank, _ := list.RankOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"type": "virtual-kubelet"}}}); rank != Excluded {
		t.Errorf("rank of a virtual kubelet in no burst pool = %d, want Excluded", rank)
	}
}
