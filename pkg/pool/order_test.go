package pool

import (
	"fmt"
	"testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/must"
)

// TestOrderOf: regular pools that an order does not name come after those that it names. Burst pools keep their places.
func TestOrderOf(t *testing.T) {
	args := &configv1.PoolPriorityArgs{Orders: []configv1.NamedOrder{{Name: "cheap", Pools: []string{"c", "aci-2"}}, {Name: "all", Pools: []string{"b", "a", "c", "aci", "aci-2"}}}}
	for _, name := range []string{"a", "b", "c", "aci", "aci-2"} {
		p := configv1.Pool{Name: name, NodeSelector: selector("pool", name)}
		if name > "ac" && name < "b" {
			p.Burst = &configv1.Burst{}
		}
		args.Pools = append(args.Pools, p)
	}
	list := must.Get(ListOf(args))(t)
	for name, tc := range map[string]struct {
		places  string // by rank: a, b, c, nodes in no pool, aci, aci-2
		leftOut []int
	}{
		"":      {"[0 1 2 3 4 5]", nil},
		"cheap": {"[1 2 0 3 4 5]", []int{3}},
		"all":   {"[1 0 2 3 4 5]", nil},
	} {
		annotations := map[string]string{OrderAnnotation: name}
		if name == "" {
			annotations = nil
		}
		o, known := list.OrderOf(annotations)
		var places []Rank
		for r := range list.Ranks() {
			place := o.PlaceOf(Rank(r))
			if places = append(places, place); o.RankAt(int(place)) != Rank(r) {
				t.Errorf("%q: rank %d has place %d, and that has rank %d", name, r, place, o.RankAt(int(place)))
			}
		}
		var leftOut []int
		for i := range list.Len() {
			if o.LeavesOut(i) {
				leftOut = append(leftOut, i)
			}
		}
		if !known || fmt.Sprint(places) != tc.places || fmt.Sprint(leftOut) != fmt.Sprint(tc.leftOut) {
			t.Errorf("%q: places %v, left out %v, known %t", name, places, leftOut, known)
		}
		if o.PlaceOf(Excluded) <= o.PlaceOf(Rank(list.Ranks()-1)) {
			t.Errorf("%q: excluded nodes do not come last", name)
		}
	}
	if o, known := list.OrderOf(map[string]string{OrderAnnotation: "typo"}); o != nil || known {
		t.Errorf("an unknown order is %v, known %t", o, known)
	}
}
