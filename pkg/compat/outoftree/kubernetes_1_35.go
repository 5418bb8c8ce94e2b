//go:build !kubernetes_1_36 && !kubernetes_1_37

// Package outoftree adds plugins of other projects to the scheduler. It is separate from package compat, so that
// programs that import compat do not import the scheduler.
package outoftree

import (
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // for the arguments of its plugins
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesources"
)

// Plugins returns the options that register the plugins of scheduler-plugins.
func Plugins() []app.Option {
	return []app.Option{
		app.WithPlugin(coscheduling.Name, coscheduling.New),
		app.WithPlugin(noderesources.AllocatableName, noderesources.NewAllocatable),
	}
}
