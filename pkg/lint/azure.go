package lint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apimachineryversion "k8s.io/apimachinery/pkg/version"

	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/version"
)

// AKS is what this package reads of the output of `az aks show --output json`, or of the REST API, where most fields
// are in `properties`. Source: learn.microsoft.com/rest/api/aks/managed-clusters/get.
type AKS struct {
	CurrentKubernetesVersion string `json:"currentKubernetesVersion"`
	// KubernetesVersion is the version that was asked for. An older az prints only this one.
	KubernetesVersion string `json:"kubernetesVersion"`
	SKU               struct {
		Name string `json:"name"`
	} `json:"sku"`
	NetworkProfile struct {
		NetworkPlugin     string   `json:"networkPlugin"`
		NetworkPluginMode string   `json:"networkPluginMode"`
		NetworkPolicy     string   `json:"networkPolicy"`
		NetworkDataplane  string   `json:"networkDataplane"`
		IPFamilies        []string `json:"ipFamilies"`
	} `json:"networkProfile"`
	APIServerAccessProfile struct {
		AuthorizedIPRanges []string `json:"authorizedIpRanges"`
	} `json:"apiServerAccessProfile"`
	NodeProvisioningProfile struct {
		Mode string `json:"mode"`
	} `json:"nodeProvisioningProfile"`
	// HostedSystemProfile says whether AKS manages the system node pools. AgentPoolProfiles lacks such pools.
	HostedSystemProfile struct {
		Enabled bool `json:"enabled"`
	} `json:"hostedSystemProfile"`
	AutoScalerProfile struct {
		Expander string `json:"expander"`
		Times
	} `json:"autoScalerProfile"`
	AgentPoolProfiles []AgentPool `json:"agentPoolProfiles"`
}

// AgentPool is a node pool of AKS.
type AgentPool struct {
	Name              string `json:"name"`
	Mode              string `json:"mode"`
	EnableAutoScaling bool   `json:"enableAutoScaling"`
	ScaleDownMode     string `json:"scaleDownMode"`
}

// ParseAKS parses the output of `az aks show --output json`. It returns an error if the text describes no AKS cluster.
func ParseAKS(data []byte) (*AKS, error) {
	a := &AKS{}
	nested := struct {
		Properties *AKS `json:"properties"`
	}{a}
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		return nil, errors.New("it is a list, like the output of az aks list: " + remedyAKS)
	}
	if err := json.Unmarshal(data, a); err != nil {
		return nil, fmt.Errorf("%w: %s", err, remedyAKS)
	}
	if err := json.Unmarshal(data, &nested); err != nil {
		return nil, err
	}
	if a.NetworkProfile.NetworkPlugin == "" || len(a.AgentPoolProfiles) == 0 && !a.isAutomatic() {
		return nil, errors.New("it has no agentPoolProfiles or no networkProfile: " + remedyAKS)
	}
	return a, nil
}

const remedyAKS = "write the file with az aks show --output json"

// NotKnown returns what Check cannot judge, because the file does not have it.
func (a *AKS) NotKnown() (what []string) {
	if a.version() == "" {
		what = append(what, "the version of Kubernetes")
	}
	if a.AutoScalerProfile.Expander == "" && !a.autoProvisions() {
		what = append(what, "the settings of the cluster autoscaler")
	}
	return what
}

func (a *AKS) version() string { return cmp.Or(a.CurrentKubernetesVersion, a.KubernetesVersion) }

func (a *AKS) isAutomatic() bool {
	return strings.EqualFold(a.SKU.Name, "Automatic") || a.HostedSystemProfile.Enabled
}

// autoProvisions reports whether node auto-provisioning, which is Karpenter, adds the nodes.
func (a *AKS) autoProvisions() bool {
	return strings.EqualFold(a.NodeProvisioningProfile.Mode, "Auto") || a.isAutomatic()
}

// VirtualNode is whether a cluster can have a kind of virtual node, according to Microsoft's pages (docs/install.md).
type VirtualNode struct {
	// Impossible has the reasons why the cluster cannot have such nodes.
	Impossible []string `json:"impossible,omitempty"`
	// Unknown has the properties of the cluster for which no page says that it can.
	Unknown []string `json:"unknown,omitempty"`
}

// String returns the answer in words.
func (v VirtualNode) String() string {
	switch {
	case len(v.Impossible) > 0:
		return "not possible: " + strings.Join(v.Impossible, ", ")
	case len(v.Unknown) > 0:
		return "not known: " + strings.Join(v.Unknown, ", ")
	}
	return "documented for this network"
}

