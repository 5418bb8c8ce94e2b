package lint

import (
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
	KubernetesVersion        string `json:"kubernetesVersion"` // the version that was asked for
	SKU                      struct {
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
	AgentPoolProfiles []struct {
		Name              string `json:"name"`
		Mode              string `json:"mode"`
		EnableAutoScaling bool   `json:"enableAutoScaling"`
		ScaleDownMode     string `json:"scaleDownMode"`
	} `json:"agentPoolProfiles"`
}

const remedyAKS = "write the file with az aks show --output json"

// ParseAKS parses the output of `az aks show --output json`. It returns an error if the text describes no AKS cluster.
func ParseAKS(data []byte) (*AKS, error) {
	a := &AKS{}
	nested := struct {
		Properties *AKS `json:"properties"`
	}{a}
	if err := cmp.Or(json.Unmarshal(data, a), json.Unmarshal(data, &nested)); err != nil {
		return nil, fmt.Errorf("it does not describe one cluster as JSON (%w): %s", err, remedyAKS)
	}
	if a.NetworkProfile.NetworkPlugin == "" || len(a.AgentPoolProfiles) == 0 && !a.isAutomatic() {
		return nil, errors.New("it has no agentPoolProfiles or no networkProfile: " + remedyAKS)
	}
	a.CurrentKubernetesVersion = cmp.Or(a.CurrentKubernetesVersion, a.KubernetesVersion) // an older az prints only the second
	return a, nil
}

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
	if parts := strings.Split(a.CurrentKubernetesVersion, "."); len(parts) > 1 {
		if err := version.Supported(&apimachineryversion.Info{Major: parts[0], Minor: parts[1], GitVersion: a.CurrentKubernetesVersion}); err != nil {
			add("VersionUnsupported", Error, "AKS cluster", "docs/versions.md", "upgrade the cluster", "%v", err)
		}
	}
	if v1, v2 := a.VirtualNodes(); len(v1.Impossible) > 0 && len(v2.Impossible) > 0 {
		add("VirtualNodeImpossible", Error, "AKS cluster", "docs/install.md#can-i-use-it", "use the scheduler without a burst pool, or another network",
			"it can have no virtual node. v1 is %s. v2 is %s", v1, v2)
	}
	system := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.azure.com/mode": "system"}}}
	if a.HostedSystemProfile.Enabled && (f.Pools.Len() == 0 || f.Pools.Of(system) != pool.None) {
		add("ManagedSystemPool", Warning, "AKS cluster", "docs/install.md#can-i-use-it", "list no pool for its system nodes", "AKS manages its system node pools, and refuses pods there that name another scheduler")
	}
	scaled, byAutoscaler := 0, 0
	for i := range a.AgentPoolProfiles {
		agents := &a.AgentPoolProfiles[i]
		if agents.EnableAutoScaling {
			scaled++
		}
		at := f.Pools.Of(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			"kubernetes.azure.com/mode": strings.ToLower(agents.Mode), "kubernetes.azure.com/agentpool": agents.Name, "agentpool": agents.Name}}})
		if agents.EnableAutoScaling && strings.EqualFold(agents.ScaleDownMode, "Deallocate") && at != pool.None && f.Pools.At(at).ClusterAutoscaler != nil && f.Pools.At(at).Graces.Provision > 5*time.Minute && f.Pools.HasBurst() {
			add("OddSetting", Warning, "pool "+f.Pools.At(at).Name, "docs/limits.md", "set capacity: {provisionGrace: 5m} in this pool, or more if its VMs take longer to start",
				"the agent pool %s has scaleDownMode Deallocate, where the autoscaler is reported not to back off when VMs do not start (Azure/AKS#5589)", agents.Name)
		}
	}
	for i := range f.Pools.Regular() {
		if p := f.Pools.At(i); p.ClusterAutoscaler != nil {
			byAutoscaler++
			if a.autoProvisions() && scaled == 0 {
				add("WrongAutoscaler", Error, "pool "+p.Name, "docs/configuration.md", fmt.Sprintf("replace clusterAutoscaler by karpenter: {nodePool: …} in the pool %s", p.Name),
					"node auto-provisioning adds the nodes, and no agent pool has the cluster autoscaler, whose status this pool reads")
			}
		}
	}
	expander := a.AutoScalerProfile.Expander
	if (scaled > 1 && f.Pools.Len() == 0 || byAutoscaler > 1) && !a.autoProvisions() && expander != "" && !slices.Contains(strings.Split(expander, ","), "priority") {
		add("ExpanderNotPriority", Warning, "AKS cluster", "docs/install.md#which-pool-grows-first", "az aks update --resource-group RG --name CLUSTER --cluster-autoscaler-profile expander=priority",
			"its autoscaler chooses the pool that grows by the expander %q", expander)
	}
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
