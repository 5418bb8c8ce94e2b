package autoscaler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// StatusNamespace and StatusName name the ConfigMap with the status.
const StatusNamespace, StatusName = "kube-system", "cluster-autoscaler-status"

const healthy, unhealthy, noActivity, inProgress = "Healthy", "Unhealthy", "NoActivity", "InProgress"

// These types encode the status as cluster-autoscaler 1.35 and 1.36 do: an unset time is null, and an unset backoff is {}.
// They follow the recorded ConfigMaps, and share no code with pkg/nodegroups/clusterautoscaler. Source of the field
// names: cluster-autoscaler/clusterstate/api/types.go.
type (
	// Status is the whole status.
	Status struct {
		Time             string        `json:"time"`
		AutoscalerStatus string        `json:"autoscalerStatus"`
		ClusterWide      ClusterWide   `json:"clusterWide"`
		NodeGroups       []GroupStatus `json:"nodeGroups,omitempty"`
	}
	// ClusterWide is the status of the whole cluster.
	ClusterWide struct {
		Health    ClusterHealth `json:"health"`
		ScaleUp   Activity      `json:"scaleUp"`
		ScaleDown ScaleDown     `json:"scaleDown"`
	}
	// ClusterHealth is the health of all nodes.
	ClusterHealth struct {
		Status     string     `json:"status,omitempty"`
		NodeCounts NodeCounts `json:"nodeCounts"`
		Times
	}
	// GroupStatus is the status of a node group.
	GroupStatus struct {
		Name      string       `json:"name"`
		Health    GroupHealth  `json:"health"`
		ScaleUp   GroupScaleUp `json:"scaleUp"`
		ScaleDown ScaleDown    `json:"scaleDown"`
	}
	// GroupHealth is the health of a group, with its sizes.
	GroupHealth struct {
		Status              string     `json:"status"`
		NodeCounts          NodeCounts `json:"nodeCounts"`
		CloudProviderTarget int        `json:"cloudProviderTarget"`
		MinSize             int        `json:"minSize"`
		MaxSize             int        `json:"maxSize"`
		Times
	}
	// NodeCounts counts nodes and VMs.
	NodeCounts struct {
		Registered       Registered `json:"registered"`
		LongUnregistered int        `json:"longUnregistered"`
		Unregistered     int        `json:"unregistered"`
	}
	// Registered counts Nodes.
	Registered struct {
		Total        int     `json:"total"`
		Ready        int     `json:"ready"`
		NotStarted   int     `json:"notStarted"`
		Suspended    *int    `json:"suspended,omitempty"` // only since 1.36; the simulation has no suspended nodes
		BeingDeleted int     `json:"beingDeleted,omitempty"`
		Unready      Unready `json:"unready"`
	}
	// Unready counts Nodes that are not ready although they are older than MaxNodeStartupTime.
	Unready struct {
		Total           int `json:"total"`
		ResourceUnready int `json:"resourceUnready"`
	}
	// Activity is the state of scale-ups.
	Activity struct {
		Status string `json:"status,omitempty"`
		Times
	}
	// GroupScaleUp has the status NoActivity, InProgress, Backoff or Unhealthy.
	GroupScaleUp struct {
		Activity
		BackoffInfo BackoffInfo `json:"backoffInfo"`
	}
	// ScaleDown has the status NoCandidates or CandidatesPresent.
	ScaleDown struct {
		Status     string `json:"status,omitempty"`
		Candidates int    `json:"candidates,omitempty"`
		Times
	}
	// BackoffInfo is the failure that caused a backoff.
	BackoffInfo struct {
		ErrorCode    string `json:"errorCode,omitempty"`
		ErrorMessage string `json:"errorMessage,omitempty"`
	}
	// Times are when a condition was last checked, and when it last changed.
	Times struct {
		LastProbeTime      metav1.Time `json:"lastProbeTime"`
		LastTransitionTime metav1.Time `json:"lastTransitionTime"`
	}
)

// NotRunning returns the status that the autoscaler writes when it starts. It has no groups.
func NotRunning() Status { return Status{AutoscalerStatus: "Initializing"} }

// ConfigMap returns the ConfigMap in which the autoscaler stores the status. begun is when the loop began.
func (s Status) ConfigMap(begun time.Time) (*corev1.ConfigMap, error) {
	s.Time = begun.UTC().String()
	data, err := yaml.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing the status: %w", err)
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: StatusNamespace, Name: StatusName,
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": s.Time},
		},
		Data: map[string]string{"status": string(data)},
	}, nil
}

