package published

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxBytes bounds the bytes of the ConfigMap's data. The API server refuses a ConfigMap of more than 1 MiB. A
	// request, in which quotes are escaped, is a tenth larger.
	maxBytes = 640_000
	// minEntry is the least number of bytes of a wait or a clock. dropNewest keeps a multiple of entryStep entries, so
	// that the kept entries stay the same while the size of other parts changes a little.
	minEntry, entryStep = 60, 100
)

// Fit returns the status without the parts for which the ConfigMap is too small. LeftOut names and counts these parts.
// The least important parts are left out first. The next leader needs the Memory, and little of the View.
func (s *Status) Fit() *Status {
	c, v := *s, *s.View
	c.View = &v
	excess := c.size() - maxBytes
	for _, part := range []struct {
		name string
		drop func() int // leaves out at least some entries if there are any, and returns how many
	}{
		{"heirs", func() (n int) {
			n, c.Memory.Heirs = len(c.Memory.Heirs.Deleted)+len(c.Memory.Heirs.Inherited), Heirs{}
			return n
		}},
		{"details", v.dropDetails},
		{"waits", func() int { return dropNewest(&v.Waits, excess, func(w Wait) time.Time { return w.Unschedulable }) }},
		{"refusals", c.Memory.dropRefusals},
		{"clocks", func() int {
			since := func(t time.Time) time.Time { return t }
			return dropNewest(&c.Memory.Unschedulable, excess, since) + dropNewest(&c.Memory.Ignored, excess, since)
		}},
	} {
		left := 0
		for n := 1; n > 0 && excess > 0; left += n {
			n = part.drop()
			excess = c.size() - maxBytes
		}
		if left > 0 {
			v.LeftOut = append(v.LeftOut, fmt.Sprintf("%d %s", left, part.name))
		}
	}
	return &c
}

// size returns the bytes of the encoded status, or 0 if it cannot be encoded. The write then fails with the error.
func (s *Status) size() (n int) {
	data, _ := s.Encode()
	for key, value := range data {
		n += len(key) + len(value)
	}
	return n
}

// dropNewest drops the newest entries, of excess bytes or more, and returns how many.
func dropNewest[V any](entries *map[types.UID]V, excess int, at func(V) time.Time) int {
	all := *entries
	uids := slices.SortedFunc(maps.Keys(all), func(a, b types.UID) int { return cmp.Or(at(all[a]).Compare(at(all[b])), cmp.Compare(a, b)) })
	keep := max(0, len(uids)-excess/minEntry-1) / entryStep * entryStep
	*entries = make(map[types.UID]V, keep)
	for _, uid := range uids[:keep] {
		(*entries)[uid] = all[uid]
	}
	return len(uids) - keep
}

// dropDetails drops the usage figures, those of namespaces, the declines, the templates of nodes and of refused
// pods, and the pacing of owners.
func (v *View) dropDetails() int {
	n := len(v.Usage) + len(v.Shares) + len(v.Declines)
	v.Usage, v.Shares, v.Declines, v.Capacity.Pools = nil, nil, nil, slices.Clone(v.Capacity.Pools)
	for i := range v.Capacity.Pools {
		p := &v.Capacity.Pools[i]
		n += len(p.NodeTemplates) + len(p.Provider.Templates)
		p.NodeTemplates, p.Provider.Templates, p.Provider.Pacing, p.Groups = nil, nil, nil, slices.Clone(p.Groups)
		for k := range p.Groups {
			n += len(p.Groups[k].NodeTemplates) + len(p.Groups[k].Served)
			p.Groups[k].NodeTemplates, p.Groups[k].Served = nil, nil
		}
	}
	return n
}

// dropRefusals drops most refusals of each burst pool, the oldest first.
func (m *Memory) dropRefusals() (n int) {
	m.BurstPools = maps.Clone(m.BurstPools)
	for name, pool := range m.BurstPools {
		n += pool.DropOldest()
		m.BurstPools[name] = pool
	}
	return n
}
