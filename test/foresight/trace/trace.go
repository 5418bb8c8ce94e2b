// Package trace reads lists of pods and the times of their lives, and makes such a list of its own.
package trace

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is a pod of a list. It has JSON tags because Window is a file.
type Pod struct {
	// Created and Ended are seconds from the start of the list.
	Created int `json:"created"`
	Ended   int `json:"ended"`
	// CPU is in thousandths of a CPU, and Memory in MiB.
	CPU    int64 `json:"cpu"`
	Memory int64 `json:"memory"`
	// Service is the service that owns the pod. A batch pod has none: it runs for as long as in the list, whenever it
	// starts. A pod of a service ends at its time, whether it has started or not.
	Service string `json:"service,omitempty"`
}

// Window is a part of a day, and what was measured when it was played in virtual time.
type Window struct {
	Pods []Pod `json:"pods"`
	// Settle and Seconds are when the measurement begins and ends. Boot is how many seconds a VM takes.
	Settle, Seconds, Boot int
	// VMs and Max are the numbers of VMs at the start and at most, of the user pool and of the system pool.
	VMs, Max [2]int
	// VMHours and VirtualHours are core-hours.
	VMHours, VirtualHours float64
}

// Cores are the CPUs of a VM that are paid for; pods can use CPU and Memory. The values are of AKS nodes of the size
// E8s v5, without what AKS reserves.
const (
	Cores  = 8
	CPU    = "7820m"
	Memory = "60Gi"
)

// Day is how many seconds a list lasts.
const Day = 24 * 60 * 60

var columns = []string{"created_s", "ended_s", "cpu_milli", "memory_mib"}

// Read reads a CSV file with the four columns and one more. If that is app, it has the names of services. Otherwise the
// pods are batch pods. An error names the line of a pod that a day cannot have or that fits no VM.
func Read(file string) ([]Pod, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the list of pods: %w", err)
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(rows) < 2 || len(rows[0]) != 5 || !slices.Equal(rows[0][:4], columns) {
		return nil, fmt.Errorf("%s: line 1 must be %s and one more column, which is app if it has the services' names; the other lines are pods", file, strings.Join(columns, ","))
	}
	cpu, memory := resource.MustParse(CPU), resource.MustParse(Memory)
	var pods []Pod
	for i, row := range rows[1:] {
		var n [4]int
		for c, name := range columns {
			limits := [][2]int{{0, Day - 1}, {n[0] + 1, math.MaxInt32}, {1, int(cpu.MilliValue())}, {0, int(memory.Value() >> 20)}}[c]
			if n[c], err = strconv.Atoi(row[c]); err != nil || n[c] < limits[0] || n[c] > limits[1] {
				return nil, fmt.Errorf("%s: line %d: %s is %q, and must be a whole number from %d to %d", file, i+2, name, row[c], limits[0], limits[1])
			}
		}
		pod := Pod{Created: n[0], Ended: n[1], CPU: int64(n[2]), Memory: int64(n[3])}
		if rows[0][4] == "app" {
			pod.Service = row[4]
		}
		pods = append(pods, pod)
	}
	return sorted(pods), nil
}

func sorted(pods []Pod) []Pod {
	slices.SortStableFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Created, b.Created) })
	return pods
}

// Own returns a list of its own that lasts for this many seconds: two services that rise steeply and fall slowly, and
// batch pods.
func Own(seed uint64, seconds int) []Pod {
	r := rand.New(rand.NewPCG(seed, 43))
	var pods []Pod
	for i := range 40 {
		pod := Pod{Ended: seconds, CPU: 1500 + 500*int64(i%2), Memory: 8192, Service: []string{"search", "web"}[i%2]}
		if i >= 8 {
			pod.Created = seconds/4 + r.IntN(seconds/20)
			pod.Ended = seconds*2/5 + r.IntN(seconds/2)
		}
		pods = append(pods, pod)
	}
	for range seconds / 300 {
		created := r.IntN(seconds)
		pods = append(pods, Pod{Created: created, Ended: created + 60 + int(r.ExpFloat64()*600), CPU: 1000, Memory: 4096})
	}
	return sorted(pods)
}

// Clip returns the pods that live between two times, with times from the first of them on.
func Clip(pods []Pod, from, to int) []Pod {
	var clipped []Pod
	for _, pod := range pods {
		if pod.Created < to && pod.Ended > from {
			pod.Created, pod.Ended = max(pod.Created-from, 0), pod.Ended-from
			clipped = append(clipped, pod)
		}
	}
	return clipped
}

// Object returns the pod as an object with this name. Its label app is the service, or batch.
func (p *Pod) Object(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{"app": cmp.Or(p.Service, "batch")}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(p.CPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(p.Memory<<20, resource.BinarySI),
		}}}}},
	}
}
