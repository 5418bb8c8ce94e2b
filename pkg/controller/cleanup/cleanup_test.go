package cleanup

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"

	"poolpriority.dev/scheduler/test/must"
)

const cost, own = "controller.kubernetes.io/pod-deletion-cost", "poolpriority.dev/pod-deletion-cost"

func pod(name string, phase corev1.PodPhase, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{SchedulerName: "pool-priority-scheduler"}, Status: corev1.PodStatus{Phase: phase}}
}

func world() []client.Object {
	theirs := pod("theirs", corev1.PodRunning, map[string]string{cost: "7", own: "7", "poolpriority.dev/pool": "user"})
	theirs.Spec.SchedulerName = "another"
	return []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoSchedule},
		}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm"}},
		pod("ours", corev1.PodRunning, map[string]string{cost: "2000", own: "2000", "poolpriority.dev/pool": "user", "poolpriority.dev/burst": "Never", "app": "a"}),
		pod("changed", corev1.PodRunning, map[string]string{cost: "5", own: "2000", "poolpriority.dev/pool": "user"}),
		pod("set", corev1.PodRunning, map[string]string{cost: "5", "poolpriority.dev/pool": "user"}),
		pod("burst", corev1.PodRunning, map[string]string{cost: "-1000", own: "-1000", "poolpriority.dev/bound-at": "now", "poolpriority.dev/decision": "{}"}),
		pod("starting", corev1.PodPending, map[string]string{"poolpriority.dev/pool": "aci", "poolpriority.dev/bound-at": "now"}),
		pod("pending", corev1.PodPending, map[string]string{"app": "a"}),
		theirs,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "lease"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "other"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "status"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "kube-root-ca.crt"}},
	}
}

// cleaner returns a Cleaner whose clock advances by itself until the test ends.
func cleaner(t *testing.T, c client.Client) *Cleaner {
	clock, done := testingclock.NewFakeClock(time.Now()), make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Microsecond):
				if clock.HasWaiters() {
					clock.Step(syncInterval)
				}
			}
		}
	}()
	return &Cleaner{Client: c, Clock: clock, Namespace: "mine", Leases: []string{"lease", "gone"}, ConfigMaps: []string{"status"}}
}

// state returns the annotations of pods, the taints of nodes, and the names of leases and ConfigMaps, by object.
func state(t *testing.T, c client.Client) map[string]string {
	t.Helper()
	got := map[string]string{}
	pods, nodes, leases, configMaps := &corev1.PodList{}, &corev1.NodeList{}, &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}
	for _, list := range []client.ObjectList{pods, nodes, leases, configMaps} {
		must.NoError(t, c.List(context.Background(), list))
	}
	for _, p := range pods.Items {
		var all []string
		for _, key := range slices.Sorted(maps.Keys(p.Annotations)) {
			all = append(all, key[strings.LastIndex(key, "/")+1:]+"="+p.Annotations[key])
		}
		got["pod "+p.Name] = strings.Join(all, " ")
	}
	for _, n := range nodes.Items {
		for _, taint := range n.Spec.Taints {
			got["node "+n.Name] += strings.TrimSuffix(taint.Key+"="+taint.Value, "=") + " "
		}
	}
	for _, l := range leases.Items {
		got["lease "+l.Name] = ""
	}
	for _, cm := range configMaps.Items {
		got["ConfigMap "+cm.Name] = ""
	}
	return got
}

// TestRun: Run removes all that we wrote, and nothing else.
func TestRun(t *testing.T) {
	gone := map[string]string{
		"node virtual": "other ",
		"pod ours":     "app=a burst=Never", "pod changed": "pod-deletion-cost=5", "pod set": "pod-deletion-cost=5", "pod burst": "", "pod pending": "app=a",
		"pod starting": "bound-at=now pool=aci", "pod theirs": "",
		"lease other": "", "ConfigMap kube-root-ca.crt": "",
	}
	ofOurs := maps.Clone(gone)
	ofOurs["pod theirs"] = "pod-deletion-cost=7 pod-deletion-cost=7 pool=user"
	for _, tc := range []struct {
		name, scheduler string
		want            map[string]string
	}{{"of all pods", "", gone}, {"of our scheduler's", "pool-priority-scheduler", ofOurs}} {
		t.Run(tc.name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(world()...).Build()
			r := cleaner(t, c)
			r.SchedulerName = tc.scheduler
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if got := state(t, c); !maps.Equal(got, tc.want) {
				t.Errorf("left are %q\nwant %q", got, tc.want)
			}
		})
	}
}

