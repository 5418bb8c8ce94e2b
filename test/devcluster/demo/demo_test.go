package demo

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
)

// TestExperiments checks the assumptions that the code makes about experiments.yaml.
func TestExperiments(t *testing.T) {
	var experiments []experiment
	must.NoError(t, yaml.UnmarshalStrict(experimentsFile, &experiments))
	for _, e := range experiments {
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict([]byte(e.Deployment), &d); err != nil {
			t.Errorf("%s: %v", e.Title, err)
		}
		if ours := d.Spec.Template.Spec.SchedulerName == devcluster.SchedulerName; d.Name != e.Load || ours != e.ours() || strings.Count(e.Deployment, "replicas: 1\n") != 1 {
			t.Errorf("%s: its Deployment %s is not of its load, scheduler or replicas", e.Title, d.Name)
		}
		if len(e.Pools) != 2 || e.Pools[0].Mode != "user" || e.Pools[1].Mode != "system" {
			t.Errorf("%s: its pools %+v are not those of the table", e.Title, e.Pools)
		}
	}
}
