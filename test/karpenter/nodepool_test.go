// Package karpenter compares how we read NodePools and NodeClaims with Karpenter's own types.
package karpenter

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// samples returns the recorded objects in the files that match the pattern.
func samples(f *testing.F, pattern string) (objects []json.RawMessage) {
	f.Helper()
	files, err := filepath.Glob("../../pkg/nodegroups/karpenter/testdata/" + pattern)
	if err != nil || len(files) == 0 {
		f.Fatal("no samples", err)
	}
	for _, file := range files {
		var sample struct {
			Object json.RawMessage
			Events []struct{ Object json.RawMessage }
		}
		must.NoError(f, json.Unmarshal(must.ReadFile(f, file), &sample))
		if sample.Object != nil {
			objects = append(objects, sample.Object)
		}
		for _, event := range sample.Events {
			objects = append(objects, event.Object)
		}
	}
	return objects
}

// FuzzNodePool: no input causes a panic. If a NodePool is read as Full, then by Karpenter's types any node that it
// could order exceeds the limits.
func FuzzNodePool(f *testing.F) {
	for _, object := range samples(f, "*.json") {
		f.Add([]byte(object))
	}
	const head = `{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"name":"a"},"status":{"resources":{"cpu":"7","memory":"1Gi","nodes":"0"},"conditions":[{"type":"Ready","status":"True"}]},"spec":`
	for _, spec := range []string{
		`{"limits":{"cpu":"7"}}`, `{"limits":{"cpu":8,"memory":"1e9"}}`, `{"limits":{"nodes":0}}`, `{"limits":{"nodes":1}}`, `{"limits":{"nvidia.com/gpu":"0"}}`, `{"replicas":3}`, `{"replicas":-1}`, `{"limits":{}}`,
		`{"limits":{"cpu":"10"},"template":{"spec":{"requirements":[{"key":"karpenter.azure.com/sku-cpu","operator":"In","values":["4","8"]}]}}}`,
		`{"limits":{"cpu":"10"},"template":{"spec":{"requirements":[{"key":"karpenter.azure.com/sku-cpu","operator":"Gt","values":["3"]}]}}}`,
		`{"limits":{"cpu":"1e100000000"}}`, `{"limits":{"cpu":"1e-100000000"}}`,
	} {
		f.Add([]byte(head + spec + "}"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tracker := karpenter.NewTracker(pool.Graces{}, karpenter.NewLaunches())
		err := tracker.Observe(data, nil, now)
		got := tracker.Status(nil, now)
		if got.State != nodegroups.Full {
			return
		}
		if err != nil {
			t.Fatalf("Full by a NodePool that cannot be read: %v", err)
		}
		// This has only those fields of Karpenter's types that limit what it may order. The API server rejects a
		// NodePool with other fields that do not fit, and such a field must not end the comparison.
		read := &struct {
			Spec struct {
				Limits   karpenterv1.Limits `json:"limits"`
				Replicas *int64             `json:"replicas"`
				Template struct {
					karpenterv1.ObjectMeta `json:"metadata"`
					Spec                   struct {
						Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
					} `json:"spec"`
				} `json:"template"`
			} `json:"spec"`
			Status struct {
				Resources corev1.ResourceList `json:"resources"`
			} `json:"status"`
		}{}
		if err := json.Unmarshal(data, read); err != nil {
			t.Fatalf("Full (%+v) by a NodePool that Karpenter's types cannot read: %v", got.Reason, err)
		}
		real := &karpenterv1.NodePool{}
		real.Spec.Limits, real.Spec.Replicas, real.Status.Resources = read.Spec.Limits, read.Spec.Replicas, read.Status.Resources
		real.Spec.Template.Labels = read.Spec.Template.Labels
		for _, r := range read.Spec.Template.Spec.Requirements {
			real.Spec.Template.Spec.Requirements = append(real.Spec.Template.Spec.Requirements, karpenterv1.NodeSelectorRequirementWithMinValues{Key: r.Key, Operator: r.Operator, Values: r.Values})
		}
		if real.Spec.Replicas != nil || real.Status.Resources == nil {
			if real.Status.Resources == nil {
				t.Fatalf("Full before Karpenter counted anything: %+v", got.Reason)
			}
			return // Karpenter orders no node for a pod
		}
		// The smallest possible node: the least memory, and the least CPUs that the requirements allow. It is one of the
		// limit on nodes.
		with := real.Status.Resources.DeepCopy()
		add := func(name corev1.ResourceName, q resource.Quantity) {
			sum := with[name]
			sum.Add(q)
			with[name] = sum
		}
		add(corev1.ResourceCPU, resource.MustParse(cpus(real)))
		add(corev1.ResourceMemory, *resource.NewQuantity(1, resource.BinarySI))
		add(resources.Node, resource.MustParse("1"))
		if real.Spec.Limits.ExceededBy(with) == nil {
			t.Fatalf("Full (%+v), and a node would not exceed the limits %v of %v", got.Reason, real.Spec.Limits, real.Status.Resources)
		}
	})
}

// cpus returns the least number of CPUs that the NodePool's requirements allow a node. It tries all numbers.
func cpus(n *karpenterv1.NodePool) string {
	for cpu := int64(1); cpu < math.MaxInt16; cpu++ {
		if allowed(n, cpu) {
			if cpu == 1 {
				return "1n" // a node may have less than one CPU
			}
			return resource.NewQuantity(cpu, resource.DecimalSI).String()
		}
	}
	return "1Ei"
}

func allowed(n *karpenterv1.NodePool, cpu int64) bool {
	isCPU := func(key string) bool {
		return key == "karpenter.azure.com/sku-cpu" || key == "karpenter.k8s.aws/instance-cpu" || key == "karpenter.kwok.sh/instance-cpu"
	}
	value := resource.NewQuantity(cpu, resource.DecimalSI).String()
	for key, label := range n.Spec.Template.Labels {
		if isCPU(key) && label != value {
			return false
		}
	}
	for _, r := range n.Spec.Template.Spec.Requirements {
		if !isCPU(r.Key) {
			continue
		}
		switch r.Operator {
		case corev1.NodeSelectorOpIn:
			if !slices.Contains(r.Values, value) {
				return false
			}
		case corev1.NodeSelectorOpGt:
			if len(r.Values) != 1 {
				return false // Karpenter's CRD refuses it
			}
			if least, err := strconv.ParseInt(r.Values[0], 10, 32); err == nil && cpu <= least {
				return false
			}
		}
	}
	return true
}
