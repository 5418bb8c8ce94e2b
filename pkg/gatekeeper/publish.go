package gatekeeper

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/published"
)

const (
	// publishInterval is the shortest time between two writes.
	publishInterval = time.Second
	// figuresInterval is the shortest time between two writes if only figures have changed by which nothing is decided.
	figuresInterval = 15 * time.Second
	// maxPublishInterval is the longest time between two tries of a write that fails.
	maxPublishInterval = 30 * time.Second
	// publishTimeout is how long one read or write may take.
	publishTimeout = 3 * time.Second
)

// publisher writes the published state, in a goroutine of its own.
type publisher struct {
	id        string // namespace/name
	namespace string
	name      string
	client    typedcorev1.ConfigMapInterface
	newest    atomic.Pointer[published.Status]
	submitted chan struct{}
}

func newPublisher(id string, client kubernetes.Interface) *publisher {
	namespace, name, _ := strings.Cut(id, "/")
	return &publisher{id: id, namespace: namespace, name: name, client: client.CoreV1().ConfigMaps(namespace), submitted: make(chan struct{}, 1)}
}

// load returns what was published last, nil if nothing was. With an error, it returns the part that can be read, nil if it got
// nothing at all.
func (p *publisher) load(ctx context.Context) (*published.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	cm, err := p.client.Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("getting ConfigMap %s: %w", p.id, err)
	}
	return published.Decode(cm)
}

// submit hands over what is to be published.
func (p *publisher) submit(state *published.Status) {
	p.newest.Store(state)
	poke(p.submitted)
}

// contents is what was written, or is to be: all of it but what changes with every look, and what of it decides.
type contents struct{ all, decisive map[string]string }

func contentsOf(state *published.Status) (contents, error) {
	all, err := state.Quiet().Encode()
	if err != nil {
		return contents{}, err
	}
	decisive, err := state.Decisive().Encode()
	return contents{all, decisive}, err
}

// due is how long after it was written what was published is to be written anew: at once if what decides has changed, soon if other figures
// have, and else so that it can be seen that somebody leads.
func (c *contents) due(last *contents) time.Duration {
	switch {
	case !maps.Equal(c.decisive, last.decisive):
		return 0
	case !maps.Equal(c.all, last.all):
		return figuresInterval
	default:
		return heartbeat - publishInterval
	}
}

// run writes what is submitted, if it changed or is old.
func (p *publisher) run(ctx context.Context, clock clock.WithTicker) {
	logger := klog.FromContext(ctx)
	var last contents
	var written time.Time
	wait, problem := publishInterval, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.submitted:
		}
		state := p.newest.Load()
		now := clock.Now()
		data, err := contentsOf(state)
		if err == nil && now.Sub(written) < data.due(&last) {
			continue
		}
		if err == nil {
			dated := *state
			dated.Memory.Written = now.UTC()
			err = p.write(ctx, &dated)
		}
		if err != nil && ctx.Err() != nil {
			return // an orderly stop, in the middle of a write
		}
		if err == nil {
			last, written, wait, problem = data, now, publishInterval, ""
		} else {
			publishFailures.Inc()
			if err.Error() != problem {
				logger.Error(err, "The pools' states cannot be published", "configMap", p.id)
			}
			problem, wait = err.Error(), min(2*wait, maxPublishInterval)
			poke(p.submitted) // once more
		}
		select {
		case <-ctx.Done():
			return
		case <-clock.After(wait):
		}
	}
}

func (p *publisher) write(ctx context.Context, state *published.Status) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	data, err := state.Encode()
	if err != nil {
		return err
	}
	config := applycorev1.ConfigMap(p.name, p.namespace).WithData(data)
	if _, err := p.client.Apply(ctx, config, metav1.ApplyOptions{FieldManager: configv1.PluginName, Force: true}); err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", p.id, err)
	}
	return nil
}
