package published

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// notPublished has the fields of the gate's inputs that are not published, each with the reason.
var notPublished = map[string]string{
	"nodegroups.Group.Usable":            "only Rule.Overflow reads it, for all held pods",
	"nodegroups.Group.LastReady":         "LastArrival comes from it",
	"nodegroups.Group.LastArrival":       "only Rule.Overflow reads it; a new leader starts it again",
	"nodegroups.GroupStatus.AtMaximum":   "only Rule.Overflow reads it, for all held pods",
	"v1.PoolPriorityArgs.Unelected":      "what lint says of a file",
	"v1.PoolPriorityArgs.Installation":   "the value of a taint, by which the gate decides nothing",
	"nodegroups.GroupStatus.Members":     "the group's nodes, of which NodeTemplates has the kinds",
	"nodegroups.GroupStatus.Seen":        "what NodeTemplates is made from",
	"nodegroups.GroupStatus.LastScaleUp": "LastActivity has it",
	"nodegroups.GroupStatus.Version":     "LastChanged has when it changed",
}

// filler gives each field of a value its own nonzero value.
type filler struct {
	n    int
	left map[string]bool // the fields that it left out, because their JSON tag is "-"
	all  []string        // the fields that it filled
}

func (f *filler) fill(t *testing.T, v reflect.Value, path string) {
	f.n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(now.Add(time.Duration(f.n) * time.Second)))
		return
	case metav1.Time: // it is encoded in whole seconds
		v.Set(reflect.ValueOf(metav1.NewTime(now.Truncate(time.Second).Add(time.Duration(f.n) * time.Second))))
		return
	case metav1.Duration:
		v.Set(reflect.ValueOf(metav1.Duration{Duration: time.Duration(f.n) * time.Second}))
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(fmt.Sprint(f.n))))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name := v.Type().String() + "." + field.Name
			switch {
			case !field.IsExported():
			case field.Tag.Get("json") == "-":
				f.left[name] = true
			default:
				f.all = append(f.all, name)
				f.fill(t, v.Field(i), path+"."+field.Name)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(t, v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(t, v.Index(0), path)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(t, key, path)
		f.fill(t, value, path)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	default:
		t.Fatalf("%s: nobody knows how to fill a %s", path, v.Type())
	}
}

// TestViewHasAll: all inputs of the gate are published, and DecodeView reads them back.
func TestViewHasAll(t *testing.T) {
	f := filler{left: map[string]bool{}}
	want := &View{}
	f.fill(t, reflect.ValueOf(want).Elem(), "View")
	want.APIVersion, want.Kind, want.Written = ViewVersion, ViewKind, now.UTC()
	data := must.Get(want.Encode(want.Written))(t)
	got := must.Get(DecodeView(data))(t)
	for name := range f.left {
		if notPublished[name] == "" {
			t.Errorf("%s is not published, and nobody says why", name)
		}
	}
	for name := range notPublished {
		if !f.left[name] {
			t.Errorf("%s is said not to be published", name)
		}
	}
	opts := []cmp.Option{
		cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
		cmp.FilterPath(func(p cmp.Path) bool { s, ok := p.Last().(cmp.StructField); return ok && !isExported(s.Name()) }, cmp.Ignore()),
	}
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("(-published,+read):\n%s", diff)
	}
	for _, needed := range []string{"nodegroups.Group.LastActivity", "nodegroups.Scans.Outages", "breaker.Status.Templates", "breaker.Status.Tests", "v1.Capacity.HoldLimit", "gate.Override.Until"} {
		if !slices.Contains(f.all, needed) {
			t.Errorf("%s was not looked at", needed)
		}
	}
}

func isExported(name string) bool { return strings.ToUpper(name[:1]) == name[:1] }

