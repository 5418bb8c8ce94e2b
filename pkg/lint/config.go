package lint

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// Config is a scheduler configuration and the ServiceAccount of the controller that uses the configuration.
type Config struct {
	// Text is the KubeSchedulerConfiguration.
	Text []byte
	// Namespace and ServiceAccount are the controller's. They are empty if the YAML has no pod template of the
	// controller.
	Namespace, ServiceAccount string
}

const (
	configKind     = "KubeSchedulerConfiguration"
	controllerName = "pool-priority-controller"
)

// FindConfig finds the scheduler's configuration in YAML. The configuration may be a document of its own, a value in a
// ConfigMap, or the annotation configv1.ConfigAnnotation of a pod or pod template. So FindConfig accepts Deployments that
// Helm or kustomize rendered, or that the API server returned. The YAML may have several documents and lists. FindConfig
// ignores unrelated objects. If there is no configuration, it returns nil.
func FindConfig(data []byte) (*Config, error) {
	f := found{config: &Config{}}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading the documents: %w", err)
		}
		var object map[string]any
		if err := yaml.Unmarshal(text, &object); err != nil {
			return nil, fmt.Errorf("reading a document: %w", err)
		}
		f.check(text, unstructured.Unstructured{Object: object})
	}
	switch {
	case len(f.names) == 0:
		return nil, nil
	case f.differ:
		return nil, fmt.Errorf("%s have different configurations: pass only one of them", strings.Join(f.names, ", "))
	}
	return f.config, nil
}

// found collects the configurations that FindConfig finds.
type found struct {
	config *Config
	names  []string // the objects in which FindConfig found a configuration
	differ bool
}

func (f *found) add(name string, text []byte) {
	f.differ = f.differ || len(f.names) > 0 && !bytes.Equal(bytes.TrimSpace(f.config.Text), bytes.TrimSpace(text))
	f.names = append(f.names, name)
	f.config.Text = text
}

// check searches an object for a configuration. text is the document that the object was read from, or nil for an item
// of a list.
func (f *found) check(text []byte, o unstructured.Unstructured) {
	items, _, _ := unstructured.NestedSlice(o.Object, "items")
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			f.check(nil, unstructured.Unstructured{Object: object})
		}
	}
	if o.GetKind() == configKind && text != nil {
		f.add(configKind, text)
	}
	name := o.GetKind() + " " + o.GetName()
	if o.GetKind() == "ConfigMap" {
		data, _, _ := unstructured.NestedStringMap(o.Object, "data")
		for _, value := range data {
			if kindOf(value) == configKind {
				f.add(name, []byte(value))
			}
		}
	}
	f.checkPod(name, o.GetNamespace(), o.Object)
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
	f.checkPod(name, o.GetNamespace(), template)
}

// checkPod searches a pod or pod template for a configuration. name and namespace are those of the object that has the
// pod or pod template.
func (f *found) checkPod(name, namespace string, pod map[string]any) {
	config, ok, _ := unstructured.NestedString(pod, "metadata", "annotations", configv1.ConfigAnnotation)
	if !ok {
		return
	}
	f.add(name, []byte(config))
	containers, _, _ := unstructured.NestedSlice(pod, "spec", "containers")
	if slices.ContainsFunc(containers, runsController) {
		f.config.Namespace = namespace
		f.config.ServiceAccount, _, _ = unstructured.NestedString(pod, "spec", "serviceAccountName")
	}
}

func runsController(container any) bool {
	c, _ := container.(map[string]any)
	command, _, _ := unstructured.NestedStringSlice(c, "command")
	return len(command) > 0 && path.Base(command[0]) == controllerName
}

// kindOf returns the kind of the object in the text, or "" if the text is no object.
func kindOf(text string) string {
	t := metav1.TypeMeta{}
	if err := yaml.Unmarshal([]byte(text), &t); err != nil {
		return ""
	}
	return t.Kind
}
