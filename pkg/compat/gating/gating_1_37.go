//go:build kubernetes_1_37

package gating

import (
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// AddUnschedulablePodIfNotPresent adds the pod to the queue and may gate the pod.
func (q Queue) AddUnschedulablePodIfNotPresent(logger klog.Logger, info *framework.QueuedPodInfo, cycle int64) error {
	info.GatingPlugin = q.Plugin(info)
	return q.SchedulingQueue.AddUnschedulablePodIfNotPresent(logger, info, cycle)
}
