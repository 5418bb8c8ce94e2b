package docs

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/markdown"
)

// kinds is what the documentation calls the types of fields.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[string]():               "string",
	reflect.TypeFor[configv1.Order]():       "string",
	reflect.TypeFor[configv1.Mode]():        "string",
	reflect.TypeFor[configv1.Platform]():    "string",
	reflect.TypeFor[bool]():                 "boolean",
	reflect.TypeFor[int32]():                "integer",
	reflect.TypeFor[metav1.Duration]():      "duration",
	reflect.TypeFor[resource.Quantity]():    "quantity",
	reflect.TypeFor[metav1.LabelSelector](): "label selector",
	reflect.TypeFor[corev1.ResourceList]():  "quantities by resource",
	reflect.TypeFor[map[string]string]():    "strings by key",
	reflect.TypeFor[[]string]():             "list of strings",
	reflect.TypeFor[[]corev1.Toleration]():  "list of tolerations",
	reflect.TypeFor[[]corev1.Taint]():       "list of taints",
}

// documented is a field of the configuration, as docs/configuration.md has it.
type documented struct {
	path, kind, byDefault, limits string
	line                          int
}

// fieldsOf are the paths of the fields of a type, with those of its parts, and what they are called.
func fieldsOf(t reflect.Type, path string) map[string]string {
	fields := map[string]string{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // TypeMeta, and what is not written
		}
		at, of := path+name, t.Field(i).Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch kind, plain := kinds[of]; {
		case plain:
			fields[at] = kind
		case of.Kind() == reflect.Slice:
			fields[at] = "list"
			maps.Copy(fields, fieldsOf(of.Elem(), at+"[]."))
		default:
			fields[at] = "object"
			maps.Copy(fields, fieldsOf(of, at+"."))
		}
	}
	return fields
}

func documentedFields(t *testing.T) map[string]documented {
	t.Helper()
	page, err := markdown.Read(root, "docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]documented{}
	for _, table := range page.Tables {
		if !slices.Equal(table.Header, []string{"field", "type", "default", "range", "what it does"}) {
			continue
		}
		for _, row := range table.Rows {
			d := documented{row.Cells[0], row.Cells[1], row.Cells[2], row.Cells[3], row.Line}
			if _, twice := fields[d.path]; twice || row.Cells[4] == "" {
				t.Errorf("docs/configuration.md:%d: %s is there twice, or is not said to do anything", row.Line, d.path)
			}
			fields[d.path] = d
		}
	}
	return fields
}

// TestConfiguration: docs/configuration.md has every field, with its type, its default and the range that is checked.
func TestConfiguration(t *testing.T) {
	got, want := documentedFields(t), fieldsOf(reflect.TypeFor[configv1.PoolPriorityArgs](), "")
	for path := range want {
		if _, ok := got[path]; !ok {
			t.Errorf("docs/configuration.md has no %s (%s)", path, want[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		d := got[path]
		if want[path] != d.kind {
			t.Errorf("docs/configuration.md:%d: %s is not of type %q but %q", d.line, path, d.kind, cmp.Or(want[path], "no field"))
			continue
		}
		if complaint := d.checkDefault(); complaint != "" {
			t.Errorf("docs/configuration.md:%d: %s: %s", d.line, path, complaint)
		}
		if complaint := d.checkRange(); complaint != "" {
			t.Errorf("docs/configuration.md:%d: %s: %s", d.line, path, complaint)
		}
	}
}

// sample returns arguments that are valid and have something in every field that the path leads through.
func sample(path string) *configv1.PoolPriorityArgs {
	selector := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"pool": value}}
	}
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selector("user"), NodeTemplate: &configv1.NodeTemplate{}, Capacity: &configv1.PoolCapacity{}},
		{Name: "aci", NodeSelector: selector("aci"), Burst: &configv1.Burst{}},
	}}
	switch user := &args.Pools[0]; {
	case strings.Contains(path, ".karpenter"):
		user.Karpenter = &configv1.KarpenterSource{NodePool: "default"}
	case strings.Contains(path, ".static"):
		user.Static = &configv1.StaticSource{MaxNodes: 1}
	case strings.Contains(path, ".fixed"):
		user.Fixed = &configv1.FixedSource{}
	default:
		user.ClusterAutoscaler = &configv1.ClusterAutoscalerSource{NodeTemplates: []configv1.NodeGroupTemplate{{NodeGroup: "aks-gpu-*"}}}
	}
	if strings.Contains(path, ".limits") {
		args.Pools[1].Burst.Limits = &configv1.BurstLimits{}
	}
	if strings.HasSuffix(path, ".limits.cpu") || strings.HasSuffix(path, ".limits.memory") || strings.HasSuffix(path, ".limits") {
		args.Pools[1].Burst.Limits.Pods = 1
	}
	return args
}

