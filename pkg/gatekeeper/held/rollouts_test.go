package held

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
)

// TestUnknownReplicaSet: a pod with an unknown ReplicaSet waits for replicaSetLag by our clock, no matter which age the
// API server gives it.
func TestUnknownReplicaSet(t *testing.T) {
	r, now := &Rollouts{stale: lru.New(maxUnknownReplicaSets), replicaSets: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}, time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for _, age := range []time.Duration{0, time.Hour, -time.Hour} {
		p := pod(age.String())
		p.CreationTimestamp = metav1.NewTime(now.Add(-age))
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "web-1", Controller: ptr.To(true)}}
		waited := time.Duration(0)
		for ; r.Of(p, now.Add(waited)).Possible(); waited += time.Second {
			if waited > time.Minute {
				t.Fatalf("a pod of the age %v waits for more than a minute", age)
			}
		}
		if waited <= replicaSetLag || waited > 2*replicaSetLag {
			t.Errorf("a pod of the age %v waits for %v", age, waited)
		}
	}
}
