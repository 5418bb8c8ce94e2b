package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InstanceType is an instance type, in the format of the file that Karpenter's kwok provider reads. Source:
// sigs.k8s.io/karpenter/kwok/cloudprovider, InstanceTypeOptions.
type InstanceType struct {
	Name             string              `json:"name"`
	Offerings        []Offering          `json:"offerings"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []corev1.OSName     `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
}

// Offering is a zone and a capacity type in which an instance type is available, with its price.
type Offering struct {
	Price        float64                          `json:"Price"`
	Available    bool                             `json:"Available"`
	Requirements []corev1.NodeSelectorRequirement `json:"Requirements"`
}

// NewInstanceType returns an instance type for Linux on amd64, offered on demand in one zone.
func NewInstanceType(name string, resources corev1.ResourceList) InstanceType {
	return InstanceType{
		Name: name, Architecture: "amd64", OperatingSystems: []corev1.OSName{corev1.Linux}, Resources: resources,
		Offerings: []Offering{{Price: 1, Available: true, Requirements: []corev1.NodeSelectorRequirement{
			{Key: "karpenter.sh/capacity-type", Operator: corev1.NodeSelectorOpIn, Values: []string{"on-demand"}},
			{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"westeurope-1"}},
		}}},
	}
}

// StartKarpenter installs Karpenter's CRDs and runs Karpenter with its kwok provider. The kwok provider offers the
// given instance types. The cluster's Stop ends Karpenter.
func (c *Cluster) StartKarpenter(ctx context.Context, types []InstanceType) (*Process, error) {
	if err := c.ApplyFile(ctx, filepath.Join(c.options.BinDir, "karpenter-crds")); err != nil {
		return nil, err
	}
	if err := c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"); err != nil {
		return nil, err
	}
	data, err := json.Marshal(types)
	if err != nil {
		return nil, fmt.Errorf("encoding the instance types: %w", err)
	}
	typesFile := filepath.Join(c.options.Dir, "instance-types.json")
	if err := os.WriteFile(typesFile, data, 0o600); err != nil {
		return nil, fmt.Errorf("writing the instance types: %w", err)
	}
	p, err := StartProcess("karpenter", filepath.Join(c.options.BinDir, "karpenter"), c.options.Dir, []string{
		"KUBECONFIG=" + c.KubeConfig(), "SYSTEM_NAMESPACE=" + metav1.NamespaceSystem, "LEADER_ELECTION_NAMESPACE=" + metav1.NamespaceSystem,
		"METRICS_PORT=0", "HEALTH_PROBE_PORT=0", "INSTANCE_TYPES_FILE_PATH=" + typesFile, "LOG_LEVEL=debug", "FEATURE_GATES=CapacityBuffer=true",
	})
	if err != nil {
		return nil, fmt.Errorf("%w (make karpenter builds it)", err)
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// ApplyFile applies the manifests in a file or a directory.
func (c *Cluster) ApplyFile(ctx context.Context, path string) error {
	return c.kubectl(ctx, "apply", "--server-side", "-f", path)
}
