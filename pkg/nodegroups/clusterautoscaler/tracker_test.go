package clusterautoscaler

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

const staleAfter = 3 * time.Minute

var graces = pool.Graces{Provision: 15 * time.Minute, Backoff: 2 * time.Minute}

var epoch = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// sample returns a recorded ConfigMap. A file can also have the status only.
func sample(t testing.TB, name string) *corev1.ConfigMap {
	t.Helper()
	data := must.ReadFile(t, filepath.Join("testdata", name))
	cm := &corev1.ConfigMap{}
	must.NoError(t, yaml.Unmarshal(data, cm))
	if cm.Kind == "" {
		cm.Data = map[string]string{StatusKey: string(data)}
	}
	return cm
}

func agentPool(name string) Groups {
	return GroupsOf(&configv1.Pool{
		Name:              "user",
		NodeSelector:      &metav1.LabelSelector{MatchLabels: map[string]string{"agentpool": name}},
		ClusterAutoscaler: &configv1.ClusterAutoscalerSource{},
	})
}

func TestSamples(t *testing.T) {
	for _, tc := range []struct {
		file, pool string
		want       nodegroups.State
		code       string
	}{
		{"01-baseline-below-max.yaml", "userpool", nodegroups.CanGrow, "BelowMaxSize"},
		{"01-baseline-below-max.yaml", "systempool", nodegroups.CanGrow, "BelowMaxSize"},
		{"02-scaleup-triggered.yaml", "userpool", nodegroups.CanGrow, "BelowMaxSize"},
		{"04-both-pools-at-max.yaml", "userpool", nodegroups.Full, "AtMaxSize"},
		{"04-both-pools-at-max.yaml", "systempool", nodegroups.Full, "AtMaxSize"},
		{"05-initializing.yaml", "userpool", nodegroups.Unknown, "StatusInitializing"},
		{"06-below-max_at-max_backoff.yaml", "userpool", nodegroups.CanGrow, "BackingOff"},
		{"06-below-max_at-max_backoff.yaml", "systempool", nodegroups.Full, "AtMaxSize"},
		{"06-below-max_at-max_backoff.yaml", "spotpool", nodegroups.CanGrow, "BelowMaxSize"},
		{"08-encoder-1.30-1.34.yaml", "userpool", nodegroups.CanGrow, "BackingOff"},
		{"08-encoder-1.30-1.34.yaml", "systempool", nodegroups.Full, "AtMaxSize"},
		{"04-both-pools-at-max.yaml", "user", nodegroups.Unknown, "NoNodeGroup"},
	} {
		t.Run(tc.file+" "+tc.pool, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			must.NoError(t, tracker.Observe(sample(t, tc.file), epoch))
			got := Source{Tracker: tracker, Groups: agentPool(tc.pool), Graces: graces}.Status(nil, epoch)
			if got.State != tc.want || got.Reason.Code != tc.code {
				t.Errorf("Judge() = %s %s (%s), want %s %s", got.State, got.Reason.Code, got.Reason.Detail, tc.want, tc.code)
			}
		})
	}
}

// group returns the status of a node group. Its missing counts are zero.
func group(name string, target, ready, maxSize int, more ...string) string {
	return fmt.Sprintf("- name: %s\n  health: {status: Healthy, cloudProviderTarget: %d, maxSize: %d, nodeCounts: {registered: {ready: %d}}}\n%s", name, target, maxSize, ready, strings.Join(more, ""))
}

// unregistered returns the group's status with VMs that have been unregistered for too long.
func unregistered(group string, vms int) string {
	return strings.Replace(group, "nodeCounts: {", fmt.Sprintf("nodeCounts: {longUnregistered: %d, ", vms), 1)
}

const inBackoff = "  scaleUp: {status: Backoff, backoffInfo: {errorCode: cloudProviderError, errorMessage: quota}}\n"

func running(groups ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Running\nnodeGroups:\n" + strings.Join(groups, "")}}
}