// TestWhatTheGateGoesBy: for each field of Rule and Request, the test names where a reader of the View gets it from.
func TestWhatTheGateGoesBy(t *testing.T) {
	from := map[string]string{
		"Rule.Pools": "args", "Rule.UnknownGrace": "args", "Rule.StaleAfter": "args", "Rule.NewPodDelay": "args", "Rule.HoldLimit": "args", "Rule.Observe": "args",
		"Rule.Override":              "override",
		"Request.Pod":                "the API",
		"Request.UnschedulableSince": "the pod's condition, or waits",
		"Request.NoRoomSince":        "the pod's condition, or waits",
		"Request.IgnoredUntil":       "waits",
		"Request.Inherited":          "waits",
		"Request.Declined":           "declines",
		"Request.RefusedAt":          "the API: Karpenter's events on the pod",
		"Request.NoScaleUp":          "the API: the cluster autoscaler's events on the pod",
		"Request.AzureFiles":         "the API: the volumes that the pod claims",
		"Request.NotSelected":        "the API: the pod's namespace",
		"Request.Tenant":             "the API: the pod's namespace and its NetworkPolicies",
		"Request.Snapshot":           "nobody: it is of one scheduling cycle, and the pod's condition says when it was what held the pod",
		"Request.Wait":               "nobody: it is of one rollout, and the pod's condition says when it was what held the pod",
		"Request.Overflow":           "nobody: it depends on all held pods, and the pod's condition says what holds a pod that overflows",
		"Request.Burst":              "burst",
		"Request.Share":              "shares",
		"Request.Tests":              "capacity",
		"Request.Creates":            "capacity",
		"Request.Pacing":             "capacity",
		"Request.LeftOut":            "not published: the pod's condition shows it",
		"Request.Gang":               "not published: the pod's condition shows it",
	}
	seen := map[string]bool{}
	for name, typ := range map[string]reflect.Type{"Rule": reflect.TypeFor[gate.Rule](), "Request": reflect.TypeFor[gate.Request]()} {
		for i := range typ.NumField() {
			field := name + "." + typ.Field(i).Name
			seen[field] = true
			if from[field] == "" {
				t.Errorf("it is not known where who reads the view has %s from", field)
			}
		}
	}
	for field := range from {
		if !seen[field] {
			t.Errorf("there is no %s", field)
		}
	}
}

func testView() *View {
	return &View{
		Args: &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
			{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}, Static: &configv1.StaticSource{MaxNodes: 3}},
			{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}}, Burst: &configv1.Burst{}},
		}},
		Capacity: nodegroups.View{Pools: []nodegroups.Pool{
			{State: nodegroups.CanGrow, Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: nodegroups.CanGrow}, NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"mode": "user"}}}}}},
			{Provider: breaker.Status{State: breaker.Open}},
		}},
	}
}

// TestFit: parts for which the ConfigMap is too small are left out, the least important first. LeftOut counts them.
func TestFit(t *testing.T) {
	uid := func(i int) types.UID { return types.UID(fmt.Sprintf("5b8f3c0a-aaaa-4d6e-9f5e-%012d", i)) }
	for _, tc := range []struct {
		name                                string
		declines, waits, refusals, clocks   int
		keptWaits, keptRefusals, keptClocks int
		want                                []string
	}{
		{"small", 500, 1000, 500, 1000, 1000, 500, 1000, nil},
		{"many kinds of pods", 20000, 1000, 0, 0, 1000, 0, 0, []string{"20001 details"}},
		{"many pods wait", 0, 10000, 500, 0, 4000, 500, 0, []string{"1 details", "6000 waits"}},
		{"many refusals", 0, 100, 3500, 1000, 0, 350, 1000, []string{"1 details", "100 waits", "3150 refusals"}},
		{"many clocks", 0, 0, 500, 20000, 0, 0, 6600, []string{"1 details", "500 refusals", "13400 clocks"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool := breaker.Memory{State: breaker.Refusing, Templates: map[string]breaker.Template{}}
			s := &Status{View: testView(), Memory: Memory{Unschedulable: map[types.UID]time.Time{}, BurstPools: map[string]breaker.Memory{"aci": pool}}}
			s.View.Declines, s.View.Waits = map[string]gate.Decline{}, map[types.UID]Wait{}
			for i := range max(tc.declines, tc.waits, tc.refusals, tc.clocks) {
				at := now.Add(time.Duration(i) * time.Second)
				if i < tc.declines {
					s.View.Declines[fmt.Sprint(i)] = gate.Decline{Groups: map[string]time.Time{"0/a": now}}
				}
				if i < tc.waits {
					s.View.Waits[uid(i)] = Wait{Unschedulable: at}
				}
				if i < tc.refusals {
					pool.Templates[string(uid(i))] = breaker.Template{Message: strings.Repeat("x", 100), At: at}
				}
				if i < tc.clocks {
					s.Memory.Unschedulable[uid(i)] = at
				}
			}
			before, got := must.Get(s.Encode())(t), s.Fit()
			m := got.Memory.BurstPools["aci"]
			if diff := cmp.Diff(tc.want, got.View.LeftOut); diff != "" {
				t.Errorf("left out (-want,+got):\n%s", diff)
			}
			_, newest := m.Templates[string(uid(tc.refusals-1))]
			_, oldest := got.Memory.Unschedulable[uid(0)]
			if len(got.View.Waits) != tc.keptWaits || len(m.Templates) != tc.keptRefusals || len(got.Memory.Unschedulable) != tc.keptClocks ||
				newest != (tc.keptRefusals > 0) || oldest != (tc.keptClocks > 0) || m.State != breaker.Refusing || got.size() > 700<<10 {
				t.Errorf("kept %d waits, %d refusals (the newest: %v), %d clocks (the oldest: %v)", len(got.View.Waits), len(m.Templates), newest, len(got.Memory.Unschedulable), oldest)
			}
			if !cmp.Equal(before, must.Get(s.Encode())(t)) {
				t.Error("the status itself was changed")
			}
		})
	}
}