// find returns the field with the path, in the burst pool if it is one of burst's.
func find(args *configv1.PoolPriorityArgs, path string) reflect.Value {
	value := reflect.ValueOf(args).Elem()
	for step := range strings.SplitSeq(path, ".") {
		for value.Kind() == reflect.Pointer {
			value = value.Elem()
		}
		name, isList := strings.CutSuffix(step, "[]")
		for i := range value.NumField() {
			if tag, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ","); tag == name {
				value = value.Field(i)
				break
			}
		}
		if isList && strings.HasPrefix(path, "pools[].burst") && name == "pools" {
			value = value.Index(1)
		} else if isList {
			value = value.Index(0)
		}
	}
	return value
}

// written is the value as YAML has it.
func written(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch value := v.Interface().(type) {
	case metav1.Duration:
		text := value.Duration.String()
		text = regexp.MustCompile(`([hm])0s$`).ReplaceAllString(text, "$1")
		return regexp.MustCompile(`h0m$`).ReplaceAllString(text, "h")
	case bool, int32, string, configv1.Order, configv1.Mode, configv1.Platform:
		return fmt.Sprint(value)
	}
	return ""
}

var index = regexp.MustCompile(`\[\d+\]`)

// paths are the fields that the errors complain of.
func paths(errs field.ErrorList) []string {
	var paths []string
	for _, err := range errs {
		paths = append(paths, index.ReplaceAllString(err.Field, "[]"))
	}
	return paths
}

// checkDefault compares what is said of a field that is left out with what becomes of it.
func (d *documented) checkDefault() string {
	if d.path == "pools" {
		return "" // nothing is without them
	}
	args := sample(d.path)
	v := find(args, d.path)
	v.SetZero()
	configv1.SetDefaults_PoolPriorityArgs(args)
	missing := slices.Contains(paths(configv1.Validate(args)), d.path)
	if missing != (d.byDefault == "required") {
		return fmt.Sprintf("it is required: %v, which the documentation does not say with %q", missing, d.byDefault)
	}
	if missing {
		return ""
	}
	want := written(find(args, d.path))
	// What is empty has a default of which only words can tell: – where nothing is to be told.
	if want == "" && (d.byDefault == "" || strings.Contains("0123456789", d.byDefault[:1])) || want != "" && d.byDefault != want {
		return fmt.Sprintf("the default is %q, not %q", want, d.byDefault)
	}
	return ""
}

var (
	ofRange = regexp.MustCompile(`^(0, or )?(\S+) to (\S+)$`)
	atLeast = regexp.MustCompile(`^at least (\S+)$`)
	oneOf   = regexp.MustCompile(`^(\w+) or (\w+)$`)
)

// checkRange tries the values at the ends of the range and those beyond.
func (d *documented) checkRange() string {
	var good, bad []string
	if m := ofRange.FindStringSubmatch(d.limits); m != nil {
		good, bad = slices.Clone(m[2:]), []string{d.below(m[2]), d.next(m[3], 1)}
		if m[1] != "" {
			good = append(good, "0")
		} else if d.kind == "duration" && m[2] != "0s" {
			bad = append(bad, "0")
		}
	} else if m := atLeast.FindStringSubmatch(d.limits); m != nil {
		good, bad = m[1:], []string{d.below(m[1])}
	} else if m := oneOf.FindStringSubmatch(d.limits); m != nil {
		good, bad = m[1:], []string{"Else"}
	} else if d.limits == "above 0" {
		good, bad = []string{"1m", "100"}, []string{"0", "-1"}
	} else if slices.Contains([]string{"duration", "integer", "quantity"}, d.kind) {
		return fmt.Sprintf("%q is no range that the test reads", d.limits)
	}
	for _, value := range good {
		if errs, err := d.with(value); err != nil || len(errs) > 0 {
			return fmt.Sprintf("%s is refused: %v, %v", value, errs, err)
		}
	}
	for _, value := range bad {
		if errs, err := d.with(value); err != nil || !slices.Contains(paths(errs), d.path) {
			return fmt.Sprintf("%s is not refused: %v, %v", value, errs, err)
		}
	}
	return ""
}

// below is the next value below the least that is allowed. A 0 that is not allowed is as if the field were left out, unless it is required.
func (d *documented) below(value string) string {
	if d.kind == "integer" && value == "1" && d.byDefault != "required" {
		return "-1"
	}
	return d.next(value, -1)
}

// next is the next value above or below.
func (d *documented) next(value string, sign int) string {
	if d.kind == "duration" {
		duration, _ := time.ParseDuration(value) // with complains of one that is none
		return (duration + time.Duration(sign)).String()
	}
	n, _ := strconv.Atoi(value)
	return strconv.Itoa(n + sign)
}

// with returns what is wrong with arguments in which the field has the value.
func (d *documented) with(value string) (field.ErrorList, error) {
	args := sample(d.path)
	configv1.SetDefaults_PoolPriorityArgs(args)
	v := find(args, d.path)
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch d.kind {
	case "duration":
		duration, err := time.ParseDuration(value)
		if err != nil {
			return nil, err
		}
		v.Set(reflect.ValueOf(metav1.Duration{Duration: duration}))
	case "quantity":
		quantity, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, err
		}
		v.Set(reflect.ValueOf(quantity))
	case "integer":
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return nil, err
		}
		v.SetInt(n)
	default:
		v.SetString(value)
	}
	return configv1.Validate(args), nil
}
