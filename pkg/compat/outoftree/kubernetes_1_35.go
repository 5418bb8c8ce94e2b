//go:build !kubernetes_1_36 && !kubernetes_1_37

// Package outoftree holds the plugins of others that the scheduler also has. It is apart from package compat, because
// clients do not need the scheduler.
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
