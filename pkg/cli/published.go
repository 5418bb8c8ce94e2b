package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/pkg/version"
)

// staleStatus is three heartbeats. If the published state is older than staleStatus, no scheduler leads.
const staleStatus = 3 * published.Heartbeat

// publishedState is the state that the leader published.
type publishedState struct {
	view  *published.View
	pools pool.List
	where string // namespace/name
}

// published reads the state that the leader published. The text of each returned error is one line for the user.
func (c *cluster) published(ctx context.Context) (*publishedState, error) {
	cm := &corev1.ConfigMap{}
	err := c.get(ctx, cm, c.statusNamespace, c.statusName)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: ask for the role pool-priority-viewer", err)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no ConfigMap %s/%s: no scheduler with a burst pool has become the leader, or the leader publishes to another ConfigMap (set --status); see kubectl -n %s get deployments,pods",
			c.statusNamespace, c.statusName, c.statusNamespace)
	case err != nil:
		return nil, err
	}
	return readPublished(cm)
}

// connectPublished returns the cluster that the flags name, and the state that the leader of this cluster published. If
// the flags and the kubeconfig configure no client, the cluster is nil.
func (o *options) connectPublished(ctx context.Context) (*cluster, *publishedState, error) {
	c, err := o.connect()
	if err != nil {
		return nil, nil, err
	}
	p, err := c.published(ctx)
	return c, p, err
}

// readPublished reads the published state from the ConfigMap.
func readPublished(cm *corev1.ConfigMap) (*publishedState, error) {
	p := &publishedState{where: cm.Namespace + "/" + cm.Name}
	garbage := func(err error) error {
		return fmt.Errorf("ConfigMap %s cannot be read: %w: if the leader does not rewrite the ConfigMap within a minute, delete it", p.where, oneLine(err))
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

// notes returns warnings about the published state. Each warning is one sentence.
func (p *publishedState) notes(now time.Time) []string {
	var notes []string
	if age := now.Sub(p.view.Written); age > staleStatus {
		namespace, _, _ := strings.Cut(p.where, "/")
		notes = append(notes, fmt.Sprintf("no leader for %[1]s: the state shown was published %[1]s ago; see kubectl -n %[2]s get pods,leases", duration.HumanDuration(age), namespace))
	}
	if p.view.IsForeign() {
		notes = append(notes, fmt.Sprintf("published by %s as %s; kubectl pools is %s and ignores unknown fields: verdicts may differ from the scheduler's",
			cmp.Or(p.view.Version, "another version"), cmp.Or(p.view.APIVersion, "a format without a version"), version.String()))
	}
	if len(p.view.LeftOut) > 0 {
		notes = append(notes, fmt.Sprintf("the state is too large for the ConfigMap, and %s are left out: verdicts may differ from the scheduler's", strings.Join(p.view.LeftOut, ", ")))
	}
	return notes
}

// names returns the names of the pools, the most preferred first.
func (p *publishedState) names() []string {
	names := make([]string, p.pools.Len())
	for i := range names {
		names[i] = p.pools.At(i).Name
	}
	return names
}

// indexOf returns the index of the pool with the given name, or pool.None if no pool has that name.
func (p *publishedState) indexOf(name string) int {
	return slices.Index(p.names(), name)
}

// nodesOf reads the node of each pod whose annotation PoolAnnotation names no known pool. If it needs more than most
// nodes, it lists all nodes with one request.
func (c *cluster) nodesOf(ctx context.Context, pods []corev1.Pod, p *publishedState, most int) (map[string]*corev1.Node, error) {
	nodes := map[string]*corev1.Node{}
	for i := range pods {
		if pod := &pods[i]; p != nil && pod.Spec.NodeName != "" && p.indexOf(pod.Annotations[scalein.PoolAnnotation]) == pool.None {
			nodes[pod.Spec.NodeName] = nil
		}
	}
	if len(nodes) > most {
		list := &corev1.NodeList{}
		err := c.list(ctx, list, "", metav1.ListOptions{ResourceVersion: "0"}) // from the API server's cache
		for i := range list.Items {
			nodes[list.Items[i].Name] = &list.Items[i]
		}
		return nodes, err
	}
	for name := range nodes {
		node := &corev1.Node{}
		if err := c.get(ctx, node, "", name); err == nil {
			nodes[name] = node
		} else if !apierrors.IsNotFound(err) {
			return nodes, err
		}
	}
	return nodes, nil
}

// poolOf returns the name of the pod's pool, and whether the pool is known. It reads the pod's annotation or else the
// labels of the pod's node. If the node is in no pool, the name is "".
func (p *publishedState) poolOf(pod *corev1.Pod, nodes map[string]*corev1.Node) (string, bool) {
	said, node := pod.Annotations[scalein.PoolAnnotation], nodes[pod.Spec.NodeName]
	switch {
	case said != "" && (p == nil && len(said) < 64 || p != nil && p.indexOf(said) != pool.None):
		return said, true
	case p == nil || node == nil:
		return "", false
	}
	if i := p.pools.Of(node); i != pool.None {
		return p.pools.At(i).Name, true
	}
	return "", true
}

// read reads the pod's node, namespace and volumes, as far as the explanation needs them. It adds notes about the
// published state.
func (e *explainer) read(ctx context.Context, c *cluster) {
	e.now = c.now()
	if e.pod.Spec.NodeName != "" {
		e.readPlace(ctx, c)
	}
	if e.published != nil {
		e.readFacts(ctx, c)
		e.Notes = append(e.Notes, e.published.notes(e.now)...)
	}
}

// readPlace reads the pool of the pod's node.
func (e *explainer) readPlace(ctx context.Context, c *cluster) {
	nodes, err := c.nodesOf(ctx, []corev1.Pod{*e.pod}, e.published, 1)
	if apierrors.IsForbidden(err) {
		err = errors.New("you may not get nodes: ask for the role pool-priority-viewer")
	}
	if err != nil {
		e.note("the pool of node %s is unknown: %v", e.pod.Spec.NodeName, err)
	}
	e.Pool, e.placed = e.published.poolOf(e.pod, nodes)
}

// readFacts reads the objects that the gate's decision depends on: the pod's namespace with its NetworkPolicies, the
// pod's events, and its volumes.
func (e *explainer) readFacts(ctx context.Context, c *cluster) {
	p := e.published
	if p.pools.SelectsNamespaces() {
		namespace := &corev1.Namespace{}
		switch err := c.get(ctx, namespace, "", e.pod.Namespace); {
		case apierrors.IsNotFound(err):
			e.request.NotSelected = p.pools.NotSelecting(nil)
		case err != nil:
			e.note("it is unknown whether burst pools accept pods of namespace %s: %v", e.pod.Namespace, err)
		default:
			e.request.NotSelected = p.pools.NotSelecting(namespace)
			e.readTenant(ctx, c, namespace)
		}
	}
	if e.pod.UID != "" && e.pod.Spec.NodeName == "" && p.view.ReadsEvents() {
		e.readRefusal(ctx, c)
	}
	if gate.LooksAtVolumes(p.pools, &p.view.Capacity) {
		var err error
		if e.request.AzureFiles, err = c.azureFiles(ctx, e.pod); err != nil {
			e.note("it is unknown whether the pod's volumes are Azure Files: %v", err)
		}
	}
}

// readRefusal reads what the autoscalers wrote on the pod. For an event of the cluster autoscaler, it does not know when
// the scheduler received the event, and uses the end of the second in the event.
func (e *explainer) readRefusal(ctx context.Context, c *cluster) {
	list := &corev1.EventList{}
	if err := c.list(ctx, list, e.pod.Namespace, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(e.pod.UID)).String()}); err != nil {
		e.note("it is unknown whether an autoscaler wrote that it adds no node for the pod: %v", err)
	}
	var results []karpenter.Simulation
	var events []clusterautoscaler.Event
	for i := range list.Items {
		of := &list.Items[i]
		results = append(results, karpenter.SimulationOf(of))
		events = append(events, clusterautoscaler.EventOf(of, of.LastTimestamp.Add(time.Second-1)))
	}
	e.request.RefusedAt = func(pod *corev1.Pod) time.Time { return karpenter.RefusedAt(pod.UID, results) }
	e.request.NoScaleUp = func(*corev1.Pod) nodegroups.NoScaleUp { return clusterautoscaler.LastNoScaleUp(events) }
}

