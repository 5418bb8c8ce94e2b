package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/lint"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
)

const spotPool = `      - name: spot # asked for by --spot; pods tolerate the spot taint themselves
        nodeSelector: {matchLabels: {kubernetes.azure.com/scalesetpriority: spot}}
        clusterAutoscaler: {nodeGroups: ["aks-spot*"]} # a guess: the names of the spot pools' scale sets
        nodeTemplate: {taints: [{key: kubernetes.azure.com/scalesetpriority, value: spot, effect: NoSchedule}]}
`

// poolLabels tell the nodes of different pools apart: of a node, the first that it has.
var poolLabels = []string{"kubernetes.azure.com/mode", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool", corev1.LabelInstanceTypeStable, corev1.LabelOSStable}

// initial is what a first configuration is based on.
type initial struct {
	strings.Builder          // the configuration
	groups          []string // of the cluster autoscaler
	aks             *lint.AKS
	quota           *lint.Quota
	spot            bool
}

func (i *initial) line(format string, a ...any) { fmt.Fprintf(i, format+"\n", a...) }

// unknown writes what could not be read. What does not exist is known.
func (i *initial) unknown(what string, err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		i.line("# %s is not known: %v.", what, oneLine(err))
	}
}

func (o *options) newInit() *cobra.Command {
	i, files := &initial{}, &lintOptions{}
	c := &cobra.Command{
		Use:   "init",
		Short: "Print a first configuration for this cluster, to be read, changed and kept in git",
		Long: "Print a first configuration for this cluster, and change nothing. The pools come from the nodes' labels, Karpenter's NodePools and the cluster\n" +
			"autoscaler's status: user before system, regular before burst. A comment says what each guess is based on.",
		Example: fmt.Sprintf("  %[1]s init > config.yaml\n  %[1]s init --aks aks.json --quota quota.json > config.yaml\n  %[1]s lint -f config.yaml", o.name),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.output != "" {
				return errors.New("init has no --output: it prints YAML")
			}
			if files.aks != "" {
				err = o.parseFile("--aks", files.aks, func(data []byte) (err error) { i.aks, err = lint.ParseAKS(data); return err })
			}
			if files.quota != "" && err == nil {
				err = o.parseFile("--quota", files.quota, func(data []byte) (err error) { i.quota, err = lint.ParseQuota(data); return err })
			}
			if err != nil {
				return err
			}
			return o.runInit(c.Context(), i)
		},
	}
	o.addAzure(c, files)
	c.Flags().BoolVar(&i.spot, "spot", false, "put AKS's spot node pools first")
	return c
}

func (o *options) runInit(ctx context.Context, i *initial) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	nodes := &corev1.NodeList{}
	if err := c.list(ctx, nodes, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		return err
	}
	i.line("# A first configuration for this cluster, by %s init. Read it, change it, and keep it in git.", o.name)
	status := &corev1.ConfigMap{}
	if err = c.get(ctx, status, metav1.NamespaceSystem, "cluster-autoscaler-status"); err == nil {
		i.groups, err = clusterautoscaler.GroupNames(status)
	}
	i.unknown("The cluster autoscaler's status", err)
	var nodePools struct{ Items []nodePool }
	r := karpenter.Resource
	data, err := c.client.CoreV1().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &nodePools)
	}
	i.unknown("Which NodePools Karpenter has", c.plainly("list nodepools", err))
	i.write(nodes.Items, nodePools.Items)
	if _, _, err := configv1.Load([]byte(i.String())); err != nil {
		return fmt.Errorf("the nodes and NodePools of this cluster make no valid configuration: %w", oneLine(err))
	}
	return o.print(nil, nil, func(w io.Writer) { fmt.Fprint(w, i) })
}

