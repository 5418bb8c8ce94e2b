package v1

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/test/must"
)

// configuration returns a KubeSchedulerConfiguration with the arguments.
func configuration(args string) []byte {
	return []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- pluginConfig:\n  - name: PoolPriority\n    args:\n" +
		"      " + strings.ReplaceAll(strings.TrimSpace(args), "\n", "\n      ") + "\n")
}

// decodeArgs returns the arguments as Decode reads them from a KubeSchedulerConfiguration.
func decodeArgs(args string) (*PoolPriorityArgs, error) {
	config, err := Decode(configuration(args))
	if err != nil {
		return nil, err
	}
	return argsOf(&config.Profiles[0]), nil
}

func TestDefaults(t *testing.T) {
	args := must.Get(decodeArgs("pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]"))(t)
	c := args.Capacity
	if args.Order != OrderStrict || args.Tenants || c.ClusterAutoscalerStatus != "kube-system/cluster-autoscaler-status" ||
		c.StaleAfter.Duration != 3*time.Minute || c.UnknownGrace.Duration != 15*time.Minute || c.ProvisionGrace.Duration != 15*time.Minute ||
		c.BackoffGrace.Duration != 2*time.Minute || c.DeclineGrace.Duration != time.Minute {
		t.Errorf("defaulted arguments: %+v, %+v", args, c)
	}
	if errs := Validate(args); len(errs) > 0 {
		t.Errorf("Validate() = %v", errs)
	}
}

// TestBurstDefaults checks the defaults of a burst pool, and a burst pool with its own values.
func TestBurstDefaults(t *testing.T) {
	args, err := decodeArgs(`
pools:
- {name: user, nodeSelector: {matchLabels: {mode: user}}, fixed: {}}
- {name: aci, nodeSelector: {matchLabels: {type: virtual-kubelet}}, burst: {}}
- name: other
  nodeSelector: {matchLabels: {type: other}}
  burst:
    limits: {pods: 10, cpu: "100", memory: 400Gi}
    perNamespace: {pods: 5, cpu: 500m}
    creates: {perHour: 9}
    namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [a, b]}]}
    platform: Other
    largest: {cpu: "4", memory: 16Gi}
    startWithin: 0s
    makeRoom: {belowPriority: -20}
    allow: [NetworkPolicy, SecurityContext]
scaleIn: {deletionCosts: All}
tenants: true
`)
	must.NoError(t, err)
	if errs := Validate(args); len(errs) > 0 {
		t.Errorf("Validate() = %v", errs)
	}
	silent, told := args.Pools[1].Burst, args.Pools[2].Burst
	if !args.Tenants || len(silent.Allow) > 0 || !slices.Equal(told.Allow, []Loss{LossNetworkPolicy, LossSecurityContext}) {
		t.Errorf("tenants: %v, allowed: %v and %v", args.Tenants, silent.Allow, told.Allow)
	}
	if *silent.MakeRoom.BelowPriority != 0 || *told.MakeRoom.BelowPriority != -20 {
		t.Errorf("makeRoom: %d and %d", *silent.MakeRoom.BelowPriority, *told.MakeRoom.BelowPriority)
	}
	if silent.Platform != PlatformACI || silent.StartWithin.Duration != 15*time.Minute || silent.Limits != nil || len(silent.Tolerations) != 1 {
		t.Errorf("defaulted burst pool: %+v", silent)
	}
	if budget := told.Limits; told.Platform != PlatformOther || told.Tolerations != nil || told.StartWithin.Duration != 0 || budget.Pods != 10 || budget.CPU.Value() != 100 || budget.Memory.Value() != 400<<30 {
		t.Errorf("burst pool: %+v with a budget of %+v", told, budget)
	}
	if c, d := silent.Creates, told.Creates; *c.Per5Minutes != 100 || *c.PerHour != 300 || d.Per5Minutes != nil || *d.PerHour != 9 {
		t.Errorf("creates: %+v and %+v", c, d)
	}
	if of := told.PerNamespace; silent.PerNamespace != nil || of.Pods != 5 || of.CPU.MilliValue() != 500 || of.Memory != nil {
		t.Errorf("budgets of namespaces: %+v and %+v", silent.PerNamespace, of)
	}
	none := &PoolPriorityArgs{Order: OrderStrict, Mode: ModeEnforce, StatusConfigMap: "a/b", Pools: []Pool{args.Pools[0], {Name: "bare", NodeSelector: args.Pools[1].NodeSelector, Burst: &Burst{}}}}
	none.Capacity.ClusterAutoscalerStatus, none.Capacity.KarpenterLease = "a/b", "a/b"
	if errs := Validate(none); len(errs) > 0 {
		t.Errorf("Validate() of arguments without defaults = %v", errs)
	}
}

