package gate

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// virtualizationLabel and virtualNodesV2 mark the nodes of AKS virtual nodes v2, which can run more.
	virtualizationLabel = "virtualization"
	virtualNodesV2      = "virtualnode2"
)

// reasonNamespace is the reason for which a gate is closed for a pod whatever the pod is like.
var reasonNamespace = nodegroups.Reason{Code: "NamespaceNotSelected", Sentence: "node(s) in a burst pool that is not for the pods of this namespace (its namespaceSelector)"}

// A feature is something that a pod uses and a virtual kubelet cannot run.
type feature struct {
	code string // of the reason
	what string // read on in "node(s) in a burst pool that cannot run …"
	used func(*corev1.Pod) bool
	v2   func(Request) bool // whether virtual nodes v2 can run it for the pod; nil: they cannot
	any  bool               // no virtual kubelet can, of whatever platform
}

func always(Request) bool { return true }

// reason is that for which a burst pool whose virtual kubelet cannot run it is closed.
func (f *feature) reason() nodegroups.Reason {
	return nodegroups.Reason{Code: f.code, Sentence: sentenceCannot + f.what}
}

// unsupported is what a virtual kubelet cannot run, on Azure Container Instances if not said otherwise. Sources: what azure-aci v1.6.4, the
// connector of AKS's virtual nodes, was measured to refuse or to lose, and the limitations in the documentation of AKS virtual nodes. Virtual
// nodes v2 have another connector: of them, the documentation is the source, and what it does not say is left to them.
var unsupported = []feature{
	{code: "DaemonSetPod", what: "DaemonSet pods", used: ownedByDaemonSet, any: true},
	{code: "MirrorPod", what: "static pods", any: true, used: func(p *corev1.Pod) bool { _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; return ok }},
	{code: "Windows", what: "Windows pods", used: isWindows},
	{code: "HostNamespace", what: "pods that use the host's network, PIDs or IPC", used: func(p *corev1.Pod) bool {
		return p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC
	}},
	{code: "HostPort", what: "pods with host ports", used: anyContainer(hasHostPort)},
	{code: "Privileged", what: "privileged pods", used: anyContainer(func(c *corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})},
	{code: "HostAliases", what: "pods with host aliases", v2: always, used: func(p *corev1.Pod) bool { return len(p.Spec.HostAliases) > 0 }},
	{code: "HostPath", what: "pods with hostPath volumes", used: anyVolume(func(v *corev1.Volume) bool { return v.HostPath != nil })},
	{code: "PersistentVolume", what: "pods with persistent volumes", v2: func(r Request) bool { return r.AzureFiles }, used: anyVolume(isClaim)},
	{code: "DownwardAPIVolume", what: "pods with downwardAPI volumes", used: anyVolume(func(v *corev1.Volume) bool { return v.DownwardAPI != nil })},
	{code: "VolumeType", what: "pods with volumes other than emptyDir, secret, configMap, projected and azureFile", used: anyVolume(isUnknownVolume)},
	{code: "Sidecar", what: "pods with sidecars (init containers that are restarted)", v2: always, used: anyInitContainer(isSidecar)},
	{code: "InitContainer", what: "pods with init containers that have ports, resources, probes or hooks", v2: always, used: anyInitContainer(isDemanding)},
	{code: "LifecycleHook", what: "pods with lifecycle hooks", v2: always, used: anyContainer(func(c *corev1.Container) bool { return c.Lifecycle != nil })},
	{code: "ArgsWithoutCommand", what: "pods with a container that has args and no command", v2: always, used: anyContainer(func(c *corev1.Container) bool {
		return len(c.Args) > 0 && len(c.Command) == 0
	})},
	{code: "StartupProbe", what: "pods with startup probes", v2: always, used: anyContainer(func(c *corev1.Container) bool { return c.StartupProbe != nil })},
	{code: "ProbeType", what: "pods with tcpSocket or grpc probes", v2: always, used: anyProbe(func(p *corev1.Probe, _ *corev1.Container) bool {
		return p.Exec == nil && p.HTTPGet == nil
	})},
	{code: "ProbePort", what: "pods with an httpGet probe whose port names none of the container's ports", v2: always, used: anyProbe(namesNoPort)},
	{code: "FieldRef", what: "pods with a variable from a field of their status, such as status.podIP or status.hostIP", v2: always, used: anyContainer(hasLateField)},
	{code: "LimitAboveRequests", what: "pods with a container whose limit is above what all containers request together", v2: always, used: limitAboveRequests},
	{code: "FractionalCPU", what: "pods with a CPU request that is no multiple of 10m and a limit that is not rounded down like it", v2: always, used: fractionalCPU},
	{code: "ResourceClaim", what: "pods with resource claims", used: func(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }},
	{code: "EphemeralStorage", what: "pods that request ephemeral storage", used: requests(func(n corev1.ResourceName) bool { return n == corev1.ResourceEphemeralStorage })},
	{code: "ExtendedResource", what: "pods that request extended resources", used: requests(isExtended)},
}