// unhealthy returns the group's status with the health Unhealthy.
func unhealthy(group string) string { return strings.Replace(group, "Healthy", "Unhealthy", 1) }

// made returns the ConfigMap with the UID.
func made(uid types.UID, cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm.UID = uid
	return cm
}

// TestSuspended: suspended nodes, which the status has since 1.36, exist, and are not on their way. Both encoders are
// read: that of 1.36, which writes the count of each group, and those of earlier versions, which write none.
func TestSuspended(t *testing.T) {
	const user = "aks-userpool-123-vmss"
	for _, tc := range []struct {
		name         string
		target       int
		count        string // what the status has of suspended nodes
		want         string
		wantArriving int
	}{
		{"none, 1.36", 3, "suspended: 0", "Provisioning", 2},
		{"none, 1.35 and earlier", 3, "", "Provisioning", 2},
		{"all that are missing", 3, "suspended: 2", "AtMaxSize", 0},
		{"one of those that are missing", 3, "suspended: 1", "Provisioning", 1},
		{"below the maximum size", 2, "suspended: 1", "BelowMaxSize", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cm := sample(t, "09-suspended-1.36.yaml")
			text := cm.Data[StatusKey]
			text = regexp.MustCompile(` +suspended: 2\n`).ReplaceAllStringFunc(text, func(line string) string {
				if tc.count == "" {
					return ""
				}
				return strings.Replace(line, "suspended: 2", tc.count, 1)
			})
			cm.Data[StatusKey] = strings.Replace(text, "cloudProviderTarget: 3", fmt.Sprint("cloudProviderTarget: ", tc.target), 1)
			tracker := NewTracker(staleAfter, graces.Provision)
			must.NoError(t, tracker.Observe(cm, epoch))
			got := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}.Status(nil, epoch).Groups[0]
			if got.Name != user || got.Reason.Code != tc.want || got.Arriving != tc.wantArriving {
				t.Errorf("%s: %s (%s), %d arrive; want %s, %d", got.Name, got.Reason.Code, got.Reason.Detail, got.Arriving, tc.want, tc.wantArriving)
			}
		})
	}
}

