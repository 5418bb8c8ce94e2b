package devcluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// CapacityBuffers is the resource of CapacityBuffers.
var CapacityBuffers = schema.GroupVersionResource{Group: "autoscaling.x-k8s.io", Version: "v1beta1", Resource: "capacitybuffers"}

const bufferStrategy = "buffer.x-k8s.io/active-capacity"

// bufferPods writes the status of each CapacityBuffer, and returns the pods that the autoscaler adds to the pending ones.
// Source: capacitybuffer/translators and processors/capacitybuffer in August 2026.
func (a *Autoscaler) bufferPods(ctx context.Context) (pods []*corev1.Pod, err error) {
	list, err := a.dynamic.Resource(CapacityBuffers).List(ctx, metav1.ListOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil // the CRD is not there yet
		}
		return nil, fmt.Errorf("listing the CapacityBuffers: %w", err)
	}
	for i := range list.Items {
		buffer := &list.Items[i]
		template, err := a.bufferTemplate(ctx, buffer)
		if err != nil {
			return nil, err
		}
		replicas, _, _ := unstructured.NestedInt64(buffer.Object, "spec", "replicas")
		buffer.Object["status"] = map[string]any{
			"podTemplateRef": map[string]any{"name": template.Name}, "podTemplateGeneration": template.Generation, "replicas": replicas, "provisioningStrategy": bufferStrategy,
			"conditions": []any{bufferCondition("ReadyForProvisioning"), bufferCondition("Provisioning")},
		}
		if _, err := a.dynamic.Resource(CapacityBuffers).Namespace(buffer.GetNamespace()).UpdateStatus(ctx, buffer, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("writing the status of CapacityBuffer %s: %w", buffer.GetName(), err)
		}
		for n := range replicas {
			pod := &corev1.Pod{ObjectMeta: *template.Template.ObjectMeta.DeepCopy(), Spec: *template.Template.Spec.DeepCopy()}
			pod.Namespace, pod.Name, pod.UID = buffer.GetNamespace(), fmt.Sprintf("capacity-buffer-%s-%d", buffer.GetName(), n), types.UID(fmt.Sprintf("%s-%d", buffer.GetUID(), n))
			controller := true
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: buffer.GetAPIVersion(), Kind: "CapacityBuffer", Name: buffer.GetName(), UID: buffer.GetUID(), Controller: &controller}}
			pod.Spec.NodeName = ""
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

func bufferCondition(name string) map[string]any {
	return map[string]any{"type": name, "status": "True", "reason": "Simulated", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
}

// bufferTemplate returns the PodTemplate of the buffer. If the buffer names a Deployment, bufferTemplate writes a
// PodTemplate with a copy of the Deployment's newest pod.
func (a *Autoscaler) bufferTemplate(ctx context.Context, buffer *unstructured.Unstructured) (*corev1.PodTemplate, error) {
	templates := a.client.CoreV1().PodTemplates(buffer.GetNamespace())
	if name, _, _ := unstructured.NestedString(buffer.Object, "spec", "podTemplateRef", "name"); name != "" {
		return templates.Get(ctx, name, metav1.GetOptions{})
	}
	name, _, _ := unstructured.NestedString(buffer.Object, "spec", "scalableRef", "name")
	deployment, err := a.client.AppsV1().Deployments(buffer.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the Deployment of CapacityBuffer %s: %w", buffer.GetName(), err)
	}
	pods, err := a.client.CoreV1().Pods(buffer.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(deployment.Spec.Selector)})
	if err != nil || len(pods.Items) == 0 {
		return nil, fmt.Errorf("listing the pods of CapacityBuffer %s: %d pods, error: %w", buffer.GetName(), len(pods.Items), err)
	}
	newest := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "capacitybuffer-" + buffer.GetName() + "-pod-template"},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: newest.Labels, Annotations: newest.Annotations}, Spec: newest.Spec}}
	written, err := templates.Update(ctx, template, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		written, err = templates.Create(ctx, template, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("writing the PodTemplate of CapacityBuffer %s: %w", buffer.GetName(), err)
	}
	return written, nil
}