func TestZeroGraceIsKept(t *testing.T) {
	args := must.Get(decodeArgs("pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]\ncapacity: {unknownGrace: 0s}"))(t)
	if args.Capacity.UnknownGrace.Duration != 0 {
		t.Errorf("unknownGrace: 0s became %v", args.Capacity.UnknownGrace)
	}
}

// TestLoad checks which profile's arguments Load returns, and its errors if no profile, or more than one, has
// arguments.
func TestLoad(t *testing.T) {
	const (
		head    = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
		plugins = "plugins: {multiPoint: {enabled: [{name: PoolPriority}]}}"
		args    = "pluginConfig: [{name: PoolPriority, args: {pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]}}]"
		typed   = "pluginConfig: [{name: PoolPriority, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: PoolPriorityArgs, pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]}}]"
	)
	for _, tc := range []struct{ name, file, scheduler, want string }{
		{name: "one of two profiles", file: head + "profiles: [{schedulerName: a}, {schedulerName: b, " + args + "}]", scheduler: "b"},
		{name: "a single profile without a name", file: head + "profiles: [{" + args + "}]", scheduler: "pool-priority-scheduler"},
		{name: "arguments that say what they are", file: head + "profiles: [{schedulerName: a, " + typed + "}]", scheduler: "a"},
		{name: "arguments of plugins that are not known here", scheduler: "a",
			file: head + "profiles: [{schedulerName: a, " + strings.TrimSuffix(args, "]") + ", {name: Coscheduling, args: {permitWaitingTimeSeconds: 10}}]}]"},
		{name: "one of two profiles without names", file: head + "profiles: [{schedulerName: a}, {" + args + "}]", want: "profiles[1].schedulerName: Required value"},
		{name: "two profiles", file: head + "profiles: [{schedulerName: a, " + args + "}, {schedulerName: b, " + args + "}]",
			want: "the profiles a, b configure the plugin PoolPriority, and only one may"},
		{name: "two profiles, one without arguments", file: head + "profiles: [{schedulerName: a, " + args + "}, {schedulerName: b, " + plugins + "}]",
			want: "the profiles a, b configure the plugin PoolPriority, and only one may"},
		{name: "no arguments", file: head + "profiles: [{schedulerName: a, " + plugins + "}]", want: `profile "a": pools: Required value`},
		{name: "no such plugin", file: head + "profiles: [{schedulerName: a}]", want: "no profile configures the plugin PoolPriority"},
		{name: "only another plugin", file: head + "profiles: [{plugins: {score: {enabled: [{name: None}]}}}]",
			want: "in the build for Kubernetes " + compat.Minor + "\nno profile configures the plugin PoolPriority"},
		{name: "no profiles", file: head, want: "no profile configures the plugin PoolPriority"},
		{name: "arguments of another kind", file: head + "profiles: [{schedulerName: a, " + strings.ReplaceAll(typed, "PoolPriorityArgs", "NodeAffinityArgs") + "}]",
			want: "decoding .profiles[0].pluginConfig[0]"},
		{name: "arguments of another plugin with an unknown field", want: `unknown field "minCandidateNodes"`,
			file: head + "profiles: [{schedulerName: a, " + strings.TrimSuffix(args, "]") + ", {name: DefaultPreemption, args: {minCandidateNodes: 10}}]}]"},
		{name: "an unknown field outside of arguments", file: head + "profile: []", want: `unknown field "profile"`},
		{name: "another kind", file: "apiVersion: kubescheduler.config.k8s.io/v1\nkind: PoolPriorityArgs", want: "not a KubeSchedulerConfiguration"},
		{name: "another version", file: "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration", want: "write kubescheduler.config.k8s.io/v1, no profile configures the plugin PoolPriority]"},
		{name: "no kind", file: "profiles: []", want: "decoding the configuration: Object 'Kind' is missing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			profile, args, err := Load([]byte(tc.file))
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Load() = %v, want %q", err, tc.want)
				}
				return
			}
			must.NoError(t, err)
			if *profile.SchedulerName != tc.scheduler || args.Order != OrderStrict || len(args.Pools) != 1 {
				t.Errorf("profile %q with %+v, want %q with defaulted arguments", *profile.SchedulerName, args, tc.scheduler)
			}
		})
	}
}

