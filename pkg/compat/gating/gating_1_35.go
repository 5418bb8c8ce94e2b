//go:build !kubernetes_1_37

package gating

import (
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// AddUnschedulableIfNotPresent adds the pod to the queue and may gate the pod.
func (q Queue) AddUnschedulableIfNotPresent(logger klog.Logger, info *framework.QueuedPodInfo, cycle int64) error {
	info.GatingPlugin = q.Plugin(info)
	return q.SchedulingQueue.AddUnschedulableIfNotPresent(logger, info, cycle)
}
