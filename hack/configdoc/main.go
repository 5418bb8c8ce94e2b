// Command configdoc writes the tables of fields in docs/configuration.md, from the types in pkg/apis/config/v1. It
// reads and writes below the working directory.
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"math"
	"os"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

const page = "docs/configuration.md"

// table finds a table with its markers. The first marker lists prefixes of fields' paths. A field belongs to the table
// with the longest prefix of its path.
var table = regexp.MustCompile(`(?s)(<!-- fields:([^>]*) -->\n).*?(<!-- end of fields -->)`)

// kinds names the types of fields, except strings, lists and our own structs.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[bool]():                 "boolean",
	reflect.TypeFor[int32]():                "integer",
	reflect.TypeFor[metav1.Duration]():      "duration",
	reflect.TypeFor[resource.Quantity]():    "quantity",
	reflect.TypeFor[metav1.LabelSelector](): "label selector",
	reflect.TypeFor[corev1.ResourceList]():  "quantities by resource",
	reflect.TypeFor[map[string]string]():    "strings by key",
	reflect.TypeFor[corev1.Toleration]():    "toleration",
	reflect.TypeFor[corev1.Taint]():         "taint",
}

// scales has the kinds of fields that have a range: the format of a number in JSON, a number that every range contains,
// and the largest number of the type.
var scales = map[string]struct {
	format    string
	good, top int64
}{
	"duration": {`"%dns"`, int64(time.Minute), math.MaxInt64},
	"integer":  {`%d`, 1, math.MaxInt32},
	"quantity": {`"%dm"`, 1000, math.MaxInt64},
}

// generator visits all fields of args. It tries values in them, and fills args on its way down.
type generator struct {
	args     *configv1.PoolPriorityArgs
	comments map[string]string // by Type.Field
	seen     map[reflect.Type]bool
	row      func(path, row string)
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("configdoc: ")
	// The default of statusConfigMap is in the namespace of the process.
	check(os.Setenv(configv1.NamespaceVariable, "pool-priority-system"))
	text, err := os.ReadFile(page)
	check(err)
	markers, rows := map[string]string{}, map[string]string{}
	for _, m := range table.FindAllStringSubmatch(string(text), -1) {
		for _, path := range strings.Fields(m[2]) {
			markers[path] = m[1]
		}
	}
	g := &generator{args: &configv1.PoolPriorityArgs{}, comments: comments(), seen: map[reflect.Type]bool{}}
	g.row = func(path, row string) {
		longest := ""
		for prefix := range markers {
			if strings.HasPrefix(path, prefix) && len(prefix) > len(longest) {
				longest = prefix
			}
		}
		rows[markers[longest]] += row
	}
	g.visit(reflect.ValueOf(g.args).Elem(), "")
	if rows[""] != "" {
		log.Fatalf("%s has no table for\n%s", page, rows[""])
	}
	written := table.ReplaceAllStringFunc(string(text), func(old string) string {
		m := table.FindStringSubmatch(old)
		return m[1] + "\n| field | type | default | range | what it does |\n|---|---|---|---|---|\n" + rows[m[1]] + "\n" + m[3]
	})
	check(os.WriteFile(page, []byte(written), 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// comments returns the fields' comments, each as one line.
func comments() map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "pkg/apis/config/v1/types.go", nil, parser.ParseComments)
	check(err)
	comments, in := map[string]string{}, ""
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.TypeSpec:
			in = n.Name.Name
		case *ast.Field:
			for _, name := range n.Names {
				comments[in+"."+name.Name] = strings.Join(strings.Fields(n.Doc.Text()), " ")
			}
		}
		return true
	})
	return comments
}