// Of returns the status of the group, or nil.
func (s Status) Of(name string) *GroupStatus {
	for i := range s.NodeGroups {
		if s.NodeGroups[i].Name == name {
			return &s.NodeGroups[i]
		}
	}
	return nil
}

// status returns the loop's status. Its groups are sorted by name. The counts are from the start of the loop, and the
// targets include the loop's scale-up. Source: GetStatus.
func (l *loop) status() Status {
	s := Status{AutoscalerStatus: "Running"}
	candidates := 0
	growing := false
	for _, g := range l.groups {
		status := l.groupStatus(g)
		candidates += status.ScaleDown.Candidates
		growing = growing || status.ScaleUp.Status == inProgress
		s.NodeGroups = append(s.NodeGroups, status)
	}
	last, now := l.last.ClusterWide, at(l.now)
	s.ClusterWide.Health = ClusterHealth{Status: health(l.clusterHealthy()), NodeCounts: l.total.counts(l.options.Minor)}
	s.ClusterWide.Health.Times = since(s.ClusterWide.Health.Status == last.Health.Status, last.Health.Times, now)
	s.ClusterWide.ScaleUp.Status = noActivity
	if growing {
		s.ClusterWide.ScaleUp.Status = inProgress
	}
	s.ClusterWide.ScaleUp.Times = since(s.ClusterWide.ScaleUp.Status == last.ScaleUp.Status, last.ScaleUp.Times, now)
	s.ClusterWide.ScaleDown = l.scaleDownStatus(candidates, last.ScaleDown)
	l.last = s
	return s
}

func (l *loop) groupStatus(g *group) GroupStatus {
	var last GroupStatus
	if old := l.last.Of(g.Name); old != nil {
		last = *old
	}
	probe := metav1.Time{}
	if !g.empty() { // a group without nodes has no times
		probe = at(l.now)
	}
	s := GroupStatus{Name: g.Name, ScaleUp: l.scaleUpStatus(g)}
	s.Health = GroupHealth{Status: health(l.healthy(g)), NodeCounts: g.counts(l.options.Minor), CloudProviderTarget: g.shown, MinSize: g.Min, MaxSize: g.Max}
	s.Health.Times = since(s.Health.Status == last.Health.Status, last.Health.Times, probe)
	s.ScaleUp.Times = since(s.ScaleUp.Status == last.ScaleUp.Status, last.ScaleUp.Times, probe)
	candidates := 0
	for _, node := range g.nodes {
		if _, ok := l.unneeded[node.Name]; ok {
			candidates++
		}
	}
	s.ScaleDown = l.scaleDownStatus(candidates, last.ScaleDown)
	return s
}

func (l *loop) scaleUpStatus(g *group) GroupScaleUp {
	switch {
	case l.growing(g):
		return GroupScaleUp{Activity: Activity{Status: inProgress}}
	case !l.healthy(g):
		return GroupScaleUp{Activity: Activity{Status: unhealthy}}
	case l.backedOff(g.Name):
		b := l.backoffs[g.Name]
		return GroupScaleUp{Activity: Activity{Status: "Backoff"}, BackoffInfo: BackoffInfo{ErrorCode: b.code, ErrorMessage: b.message}}
	}
	return GroupScaleUp{Activity: Activity{Status: noActivity}}
}

func (l *loop) scaleDownStatus(candidates int, last ScaleDown) ScaleDown {
	s := ScaleDown{Status: "NoCandidates", Candidates: candidates}
	if candidates > 0 {
		s.Status = "CandidatesPresent"
	}
	s.Times = since(s.Status == last.Status, last.Times, at(l.looked))
	return s
}

func (r *readiness) counts(minor int) NodeCounts {
	var suspended *int
	if minor >= 36 {
		suspended = new(int)
	}
	return NodeCounts{
		Registered: Registered{
			Total: r.registered, Ready: r.ready, NotStarted: r.notStarted, Suspended: suspended, Unready: Unready{Total: r.unready},
		},
		LongUnregistered: r.longUnregistered, Unregistered: r.unregistered,
	}
}

func health(is bool) string {
	if is {
		return healthy
	}
	return unhealthy
}

// at returns the time for the status, which has null for the zero time.
func at(t time.Time) metav1.Time { return metav1.NewTime(t) }

// since returns the times of a condition that was checked now. same is set if the condition is the same as at the last
// check.
func since(same bool, last Times, now metav1.Time) Times {
	if same {
		return Times{LastProbeTime: now, LastTransitionTime: last.LastTransitionTime}
	}
	return Times{LastProbeTime: now, LastTransitionTime: now}
}
