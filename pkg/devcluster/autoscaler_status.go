package devcluster

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The status that cluster-autoscaler 1.35 writes, field by field as it writes it: null for times that are not set and {}
// for a back-off that is not. It is written anew from the recorded ConfigMaps and shares nothing with what reads it.
// Source of the field names: cluster-autoscaler/clusterstate/api/types.go.
type (
	statusFile struct {
		Time             string        `json:"time"`
		AutoscalerStatus string        `json:"autoscalerStatus"`
		ClusterWide      clusterWide   `json:"clusterWide"`
		NodeGroups       []groupStatus `json:"nodeGroups,omitempty"`
	}
	clusterWide struct {
		Health    clusterHealth   `json:"health"`
		ScaleUp   activity        `json:"scaleUp"`
		ScaleDown scaleDownStatus `json:"scaleDown"`
	}
	clusterHealth struct {
		Status     string      `json:"status,omitempty"`
		NodeCounts countStatus `json:"nodeCounts"`
		times
	}
	groupStatus struct {
		Name      string          `json:"name"`
		Health    groupHealth     `json:"health"`
		ScaleUp   groupScaleUp    `json:"scaleUp"`
		ScaleDown scaleDownStatus `json:"scaleDown"`
	}
	groupHealth struct {
		Status              string      `json:"status"`
		NodeCounts          countStatus `json:"nodeCounts"`
		CloudProviderTarget int         `json:"cloudProviderTarget"`
		MinSize             int         `json:"minSize"`
		MaxSize             int         `json:"maxSize"`
		times
	}
	countStatus struct {
		Registered       registeredStatus `json:"registered"`
		LongUnregistered int              `json:"longUnregistered"`
		Unregistered     int              `json:"unregistered"`
	}
	registeredStatus struct {
		Total      int           `json:"total"`
		Ready      int           `json:"ready"`
		NotStarted int           `json:"notStarted"`
		Unready    unreadyStatus `json:"unready"`
	}
	unreadyStatus struct {
		Total           int `json:"total"`
		ResourceUnready int `json:"resourceUnready"`
	}
	activity struct {
		Status string `json:"status,omitempty"`
		times
	}
	groupScaleUp struct {
		activity
		BackoffInfo backoffStatus `json:"backoffInfo"`
	}
	scaleDownStatus struct {
		Status     string `json:"status,omitempty"`
		Candidates int    `json:"candidates,omitempty"`
		times
	}
	backoffStatus struct {
		ErrorCode    string `json:"errorCode,omitempty"`
		ErrorMessage string `json:"errorMessage,omitempty"`
	}
	times struct {
		LastProbeTime      metav1.Time `json:"lastProbeTime"`
		LastTransitionTime metav1.Time `json:"lastTransitionTime"`
	}
)

// initializingStatus is what the autoscaler writes when it starts: no groups.
func initializingStatus() statusFile { return statusFile{AutoscalerStatus: "Initializing"} }

// configMap is the status as the autoscaler stores it at the time now.
func (s statusFile) configMap(now time.Time) (*corev1.ConfigMap, error) {
	s.Time = now.UTC().String()
	data, err := yaml.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing the status: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: statusNamespace, Name: statusName,
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": s.Time},
		},
		Data: map[string]string{"status": string(data)},
	}, nil
}
