package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	yamlv2 "go.yaml.in/yaml/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

const (
	// expanderName and expanderKey name the ConfigMap that the expander `priority` of the cluster autoscaler reads, and
	// its key. The ConfigMap is in the autoscaler's namespace. Source: expander/priority/readme.md of the autoscaler.
	expanderName, expanderKey = "cluster-autoscaler-priority-expander", "priorities"
	// step is the difference between the priorities of two pools. Karpenter accepts weights from 1 to maxWeight.
	step, maxWeight = 10, 100
	// leastPriority is the lowest priority with which the expander chooses a group. Source: BestOptions in
	// expander/priority/priority.go of the autoscaler.
	leastPriority = -1
)

var errFound = errors.New("found a problem") // which the command has printed

func (o *options) newExpander() *cobra.Command {
	diff := false
	c := &cobra.Command{
		Use:   "expander",
		Short: "Print what makes the autoscaler grow the pools in their order: the ConfigMap of the expander priority, or NodePool weights",
		Long: "Print what makes autoscalers grow the pools in their order, and change nothing. For the cluster autoscaler, it is the ConfigMap that the expander\n" +
			"priority reads. On AKS, az aks update --cluster-autoscaler-profile expander=priority selects this expander. For Karpenter, it is the command that\n" +
			"sets each NodePool's weight. With --diff, compare the order in the cluster with the order of the pools instead. If they differ, the exit status is 1.",
		Example: fmt.Sprintf("  %[1]s expander | kubectl apply -f -\n  %[1]s expander --diff", o.name),
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return o.runExpander(c.Context(), diff) },
	}
	c.Flags().BoolVar(&diff, "diff", false, "compare with the cluster instead")
	return c
}

func (o *options) runExpander(ctx context.Context, diff bool) error {
	if o.output != "" {
		return errors.New("expander has no --output: it prints YAML")
	}
	c, p, err := o.connectPublished(ctx)
	if err != nil {
		return err
	}
	groups := p.growing()
	if diff {
		return o.runExpanderDiff(ctx, c, p, groups)
	}
	return o.print(nil, nil, func(w io.Writer) { fmt.Fprint(w, p.expander(groups)) })
}

// group is a node group or a NodePool that may grow, and the index of its pool.
type group struct {
	name string
	pool int
	// pattern matches the names of the node group, and of those that replace it. It is empty for a NodePool.
	pattern string
}

// growing returns the groups of the regular pools that an autoscaler scales, in the order of the pools.
func (p *publishedState) growing() (groups []group) {
	for i := range p.pools.Regular() {
		switch of := p.pools.At(i); {
		case of.Karpenter != nil:
			groups = append(groups, group{name: of.Karpenter.NodePool, pool: i})
		case of.ClusterAutoscaler != nil:
			for _, g := range p.view.Capacity.Pools[i].Groups {
				if g.Name != "" && !g.Foreign {
					groups = append(groups, group{g.Name, i, clusterautoscaler.Pattern(g.Name)})
				}
			}
		}
	}
	return groups
}

// expander returns the text that the command prints.
func (p *publishedState) expander(groups []group) string {
	var b, weights strings.Builder
	used, last := map[string]bool{}, -1
	for _, g := range groups {
		switch {
		case g.pattern == "":
			fmt.Fprintf(&weights, "# kubectl patch nodepool %s --type=merge --patch '{\"spec\":{\"weight\":%d}}'\n", g.name, maxWeight-g.pool)
		case used[g.pattern]: // a pattern that an earlier pool has would count for both
		default:
			if g.pool != last {
				fmt.Fprintf(&b, "    %d:\n", step*(p.pools.Regular()-g.pool))
				last = g.pool
			}
			fmt.Fprintf(&b, "    - %s\n", g.pattern)
			used[g.pattern] = true
		}
	}
	text := weights.String()
	if b.Len() > 0 {
		text = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  namespace: %s\ndata:\n  %s: |-\n%s", expanderName, p.autoscalerNamespace(), expanderKey, b.String()) + text
	}
	if text == "" {
		return "# No autoscaler's node group is known, so there is no order to set.\n"
	}
	return text
}

func (p *publishedState) autoscalerNamespace() string {
	namespace, _, _ := strings.Cut(p.view.Args.Capacity.ClusterAutoscalerStatus, "/")
	return namespace
}

func (o *options) runExpanderDiff(ctx context.Context, c *cluster, p *publishedState, groups []group) error {
	nodePools, err := c.nodePools(ctx, groups)
	if err != nil {
		return err
	}
	found, err := c.disorder(ctx, p, groups, nodePools)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return o.print(nil, nil, func(w io.Writer) {
			fmt.Fprintln(w, "The autoscaler's priorities have the order of the pools. Whether the cluster autoscaler uses its expander priority is not visible in the cluster.")
		})
	}
	if err := o.print(nil, nil, func(w io.Writer) { fmt.Fprintln(w, strings.Join(found, "\n")) }); err != nil {
		return err
	}
	return errFound
}

