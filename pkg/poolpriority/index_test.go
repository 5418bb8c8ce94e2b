package poolpriority

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
)

func TestRequestsFit(t *testing.T) {
	free := requests{MilliCPU: 500, Memory: 100, Pods: 1}
	for _, tc := range []struct {
		name string
		pod  requests
		free requests
		want bool
	}{
		{"fits exactly", requests{500, 100, 1}, free, true},
		{"too much CPU", requests{501, 100, 1}, free, false},
		{"too much memory", requests{500, 101, 1}, free, false},
		{"no pod more", requests{0, 0, 1}, requests{500, 100, 0}, false},
		{"nothing asked of an overcommitted node", requests{0, 0, 1}, requests{-5, -5, 1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.pod.fit(tc.free); got != tc.want {
				t.Errorf("fit() = %v, want %v", got, tc.want)
			}
		})
	}
	p := pod("p").Req(map[v1.ResourceName]string{"cpu": "1"}).Obj()
	p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("4")}}
	if got := (&PoolPriority{}).requestsOf(p).MilliCPU; got != 2000 {
		t.Errorf("without the feature gate PodLevelResources, the pod requests %d milli-CPUs, want its containers' 2000", got)
	}
}

// TestPodsByOwner holds the counts of pods and nodes, which go by what changed, against those of an index that has seen nothing else.
func TestPodsByOwner(t *testing.T) {
	matching := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"pool": value}}
	}
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user", NodeSelector: matching("user")}, {Name: "burst", NodeSelector: matching("burst"), Burst: &configv1.Burst{}}}})
	must.NoError(t, err)
	metrics.Register() // the cache sets them
	r := seed.New(t, 1)
	cache, logger := compat.NewCache(t.Context()), klog.Background()
	x := newIndex(pools, ourProfile)
	var nodes []*v1.Node
	var pods []*v1.Pod
	made, compared := 0, 0
	change := func() {
		switch k := r.IntN(12); {
		case k < 2 || len(nodes) < 2:
			made++
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", made), Labels: map[string]string{"pool": []string{"user", "burst", "none"}[r.IntN(3)], "type": []string{"virtual-kubelet", "vm"}[r.IntN(2)]}}}
			cache.AddNode(logger, node)
			nodes = append(nodes, node)
		case k == 2 && len(nodes) > 4:
			i := r.IntN(len(nodes))
			name := nodes[i].Name
			pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return p.Spec.NodeName == name && cache.RemovePod(logger, p) == nil })
			must.NoError(t, cache.RemoveNode(logger, nodes[i]))
			nodes = slices.Delete(nodes, i, i+1)
		case k == 3:
			i := r.IntN(len(nodes))
			changed := nodes[i].DeepCopy()
			changed.Labels["pool"] = []string{"user", "burst", "none"}[r.IntN(3)]
			cache.UpdateNode(logger, nodes[i], changed)
			nodes[i] = changed
		case k < 8 || len(pods) == 0:
			made++
			p := pod(fmt.Sprint("p", made)).UID(fmt.Sprint("p", made)).Node(nodes[r.IntN(len(nodes))].Name).Obj()
			if o := r.IntN(4); o > 0 {
				p.OwnerReferences = owner("ReplicaSet", fmt.Sprint("o", o))
			}
			must.NoError(t, cache.AddPod(logger, p))
			pods = append(pods, p)
		case k == 8:
			i := r.IntN(len(pods))
			must.NoError(t, cache.RemovePod(logger, pods[i]))
			pods = slices.Delete(pods, i, i+1)
		default:
			i := r.IntN(len(pods))
			changed := pods[i].DeepCopy()
			changed.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			must.NoError(t, cache.UpdatePod(logger, pods[i], changed))
			pods[i] = changed
		}
	}
	snapshot := internalcache.NewEmptySnapshot()
	for range 3000 {
		change()
		if r.IntN(3) > 0 {
			continue
		}
		must.NoError(t, cache.UpdateSnapshot(logger, snapshot))
		infos := must.Get(snapshot.NodeInfos().List())(t)
		x.refresh(infos, false)
		if r.IntN(2) == 0 {
			continue // nobody asks
		}
		fresh := newIndex(pools, ourProfile)
		fresh.refresh(infos, false)
		if diff := cmp.Diff([]any{*fresh.podsByOwner(infos), fresh.nodes}, []any{*x.podsByOwner(infos), x.nodes}, cmp.AllowUnexported(podsByOwner{})); diff != "" {
			t.Fatalf("(-anew,+by what changed):\n%s", diff)
		}
		for rank, tier := range x.tiers {
			if got := x.named(sets.KeySet(x.slotOf), rank); !slices.Equal(got, tier) {
				t.Fatalf("by their names, the nodes of rank %d are at %v, want %v", rank, got, tier)
			}
		}
		for i, info := range infos {
			if x.entries[i].scan(info).ending != fresh.entries[i].scan(info).ending {
				t.Fatalf("node %d has ending pods: %v", i, x.entries[i].ending)
			} else if x.entries[i].ending {
				compared++
			}
		}
	}
	if compared == 0 {
		t.Error("no pods were ending")
	}
}
