// Package azure simulates Azure Container Instances for the virtual node's connector: PUT, GET, list and delete of
// container groups, with the delays and refusals that were recorded on Azure.
package azure

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// InstanceView is the instance view that a GET returns of a group in transition. It is not known which one Azure
// returns: the answer to a PUT has the group's view, and no GET of a group in transition was recorded.
type InstanceView int

const (
	// ViewWaiting is a view of the group and of its containers, which wait: the connector can read it.
	ViewWaiting InstanceView = iota
	// ViewGroup is a view of the group alone: the connector's GetPod fails because the containers have none.
	ViewGroup
	// ViewNone is no view at all: the connector's GetPod fails.
	ViewNone
)

// NoQuota is the quota of a region that has none.
var NoQuota = math.Inf(1)

const (
	// DefaultPutTime is the time until a PUT is answered, unless SetPutTime changes it. It is a second or two on Azure.
	DefaultPutTime = 20 * time.Millisecond
	// DefaultCreateTime is how long a group is in transition, unless SetCreateTime changes it. It is 20 to 110 s on
	// Azure.
	DefaultCreateTime = 300 * time.Millisecond
)

// Region is Azure Container Instances in a region of a subscription. Connectors share a region or have one each. Tests
// may change the region's settings at any time. A change applies to later requests.
type Region struct {
	now func() time.Time

	mu             sync.Mutex
	putTime        time.Duration
	createTime     time.Duration
	view           InstanceView
	getLag         time.Duration
	getThrottle    time.Duration
	throttledUntil time.Time
	quota          float64
	refusal        *Refusal
	groups         map[string]*Group
	deleted        []Group
	puts           []Put
	made           int
}

// NewRegion returns a region without groups that refuses nothing.
func NewRegion() *Region {
	return &Region{now: time.Now, putTime: DefaultPutTime, createTime: DefaultCreateTime, view: ViewGroup, quota: NoQuota, groups: map[string]*Group{}}
}

// SetPutTime sets how long the region takes to answer a PUT.
func (r *Region) SetPutTime(d time.Duration) { r.set(func() { r.putTime = d }) }

// SetCreateTime sets how long a group is in transition, from the answer to its PUT until it is Running. The setting
// applies to groups that are created later.
func (r *Region) SetCreateTime(d time.Duration) { r.set(func() { r.createTime = d }) }

// SetInstanceView sets the view that GETs return of groups in transition. The default is ViewGroup.
func (r *Region) SetInstanceView(v InstanceView) { r.set(func() { r.view = v }) }

// SetGetLag sets the time after a group's PUT in which GETs of the group fail with 404.
func (r *Region) SetGetLag(d time.Duration) { r.set(func() { r.getLag = d }) }

// SetGetThrottle sets the time after a group's PUT in which GETs of the group fail with 429.
func (r *Region) SetGetThrottle(d time.Duration) { r.set(func() { r.getThrottle = d }) }

// ThrottleGets makes all GETs fail with 429 for this time from now.
func (r *Region) ThrottleGets(d time.Duration) { r.set(func() { r.throttledUntil = r.now().Add(d) }) }

// SetQuota limits the sum of the cores that running and starting groups request. NoQuota removes the limit. Existing
// groups stay.
func (r *Region) SetQuota(cores float64) { r.set(func() { r.quota = cores }) }

// Refuse makes the region refuse all PUTs of new groups with the code, from now until Accept. If the code was recorded,
// the refusal has the recorded status and message. Otherwise it has the status 409.
func (r *Region) Refuse(code string) { r.RefuseWith(recorded(code)) }

// RefuseWith makes the region refuse the PUTs of new groups that the refusal matches, from now until Accept.
func (r *Region) RefuseWith(refusal Refusal) { r.set(func() { r.refusal = &refusal }) }

// Accept ends the refusal that Refuse or RefuseWith began.
func (r *Region) Accept() { r.set(func() { r.refusal = nil }) }

func (r *Region) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// Groups returns all groups, including deleted groups, in the order of their creation.
func (r *Region) Groups() []Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	all := slices.Clone(r.deleted)
	for _, g := range r.groups {
		all = append(all, g.at(now))
	}
	slices.SortFunc(all, func(a, b Group) int { return a.serial - b.serial })
	return all
}

