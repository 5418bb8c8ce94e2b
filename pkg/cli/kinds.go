package cli

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The kinds that can be explained.
const (
	kindPod, kindDeployment, kindReplicaSet, kindStatefulSet = "Pod", "Deployment", "ReplicaSet", "StatefulSet"
	kindDaemonSet, kindJob, kindCronJob                      = "DaemonSet", "Job", "CronJob"
)

// kinds are those kinds by the names by which they are called.
var kinds = map[string]string{
	"po": kindPod, "pod": kindPod, "pods": kindPod,
	"deploy": kindDeployment, "deployment": kindDeployment, "deployments": kindDeployment,
	"rs": kindReplicaSet, "replicaset": kindReplicaSet, "replicasets": kindReplicaSet,
	"sts": kindStatefulSet, "statefulset": kindStatefulSet, "statefulsets": kindStatefulSet,
	"ds": kindDaemonSet, "daemonset": kindDaemonSet, "daemonsets": kindDaemonSet,
	"job": kindJob, "jobs": kindJob, "cj": kindCronJob, "cronjob": kindCronJob, "cronjobs": kindCronJob,
}

// parseObject reads POD or TYPE/NAME.
func parseObject(argument string) (kind, name string, err error) {
	kind, name, typed := strings.Cut(argument, "/")
	if !typed {
		return kindPod, argument, nil
	}
	kind, _, _ = strings.Cut(strings.ToLower(kind), ".") // deployment.apps
	known, ok := kinds[kind]
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%s: name a pod, or one of deployment, replicaset, statefulset, daemonset, job and cronjob, such as deploy/web", argument)
	}
	return known, name, nil
}

// get reads an object of the kind.
func (c *cluster) get(ctx context.Context, kind, name string) (runtime.Object, error) {
	apps, batch, options := c.client.AppsV1(), c.client.BatchV1(), metav1.GetOptions{}
	switch kind {
	case kindDeployment:
		return apps.Deployments(c.namespace).Get(ctx, name, options)
	case kindReplicaSet:
		return apps.ReplicaSets(c.namespace).Get(ctx, name, options)
	case kindStatefulSet:
		return apps.StatefulSets(c.namespace).Get(ctx, name, options)
	case kindDaemonSet:
		return apps.DaemonSets(c.namespace).Get(ctx, name, options)
	case kindJob:
		return batch.Jobs(c.namespace).Get(ctx, name, options)
	case kindCronJob:
		return batch.CronJobs(c.namespace).Get(ctx, name, options)
	}
	return c.client.CoreV1().Pods(c.namespace).Get(ctx, name, options)
}

// list reads the objects of the kind in the namespace.
func (c *cluster) list(ctx context.Context, kind string) (runtime.Object, error) {
	apps, batch, options := c.client.AppsV1(), c.client.BatchV1(), metav1.ListOptions{}
	switch kind {
	case kindDeployment:
		return apps.Deployments(c.namespace).List(ctx, options)
	case kindReplicaSet:
		return apps.ReplicaSets(c.namespace).List(ctx, options)
	case kindStatefulSet:
		return apps.StatefulSets(c.namespace).List(ctx, options)
	case kindDaemonSet:
		return apps.DaemonSets(c.namespace).List(ctx, options)
	case kindJob:
		return batch.Jobs(c.namespace).List(ctx, options)
	case kindCronJob:
		return batch.CronJobs(c.namespace).List(ctx, options)
	}
	return c.client.CoreV1().Pods(c.namespace).List(ctx, options)
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
