// Package publishing reports the gatekeeper's state. It writes the ConfigMap that tools and the next leader read,
// collects the gauges, and reports problems that the user can fix.
package publishing

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
	"poolpriority.dev/scheduler/pkg/gatekeeper/usage"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

const (
	// publishInterval is the shortest time between two writes.
	publishInterval = time.Second
	// figuresInterval is the shortest time between two writes if only usage figures have changed, which affect no
	// decision.
	figuresInterval = 15 * time.Second
	// maxPublishInterval bounds the backoff after failed writes.
	maxPublishInterval = 30 * time.Second
	// publishTimeout bounds one read or write of the ConfigMap.
	publishTimeout = 3 * time.Second
)

// Failures counts failures to write the ConfigMap.
var Failures = metrics.NewCounter(&metrics.CounterOpts{
	Subsystem: subsystem,
	Name:      "publish_failures_total",
	Help:      "Failures to write the ConfigMap pool-priority-status.",
})

// Config has the dependencies of a Publisher. The field Held and the fields after it are safe for concurrent use. State
// that only the gatekeeper's loop may read is passed in a Report.
type Config struct {
	Args                             *configv1.PoolPriorityArgs
	Pools                            pool.List
	Client                           typedcorev1.ConfigMapsGetter
	Clock                            clock.WithTicker
	Identity, Version, SchedulerName string

	Held     *held.Pods
	Declines *gate.Declines
	Usage    *usage.Usage
	Sources  *sources.Sources
	Nodes    func() (byPool [][]*v1.Node, unlisted []*v1.Node)
	View     func() *nodegroups.View
	Rule     func() gate.Rule
	Leads    func() bool // whether this scheduler is the leader and may still act as the leader
	Synced   func() bool // whether all informers have synced
}

// Report has the state of the gatekeeper's loop that is published. It must not be changed after Submit.
type Report struct {
	View     *nodegroups.View
	Override gate.Override // the override in force
	Problems []string
	Codes    map[string]float64 // Problems.List
	Memory   published.Memory   // the state of the sources, the providers and the override for the next leader
}

// Publisher builds and writes the published state in its own goroutine, so that it does not delay the gatekeeper's
// loop.
type Publisher struct {
	config          Config
	namespace, name string
	newest          atomic.Pointer[Report]
	submitted       chan struct{}
}

// New returns a Publisher that has nothing to publish yet.
func New(config Config) *Publisher {
	p := &Publisher{config: config, submitted: make(chan struct{}, 1)}
	p.namespace, p.name, _ = strings.Cut(config.Args.StatusConfigMap, "/")
	return p
}

// PublishWith replaces the client of Config. Callers must call it before Run and Load.
func (p *Publisher) PublishWith(client typedcorev1.ConfigMapsGetter) { p.config.Client = client }

// Load returns the published status, or nil if there is none. If only a part of the status can be read, Load returns
// this part together with an error.
func (p *Publisher) Load(ctx context.Context) (*published.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	cm, err := p.config.Client.ConfigMaps(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("getting ConfigMap %s: %w", p.config.Args.StatusConfigMap, err)
	}
	return published.Decode(cm)
}

// Submit makes Run publish the report. It does not block.
func (p *Publisher) Submit(report *Report) {
	p.newest.Store(report)
	Poke(p.submitted)
}

// Poke puts a value into the channel, unless it has one.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// contents is the encoded status without the fields that change with every sync. decisive has only the part of the
// status that affects decisions.
type contents struct{ all, decisive map[string]string }

func contentsOf(state *published.Status) (contents, error) {
	all, err := state.Quiet().Encode()
	if err != nil {
		return contents{}, err
	}
	decisive, err := state.Decisive().Encode()
	return contents{all, decisive}, err
}

// due returns the shortest time between the last write and the next write. It is zero if the decisive part has changed,
// and figuresInterval if only other figures have changed. If nothing has changed, it is publishInterval less than
// published.Heartbeat.
func (c *contents) due(last *contents) time.Duration {
	switch {
	case !maps.Equal(c.decisive, last.decisive):
		return 0
	case !maps.Equal(c.all, last.all):
		return figuresInterval
	default:
		return published.Heartbeat - publishInterval
	}
}

// Run builds the status from the newest submitted report, until the context ends. It writes the status if the time that
// due returns has passed since the last write.
func (p *Publisher) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var last contents
	var written time.Time
	var again <-chan time.Time // when a change that was not urgent is due
	problem, backoff := "", flowcontrol.NewBackOff(2*publishInterval, maxPublishInterval)
	backoff.Clock = p.config.Clock
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.submitted:
		case <-again:
		}
		again = nil
		state := p.status(p.newest.Load())
		now := p.config.Clock.Now()
		data, err := contentsOf(state)
		if wait := data.due(&last) - now.Sub(written); err == nil && wait > 0 {
			if !maps.Equal(data.all, last.all) {
				again = p.config.Clock.After(wait)
			}
			p.pause(ctx, publishInterval)
			continue
		}
		if err == nil {
			state.Memory.Written = now.UTC()
			err = p.write(ctx, state)
		}
		if err != nil && ctx.Err() != nil {
			return // the scheduler stopped during the write
		}
		if err == nil {
			last, written, problem = data, now, ""
			backoff.Reset(p.name)
		} else {
			Failures.Inc()
			if err.Error() != problem {
				logger.Error(err, "The pools' states cannot be published", "configMap", p.config.Args.StatusConfigMap)
			}
			problem = err.Error()
			backoff.Next(p.name, now)
			Poke(p.submitted) // try again
		}
		p.pause(ctx, max(publishInterval, backoff.Get(p.name)))
	}
}

// pause waits for d, or until the context ends. It limits how often reports are built and written in a cluster that
// changes all the time.
func (p *Publisher) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-p.config.Clock.After(d):
	}
}

func (p *Publisher) write(ctx context.Context, state *published.Status) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	data, err := state.Encode()
	if err != nil {
		return err
	}
	config := applycorev1.ConfigMap(p.name, p.namespace).WithData(data)
	if _, err := p.config.Client.ConfigMaps(p.namespace).Apply(ctx, config, metav1.ApplyOptions{FieldManager: configv1.PluginName, Force: true}); err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", p.config.Args.StatusConfigMap, err)
	}
	return nil
}