// VirtualNodes returns whether the cluster can have the add-on's virtual node (v1), and virtual nodes v2.
func (a *AKS) VirtualNodes() (v1, v2 VirtualNode) {
	n := &a.NetworkProfile
	no1, no2, unknown1, unknown2 := &v1.Impossible, &v2.Impossible, &v1.Unknown, &v2.Unknown
	for _, fact := range []struct {
		is    bool
		what  string
		lists []*[]string
	}{
		{a.isAutomatic(), "AKS Automatic", []*[]string{no1, no2}},
		{!strings.EqualFold(n.NetworkPlugin, "azure"), "network plugin " + n.NetworkPlugin, []*[]string{no1, no2}},
		{strings.EqualFold(n.NetworkPluginMode, "overlay"), "Azure CNI Overlay", []*[]string{no1, no2}},
		{len(a.APIServerAccessProfile.AuthorizedIPRanges) > 0, "API-server authorized IP ranges", []*[]string{no1, no2}},
		{slices.ContainsFunc(n.IPFamilies, func(f string) bool { return strings.EqualFold(f, "IPv6") }), "IPv6", []*[]string{no1, unknown2}},
		{strings.EqualFold(n.NetworkPolicy, "azure"), "network policy by Azure NPM", []*[]string{unknown1, no2}},
		{strings.EqualFold(n.NetworkPolicy, "cilium") || strings.EqualFold(n.NetworkDataplane, "cilium"), "Cilium", []*[]string{unknown1, no2}},
		{strings.EqualFold(n.NetworkPolicy, "calico"), "network policy by Calico", []*[]string{unknown1}},
		{a.autoProvisions() && strings.EqualFold(n.NetworkPolicy, "calico"), "node auto-provisioning with Calico", []*[]string{no2}},
		{a.autoProvisions() && !a.isAutomatic(), "node auto-provisioning", []*[]string{unknown1, unknown2}},
	} {
		for _, list := range fact.lists {
			if fact.is {
				*list = append(*list, fact.what)
			}
		}
	}
	return v1, v2
}

func (f *Facts) checkAKS(add adder) {
	a := f.AKS
	if parts := strings.Split(a.version(), "."); len(parts) > 1 {
		if err := version.Supported(&apimachineryversion.Info{Major: parts[0], Minor: parts[1], GitVersion: a.version()}); err != nil {
			add("VersionUnsupported", Error, "AKS cluster", "docs/versions.md", "upgrade the cluster", "%v", err)
		}
	}
	if v1, v2 := a.VirtualNodes(); len(v1.Impossible) > 0 && len(v2.Impossible) > 0 {
		add("VirtualNodeImpossible", Error, "AKS cluster", "docs/install.md#can-i-use-it", "use the scheduler without a burst pool, or another network",
			"it can have no virtual node. v1 is %s. v2 is %s", v1, v2)
	}
	if a.HostedSystemProfile.Enabled {
		add("ManagedSystemPool", Warning, "AKS cluster", "docs/install.md#can-i-use-it", "list no pool for its system nodes", "AKS manages its system node pools, and refuses pods there that name another scheduler")
	}
	scaled, byAutoscaler := 0, 0
	for i := range a.AgentPoolProfiles {
		if a.AgentPoolProfiles[i].EnableAutoScaling {
			scaled++
			f.checkDeallocate(&a.AgentPoolProfiles[i], add)
		}
	}
	for i := range f.Pools.Regular() {
		if p := f.Pools.At(i); p.ClusterAutoscaler != nil {
			byAutoscaler++
			if a.autoProvisions() {
				add("WrongAutoscaler", Error, "pool "+p.Name, "docs/configuration.md", fmt.Sprintf("replace clusterAutoscaler by karpenter: {nodePool: …} in the pool %s", p.Name),
					"node auto-provisioning excludes the cluster autoscaler, whose status this pool reads")
			}
		}
	}
	expander := a.AutoScalerProfile.Expander
	if (scaled > 1 && f.Pools.Len() == 0 || byAutoscaler > 1) && !a.autoProvisions() && expander != "" && !slices.Contains(strings.Split(expander, ","), "priority") {
		add("ExpanderNotPriority", Warning, "AKS cluster", "docs/install.md#which-pool-grows-first", "az aks update --resource-group RG --name CLUSTER --cluster-autoscaler-profile expander=priority",
			"its autoscaler chooses the pool that grows by the expander %q", expander)
	}
}

// bootTime is how long a stopped VM may take to start.
const bootTime = 5 * time.Minute

// checkDeallocate checks provisionGrace of the pool that has the agent pool's nodes, if the agent pool stops VMs instead
// of deleting them.
func (f *Facts) checkDeallocate(a *AgentPool, add adder) {
	if !strings.EqualFold(a.ScaleDownMode, "Deallocate") {
		return
	}
	if f.Pools.Len() > 0 {
		labels := map[string]string{"kubernetes.azure.com/mode": strings.ToLower(a.Mode), "kubernetes.azure.com/agentpool": a.Name, "agentpool": a.Name}
		i := f.Pools.Of(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
		if i == pool.None || f.Pools.At(i).ClusterAutoscaler == nil || f.Pools.At(i).Graces.Provision <= bootTime || !f.Pools.HasBurst() {
			return
		}
	}
	add("OddSetting", Warning, "agent pool "+a.Name, "docs/limits.md", "set capacity: {provisionGrace: 5m} in its pool, or more if its VMs take longer to start",
		"its scaleDownMode is Deallocate, where the autoscaler is reported not to back off when VMs do not start (Azure/AKS#5589)")
}

// Quota is a subscription's quota of Container Instances in a region. A number is -1 if it is unknown.
type Quota struct{ Groups, Cores int }

// ParseQuota parses the answer of the API's operation Location - List Usage, as `az rest` prints it (docs/aci.md).
func ParseQuota(data []byte) (*Quota, error) {
	var list struct {
		Value []struct {
			Name struct {
				Value string `json:"value"`
			} `json:"name"`
			Limit int `json:"limit"`
		} `json:"value"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	q := &Quota{-1, -1}
	for _, usage := range list.Value {
		switch usage.Name.Value {
		case "ContainerGroups":
			q.Groups = usage.Limit
		case "StandardCores":
			q.Cores = usage.Limit
		}
	}
	if q.Groups < 0 && q.Cores < 0 {
		return nil, errors.New("it has neither ContainerGroups nor StandardCores: write the file with the az rest command in docs/aci.md")
	}
	return q, nil
}
