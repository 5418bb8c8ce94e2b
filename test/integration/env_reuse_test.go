package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/must"
)

// TestClear: a watch that ends after each event, and goes on after its resource version, sees everything that Clear
// deletes. Otherwise, controllers would keep objects of one test in the next.
func TestClear(t *testing.T) {
	const objects = 20
	e := start(t, nil)
	configMaps := e.Client.CoreV1().ConfigMaps(namespace)
	var version string
	for i := range objects {
		version = must.Get(configMaps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("cleared-", i), Labels: map[string]string{"cleared": ""}}},
			metav1.CreateOptions{}))(t).ResourceVersion
	}
	must.NoError(t, e.Clear(e.ctx))
	late := time.After(30 * time.Second)
	for i := range objects {
		w := must.Get(configMaps.Watch(e.ctx, metav1.ListOptions{LabelSelector: "cleared", ResourceVersion: version}))(t)
		select {
		case event := <-w.ResultChan():
			w.Stop()
			version = event.Object.(*corev1.ConfigMap).ResourceVersion
		case <-late:
			t.Fatalf("the watch has seen %d of %d deletions", i, objects)
		}
	}
}