// write writes the configuration.
func (i *initial) write(nodes []corev1.Node, nodePools []nodePool) {
	var virtual []corev1.Node
	byLabel, names := map[[2]string][]corev1.Node{}, map[string]bool{"aci": true, "spot": true}
	const control = "node-role.kubernetes.io/control-plane"
	alone := !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return !metav1.HasLabel(n.ObjectMeta, control) && !pool.IsVirtual(&n) }) // as in kind and k3s
	for _, n := range nodes {
		k := slices.IndexFunc(poolLabels, func(key string) bool { return n.Labels[key] != "" })
		switch {
		case pool.IsVirtual(&n):
			virtual = append(virtual, n)
		case (alone || !metav1.HasLabel(n.ObjectMeta, control)) && k >= 0 && n.Labels[nodegroups.KarpenterNodePoolLabel] == "":
			id := [2]string{poolLabels[k], n.Labels[poolLabels[k]]}
			byLabel[id] = append(byLabel[id], n)
		}
	}
	if len(virtual) == 0 {
		i.line("# There is no virtual node, so this is an ordered list only: pods fill the pools in turn, and nothing bursts.")
	}
	i.line("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {resourceName: %s}\nprofiles:", configv1.DefaultInstallation)
	i.line("- schedulerName: %s\n  pluginConfig:\n  - name: %s\n    args:\n      pools: # most preferred first", configv1.DefaultInstallation, configv1.PluginName)
	if i.spot {
		i.WriteString(spotPool)
	}
	add := func(key, value, source, why string) {
		name := strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(value))
		for names[name] {
			name += "-2"
		}
		names[name] = true
		i.line("      - name: %q # %s\n        nodeSelector: {matchLabels: {%s: %q}}\n        %s", name, why, key, value, source)
	}
	slices.SortFunc(nodePools, func(a, b nodePool) int {
		return cmp.Or(b.Spec.Weight-a.Spec.Weight, strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, n := range nodePools {
		add(nodegroups.KarpenterNodePoolLabel, n.Metadata.Name, fmt.Sprintf("karpenter: {nodePool: %q}", n.Metadata.Name), fmt.Sprintf("Karpenter's NodePool, of weight %d", n.Spec.Weight))
	}
	ids := slices.SortedFunc(maps.Keys(byLabel), func(a, b [2]string) int {
		return cmp.Or(slices.Index(poolLabels, a[0])-slices.Index(poolLabels, b[0]), strings.Compare(b[1], a[1])) // user before system
	})
	for _, id := range ids {
		source, why := "fixed: {} # or static: {maxNodes: …}", fmt.Sprintf("%d node(s), and no autoscaler is known for them", len(byLabel[id]))
		if slices.ContainsFunc(byLabel[id], i.isScaled) {
			source, why = "clusterAutoscaler: {} # or fixed: {}, if the autoscaler does not scale it", fmt.Sprintf("a guess: the cluster autoscaler's status has %d node groups", len(i.groups))
		}
		add(id[0], id[1], source, why)
	}
	if len(virtual) > 0 {
		i.burst(virtual)
	}
	if i.aks != nil {
		i.graces()
	}
}

// isScaled reports whether the cluster autoscaler's status may have the node's group. AKS's groups have the names of their
// agent pools: aks-NAME-…, or aksNAME with Windows. Nothing is known of the names of others.
func (i *initial) isScaled(n corev1.Node) bool {
	agentPool := n.Labels["kubernetes.azure.com/agentpool"]
	return slices.ContainsFunc(i.groups, func(group string) bool {
		return agentPool == "" || strings.HasPrefix(group, "aks-"+agentPool+"-") || group == "aks"+agentPool || group == agentPool
	})
}

// burst writes the burst pool.
func (i *initial) burst(virtual []corev1.Node) {
	pods, cpu, why := 100, 100, "a guess: keep it below the quota of Container Instances, docs/aci.md"
	if q := i.quota; q != nil && q.Groups > 0 && q.Cores > 0 {
		pods, cpu, why = (q.Groups*9+9)/10, (q.Cores*9+9)/10, "a tenth below the quota"
	}
	i.line("      - name: aci # %d virtual node(s), such as %s", len(virtual), virtual[0].Name)
	i.line("        nodeSelector: {matchLabels: {%s: %s}}\n        burst: # on Azure Container Instances; elsewhere, add platform: Other", pool.VirtualKubeletLabel, pool.VirtualKubeletType)
	i.line("          limits: {pods: %d, cpu: \"%d\", memory: %dG} # %s", pods, cpu, 4*cpu, why)
	i.line("          largest: {cpu: \"4\", memory: 16G} # of one pod: Container Instances often cannot run larger ones")
}

// graces writes the times of AKS's autoscaler that the defaults do not fit.
func (i *initial) graces() {
	args := &configv1.PoolPriorityArgs{}
	configv1.SetDefaults_PoolPriorityArgs(args)
	if set := i.aks.AutoScalerProfile.TooShort(&args.Capacity); len(set) > 0 {
		i.line("      capacity: {%s} # as in the cluster's autoscaler profile", strings.Join(set, ", "))
	}
}
