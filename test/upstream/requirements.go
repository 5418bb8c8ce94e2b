//go:build suites

package main

// The imports of Kubernetes' tests, for go mod tidy, which does not see the copies of the tests.
import (
	_ "github.com/stretchr/testify/mock"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-helpers/nodedeclaredfeatures/testing"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app/testing"
	_ "k8s.io/kubernetes/test/integration/scheduler"
	_ "k8s.io/kubernetes/test/integration/scheduler_perf"
	_ "k8s.io/utils/clock/testing"
)