// readTenant reads the NetworkPolicies of the pod's namespace if `tenants` is true.
func (e *explainer) readTenant(ctx context.Context, c *cluster, namespace *corev1.Namespace) {
	if !e.published.view.Args.Tenants {
		return
	}
	list := &networkingv1.NetworkPolicyList{}
	if err := c.list(ctx, list, namespace.Name, metav1.ListOptions{}); err != nil {
		e.note("it is unknown whether NetworkPolicies select the pod: %v", err)
	}
	policies := make([]*gate.Policy, len(list.Items))
	for i := range list.Items {
		policies[i] = gate.NewPolicy(&list.Items[i])
	}
	e.request.Tenant = gate.TenantOf(namespace, gate.LostBy(e.pod, namespace, policies))
}

// azureFiles reports whether the pod claims persistent volumes and all these volumes are Azure Files. For a pod without
// claims, azureFiles sends no request.
func (c *cluster) azureFiles(ctx context.Context, pod *corev1.Pod) (bool, error) {
	var failed error
	note := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = err
		}
	}
	lookup := gate.Volumes{ // if an object cannot be read, its volume does not count as Azure Files
		PVC: func(namespace, name string) *corev1.PersistentVolumeClaim {
			pvc := &corev1.PersistentVolumeClaim{}
			note(c.get(ctx, pvc, namespace, name))
			return pvc
		},
		Volume: func(name string) *corev1.PersistentVolume {
			volume := &corev1.PersistentVolume{}
			note(c.get(ctx, volume, "", name))
			return volume
		},
		Provisioner: func(name string) string {
			class := &storagev1.StorageClass{}
			note(c.get(ctx, class, "", name))
			return class.Provisioner
		},
	}
	return lookup.AzureFiles(pod), failed
}