// ineligible returns the reason why the burst pool's virtual kubelet cannot run the pod, or none with an empty code.
func ineligible(req Request, p *pool.Pool, shapes []nodegroups.Shape) nodegroups.Reason {
	onACI, v2 := p.OnACI(), isV2(p, shapes)
	for i := range unsupported {
		f := &unsupported[i]
		if !f.any && (!onACI || v2 && f.v2 != nil && f.v2(req)) {
			continue
		}
		if f.used(req.Pod) {
			return f.reason()
		}
	}
	if detail := tooLarge(req.Pod, p); detail != "" {
		reason := reasonTooLarge
		reason.Detail = detail
		return reason
	}
	return nodegroups.Reason{}
}

const sentenceCannot = "node(s) in a burst pool that cannot run "

var reasonTooLarge = nodegroups.Reason{Code: "TooLarge", Sentence: sentenceCannot + "pods as large as this one"}

// missingTopology returns a label over which the pod must be spread (DoNotSchedule) and that no node of the burst pool has, or "". Nodes
// without it are none for such a pod. Nothing is known of a pool without nodes.
func missingTopology(pod *corev1.Pod, p *nodegroups.Pool) string {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		has := p.Places[c.TopologyKey] || slices.ContainsFunc(p.Shapes, func(s nodegroups.Shape) bool {
			_, ok := s.Labels[c.TopologyKey]
			return ok || slices.Contains(s.Varied, c.TopologyKey)
		})
		if c.WhenUnsatisfiable == corev1.DoNotSchedule && len(p.Shapes) > 0 && !has {
			return c.TopologyKey
		}
	}
	return ""
}

// isV2 reports whether all nodes of the pool are virtual nodes v2: by its selector or by what it has.
func isV2(p *pool.Pool, shapes []nodegroups.Shape) bool {
	if knownLabels(p)[virtualizationLabel] == virtualNodesV2 {
		return true
	}
	for i := range shapes {
		if shapes[i].Labels[virtualizationLabel] != virtualNodesV2 {
			return false
		}
	}
	return len(shapes) > 0
}

// Signature is what of the pod decides, beside its requests, whether it is eligible for burst pools, and what it takes of their budgets: equal
// for pods that are treated alike.
func Signature(req Request) any {
	return append([]string{req.Pod.Annotations[BurstAnnotation], strconv.FormatBool(req.AzureFiles), fmt.Sprint(req.NotSelected, billed(req.Pod, true))}, usedOf(req.Pod)...)
}

// usedOf are the codes of the features that the pod uses.
func usedOf(pod *corev1.Pod) []string {
	var used []string
	for i := range unsupported {
		if unsupported[i].used(pod) {
			used = append(used, unsupported[i].code)
		}
	}
	return used
}