// TestDecisive: how many pods are held, their waits and what was left out are not urgent. The clocks for the next
// leader are.
func TestDecisive(t *testing.T) {
	of := func(clocks map[types.UID]time.Time, change func(*Status)) map[string]string {
		s := &Status{View: testView(), Memory: Memory{Unschedulable: clocks}}
		s.View.Held.Total = 2
		change(s)
		return must.Get(s.Decisive().Encode())(t)
	}
	same := func(*Status) {}
	if diff := cmp.Diff(of(nil, same), of(nil, func(s *Status) {
		s.View.Held, s.View.Waits = Held{Total: 3, Oldest: now, By: []HeldBy{{Pool: "user", Pods: 3}}}, map[types.UID]Wait{"a": {Unschedulable: now}}
		s.View.LeftOut, s.View.Usage = []string{"3 clocks"}, []Usage{{Pods: 1}, {}}
	})); diff != "" {
		t.Errorf("figures are decisive:\n%s", diff)
	}
	if cmp.Equal(of(nil, same), of(nil, func(s *Status) { s.View.Held.Total = 0 })) {
		t.Error("that no pod is held any more is not decisive")
	}
	if cmp.Equal(of(nil, same), of(map[types.UID]time.Time{"a": now}, same)) {
		t.Error("clocks are not decisive")
	}
}

// TestQuiet: what each of the autoscaler's loops changes is published at once only while pods are held.
func TestQuiet(t *testing.T) {
	for held, wantSame := range map[int]bool{0: true, 1: false} {
		of := func(loop time.Duration) map[string]string {
			s := &Status{View: testView()}
			s.View.Held.Total = held
			p := &s.View.Capacity.Pools[0]
			p.ScannedBefore, p.LastStatus.Seen, p.Until = now.Add(loop), now.Add(loop), now.Add(loop)
			return must.Get(s.Quiet().Encode())(t)
		}
		if same := cmp.Equal(of(0), of(10*time.Second)); same != wantSame {
			t.Errorf("%d pods are held: the same %v", held, same)
		}
	}
}

func TestDecodeView(t *testing.T) {
	good, err := testView().Encode(now)
	must.NoError(t, err)
	for _, tc := range []struct {
		name, old, new, err string
	}{
		{name: "good"},
		{name: "a field of a newer version", old: `"held":{`, new: `"future":[1],"held":{"more":1,`},
		{name: "another version", old: "v1alpha1", new: "v1beta7"},
		{name: "garbage", old: "{", new: "\t", err: "invalid character"},
		{name: "empty", old: string(good), new: "{}", err: `the kind is "", not View`},
		{name: "no pools", old: `"pools":[{"name"`, new: `"pool":[{"name"`, err: "no pools in args"},
		{name: "another number of pools", old: `"capacity":{"pools":[{`, new: `"capacity":{"pools":[{},{`, err: "capacity has 3 pools, but args has 2"},
		{name: "no selector", old: `"nodeSelector"`, new: `"selector"`, err: "args.pools[0] has no nodeSelector"},
		{name: "usage of other pools", old: `"held":{`, new: `"usage":[{}],"held":{`, err: "burst, shares, usage or available does not have one entry for each of the 2 pools"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := DecodeView([]byte(strings.Replace(string(good), tc.old, tc.new, 1)))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			must.NoError(t, err)
			if foreign := tc.name == "another version"; v.IsForeign() != foreign {
				t.Errorf("IsForeign() = %v", v.IsForeign())
			}
			if b := v.Args.Pools[1].Burst; b.Tolerations != nil || b.Platform == "" { // lint says what a default will change
				t.Errorf("what an older version did not publish: %+v", b)
			}
		})
	}
}

// FuzzDecodeView: for any published data, DecodeView returns an error or a View that decides for a pod, and nothing
// panics.
func FuzzDecodeView(f *testing.F) {
	good := must.Get(testView().Encode(now))(f)
	f.Add(string(good))
	f.Add(strings.Replace(string(good), `"held":{`, `"override":{"gate":"Open","until":"2026-11-21T10:00:00Z"},"held":{`, 1))
	f.Add(strings.Replace(string(good), `"held":{`, `"burst":[{},{"pods":1}],"waits":{"u":{"noRoom":"2026-11-21T10:00:00Z"}},"held":{`, 1))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}}}
	f.Fuzz(func(_ *testing.T, data string) {
		v, err := DecodeView([]byte(data))
		if err != nil {
			return
		}
		if pools, err := v.Pools(); err == nil {
			v.Decide(v.Request(pod, now), pools, now)
		}
	})
}
