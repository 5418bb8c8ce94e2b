//go:build kubernetes_1_36 || kubernetes_1_37

// Package outoftree adds plugins of other projects to the scheduler. It is separate from package compat, so that
// programs that import compat do not import the scheduler.
package outoftree

import "k8s.io/kubernetes/cmd/kube-scheduler/app"

// Plugins returns no options, because scheduler-plugins has no release for this minor version of Kubernetes.
func Plugins() []app.Option { return nil }