// TestHistories: the states of a pool over a series of statuses.
func TestHistories(t *testing.T) {
	const user, other = "aks-userpool-123-vmss", "aks-userpool-456-vmss"
	type moment struct {
		at    time.Duration
		cm    *corev1.ConfigMap // nil: missing
		want  nodegroups.State
		code  string
		until time.Duration // 0: not checked
	}
	for _, tc := range []struct {
		name    string
		moments []moment
	}{
		{"nodes on their way, and they come", []moment{
			{0, running(group(user, 1, 1, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{10 * time.Second, running(group(user, 3, 1, 3)), nodegroups.Growing, "Provisioning", 0},
			{20 * time.Second, running(group(user, 3, 2, 3)), nodegroups.Growing, "Provisioning", 0},
			{30 * time.Second, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 0},
		}},
		{"a stockout: target at the maximum, nodes missing", []moment{
			{0, running(group(user, 3, 1, 3)), nodegroups.Growing, "Provisioning", 0},
			{14 * time.Minute, running(group(user, 3, 1, 3)), nodegroups.Growing, "Provisioning", 15 * time.Minute},
			{15 * time.Minute, running(group(user, 3, 1, 3)), nodegroups.Full, "NodesMissing", 0},
		}},
		{"VMs that never register, and are replaced in one loop", []moment{
			{0, running(group(user, 1, 1, 2)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{10 * time.Second, running(group(user, 2, 1, 2)), nodegroups.Growing, "Provisioning", 15*time.Minute + 10*time.Second},
			{15 * time.Minute, running(unregistered(group(user, 2, 1, 2), 1)), nodegroups.Full, "AtMaxSize", 0},
			{15*time.Minute + 10*time.Second, running(group(user, 2, 1, 2)), nodegroups.Growing, "Provisioning", 30 * time.Minute},
		}},
		{"a node that comes starts the provision grace anew", []moment{
			{0, running(group(user, 3, 1, 3)), nodegroups.Growing, "Provisioning", 0},
			{14 * time.Minute, running(group(user, 3, 2, 3)), nodegroups.Growing, "Provisioning", 0},
			{16 * time.Minute, running(group(user, 3, 2, 3)), nodegroups.Growing, "Provisioning", 0},
			{29 * time.Minute, running(group(user, 3, 2, 3)), nodegroups.Full, "NodesMissing", 0},
		}},
		{"a group that was full for long is given its full grace when it grows", []moment{
			{0, running(group(user, 1, 1, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{time.Hour, running(group(user, 2, 1, 3)), nodegroups.Growing, "Provisioning", 0},
			{time.Hour + 14*time.Minute, running(group(user, 2, 1, 3)), nodegroups.Growing, "Provisioning", time.Hour + 15*time.Minute},
			{time.Hour + 15*time.Minute, running(group(user, 2, 1, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
		}},
		{"backoff counts once it has lasted", []moment{
			{0, running(group(user, 1, 1, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 2 * time.Minute},
			{119 * time.Second, running(group(user, 1, 1, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 2 * time.Minute},
			{2 * time.Minute, running(group(user, 1, 1, 3, inBackoff)), nodegroups.Full, "Backoff", 0},
		}},
		{"backoff that lapses because nothing is pending is remembered, for a time", []moment{
			{0, running(group(user, 1, 1, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 0},
			{2 * time.Minute, running(group(user, 1, 1, 3, inBackoff)), nodegroups.Full, "Backoff", 0},
			{4 * time.Minute, running(group(user, 1, 1, 3)), nodegroups.Full, "Backoff", 7 * time.Minute},
			{7 * time.Minute, running(group(user, 1, 1, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{20 * time.Minute, running(group(user, 1, 1, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 22 * time.Minute},
		}},
		{"growth ends the memory of a backoff", []moment{
			{0, running(group(user, 1, 1, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 0},
			{3 * time.Minute, running(group(user, 2, 1, 3)), nodegroups.Growing, "Provisioning", 0},
			{4 * time.Minute, running(group(user, 2, 2, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
		}},
		{"backoff at the maximum size is full at once", []moment{
			{0, running(group(user, 3, 3, 3, inBackoff)), nodegroups.Full, "AtMaxSize", 0},
		}},
		{"of several groups one that can grow is enough", []moment{
			{0, running(group(user, 3, 3, 3), group(other, 0, 0, 1)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{time.Minute, running(group(user, 3, 3, 3), group(other, 1, 0, 1)), nodegroups.Growing, "Provisioning", 0},
			{2 * time.Minute, running(group(user, 3, 3, 3), group(other, 1, 1, 1)), nodegroups.Full, "AtMaxSize", 0},
		}},
		{"an unhealthy group is skipped, like one in backoff", []moment{
			{0, running(unhealthy(group(user, 1, 1, 3)), group(other, 1, 1, 1)), nodegroups.CanGrow, "UnhealthyRecently", 2 * time.Minute},
			{2 * time.Minute, running(unhealthy(group(user, 1, 1, 3)), group(other, 1, 1, 1)), nodegroups.Full, "Unhealthy", 0},
			{3 * time.Minute, running(unhealthy(group(user, 1, 1, 3)), group(other, 1, 1, 2)), nodegroups.CanGrow, "BelowMaxSize", 0},
			{4 * time.Minute, running(group(user, 1, 1, 3), group(other, 1, 1, 1)), nodegroups.CanGrow, "BelowMaxSize", 0}, // the group is healthy again at once
			{5 * time.Minute, running(unhealthy(group(user, 1, 1, 3)), group(other, 1, 1, 1)), nodegroups.CanGrow, "UnhealthyRecently", 7 * time.Minute},
		}},
		{"an unhealthy group whose nodes are on their way", []moment{
			{0, running(unhealthy(group(user, 3, 1, 3))), nodegroups.Growing, "Provisioning", 0},
		}},
		{"an unhealthy cluster", []moment{
			{0, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 0},
			{time.Minute, &corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Running\nclusterWide: {health: {status: Unhealthy}}\nnodeGroups:\n" + group(user, 3, 3, 3)}}, nodegroups.Unknown, "ClusterUnhealthy", 0},
			{2 * time.Minute, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 0},
		}},
		{"an autoscaler that was killed and started again has forgotten its backoff", []moment{ // recorded run N
			{0, running(group(user, 0, 0, 3, inBackoff)), nodegroups.CanGrow, "BackingOff", 0},
			{2 * time.Minute, running(group(user, 0, 0, 3, inBackoff)), nodegroups.Full, "Backoff", 0},
			{3 * time.Minute, &corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Initializing"}}, nodegroups.Unknown, "StatusInitializing", 0},
			{3*time.Minute + 10*time.Second, running(group(user, 0, 0, 3)), nodegroups.CanGrow, "BelowMaxSize", 0},
		}},
		{"so has one that was stopped politely: the ConfigMap was made anew", []moment{
			{0, made("1", running(group(user, 0, 0, 3, inBackoff))), nodegroups.CanGrow, "BackingOff", 0},
			{2 * time.Minute, made("1", running(group(user, 0, 0, 3, inBackoff), "#\n")), nodegroups.Full, "Backoff", 0},
			{3 * time.Minute, made("2", running(group(user, 0, 0, 3))), nodegroups.CanGrow, "BelowMaxSize", 0},
		}},
		{"the status goes stale and comes back", []moment{
			{0, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 3 * time.Minute},
			{179 * time.Second, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 3 * time.Minute},
			{180 * time.Second, running(group(user, 3, 3, 3)), nodegroups.Unknown, "StatusStale", 0},
			{200 * time.Second, running(group(user, 3, 3, 3), "#\n"), nodegroups.Full, "AtMaxSize", 0},
		}},
		{"the autoscaler is stopped politely and restarted", []moment{
			{0, running(group(user, 3, 3, 3)), nodegroups.Full, "AtMaxSize", 0},
			{time.Minute, nil, nodegroups.Unknown, "StatusMissing", 0},
			{2 * time.Minute, &corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Initializing"}}, nodegroups.Unknown, "StatusInitializing", 0},
			{3 * time.Minute, running(group(user, 3, 3, 3), "#\n"), nodegroups.Full, "AtMaxSize", 0},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
			for i, m := range tc.moments {
				now := epoch.Add(m.at)
				// In the stale case, the annotation does not change. The status itself shows whether it was written.
				if m.cm != nil && !strings.Contains(tc.name, "stale") {
					m.cm.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(i)}
				}
				must.NoError(t, tracker.Observe(m.cm, now))
				got := source.Status(nil, now)
				if got.State != m.want || got.Reason.Code != m.code {
					t.Errorf("after %v: %s %s (%s), want %s %s", m.at, got.State, got.Reason.Code, got.Reason.Detail, m.want, m.code)
				}
				if m.until != 0 && !got.Until.Equal(epoch.Add(m.until)) && !(got.Until.Equal(tracker.changed.Add(staleAfter)) && got.Until.Before(epoch.Add(m.until))) {
					t.Errorf("after %v: Until = %v, want %v", m.at, got.Until.Sub(epoch), m.until)
				}
			}
		})
	}
}

func TestOutagesAndScaleUps(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
	observe := func(at time.Duration, cm *corev1.ConfigMap) nodegroups.SourceStatus {
		cm.Annotations = map[string]string{LastUpdatedAnnotation: at.String()}
		must.NoError(t, tracker.Observe(cm, epoch.Add(at)))
		return source.Status(nil, epoch.Add(at))
	}
	got := observe(0, running(group("aks-userpool-1-vmss", 1, 1, 3)))
	if len(got.Outages) != 0 || !got.Groups[0].LastScaleUp.IsZero() {
		t.Errorf("at first: pauses %v, rose %v", got.Outages, got.Groups[0].LastScaleUp)
	}
	got = observe(time.Minute, running(group("aks-userpool-1-vmss", 2, 2, 3)))
	if len(got.Outages) != 0 || !got.Groups[0].LastScaleUp.Equal(epoch.Add(time.Minute)) {
		t.Errorf("after growth: pauses %v, rose %v", got.Outages, got.Groups[0].LastScaleUp)
	}
	got = observe(10*time.Minute, running(group("aks-userpool-1-vmss", 2, 2, 3)))
	if diff := cmp.Diff([]nodegroups.Outage{{From: epoch.Add(time.Minute), To: epoch.Add(10 * time.Minute)}}, got.Outages); diff != "" {
		t.Errorf("after 9 minutes of silence, pauses (-want,+got):\n%s", diff)
	}
}

func TestOwns(t *testing.T) {
	named := GroupsOf(&configv1.Pool{NodeSelector: &metav1.LabelSelector{}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{NodeGroups: []string{"aks-user*-vmss", "mypool/*"}}})
	for _, tc := range []struct {
		groups Groups
		name   string
		want   bool
	}{
		{agentPool("pool1"), "aks-pool1-12345678-vmss", true},
		{agentPool("pool1"), "aks-pool10-12345678-vmss", false},
		{agentPool("pool1"), "aks-apool1-12345678-vmss", false},
		{agentPool("pool1"), "aks-pool1-12345678-vmss-x", false},
		{agentPool("pool1"), "pool1/Standard_D2s_v5", true},
		{agentPool("pool1"), "pool1/", false},
		{agentPool("pool1"), "pool10/Standard_D2s_v5", false},
		{agentPool("pool1"), "pool1", false},
		{named, "aks-userpool-1-vmss", true},
		{named, "xaks-userpool-1-vmss", false},
		{named, "aks-userpool-1-vmss2", false},
		{named, "mypool/Standard_D2s_v5", true},
		{GroupsOf(&configv1.Pool{NodeSelector: &metav1.LabelSelector{}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}}), "aks-systempool-1-vmss", false},
	} {
		if got := tc.groups.owns(tc.name); got != tc.want {
			t.Errorf("%+v.claim(%q) = %v, want %v", tc.groups, tc.name, got, tc.want)
		}
	}
}

// TestImpossibleCount: a group with a negative count is Unknown, and what was known of it stays. Other groups are judged as
// usual, and the gate does not take it for one of those at their maximum.
func TestImpossibleCount(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	observe := func(now time.Time, health string) {
		t.Helper()
		must.NoError(t, tracker.Observe(&corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Running\nnodeGroups: [{name: aks-odd-12345678-vmss, health: {" + health +
			"}}, {name: aks-full-12345678-vmss, health: {maxSize: 1, cloudProviderTarget: 1, nodeCounts: {registered: {ready: 1}}}}]"}}, now))
	}
	of := func(pool string, now time.Time) nodegroups.SourceStatus {
		return Source{Tracker: tracker, Groups: agentPool(pool), Graces: graces}.Status(nil, now)
	}
	observe(epoch.Add(-10*time.Second), "maxSize: 9, cloudProviderTarget: -1") // the first status of all
	for _, pool := range []string{"odd", "another"} {
		if got := of(pool, epoch); got.State != nodegroups.Unknown {
			t.Errorf("pool %s is %s: %+v", pool, got.State, got.Reason)
		}
	}
	observe(epoch, "maxSize: 9, cloudProviderTarget: 2, nodeCounts: {registered: {ready: 2}}")
	for i, health := range []string{"maxSize: 9, cloudProviderTarget: -1", "maxSize: 1, cloudProviderTarget: 1, nodeCounts: {registered: {suspended: -1}}"} {
		now := epoch.Add(time.Duration(1+i) * 10 * time.Second)
		observe(now, health)
		if odd := of("odd", now); odd.State != nodegroups.Unknown || odd.Reason.Code != "ImpossibleCount" || !strings.Contains(odd.Reason.Detail, "negative count -1") {
			t.Errorf("%s: the pool is %s: %+v", health, odd.State, odd.Reason)
		}
		if full := of("full", now); full.State != nodegroups.Full || full.Reason.Code != "AtMaxSize" {
			t.Errorf("%s: the other pool is %s: %+v", health, full.State, full.Reason)
		}
		if s := tracker.scans.LastStatus; s.Groups != 2 || s.AtMax != 1 || tracker.memory["aks-odd-12345678-vmss"].Target != 2 {
			t.Errorf("%s: %+v, %+v", health, s, tracker.memory["aks-odd-12345678-vmss"])
		}
	}
	observe(epoch.Add(30*time.Second), "maxSize: 9, cloudProviderTarget: 3, nodeCounts: {registered: {ready: 2}}")
	if odd := of("odd", epoch.Add(30*time.Second)); odd.State != nodegroups.Growing {
		t.Errorf("with possible numbers, the pool is %s: %+v", odd.State, odd.Reason)
	}
}

func TestUnreadable(t *testing.T) {
	for _, tc := range []struct{ name, status, want string }{
		{"nothing", "", "it has no autoscalerStatus"},
		{"not YAML", "\t{", "parsing it as YAML"},
		{"a list", "- a", "parsing it as YAML"},
		{"free text", "Cluster-autoscaler status at 2023-05-02 07:49:51 +0000 UTC:\nCluster-wide:\n", "before 1.30"},
		{"an unknown state", "autoscalerStatus: Dreaming", `"Dreaming"`},
		{"a group without a name", "autoscalerStatus: Running\nnodeGroups: [{health: {maxSize: 1}}]", "nodeGroups[0] has no name"},
		{"a group twice", "autoscalerStatus: Running\nnodeGroups: [{name: a, health: {maxSize: 1}}, {name: a, health: {maxSize: 1}}]", `"a" is listed twice`},
		{"a word for a number", "autoscalerStatus: Running\nnodeGroups: [{name: a, health: {maxSize: many}}]", "parsing it as YAML"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			err := tracker.Observe(&corev1.ConfigMap{Data: map[string]string{StatusKey: tc.status}}, epoch)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Observe() = %v, want an error with %q", err, tc.want)
			}
			if got := (Source{Tracker: tracker, Groups: agentPool("a"), Graces: graces}).Status(nil, epoch); got.State != nodegroups.Unknown || got.Reason.Code != "StatusUnreadable" {
				t.Errorf("Judge() = %s %s, want Unknown", got.State, got.Reason.Code)
			}
		})
	}
	if _, err := parse("Cluster-autoscaler status at 2023"); !errors.Is(err, errFreeText) {
		t.Errorf("parse(free text) = %v, want errFreeText", err)
	}
}

// FuzzParse looks for panics, and for input that makes a pool Full although its groups are not at their maximum.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal("no samples", err)
	}
	for _, file := range files {
		f.Add(sample(f, filepath.Base(file)).Data[StatusKey])
	}
	f.Add("Cluster-autoscaler status at 2023")
	f.Add("autoscalerStatus: Running\nnodeGroups: [{name: aks-userpool-1-vmss, health: {maxSize: 1, cloudProviderTarget: 1}}]")
	f.Fuzz(func(t *testing.T, data string) {
		tracker := NewTracker(staleAfter, graces.Provision)
		err := tracker.Observe(&corev1.ConfigMap{Data: map[string]string{StatusKey: data}}, epoch)
		got := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}.Status(nil, epoch)
		if got.State != nodegroups.Full {
			return
		}
		if err != nil {
			t.Fatalf("Full by an unreadable status: %v", err)
		}
		status, err := parse(data)
		if err != nil || status.AutoscalerStatus != "Running" {
			t.Fatalf("Full by a status that is not running: %v", err)
		}
		claimed := false
		for _, g := range status.NodeGroups {
			if !agentPool("userpool").owns(g.Name) {
				continue
			}
			claimed = true
			if g.Health.CloudProviderTarget < g.Health.MaxSize {
				t.Fatalf("Full, and group %s is at %d of %d", g.Name, g.Health.CloudProviderTarget, g.Health.MaxSize)
			}
		}
		if !claimed {
			t.Fatal("Full by a status without the pool's groups")
		}
	})
}

// TestOrphans: a group without nodes that no configuration names may belong to any pool that has the groups of its
// nodes.
func TestOrphans(t *testing.T) {
	byNodes := GroupsOf(&configv1.Pool{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}})
	of := func(agentPool string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: agentPool, Labels: map[string]string{"agentpool": agentPool}}}
	}
	const a, b = "aks-a-1-vmss", "aks-b-2-vmss"
	for _, tc := range []struct {
		name      string
		pool      []*corev1.Node
		others    []*corev1.Node
		groups    Groups
		status    *corev1.ConfigMap
		want      nodegroups.State
		wantStale bool
	}{
		{"a pool that is scaled to nothing can grow", nil, nil, byNodes, running(group(a, 0, 0, 3)), nodegroups.CanGrow, true},
		{"the virtual node says nothing of whose a group is", nil, []*corev1.Node{{}}, byNodes, running(group(a, 0, 0, 3)), nodegroups.CanGrow, true},
		{"one of two agent pools is at its maximum, the other at nothing", []*corev1.Node{of("a")}, nil, byNodes, running(group(a, 1, 1, 1), group(b, 0, 0, 5)), nodegroups.CanGrow, true},
		{"the other group has nodes elsewhere", []*corev1.Node{of("a")}, []*corev1.Node{of("b")}, byNodes, running(group(a, 1, 1, 1), group(b, 1, 1, 5)), nodegroups.Full, false},
		{"a pool that names its agent pool does not care", []*corev1.Node{of("a")}, nil, agentPool("a"), running(group(a, 1, 1, 1), group(b, 0, 0, 5)), nodegroups.Full, false},
		{"a group without nodes of a pool that names it", nil, nil, agentPool("a"), running(group(a, 0, 0, 3)), nodegroups.CanGrow, true},
		{"a group that may have no nodes at all", nil, nil, byNodes, running(group(a, 0, 0, 0)), nodegroups.Full, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := NewTracker(staleAfter, graces.Provision)
			must.NoError(t, tracker.Observe(tc.status, epoch))
			tracker.ObserveNodes([]OwnedGroups{{Source: Source{Groups: tc.groups, Graces: graces}, Nodes: tc.pool}}, append(tc.others, tc.pool...), epoch)
			got := Source{Tracker: tracker, Groups: tc.groups, Graces: graces}.Status(tc.pool, epoch)
			empty := slices.ContainsFunc(got.Groups, func(g nodegroups.GroupStatus) bool { return g.New != nil && len(g.Members)+len(g.Seen) == 0 })
			if got.State != tc.want || empty != tc.wantStale {
				t.Errorf("Judge() = %s (%s), orphaned %v, want %s, %v", got.State, got.Reason.Detail, empty, tc.want, tc.wantStale)
			}
		})
	}
}

// TestFrozenBackoff: a backoff in a status that is no longer written does not count as seen again.
func TestFrozenBackoff(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	source := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}
	frozen := running(group("aks-userpool-1-vmss", 1, 1, 3, inBackoff))
	for at := time.Duration(0); at <= 20*time.Minute; at += time.Minute {
		must.NoError(t, tracker.Observe(frozen, epoch.Add(at)))
	}
	must.NoError(t, tracker.Observe(running(group("aks-userpool-1-vmss", 1, 1, 3)), epoch.Add(20*time.Minute)))
	if got := source.Status(nil, epoch.Add(20*time.Minute)); got.State != nodegroups.CanGrow || got.Reason.Code != "BelowMaxSize" {
		t.Errorf("after the autoscaler came back: %s %s", got.State, got.Reason.Code)
	}
}
