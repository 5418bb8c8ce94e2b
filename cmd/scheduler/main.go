package main

import (
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	_ "sigs.k8s.io/scheduler-plugins/pkg/noderesources"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "github.com/virtual-kubelet/virtual-kubelet/node"
	_ "github.com/spf13/cobra"
	_ "github.com/google/go-cmp/cmp"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
	_ "k8s.io/kube-scheduler/config/v1"
	_ "k8s.io/kubernetes/pkg/scheduler/testing"
)
func main() {}