// Cores returns the sum of the CPU requests of all groups that exist and have not ended.
func (r *Region) Cores() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cores()
}

func (r *Region) cores() float64 {
	now, sum := r.now(), 0.0
	for _, g := range r.groups {
		if state := g.at(now).State; state == Pending || state == Running {
			sum += g.Cores()
		}
	}
	return sum
}

// Puts returns all PUTs with their answers, in order.
func (r *Region) Puts() []Put {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.puts)
}

// PutsByPod counts the PUTs by the pod's UID.
func (r *Region) PutsByPod() map[types.UID]int {
	counts := map[types.UID]int{}
	for _, p := range r.Puts() {
		counts[p.UID]++
	}
	return counts
}

// Put creates a group, and returns when Azure has accepted the PUT. The group is then in transition. If Azure refuses
// the PUT, the error is an *Error.
func (r *Region) Put(ctx context.Context, spec Spec) error {
	r.mu.Lock()
	wait := r.putTime
	r.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status, err := r.put(spec)
	answer := Put{At: r.now(), Spec: spec, Status: status}
	if err != nil {
		answer.Status, answer.Code = err.Status, err.Code
		r.puts = append(r.puts, answer)
		return err
	}
	r.puts = append(r.puts, answer)
	return nil
}

func (r *Region) put(spec Spec) (status int, err *Error) {
	if err := tooHighLimit(spec); err != nil {
		return 0, err
	}
	now := r.now()
	if known, ok := r.groups[spec.Name]; ok {
		if known.at(now).State == Pending {
			return 0, putError(spec.Name, http.StatusConflict, CodeTransitioning, fmt.Sprintf("The container group '%s' is still transitioning, please retry later.", spec.Name))
		}
		if known.UID == spec.UID {
			return http.StatusOK, nil // Azure's behaviour is unknown; the region changes nothing
		}
		r.remove(spec.Name)
	}
	if refusal := r.refusal; refusal != nil && (refusal.Match == nil || refusal.Match(spec)) {
		if refusal.Made {
			r.create(spec)
		}
		return 0, refusal.answer(spec)
	}
	if used := r.cores(); used+spec.Cores() > r.quota {
		return 0, quotaReached(spec, r.quota, used)
	}
	r.create(spec)
	return http.StatusCreated, nil
}

func (r *Region) create(spec Spec) {
	now := r.now()
	r.made++
	address := fmt.Sprintf("10.241.%d.%d", r.made>>8&255, r.made&255)
	r.groups[spec.Name] = &Group{Spec: spec, serial: r.made, Address: address, Made: now, Started: now.Add(r.createTime)}
}

// Get returns the group as a GET does. The error is an *Error. Its status is 404 if the group does not exist or
// SetGetLag hides it, and 429 if GETs are throttled.
func (r *Region) Get(name string) (Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	known, ok := r.groups[name]
	switch {
	case now.Before(r.throttledUntil), ok && now.Before(known.Made.Add(r.getThrottle)):
		return Group{}, &Error{Method: http.MethodGet, Name: name, Status: http.StatusTooManyRequests, Code: CodeTooManyRequests, Message: "Too many requests. Please retry later."}
	case !ok, now.Before(known.Made.Add(r.getLag)):
		return Group{}, &Error{Method: http.MethodGet, Name: name, Status: http.StatusNotFound, Code: CodeNotFound,
			Message: fmt.Sprintf("The Resource 'Microsoft.ContainerInstance/containerGroups/%s' under resource group '%s' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix", name, resourceGroup)}
	}
	g := known.at(now)
	if g.State == Pending {
		g.View = r.view
	}
	return g, nil
}

// List returns the names of the groups that exist.
func (r *Region) List() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.groups))
}

// Delete deletes the group if it exists, even while it is in transition.
func (r *Region) Delete(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(name)
}

func (r *Region) remove(name string) {
	known, ok := r.groups[name]
	if !ok {
		return
	}
	now := r.now()
	g := known.at(now)
	g.Deleted = now
	r.deleted = append(r.deleted, g)
	delete(r.groups, name)
}
