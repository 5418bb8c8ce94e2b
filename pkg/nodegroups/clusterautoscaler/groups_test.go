package clusterautoscaler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"

	"poolpriority.dev/scheduler/test/must"
)

// BenchmarkManyGroups derives the status of a pool with 15,000 nodes, and with 50 node groups without nodes beside
// them.
func BenchmarkManyGroups(b *testing.B) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	nodes := make([]*corev1.Node, 15000)
	for i := range nodes {
		name := fmt.Sprintf("aks-general-12345678-vmss%06d", i)
		nodes[i] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)), Labels: map[string]string{
				"kubernetes.azure.com/agentpool": "general", "agentpool": "general", "kubernetes.azure.com/mode": "user", corev1.LabelInstanceTypeStable: "Standard_D4s_v5",
				corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("westeurope-", i%3), corev1.LabelTopologyRegion: "westeurope",
				corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "kubernetes.azure.com/cluster": "MC_group_cluster_westeurope",
				"kubernetes.azure.com/os-sku": "Ubuntu", "kubernetes.azure.com/role": "agent", "kubernetes.azure.com/storagetier": "Premium_LRS", "kubernetes.io/role": "agent"}},
			Spec: corev1.NodeSpec{ProviderID: fmt.Sprintf("azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-general-12345678-vmss/virtualMachines/%d", i)},
			Status: corev1.NodeStatus{
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}},
				Allocatable: corev1.ResourceList{"cpu": resource.MustParse("3860m"), "memory": resource.MustParse("14Gi"), "pods": resource.MustParse("110")},
			},
		}
	}
	status := "autoscalerStatus: Running\nnodeGroups:\n- {name: aks-general-12345678-vmss, health: {cloudProviderTarget: 15000, maxSize: 15000}}\n"
	for i := range 50 {
		status += fmt.Sprintf("- {name: aks-zero%d-12345678-vmss, health: {maxSize: 10}}\n", i)
	}
	tracker := NewTracker(24*time.Hour, time.Minute)
	must.NoError(b, tracker.Observe(&corev1.ConfigMap{Data: map[string]string{StatusKey: status}}, now))
	source := Source{Tracker: tracker, Groups: GroupsOf(&configv1.Pool{Name: "user", ClusterAutoscaler: &configv1.ClusterAutoscalerSource{},
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.azure.com/mode": "user"}}})}
	for b.Loop() {
		now = now.Add(time.Second) // about as often as something changes
		tracker.ObserveNodes([]OwnedGroups{{Source: source, Nodes: nodes}}, nodes, now)
		source.Status(nodes, now)
	}
}
