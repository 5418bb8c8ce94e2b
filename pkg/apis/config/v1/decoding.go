package v1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"
)

// removed has what to write instead of fields that are gone, by the end of the field's path in a decoder's error.
var removed = [][2]string{
	{`.burst.maxPods"`, "; instead of maxPods: N, write limits: {pods: N}"},
	{`"scaleIn.podDeletionCost"`, "; instead of podDeletionCost: false, write deletionCosts: None"},
	{`"scaleIn.others"`, "; instead of others: true, write deletionCosts: All"},
}

// explain returns an error with the path of each field whose value cannot be decoded, if err is about such fields. If err is
// about a field or a version that is gone, explain adds what to write instead and, for a version, the errors that remain
// then. The decoder's own errors have neither.
func explain(data []byte, err error) error {
	var file map[string]any
	if yaml.Unmarshal(data, &file) != nil {
		return err
	}
	if version, _ := file["apiVersion"].(string); strings.HasPrefix(version, configv1.GroupName+"/") && version != configv1.SchemeGroupVersion.String() {
		file["apiVersion"] = configv1.SchemeGroupVersion.String()
		corrected, _ := yaml.Marshal(file) // does not fail
		_, _, others := Load(corrected)
		return utilerrors.NewAggregate([]error{field.Invalid(field.NewPath("apiVersion"), version, "write "+configv1.SchemeGroupVersion.String()), others})
	}
	if errs := undecodable(nil, file, reflect.TypeFor[configv1.KubeSchedulerConfiguration]()); len(errs) > 0 {
		return errs.ToAggregate()
	}
	for _, gone := range removed {
		if strings.Contains(err.Error(), gone[0]) {
			err = fmt.Errorf("%w%s", err, gone[1])
		}
	}
	return err
}

// undecodable returns an error for each value in v that a field of the type t cannot have. Paths in the plugin's own
// arguments begin there.
func undecodable(p *field.Path, v any, t reflect.Type) (errs field.ErrorList) {
	if v == nil {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	object, isObject := v.(map[string]any)
	switch target := reflect.New(t).Interface().(type) {
	case *configv1.PluginConfig:
		name, _ := object["name"].(string)
		args, err := newScheme().New(configv1.SchemeGroupVersion.WithKind(name + "Args"))
		if p = p.Child("args"); name == PluginName {
			p = nil
		}
		if err != nil {
			return nil // another project's plugin
		}
		return undecodable(p, object["args"], reflect.TypeOf(args))
	case *resource.Quantity:
		text := fmt.Sprint(v)
		_, err := resource.ParseQuantity(text)
		return when(nil, err != nil, field.Invalid(p, text, "must be a quantity, such as 500m, 4 or 16Gi"))
	case *metav1.Duration:
		data, _ := json.Marshal(v)
		return when(nil, target.UnmarshalJSON(data) != nil, field.Invalid(p, v, "must be a duration, such as 90s, 5m or 1h30m"))
	case json.Unmarshaler:
		return nil
	}
	wrong := func(ok bool, want string) field.ErrorList {
		return when(nil, !ok, field.Invalid(cmp.Or(p, field.NewPath("args")), v, "must be "+want))
	}
	list, isList := v.([]any)
	number, isNumber := v.(float64)
	switch t.Kind() { //nolint:exhaustive // a configuration has no others
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == "" && f.Anonymous {
				errs = append(errs, undecodable(p, v, f.Type)...)
			} else {
				errs = append(errs, undecodable(p.Child(name), object[name], f.Type)...)
			}
		}
		return append(errs, wrong(isObject, "an object")...)
	case reflect.Map:
		for _, key := range slices.Sorted(maps.Keys(object)) {
			errs = append(errs, undecodable(p.Key(key), object[key], t.Elem())...)
		}
		return append(errs, wrong(isObject, "an object")...)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return nil // a key or a certificate, which must not be printed
		}
		for i := range list {
			errs = append(errs, undecodable(p.Index(i), list[i], t.Elem())...)
		}
		return append(errs, wrong(isList, "a list")...)
	case reflect.String:
		_, ok := v.(string)
		return wrong(ok, "a text: put it in quotes")
	case reflect.Bool:
		_, ok := v.(bool)
		return wrong(ok, "true or false")
	case reflect.Float32:
		return wrong(isNumber, "a number")
	case reflect.Int32, reflect.Int64:
		return wrong(isNumber && number == math.Trunc(number) && !reflect.Zero(t).OverflowInt(int64(number)), "an integer")
	}
	return nil
}
