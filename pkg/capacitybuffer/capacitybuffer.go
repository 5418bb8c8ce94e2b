// Package capacitybuffer reads CapacityBuffers. A CapacityBuffer asks the autoscaler to keep room for pods that may come.
// The autoscaler computes with these pods as if they were pending, and nothing else sees them.
package capacitybuffer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Buffer has some fields of a CapacityBuffer, which are the same in all versions. Source: the API of the cluster autoscaler
// in August 2026, and of Karpenter 1.14.
type Buffer struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		// ScalableRef is the workload whose pods the buffer is for; nil if the buffer names a PodTemplate.
		ScalableRef *struct{ Kind, Name string } `json:"scalableRef"`
	} `json:"spec"`
	Status struct {
		// PodTemplateRef is the PodTemplate of the buffer's pods. The cluster autoscaler makes one from the newest pod of
		// ScalableRef. Karpenter makes none.
		PodTemplateRef *struct{ Name string } `json:"podTemplateRef"`
		// Replicas is the number of the buffer's pods.
		Replicas             int                `json:"replicas"`
		ProvisioningStrategy string             `json:"provisioningStrategy"`
		Conditions           []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// activeCapacity is the provisioning strategy of buffers whose nodes are ready.
const activeCapacity = "buffer.x-k8s.io/active-capacity"

// IsActive reports whether an autoscaler keeps room on ready nodes for the buffer.
func (b *Buffer) IsActive() bool {
	return b.Status.Replicas > 0 && cmp.Or(b.Status.ProvisioningStrategy, activeCapacity) == activeCapacity &&
		meta.IsStatusConditionTrue(b.Status.Conditions, "ReadyForProvisioning")
}

// List returns the CapacityBuffers of all namespaces. It returns none if the cluster has no such kind.
func List(ctx context.Context, client rest.Interface) ([]Buffer, error) {
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		result := client.Get().AbsPath("/apis/autoscaling.x-k8s.io", version, "capacitybuffers").Param("resourceVersion", "0").Do(ctx)
		if err := result.Error(); err == nil {
			data, _ := result.Raw()
			return Parse(data)
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("listing the CapacityBuffers: %w", err)
		}
	}
	return nil, nil
}

// Parse returns the CapacityBuffers of a list in JSON.
func Parse(data []byte) ([]Buffer, error) {
	list := struct{ Items []Buffer }{}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("parsing the CapacityBuffers: %w", err)
	}
	return list.Items, nil
}
