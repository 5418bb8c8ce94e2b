package pool

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// OrderAnnotation is the pod annotation that names an order of the configuration.
const OrderAnnotation = "poolpriority.dev/order"

// Order is the order of the pools for a pod. It permutes the regular pools, and may leave out burst pools. nil is the
// order of the list.
type Order struct {
	places  []Rank // by rank
	ranks   []Rank // by place
	leftOut []bool // by the pool's index
}

// OrderValue returns the value of the pod's OrderAnnotation, cut at 64 bytes: names of orders are shorter.
func OrderValue(pod *corev1.Pod) string {
	value := pod.Annotations[OrderAnnotation]
	return value[:min(len(value), maxValue)]
}

// OrderOf returns the order for a pod with these annotations, and false if the configuration has no order of that name.
func (l List) OrderOf(annotations map[string]string) (*Order, bool) {
	name := annotations[OrderAnnotation]
	if name == "" {
		return nil, true
	}
	order, known := l.orders[name]
	return order, known
}

// PlaceOf returns the place in the order of the nodes with the rank. Place 0 is the most preferred. Excluded nodes come
// last.
func (o *Order) PlaceOf(r Rank) Rank {
	switch {
	case r == Excluded:
		return math.MaxInt
	case o == nil:
		return r
	}
	return o.places[r]
}

// RankAt returns the rank that has the place.
func (o *Order) RankAt(place int) Rank {
	if o == nil {
		return Rank(place)
	}
	return o.ranks[place]
}

// LeavesOut reports whether the order leaves out the burst pool with index i.
func (o *Order) LeavesOut(i int) bool { return o != nil && o.leftOut[i] }

// newOrder returns the order with these names of pools. Regular pools that it does not name come after those that it
// names, as in the list.
func (l List) newOrder(names []string) *Order {
	o := &Order{places: make([]Rank, l.Ranks()), leftOut: make([]bool, len(l.pools))}
	named := map[string]bool{}
	index := map[string]int{}
	for i := range l.pools {
		index[l.pools[i].Name] = i
	}
	for _, name := range names {
		if named[name] = true; index[name] < l.regular {
			o.ranks = append(o.ranks, Rank(index[name]))
		}
	}
	for i := range l.pools {
		if o.leftOut[i] = l.IsBurst(i) && !named[l.pools[i].Name]; i < l.regular && !named[l.pools[i].Name] {
			o.ranks = append(o.ranks, Rank(i))
		}
	}
	for r := l.regular; r < l.Ranks(); r++ {
		o.ranks = append(o.ranks, Rank(r))
	}
	for place, r := range o.ranks {
		o.places[r] = Rank(place)
	}
	return o
}
