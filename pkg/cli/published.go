package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/version"
)

// silence is how old what was published must be for nobody to lead: three heartbeats.
const silence = 3 * published.Heartbeat

// publishedState is what the scheduler's leader says of the pools.
type publishedState struct {
	view  *published.View
	pools pool.List
	where string // namespace/name
}

// published reads what the leader published. An error says in one line what keeps it from being shown, and what to do.
func (c *cluster) published(ctx context.Context) (*publishedState, error) {
	cm, err := c.client.CoreV1().ConfigMaps(c.statusNamespace).Get(ctx, c.statusName, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("you may not get configmaps/%s in %s: ask for the role pool-priority-viewer", c.statusName, c.statusNamespace)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no ConfigMap %s/%s: no scheduler with a burst pool has led here, or it publishes elsewhere (--status): kubectl -n %s get deployments,pods",
			c.statusNamespace, c.statusName, c.statusNamespace)
	case err != nil:
		return nil, c.plainly(fmt.Sprintf("get configmaps/%s in %s", c.statusName, c.statusNamespace), err)
	}
	return readPublished(cm)
}

// readPublished reads the ConfigMap.
func readPublished(cm *corev1.ConfigMap) (*publishedState, error) {
	p := &publishedState{where: cm.Namespace + "/" + cm.Name}
	garbage := func(err error) error {
		return fmt.Errorf("ConfigMap %s cannot be read: %w: the leader writes it anew within a minute; if it does not, delete it", p.where, oneLine(err))
	}
	data, ok := cm.Data[published.ViewKey]
	if !ok {
		return nil, garbage(fmt.Errorf("it has no key %q", published.ViewKey))
	}
	var err error
	if p.view, err = published.DecodeView([]byte(data)); err != nil {
		return nil, garbage(err)
	}
	if p.pools, err = p.view.Pools(); err != nil {
		return nil, garbage(err)
	}
	return p, nil
}

func oneLine(err error) error { return errors.New(strings.Join(strings.Fields(err.Error()), " ")) }

// notes are what is to be known of what was published, a sentence each.
func (p *publishedState) notes(now time.Time) []string {
	var notes []string
	if age := now.Sub(p.view.Written); age > silence {
		namespace, _, _ := strings.Cut(p.where, "/")
		notes = append(notes, fmt.Sprintf("no leader for %s: this is as of then; kubectl -n %s get pods,leases", duration.HumanDuration(age), namespace))
	}
	if p.view.IsForeign() {
		notes = append(notes, fmt.Sprintf("written by %s as %s, and this is %s: what it does not know is left out, and verdicts may differ from the scheduler's",
			cmp.Or(p.view.Version, "another version"), cmp.Or(p.view.APIVersion, "a format without a version"), version.String()))
	}
	if len(p.view.LeftOut) > 0 {
		notes = append(notes, fmt.Sprintf("too much is known to be published, and %s are left out: verdicts may differ from the scheduler's", strings.Join(p.view.LeftOut, ", ")))
	}
	return notes
}

// decide is the scheduler's own decision for the request: the only place where one is asked for.
func (p *publishedState) decide(request gate.Request, now time.Time) gate.Decision {
	return p.view.Decide(request, p.pools, now)
}