// TestBadArguments reads the files in testdata. Their comments have the error messages that must be returned, all at
// once.
func TestBadArguments(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data := must.ReadFile(t, file)
			var said string
			count := 1
			if args, err := decodeArgs(string(data)); err != nil {
				said = err.Error()
			} else {
				errs := Validate(args)
				count = len(errs)
				for _, err := range errs {
					said += err.Error() + "\n"
				}
			}
			wanted := 0
			for _, line := range strings.Split(string(data), "\n") {
				want, ok := strings.CutPrefix(line, "# want: ")
				if !ok {
					continue
				}
				wanted++
				if !strings.Contains(said, want) {
					t.Errorf("no error with %q in:\n%s", want, said)
				}
			}
			if wanted == 0 || wanted != count {
				t.Errorf("%d errors, %d wanted:\n%s", count, wanted, said)
			}
		})
	}
}

// TestJudge judges the files in testdata. Their comments say that the scheduler starts, or have the messages.
func TestJudge(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/config/*.yaml"))(t)
	for _, file := range files {
		data := string(must.ReadFile(t, file))
		if len(compat.OutOfTree) == 0 && strings.Contains(data, "Coscheduling") {
			continue // this build does not have it
		}
		_, _, err := Load([]byte(data))
		starts := strings.Contains(data, "# starts\n")
		if starts != (err == nil) {
			t.Errorf("%s: %v", file, err)
		}
		wanted := 0
		for line := range strings.Lines(data) {
			if want, ok := strings.CutPrefix(line, "# want: "); ok {
				wanted++
				if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
					t.Errorf("%s: no %q in: %v", file, want, err)
				}
			}
		}
		if starts == (wanted > 0) {
			t.Errorf("%s: say `starts`, or `want:` with messages", file)
		}
	}
	if len(files) < 41 {
		t.Errorf("only %d files", len(files))
	}
}

// TestTenantsShare: with tenants, a namespace may use half of a burst pool's budget by default.
func TestTenantsShare(t *testing.T) {
	for _, tenants := range []bool{false, true} {
		args, err := decodeArgs(fmt.Sprintf(`
pools:
- {name: user, nodeSelector: {matchLabels: {mode: user}}, fixed: {}}
- {name: aci, nodeSelector: {matchLabels: {type: virtual-kubelet}}, burst: {limits: {pods: 101, cpu: "25", memory: 400G}}}
- {name: small, nodeSelector: {matchLabels: {type: small}}, burst: {limits: {pods: 1, cpu: "6", memory: 10G}, largest: {cpu: "5"}}}
tenants: %v
`, tenants))
		must.NoError(t, err)
		of, small := args.Pools[1].Burst.PerNamespace, args.Pools[2].Burst.PerNamespace
		if tenants && (small.Pods != 1 || small.CPU.MilliValue() != 5000 || small.Memory.String() != "10G") {
			t.Errorf("a small budget: %+v", small)
		}
		if tenants != (of != nil) || tenants && (of.Pods != 51 || of.CPU.MilliValue() != 12500 || of.Memory.String() != "200G") {
			t.Errorf("tenants %v: %+v", tenants, of)
		}
		if errs := Validate(args); len(errs) > 0 {
			t.Errorf("Validate() = %v", errs)
		}
	}
}
