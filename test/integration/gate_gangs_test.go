//go:build kubernetes_1_36 || kubernetes_1_37

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const podGroups = `
apiVersion: scheduling.k8s.io/%[1]s
kind: PodGroup
metadata: {name: ring, namespace: %[2]s}
spec: {schedulingPolicy: {gang: {minCount: 6}}}
---
apiVersion: scheduling.k8s.io/%[1]s
kind: PodGroup
metadata: {name: loose, namespace: %[2]s}
spec: {schedulingPolicy: {basic: {}}}
`

// TestGangs: the gate is open, and three of the six pods of a gang fit the VM. The others wait, and one event says why.
// The pods of a basic group burst.
func TestGangs(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{
		Pools:         []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)},
		APIServerArgs: []string{"--feature-gates=GenericWorkload=true", "--runtime-config=api/all=true"},
	})
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	version := "v1beta1"
	if must.Get(e.Client.Discovery().ServerVersion())(t).Minor == "36" {
		version = "v1alpha2"
	}
	if out, err := e.kubectl("", fmt.Sprintf(podGroups, version, namespace), "create", "-f", "-"); err != nil {
		t.Fatal(out)
	}
	create := func(name string, replicas int32) {
		e.Create(suite.Deployment(name, replicas, "600m", endsFast, func(t *corev1.PodTemplateSpec) {
			t.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		}))
	}
	create("ring", 6)
	e.Lands(30*time.Second, "ring", map[string]int{"userpool": 3, "": 3})
	e.Told("ring", gate.ReasonGroupNotHeld.Sentence)
	create("loose", 2)
	e.Lands(30*time.Second, "loose", map[string]int{"aci": 2})
	e.Keeps(5*time.Second, "ring", map[string]int{"userpool": 3, "": 3})
	e.Eventually(20*time.Second, func() string {
		events := e.Events("GroupNotHeld")
		if of := slices.DeleteFunc(events, func(text string) bool { return !strings.HasPrefix(text, "the pods of group ring ") }); len(of) != 1 {
			return fmt.Sprintf("the gang's events are %q", of)
		}
		return ""
	})
}
