package cli

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/published"
)

const theStatus = "get /api/v1/namespaces/pool-priority-system/configmaps/"

// with replaces before by after in the view of the ConfigMap.
func with(cm *corev1.ConfigMap, before, after string) *corev1.ConfigMap {
	cm.Data[published.ViewKey] = strings.Replace(cm.Data[published.ViewKey], before, after, 1)
	return cm
}

// TestLess: if something is missing or may not be read, the commands say so in a line and show what they can.
func TestLess(t *testing.T) {
	waiting := pod(held, 42*time.Second, reported(41*time.Second, sentenceOf(t, "PoolGrowing")))
	burst := pod(bursting, 80*time.Minute, recorded(72*time.Minute, open))
	vm := pod("web-7d4b9-2m9xv", 3*time.Hour, on(3*time.Hour, systemNode, "system", "1000"))
	bare := pod("web-7d4b9-p6c2l", 3*time.Hour, on(3*time.Hour, systemNode, "", ""), func(p *corev1.Pod) { p.Annotations = nil })
	pods := [][]string{{"explain", held}, {"explain", bursting}, {"explain", vm.Name}}
	some := [][]string{nil, {"explain", held}}
	selective := func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"burst": "yes"}}
	}
	foreign := growing(t)
	foreign.change = func(v *published.View) { v.Version = "v0.9.0 (Kubernetes v1.40.0)" }
	for _, tc := range []struct {
		name      string
		published *corev1.ConfigMap
		forbidden []string
		commands  [][]string
	}{
		{"no-status", nil, nil, append([][]string{nil, {"pods"}, {"version"}, {"--status=a/b"}}, pods...)},
		{"no-right-to-status", growing(t).published(0), []string{theStatus}, append([][]string{nil, {"pods"}, {"version"}, {"explain", "-f", "testdata/web.yaml"}}, pods...)},
		{"no-right-to-pods", growing(t).published(0), []string{"get /api/v1/namespaces/default/pods", "get /api/v1/pods"}, [][]string{nil, {"explain", held}, {"pods"}, {"pods", "-A"}, {"explain", "deploy/web"}}},
		{"no-right-to-nodes", full(t).published(0), []string{"get /api/v1/nodes"}, [][]string{nil, {"explain", bare.Name}, {"explain", "deploy/web"}, {"pods"}}},
		{"no-right-to-namespaces", growing(t, selective).published(0), []string{"get /api/v1/namespaces/default$"}, [][]string{nil, {"explain", held}, {"explain", "deploy/web"}}},
		{"other-namespace", growing(t, selective).published(0), nil, [][]string{nil, {"explain", held}}},
		{"no-rights", growing(t).published(0), []string{"get "}, [][]string{nil, {"explain", held}, {"pods"}, {"version"}}},
		{"no-leader", growing(t).published(3*time.Minute + 20*time.Second), nil, some},
		{"newer", with(foreign.published(0), "poolpriority.dev/v1alpha1", "poolpriority.dev/v1beta1"), nil, some},
		{"left-out", with(growing(t).published(0), `"held":`, `"leftOut":["53 details","5300 waits"],"held":`), nil, some},
		{"garbage", with(growing(t).published(0), `{`, `<html>`), nil, append([][]string{{"version"}, {"pods"}}, some...)},
		{"half", with(growing(t).published(0), `"capacity":{"pools"`, `"capacity":{"pool"`), nil, some},
		{"empty", func() *corev1.ConfigMap { cm := growing(t).published(0); cm.Data = nil; return cm }(), nil, some},
		{"no-pod", growing(t).published(0), nil, [][]string{{"explain", "web-1"}, {"explain", "deploy/shop"}, {"explain", "service/web"}, {"explain", "deploy/"}, {"explain"}, {"explain", "a", "b", "c"}, {"explain", "a", "-f", "b"}}},
		{"flags", growing(t).published(0), nil, [][]string{{"-o", "xml"}, {"--color", "red"}, {"--status", "a"}, {"--unheard"}, {"unheard"}, {"pods", "--held", "--pool", "aci"}, {"pods", "--pool", "gpu"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, waiting, burst, vm, bare, deployment(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
			if tc.published != nil {
				s.put(tc.published)
			}
			s.forbid(tc.forbidden...)
			var all []string
			for _, command := range tc.commands {
				all = append(all, s.run(command...))
			}
			golden(t, "less-"+tc.name, strings.Join(all, "\n"))
		})
	}
}

// TestNoCluster: if the API server cannot be reached, each command prints one line of error.
func TestNoCluster(t *testing.T) {
	s := newServer(t)
	gone := httptest.NewServer(s)
	url := gone.URL
	gone.Close()
	s.url = url
	for _, args := range [][]string{nil, {"explain", held}, {"pods"}, {"version"}} {
		got := s.run(args...)
		if !strings.Contains(got, "error: the API server at 10.0.0.1:443 cannot be reached: ") || !strings.HasSuffix(got, "(exit status 2)\n") || strings.Count(got, "error") != 1 {
			t.Errorf("%s", got)
		}
	}
}
