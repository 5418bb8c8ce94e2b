package cli

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kindPod is the kind of pods.
const kindPod = "Pod"

// kinds are the kinds that can be explained, by kubectl's short names for them.
var kinds = map[string]schema.GroupVersionKind{
	"po":     corev1.SchemeGroupVersion.WithKind(kindPod),
	"deploy": appsv1.SchemeGroupVersion.WithKind("Deployment"),
	"rs":     appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	"sts":    appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	"ds":     appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	"job":    batchv1.SchemeGroupVersion.WithKind("Job"),
	"cj":     batchv1.SchemeGroupVersion.WithKind("CronJob"),
}

// kindOf returns the kind with the name, whether that is short, singular or plural, and whether there is one.
func kindOf(name string) (schema.GroupVersionKind, bool) {
	name, _, _ = strings.Cut(strings.ToLower(name), ".") // deployment.apps
	for short, kind := range kinds {
		if singular := strings.ToLower(kind.Kind); name == short || strings.TrimSuffix(name, "s") == singular {
			return kind, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// parseObject reads POD or TYPE/NAME.
func parseObject(argument string) (kind schema.GroupVersionKind, name string, err error) {
	called, name, typed := strings.Cut(argument, "/")
	if !typed {
		return kinds["po"], argument, nil
	}
	kind, ok := kindOf(called)
	if !ok || name == "" || strings.Contains(name, "/") {
		return kind, "", fmt.Errorf("%s: name a pod, or one of deployment, replicaset, statefulset, daemonset, job and cronjob, such as deploy/web", argument)
	}
	return kind, name, nil
}

// templateOf returns what the object makes pods from, and what selects them: nil if they are others'. It returns no template for what makes none.
func templateOf(object runtime.Object) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
	switch x := object.(type) {
	case *corev1.Pod:
		return &corev1.PodTemplateSpec{ObjectMeta: x.ObjectMeta, Spec: x.Spec}, nil
	case *appsv1.Deployment:
		return &x.Spec.Template, x.Spec.Selector
	case *appsv1.ReplicaSet:
		return &x.Spec.Template, x.Spec.Selector
	case *appsv1.StatefulSet:
		return &x.Spec.Template, x.Spec.Selector
	case *appsv1.DaemonSet:
		return &x.Spec.Template, x.Spec.Selector
	case *batchv1.Job:
		return &x.Spec.Template, x.Spec.Selector
	case *batchv1.CronJob:
		return &x.Spec.JobTemplate.Spec.Template, nil
	}
	return nil, nil
}
