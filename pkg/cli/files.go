package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes/scheme"

	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// explainFiles explains the pods and workloads in the files.
func (o *options) explainFiles(ctx context.Context, files []string) error {
	c, p, err := o.connectPublished(ctx)
	if err != nil {
		return err
	}
	workloads, skipped, err := o.read(files, c.namespace)
	if err != nil {
		return err
	}
	if len(workloads) == 0 {
		return fmt.Errorf("%s: found no pod, and nothing that creates pods", strings.Join(files, ", "))
	}
	list := ExplanationList{TypeMeta: typeMeta("ExplanationList")}
	var names []string
	for _, w := range workloads {
		e := newExplainer(w.reference)
		e.pod, e.workload, e.published = w.newPod(), w, p
		e.read(ctx, c)
		e.explain()
		e.fact("File", "taken as written, without changes by the API server and its webhooks")
		list.Items = append(list.Items, e.Explanation)
		names = append(names, nameOfObject(e.Object))
	}
	return o.print(list, names, func(w io.Writer) {
		for i, e := range list.Items {
			if i > 0 {
				fmt.Fprintln(w)
			}
			o.printExplanation(w, e, c.now())
		}
		if skipped > 0 {
			fmt.Fprintf(w, "\n%s no pods.\n", count(skipped, "other object creates", "other objects create"))
		}
	})
}

// read returns the pods and workloads in the files. skipped is the number of other objects in the files.
func (o *options) read(files []string, namespace string) (workloads []*workload, skipped int, err error) {
	builder := resource.NewLocalBuilder().Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace()
	for _, name := range files {
		if name == "-" {
			builder = builder.Stream(o.In, "standard input")
		} else {
			builder = builder.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{name}})
		}
	}
	infos, err := builder.Flatten().Do().Infos()
	if err != nil {
		return nil, 0, oneLine(err)
	}
	var outdated error
	for _, info := range infos {
		if needed, gvk := karpenter.Resource.GroupVersion(), info.Object.GetObjectKind().GroupVersionKind(); gvk.Group == needed.Group && gvk.Version != needed.Version {
			outdated = fmt.Errorf("%s %s is of %s, and %s is needed: change the file, and upgrade Karpenter if it is older than 1.0", gvk.Kind, info.Name, gvk.GroupVersion(), needed)
		}
		w, err := workloadOf(info.Object.(*unstructured.Unstructured), namespace) // Flatten has replaced each list by its items
		if err != nil {
			return nil, 0, err
		}
		if w != nil {
			workloads = append(workloads, w)
		}
	}
	if len(workloads) == 0 {
		return nil, len(infos), outdated
	}
	return workloads, len(infos) - len(workloads), nil
}

// workloadOf converts the object to a workload. If the object is neither a pod nor a workload, workloadOf returns nil.
func workloadOf(object *unstructured.Unstructured, namespace string) (*workload, error) {
	typed, err := scheme.Scheme.New(object.GroupVersionKind())
	if runtime.IsNotRegisteredError(err) {
		return nil, nil
	} else if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", object.GetKind(), object.GetName(), oneLine(err))
	}
	w := newWorkload(typed, namespace)
	if w != nil {
		setDefaults(&w.template.Spec)
	}
	return w, nil
}

// setDefaults sets the defaults of the API server that affect the gate's decision. If a container has a limit without a
// request, the default of the request is the limit.
func setDefaults(spec *corev1.PodSpec) {
	if spec.SchedulerName == "" {
		spec.SchedulerName = corev1.DefaultSchedulerName
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			requests := corev1.ResourceList{}
			maps.Copy(requests, r.Limits)
			maps.Copy(requests, r.Requests)
			r.Requests = requests
		}
	}
}