// TestOtherInstallation: another installation's taint stays. Pods are cleaned only if SchedulerName is set, and only
// those of that scheduler.
func TestOtherInstallation(t *testing.T) {
	const theirs = "pod-deletion-cost=7 pod-deletion-cost=7 pool=user"
	for _, tc := range []struct {
		name, installation, scheduler, wantError string
		want                                     map[string]string
	}{
		{"nobody says whose the pods are", "", "", "--scheduler-name", map[string]string{
			"node virtual": "other ", "node green": configv1.GateTaintKey + "=green ", "pod theirs": theirs, "pod changed": "pod-deletion-cost=5 pod-deletion-cost=2000 pool=user"}},
		{"ours are named", "pool-priority-scheduler", "pool-priority-scheduler", "", map[string]string{
			"node virtual": "other ", "node green": configv1.GateTaintKey + "=green ", "pod theirs": theirs, "pod changed": "pod-deletion-cost=5"}},
		{"the other is the one", "green", "another", "", map[string]string{
			"node virtual": configv1.GateTaintKey + "=" + configv1.DefaultInstallation + " other ", "node green": "", "pod theirs": "", "pod changed": "pod-deletion-cost=5 pod-deletion-cost=2000 pool=user"}},
		{"a name that a taint cannot have", "a b", "", "the installation's name", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(append(world(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "green"},
				Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: configv1.GateTaintKey, Value: "green", Effect: corev1.TaintEffectNoSchedule}}}})...).Build()
			r := cleaner(t, c)
			r.Installation, r.SchedulerName = tc.installation, tc.scheduler
			if err := r.Run(t.Context()); (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("error %v, want %q", err, tc.wantError)
			}
			got := state(t, c)
			for key, want := range tc.want {
				if got[key] != want {
					t.Errorf("%s has %q left, want %q", key, got[key], want)
				}
			}
		})
	}
}

// TestTaintOnly: only the gate taint is removed.
func TestTaintOnly(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(world()...).Build()
	want := state(t, c)
	want["node virtual"] = "other "
	r := cleaner(t, c)
	r.TaintOnly = true
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if got := state(t, c); !maps.Equal(got, want) {
		t.Errorf("left are %q\nwant %q", got, want)
	}
}

// TestComesBack: Run reports what comes back and what is denied, and removes the rest. It also cleans a pod that starts
// meanwhile.
func TestComesBack(t *testing.T) {
	looks := 0
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(world()...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*corev1.PodList); ok {
				if looks++; looks == 5 {
					starting := pod("starting", corev1.PodPending, nil)
					if err := c.Get(ctx, client.ObjectKeyFromObject(starting), starting); err != nil {
						return err
					}
					starting.Status.Phase = corev1.PodRunning
					if err := c.Status().Update(ctx, starting); err != nil {
						return err
					}
				}
			}
			return c.List(ctx, list, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if _, ok := object.(*corev1.Node); ok {
				return nil // another component puts it back at once
			}
			return c.Patch(ctx, object, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if object.GetName() == "lease" {
				return apierrors.NewInternalError(errors.New("no"))
			}
			return c.Delete(ctx, object, opts...)
		},
	}).Build()
	err := cleaner(t, c).Run(t.Context())
	for _, want := range []string{"the gate taint on 1 node(s), annotations on 0 pod(s)", "deleting mine/lease"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if looks != maxSyncs+1 {
		t.Errorf("it looked %d times", looks)
	}
	if got := state(t, c); got["pod starting"] != "" {
		t.Errorf("left are %q", got)
	}

	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "virtual", errors.New("a policy"))
	c = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(world()...).Build(), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return denied
		},
	})
	r := cleaner(t, c)
	r.TaintOnly = true
	if err := r.Run(t.Context()); !errors.Is(err, denied) || strings.Contains(err.Error(), "comes back") {
		t.Errorf("denied: %v", err)
	}
}
