package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// completePools completes the names of pools.
func (o *options) completePools(c *cobra.Command, already []string, _ string) ([]string, cobra.ShellCompDirective) {
	_, p, err := o.connectPublished(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(p.names(), func(name string) bool { return slices.Contains(already, name) }), cobra.ShellCompDirectiveNoFileComp
}

// completeObjects completes names of pods, the kinds that explain accepts, and names of objects of these kinds. It
// offers an object only if its pods have the scheduler's schedulerName.
func (o *options) completeObjects(c *cobra.Command, already []string, prefix string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	cluster, err := o.connect()
	if err != nil || len(already) > 0 {
		return nil, none
	}
	names, directive := []string{}, none|cobra.ShellCompDirectiveNoSpace
	called, _, typed := strings.Cut(prefix, "/")
	kind := kinds["po"]
	switch {
	case typed:
		directive = none
		kind, _ = kindOf(called)
	case prefix != "":
		names = append(names, "deploy/", "rs/", "sts/", "ds/", "job/", "cronjob/")
	}
	for _, name := range cluster.namesOf(c.Context(), kind) {
		if typed {
			name = called + "/" + name
		}
		names = append(names, name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), directive
}

// namesOf returns the names of the objects of the kind in the selected namespace. It returns the name of an object only
// if its pods have the scheduler's schedulerName.
func (c *cluster) namesOf(ctx context.Context, kind schema.GroupVersionKind) []string {
	list, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil || c.list(ctx, list, c.namespace, metav1.ListOptions{}) != nil {
		return nil
	}
	scheduler := shippedName
	if p, err := c.published(ctx); err == nil {
		scheduler = cmp.Or(p.view.SchedulerName, shippedName)
	}
	var names []string
	objects, _ := meta.ExtractList(list) // ExtractList fails only if the object is not a list
	for _, object := range objects {
		if w := newWorkload(object, c.namespace); w != nil && w.template.Spec.SchedulerName == scheduler {
			names = append(names, w.reference.Name)
		}
	}
	return names
}
