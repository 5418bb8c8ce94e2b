//go:build suites

package main

// What Kubernetes' tests import, for go mod tidy, which does not see their copies.
import (
	_ "github.com/stretchr/testify/mock"
	_ "k8s.io/component-helpers/nodedeclaredfeatures/testing"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app/testing"
	_ "k8s.io/kubernetes/test/integration/scheduler"
	_ "k8s.io/utils/clock/testing"
)