// visit writes a row for each field of the struct v and of the structs in it. It visits a type once.
func (g *generator) visit(v reflect.Value, prefix string) {
	if g.seen[v.Type()] {
		return
	}
	g.seen[v.Type()] = true
	for i := range v.NumField() {
		of, value := v.Type().Field(i), v.Field(i)
		name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // TypeMeta, and fields that users do not write
		}
		path, kind := prefix+name, kindOf(of.Type)
		text, ok := strings.CutPrefix(g.comments[v.Type().Name()+"."+of.Name], of.Name+" ")
		if !ok {
			log.Fatalf("%s: the comment of %s.%s must begin with its name", path, v.Type().Name(), of.Name)
		}
		text = strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are ")
		text = strings.ReplaceAll(strings.ToUpper(text[:1])+text[1:], "|", `\|`)
		g.row(path, fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", path, kind, g.byDefault(value, path), g.limits(value, path), text))
		switch {
		case kind == "list of objects":
			value.Set(reflect.MakeSlice(value.Type(), 1, 1))
			g.visit(value.Index(0), path+"[].")
		case kind == "object" && value.Kind() == reflect.Pointer:
			value.Set(reflect.New(value.Type().Elem()))
			g.visit(value.Elem(), path+".")
		case kind == "object":
			g.visit(value, path+".")
		}
	}
}

func kindOf(t reflect.Type) string {
	switch {
	case kinds[t] != "":
		return kinds[t]
	case t.Kind() == reflect.Pointer:
		return kindOf(t.Elem())
	case t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Slice:
		return "list of " + kindOf(t.Elem()) + "s"
	}
	return "object"
}

// byDefault returns the default of the field, or "required" if Validate rejects the arguments without the field.
func (g *generator) byDefault(v reflect.Value, path string) string {
	v.SetZero()
	configv1.SetDefaults_PoolPriorityArgs(g.args)
	if g.refusal(path) != nil {
		return "required"
	}
	if kindOf(v.Type()) == "object" {
		return ""
	}
	return written(v)
}

// limits tries values and returns those that Validate accepts: the values that its error lists, or a range.
func (g *generator) limits(v reflect.Value, path string) string {
	defer v.SetZero()
	if v.Kind() == reflect.String {
		v.SetString("?")
		if err := g.refusal(path); err != nil && err.Type == field.ErrorTypeNotSupported {
			return strings.ReplaceAll(strings.TrimPrefix(err.Detail, "supported values: "), `"`, "`")
		}
	}
	scale, ok := scales[kindOf(v.Type())]
	if !ok {
		return ""
	}
	set := func(n int64) string {
		check(json.Unmarshal(fmt.Appendf(nil, scale.format, n), v.Addr().Interface()))
		return written(v)
	}
	accepts := func(n int64) bool {
		text := set(n)
		configv1.SetDefaults_PoolPriorityArgs(g.args)
		return written(v) == text && g.refusal(path) == nil // a 0 that SetDefaults replaces is not accepted
	}
	if accepts(-1) && accepts(0) && !accepts(1) {
		return "at most 0"
	}
	if !accepts(scale.good) || accepts(-1) {
		log.Fatalf("%s: cannot tell the range: %s is refused, or -1 is not", path, set(scale.good))
	}
	good := int(scale.good)
	least := 1 + sort.Search(good-1, func(i int) bool { return accepts(int64(1 + i)) })
	most := good + sort.Search(int(scale.top)-good, func(i int) bool { return !accepts(int64(good + i + 1)) })
	text := set(int64(least))
	switch zero := accepts(0); {
	case least == 1 && zero:
		text = set(0)
	case least == 1 && good > 1:
		return "above 0"
	case zero:
		text = "0, or " + text
	}
	if most == int(scale.top) {
		return "at least " + text
	}
	return text + " to " + set(int64(most))
}

// written returns the value as users write it.
func written(v reflect.Value) string {
	text, err := json.Marshal(v.Interface())
	check(err)
	return strings.NewReplacer(`"`, "", "null", "", "h0m0s", "h", "m0s", "m").Replace(string(text))
}

// refusal returns the first error that Validate has for the field.
func (g *generator) refusal(path string) *field.Error {
	for _, err := range configv1.Validate(g.args) {
		if err.Field == strings.ReplaceAll(path, "[]", "[0]") {
			return err
		}
	}
	return nil
}
