package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// completePools completes the names of pools.
func (o *options) completePools(c *cobra.Command, already []string, _ string) ([]string, cobra.ShellCompDirective) {
	cluster, err := o.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	p, err := cluster.published(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	given := map[string]bool{}
	for _, name := range already {
		given[name] = true
	}
	var names []string
	for _, item := range p.list(cluster.now()).Items {
		if !given[item.Name] {
			names = append(names, item.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeObjects completes the names of pods that ask for the scheduler, and of the kinds that can be explained.
func (o *options) completeObjects(c *cobra.Command, already []string, prefix string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(already) > 0 {
		return nil, none
	}
	cluster, err := o.connect()
	if err != nil {
		return nil, none
	}
	scheduler := cluster.schedulerName(c.Context())
	if kind, rest, typed := strings.Cut(prefix, "/"); typed {
		var completed []string
		for _, name := range cluster.namesOf(c.Context(), kinds[kind], scheduler) {
			if strings.HasPrefix(name, rest) {
				completed = append(completed, kind+"/"+name)
			}
		}
		return completed, none
	}
	var names []string
	for _, name := range cluster.namesOf(c.Context(), kindPod, scheduler) {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	for _, kind := range []string{"deploy/", "rs/", "sts/", "ds/", "job/", "cronjob/"} {
		if prefix != "" && strings.HasPrefix(kind, prefix) {
			names = append(names, kind)
		}
	}
	return names, none | cobra.ShellCompDirectiveNoSpace
}

// namesOf are the names of the objects of the kind in the namespace whose pods ask for the scheduler.
func (c *cluster) namesOf(ctx context.Context, kind, scheduler string) []string {
	if kind == "" {
		return nil
	}
	list, err := c.list(ctx, kind)
	if err != nil {
		return nil
	}
	var names []string
	_ = meta.EachListItem(list, func(object runtime.Object) error { // it fails for what is no list
		if w := newWorkload(object, kind, c.namespace); w != nil && w.template.Spec.SchedulerName == scheduler {
			names = append(names, w.reference.Name)
		}
		return nil
	})
	return names
}
