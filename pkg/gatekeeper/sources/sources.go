// Package sources watches the objects that the gate depends on. The capacity sources show whether the regular pools can
// grow. The ConfigMap pool-priority-override lets an operator override the gate.
package sources

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/nodegroups/static"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

// Errors counts failures to read the sources and the override.
var Errors = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "pool_priority",
	Name:      "source_errors_total",
	Help:      "Errors when listing, watching or parsing a capacity source or the override.",
}, []string{"source"})

// Config has the dependencies of Sources and of an Override.
type Config struct {
	Args     *configv1.PoolPriorityArgs
	Pools    pool.List
	Client   kubernetes.Interface
	Dynamic  dynamic.Interface // may be nil if no pool names a NodePool
	Recorder events.EventRecorder
	Now      func() time.Time
	// Draining reports whether pods are terminating on a node.
	Draining func(node string) bool
	// Changed is called when a watched object has changed. Changed must not block.
	Changed func()
}

// Sources watches the capacity sources of the regular pools: the cluster autoscaler's status and the NodePools. Method
// Of returns the nodegroups.Source of each regular pool.
type Sources struct {
	byPool  []nodegroups.Source // by the pool's index
	tracker *clusterautoscaler.Tracker
	status  *watched // the watch of the cluster autoscaler's status; nil if no pool needs it
	// autoscalers is the ConfigMap with the cluster autoscaler's status, as last observed; nil if there is none.
	autoscalers runtime.Object
	statusID    string                               // namespace/name
	events      *lastEvents[clusterautoscaler.Event] // the cluster autoscaler's events; nil if no pool needs them
	nodePools   []*nodePool
	lease       *lease                            // Karpenter's Lease; nil if no pool names a NodePool
	simulations *lastEvents[karpenter.Simulation] // Karpenter's events on pods; nil if they are not read
	warned      map[string]bool                   // node groups that no pool owns and that were logged
	// told has the time of each source's last observed change. Goroutines other than the gatekeeper's loop also read
	// told.
	told atomic.Pointer[[]Change]
}

// sourceAutoscaler is the value of the metrics label "source" for the cluster autoscaler.
const sourceAutoscaler = "cluster-autoscaler"

// Change is the time at which a capacity source was last seen to change; zero if it never was.
type Change struct {
	Source string
	At     time.Time
}

// Changes returns the last change of each capacity source that Observe has seen.
func (s *Sources) Changes() []Change {
	return ptr.Deref(s.told.Load(), nil)
}

// nodePool is a Karpenter NodePool, the capacity source of all pools that name it.
type nodePool struct {
	*karpenter.Tracker
	name     string
	object   *watched
	observed runtime.Object // the object as last observed; may be nil
	version  string         // the object's resourceVersion as last observed
	changed  time.Time      // when version last changed; zero if it never did
}

// source returns the value of the metrics label "source" for the NodePool.
func (n *nodePool) source() string { return "nodepool/" + n.name }

// New returns Sources, and starts to watch the capacity sources.
func New(ctx context.Context, config *Config) (*Sources, error) {
	c := &config.Args.Capacity
	s := &Sources{
		statusID: c.ClusterAutoscalerStatus,
		warned:   map[string]bool{},
		tracker:  clusterautoscaler.NewTracker(c.StaleAfter.Duration, c.ProvisionGrace.Duration),
	}
	s.tracker.Draining = config.Draining
	nodePools := map[string]bool{}
	for i := range config.Pools.Regular() {
		p := config.Pools.At(i)
		var source nodegroups.Source
		var err error
		switch {
		case p.ClusterAutoscaler != nil:
			source = clusterautoscaler.Source{Tracker: s.tracker, Groups: clusterautoscaler.GroupsOf(&p.Pool), Graces: p.Graces, NodePools: nodePools}
			s.watchStatus(ctx, config)
		case p.Karpenter != nil:
			nodePools[p.Karpenter.NodePool] = true
			source, err = s.nodePool(ctx, config, p.Karpenter.NodePool)
		case p.Static != nil:
			source = static.MaxNodes{Nodes: p.Static.MaxNodes, MinWait: p.Graces.Provision}
		default:
			source = static.Fixed{}
		}
		if err != nil {
			return nil, err
		}
		s.byPool = append(s.byPool, source)
	}
	return s, nil
}

