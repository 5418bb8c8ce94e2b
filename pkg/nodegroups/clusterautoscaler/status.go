// Package clusterautoscaler derives the status of pools from the status ConfigMap that the cluster autoscaler writes.
package clusterautoscaler

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// StatusKey is the ConfigMap's key that holds the status.
const StatusKey = "status"

// LastUpdatedAnnotation is the ConfigMap's annotation that the cluster autoscaler changes with every write.
const LastUpdatedAnnotation = "cluster-autoscaler.kubernetes.io/last-updated"

// The values of status fields that this package reads. Source: cluster-autoscaler/clusterstate/api/types.go.
const (
	autoscalerRunning      = "Running"
	autoscalerInitializing = "Initializing"
	healthUnhealthy        = "Unhealthy"
	scaleUpBackoff         = "Backoff"
)

// status is the part of the cluster autoscaler's status that this package reads. It leaves out the timestamps of
// groups: they are not set for a group without nodes, and this package measures time by the scheduler's clock. The
// format is that of cluster-autoscaler 1.30 and later.
type status struct {
	AutoscalerStatus string `json:"autoscalerStatus"`
	ClusterWide      struct {
		Health struct {
			Status string `json:"status"`
			// LastTransitionTime is only compared with its earlier value. A restarted autoscaler sets a new value.
			LastTransitionTime string `json:"lastTransitionTime"`
		} `json:"health"`
	} `json:"clusterWide"`
	NodeGroups []nodeGroup `json:"nodeGroups"`
}

// nodeGroup is the status of one node group.
type nodeGroup struct {
	Name    string  `json:"name"`
	Health  health  `json:"health"`
	ScaleUp scaleUp `json:"scaleUp"`

	odd error // what is impossible in the group's numbers; nil if nothing is
}

// health is a group's health, with its node counts and sizes.
type health struct {
	Status              string     `json:"status"`
	NodeCounts          nodeCounts `json:"nodeCounts"`
	CloudProviderTarget int        `json:"cloudProviderTarget"`
	MinSize             int        `json:"minSize"`
	MaxSize             int        `json:"maxSize"`
}

// nodeCounts counts the nodes of a group by their state.
type nodeCounts struct {
	Registered struct {
		Ready int `json:"ready"`
		// Suspended is the number of nodes with the condition Suspended. cluster-autoscaler 1.36 and later writes it.
		Suspended int `json:"suspended"`
		Unready   struct {
			Total int `json:"total"`
		} `json:"unready"`
	} `json:"registered"`
	LongUnregistered int `json:"longUnregistered"`
}

// scaleUp is the state of a group's scale-ups.
type scaleUp struct {
	Status      string      `json:"status"`
	BackoffInfo BackoffInfo `json:"backoffInfo"`
}

// BackoffInfo is the scale-up error that put a group into backoff.
type BackoffInfo struct {
	ErrorCode    string `json:"errorCode"`
	ErrorMessage string `json:"errorMessage"`
}

// errFreeText is the error for the free-text status that cluster-autoscaler wrote before 1.30.
var errFreeText = errors.New("the status has the text format of a cluster autoscaler before 1.30, which is not supported; upgrade the autoscaler")

// parse parses the value of StatusKey. The returned status is Running or Initializing, and its groups are well-formed.
func parse(data string) (*status, error) {
	if strings.HasPrefix(strings.TrimSpace(data), "Cluster-autoscaler status at") {
		return nil, errFreeText
	}
	var status status
	if err := yaml.Unmarshal([]byte(data), &status); err != nil {
		return nil, fmt.Errorf("parsing it as YAML: %w", err)
	}
	switch status.AutoscalerStatus {
	case autoscalerRunning, autoscalerInitializing:
	case "":
		return nil, errors.New("it has no autoscalerStatus")
	default:
		return nil, fmt.Errorf("its autoscalerStatus is %q, not %s or %s", status.AutoscalerStatus, autoscalerRunning, autoscalerInitializing)
	}
	seen := map[string]bool{}
	for i, group := range status.NodeGroups {
		if group.Name == "" {
			return nil, fmt.Errorf("nodeGroups[%d] has no name", i)
		}
		if seen[group.Name] {
			return nil, fmt.Errorf("node group %q is listed twice", group.Name)
		}
		seen[group.Name] = true
		status.NodeGroups[i].odd = group.Health.check()
	}
	return &status, nil
}

// GroupNames returns the names of the node groups in the cluster autoscaler's status.
func GroupNames(cm *corev1.ConfigMap) (names []string, err error) {
	s, err := parse(cm.Data[StatusKey])
	if err != nil {
		return nil, err
	}
	for i := range s.NodeGroups {
		names = append(names, s.NodeGroups[i].Name)
	}
	return names, nil
}

// check returns an error if a count is negative, as some builds for Azure wrote after throttled calls. Nothing is then
// known of this group. With a negative count, a pool that can grow could count as Full.
func (h *health) check() error {
	c := h.NodeCounts
	if least := min(h.CloudProviderTarget, h.MinSize, h.MaxSize, c.Registered.Ready, c.Registered.Unready.Total, c.Registered.Suspended, c.LongUnregistered); least < 0 {
		return fmt.Errorf("negative count %d", least)
	}
	return nil
}

// atMax reports whether the group is at its maximum size.
func (h *health) atMax() bool { return h.CloudProviderTarget >= h.MaxSize }

// upcoming returns the number of ordered nodes that the autoscaler still expects. The formula is the autoscaler's own
// (clusterstate.go, calculateUpcomingNodesInNodeGroup).
func (h *health) upcoming() int {
	c := h.NodeCounts
	return h.CloudProviderTarget - (c.Registered.Ready + c.Registered.Unready.Total + c.Registered.Suspended + c.LongUnregistered)
}