// disorder reads the priorities in the cluster, and returns a line for each problem with them and with the weights. If
// only one pool may grow by the cluster autoscaler, the expander's ConfigMap does not matter.
func (c *cluster) disorder(ctx context.Context, p *publishedState, groups []group, nodePools map[string]nodePool) ([]string, error) {
	var expander *corev1.ConfigMap
	pools := map[int]bool{}
	for _, g := range groups {
		if g.pattern != "" {
			pools[g.pool] = true
		}
	}
	if len(pools) > 1 {
		expander = &corev1.ConfigMap{}
		if err := c.get(ctx, expander, p.autoscalerNamespace(), expanderName); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	} else {
		groups = slices.DeleteFunc(slices.Clone(groups), func(g group) bool { return g.pattern != "" })
	}
	return p.disorder(groups, expander, nodePools), nil
}

// nodePool is what the commands read of a NodePool. A NodePool without a weight has 0.
type nodePool struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Weight int                        `json:"weight"`
		Limits map[string]json.RawMessage `json:"limits"`
	} `json:"spec"`
}

// nodePools reads the NodePools among the groups.
func (c *cluster) nodePools(ctx context.Context, groups []group) (map[string]nodePool, error) {
	nodePools := map[string]nodePool{}
	for _, g := range groups {
		if g.pattern != "" {
			continue
		}
		r := karpenter.Resource
		result := c.client.CoreV1().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource, g.name).SetHeader("Accept", "application/json").Do(ctx)
		data, _ := result.Raw()
		err := result.Error() // unlike Raw's, it has the status in the server's answer
		var n nodePool
		if err == nil {
			err = json.Unmarshal(data, &n)
		}
		if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) { // the path, not the object
			return nil, errors.New(karpenter.ReasonNoResource.Sentence)
		} else if err != nil {
			return nil, c.plainly("get nodepools/"+g.name, err)
		}
		nodePools[g.name] = n
	}
	return nodePools, nil
}

// disorder returns a line for each problem with the priorities in the expander's ConfigMap and with the weights.
// expander is nil if no group is the cluster autoscaler's.
func (p *publishedState) disorder(groups []group, expander *corev1.ConfigMap, nodePools map[string]nodePool) (found []string) {
	var priorities func(string) (int, bool)
	if expander != nil {
		var err error
		if priorities, err = prioritiesOf(expander); err != nil {
			return []string{fmt.Sprintf("ConfigMap %s/%s: %v", p.autoscalerNamespace(), expanderName, err)}
		}
	}
	value := func(g group) (n int, text string) {
		if g.pattern == "" {
			weight := nodePools[g.name].Spec.Weight
			return weight, fmt.Sprintf("weight %d", weight)
		}
		switch n, known := priorities(g.name); {
		case !known:
			return math.MinInt, "no priority"
		case n < leastPriority:
			return math.MinInt, fmt.Sprintf("priority %d, which is below %d and never wins", n, leastPriority)
		default:
			return n, fmt.Sprintf("priority %d", n)
		}
	}
	for _, g := range groups {
		n, text := value(g)
		for _, earlier := range groups {
			if (earlier.pattern == "") != (g.pattern == "") || earlier.pool >= g.pool {
				continue
			}
			if m, other := value(earlier); m <= n {
				found = append(found, fmt.Sprintf("%s (pool %s) has %s, and %s (pool %s) has %s: the earlier pool needs the higher number, of at least %d",
					earlier.name, p.pools.At(earlier.pool).Name, other, g.name, p.pools.At(g.pool).Name, text, leastPriority))
				break
			}
		}
	}
	return found
}

// prioritiesOf returns a function that returns the priority of a node group in the expander's ConfigMap, and whether a
// pattern matches the group. The expander chooses groups that no pattern matches only if it has no other group.
// Autoscalers before 1.35 read the ConfigMap with yaml.v2, and later ones with sigs.k8s.io/yaml, which accepts other keys.
// AKS may run an autoscaler that is older than its Kubernetes.
func prioritiesOf(cm *corev1.ConfigMap) (func(name string) (int, bool), error) {
	if cm.Name == "" {
		return nil, errors.New("it does not exist")
	}
	text := []byte(cm.Data[expanderKey])
	if len(text) == 0 {
		return nil, fmt.Errorf("it has no key %s, or an empty one", expanderKey)
	}
	var lists, again map[int][]string
	earlier, later := yamlv2.Unmarshal(text, &lists), yaml.Unmarshal(text, &again)
	if err := cmp.Or(earlier, later); err != nil {
		who := "the autoscaler"
		if later == nil {
			who = "an autoscaler before 1.35"
		}
		return nil, fmt.Errorf("%s cannot read it: keys must be numbers without quotes, and each needs a list of patterns: %w", who, oneLine(err))
	}
	type row struct {
		priority int
		pattern  *regexp.Regexp
	}
	var rows []row
	for priority, patterns := range lists {
		for _, text := range patterns {
			pattern, err := regexp.Compile(text)
			if err != nil {
				return nil, fmt.Errorf("the autoscaler ignores all of it, because a pattern of priority %d is wrong: %w", priority, err)
			}
			rows = append(rows, row{priority, pattern})
		}
	}
	return func(name string) (priority int, known bool) {
		for _, r := range rows {
			if r.pattern.MatchString(name) && (!known || r.priority > priority) {
				priority, known = r.priority, true
			}
		}
		return priority, known
	}, nil
}