// only restricts a list or a watch to the object with this name.
func only(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

func (s *Sources) watchStatus(ctx context.Context, config *Config) {
	if s.status != nil {
		return
	}
	namespace, name, _ := strings.Cut(s.statusID, "/")
	informer := coreinformers.NewFilteredConfigMapInformer(config.Client, namespace, 0, cache.Indexers{}, only(name))
	s.watchAutoscaler(ctx, config, namespace)
	s.status = watch(ctx, informer, s.statusID, sourceAutoscaler, config.Changed)
}

// nodePool returns the source of the NodePool, and starts to watch the NodePool if it is not watched yet. Pools may
// share a NodePool.
func (s *Sources) nodePool(ctx context.Context, config *Config, name string) (nodegroups.Source, error) {
	for _, n := range s.nodePools {
		if n.name == name {
			return n, nil
		}
	}
	if config.Dynamic == nil {
		return nil, fmt.Errorf("watching NodePool %s: the scheduler has no client configuration", name)
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(config.Dynamic, karpenter.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, only(name))
	n := &nodePool{name: name}
	n.object = watch(ctx, informer.Informer(), name, n.source(), config.Changed)
	launches := karpenter.NewLaunches()
	watchNodeClaims(ctx, config, name, launches)
	if s.lease == nil {
		s.lease = watchLease(ctx, config)
		if !config.Args.Tenants { // tenants may write events
			s.watchSimulations(ctx, config)
		}
	}
	n.Tracker = karpenter.NewTracker(nodePoolGraces(config, name), launches)
	s.nodePools = append(s.nodePools, n)
	return n, nil
}

// nodePoolGraces returns, for each grace, the longest value in the pools that name the NodePool.
func nodePoolGraces(config *Config, name string) pool.Graces {
	var graces pool.Graces
	for i := range config.Pools.Regular() {
		if k := config.Pools.At(i).Karpenter; k != nil && k.NodePool == name {
			g := &config.Pools.At(i).Graces
			graces.Provision, graces.Backoff = max(graces.Provision, g.Provision), max(graces.Backoff, g.Backoff)
		}
	}
	return graces
}

// Of returns the source of the regular pool with index i.
func (s *Sources) Of(i int) nodegroups.Source { return s.byPool[i] }

// Object returns the cluster autoscaler's status or the NodePool of the regular pool with index i, as last observed;
// nil if there is none.
func (s *Sources) Object(i int) runtime.Object {
	switch source := s.byPool[i].(type) {
	case clusterautoscaler.Source:
		return s.autoscalers
	case *nodePool:
		return source.observed
	}
	return nil
}

// Shared returns a node that may be in several of the cluster autoscaler's node groups, these groups, and the
// autoscaler's status. If there is no such node, node is "".
func (s *Sources) Shared() (node string, groups []string, status runtime.Object) {
	if s.status == nil {
		return "", nil, nil
	}
	node, groups = s.tracker.Shared()
	return node, groups, s.autoscalers
}

// Stuck returns the names of the nodes that the cluster autoscaler marked for removal and did not remove.
func (s *Sources) Stuck() []string { return s.tracker.Stuck() }

// Settled reports whether every watched object was read, is known not to exist, or could not be read.
func (s *Sources) Settled() bool {
	return (s.status == nil || s.status.settled()) && (s.lease == nil || s.lease.settled()) && !slices.ContainsFunc(s.nodePools, func(n *nodePool) bool { return !n.object.settled() })
}

// Observe passes the watched objects and the nodes at the time now to the trackers. byPool has the nodes of each pool,
// and unlisted has the nodes in no pool.
func (s *Sources) Observe(logger klog.Logger, byPool [][]*v1.Node, unlisted []*v1.Node, now time.Time) {
	nodes := slices.Concat(append(slices.Clone(byPool), unlisted)...)
	var told []Change
	if s.status != nil {
		s.observeStatus(now)
		s.assign(logger, byPool, nodes, now)
		told = append(told, Change{sourceAutoscaler, s.tracker.Changed()})
	}
	for _, n := range s.nodePools {
		if s.lease.exists() {
			n.ObserveLease(s.lease.last(), s.lease.config.Args.Capacity.StaleAfter.Duration)
		} else {
			n.ForgetLease()
		}
		n.observe(nodes, now)
		told = append(told, Change{n.source(), n.changed})
	}
	s.told.Store(&told)
}

// observeStatus passes the cluster autoscaler's status to its tracker. If the status cannot be parsed, the error
// becomes the reason of the state of the pools. Errors counts each invalid version of the status once.
func (s *Sources) observeStatus(now time.Time) {
	obj, err := s.status.get()
	s.autoscalers = obj
	if err != nil {
		s.tracker.Fail(err, now)
		return
	}
	cm, _ := obj.(*v1.ConfigMap)
	if s.events.HasSynced() {
		s.tracker.ReceiveEvents(now)
	}
	if cm != nil {
		s.tracker.Degraded = clusterautoscaler.DegradedSince(s.events.on(cm.Namespace, cm.UID))
	}
	before := s.tracker.Changed()
	if err := s.tracker.Observe(cm, now); err != nil && !s.tracker.Changed().Equal(before) {
		Errors.WithLabelValues(sourceAutoscaler).Inc()
	}
}

// observe passes the NodePool to its tracker. If the NodePool cannot be parsed, the error becomes the reason of the state
// of its pools. Errors counts each invalid version of the NodePool once.
func (n *nodePool) observe(nodes []*v1.Node, now time.Time) {
	obj, err := n.object.get()
	n.observed = obj
	switch {
	case apierrors.IsNotFound(err):
		n.Lose(karpenter.ReasonNoResource, now)
		return
	case err != nil:
		n.Fail(err, now)
		return
	}
	version := ""
	object, ok := obj.(*unstructured.Unstructured)
	if ok {
		version = object.GetResourceVersion()
	}
	isNew := version != n.version
	if isNew {
		n.version, n.changed = version, now
	}
	if !ok {
		n.Lose(karpenter.ReasonMissing, now)
		return
	}
	data, _ := object.MarshalJSON() // does not fail
	if err := n.Observe(data, nodes, now); err != nil && isNew {
		Errors.WithLabelValues(n.source()).Inc()
	}
}

// assign passes the pools' groups and nodes to the tracker. It logs each node group that no pool owns once.
func (s *Sources) assign(logger klog.Logger, byPool [][]*v1.Node, nodes []*v1.Node, now time.Time) {
	var claims []clusterautoscaler.OwnedGroups
	for i, source := range s.byPool {
		if source, ok := source.(clusterautoscaler.Source); ok {
			claims = append(claims, clusterautoscaler.OwnedGroups{Source: source, Nodes: byPool[i]})
		}
	}
	for _, name := range s.tracker.ObserveNodes(claims, nodes, now) {
		if !s.warned[name] {
			s.warned[name] = true
			logger.Info("The pool of a node group in the cluster autoscaler's status is not known yet: the group has no node, and no pool names it", "nodeGroup", name, "configMap", s.statusID)
		}
	}
}

// Remember writes the trackers' memories at the time now to m. held is set if pods are held. If held is set, Remember
// also writes the memory of the cluster autoscaler's loops.
func (s *Sources) Remember(m *published.Memory, held bool, now time.Time) {
	if s.status != nil {
		m.ClusterAutoscaler = s.tracker.Memory(held, now)
	}
	m.NodePools = map[string]karpenter.Memory{}
	for _, n := range s.nodePools {
		m.NodePools[n.name] = n.Memory()
	}
}

// Restore restores the trackers' memories from m.
func (s *Sources) Restore(m *published.Memory, now time.Time) {
	s.tracker.Restore(m.ClusterAutoscaler, now)
	for _, n := range s.nodePools {
		if memory, ok := m.NodePools[n.name]; ok {
			n.Restore(memory, now)
		}
	}
}
