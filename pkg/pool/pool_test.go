package pool

import (
	"testing"

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
	}{
		{"first pool", map[string]string{"mode": "user"}, 0, 0},
		{"two pools match: the first wins", map[string]string{"mode": "user", "os": "linux"}, 0, 0},
		{"second pool", map[string]string{"os": "linux"}, 1, 1},
		{"unlisted: after the regular pools, before the burst pools", map[string]string{"os": "windows"}, 2, None},
		{"no labels", nil, 2, None},
		{"first burst pool", map[string]string{"virtualization": "virtualnode2", "type": "virtual-kubelet"}, 3, 2},
		{"second burst pool", map[string]string{"type": "virtual-kubelet"}, 4, 3},
		{"a virtual kubelet that a regular pool's selector matches is never used", map[string]string{"type": "virtual-kubelet", "os": "linux"}, Excluded, 1},
		{"a value beside virtual-kubelet says nothing", map[string]string{"type": "metal"}, 2, None},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rank, pool := list.RankOf(tc.labels)
			if rank != tc.wantRank || pool != tc.wantPool {
				t.Errorf("RankOf() = %d, %d, want %d, %d", rank, pool, tc.wantRank, tc.wantPool)
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

func TestRankOfWithoutBurstPool(t *testing.T) {
	list := must.Get(ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user", NodeSelector: selector("mode", "user")}}}))(t)
	if rank, _ := list.RankOf(map[string]string{"type": "virtual-kubelet"}); rank != Excluded {
		t.Errorf("rank of a virtual kubelet in no burst pool = %d, want Excluded", rank)
	}
}
