//go:build kubernetes_1_36 || kubernetes_1_37

// Package outoftree holds the plugins of others that the scheduler also has. It is apart from package compat, because
// clients do not need the scheduler.
package outoftree

import "k8s.io/kubernetes/cmd/kube-scheduler/app"

// Plugins returns no option: scheduler-plugins has no version for this minor.
func Plugins() []app.Option { return nil }
