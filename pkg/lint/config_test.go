package lint

import (
	"fmt"
	"strings"
	"testing"

	"poolpriority.dev/scheduler/test/must"
)

// TestFindConfig: FindConfig finds the configuration in every form in which users have it. If there is none, the error says why.
func TestFindConfig(t *testing.T) {
	const config = "# Ours.\napiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: []\n"
	indented := func(text string, n int) string {
		return strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+strings.Repeat(" ", n))
	}
	deployment := func(name, command, config string) string {
		return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: mine, annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}}
spec:
  template:
    metadata:
      annotations:
        poolpriority.dev/config: |
          %s
    spec: {serviceAccountName: %s, containers: [{name: c, command: [%s]}]}
`, name, indented(config, 10), name, command)
	}
	configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  other: \"1\"\n  config.yaml: |\n    " + indented(config, 4) + "\n"
	const separator = "---\n"
	custom := "apiVersion: example.com/v1\nkind: Custom\nmetadata: {name: c}\nspec: {template: text, containers: 7}\ndata: [1]\n"
	scheduler, controller := deployment("s", "", config), deployment("c", "/pool-priority-controller", config)
	list := "apiVersion: v1\nkind: List\nitems:\n- " + indented(scheduler, 2) + "\n- " + indented(controller, 2) + "\n"
	pod := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: c-1\n  namespace: mine\n  annotations:\n    poolpriority.dev/config: |\n      " + indented(config, 6) +
		"\nspec: {serviceAccountName: c, containers: [{name: c, command: [/pool-priority-controller]}]}\n"
	for _, tc := range []struct {
		name, data, account, wrong string
		none                       bool
	}{
		{name: "a file", data: config},
		{name: "a ConfigMap", data: configMap},
		{name: "the scheduler's Deployment", data: scheduler},
		{name: "the controller's", data: controller, account: "mine:c"},
		{name: "a pod", data: pod, account: "mine:c"},
		{name: "all that is rendered", data: "# Source: a\n" + custom + separator + scheduler + separator + controller + separator, account: "mine:c"},
		{name: "a list", data: list, account: "mine:c"},
		{name: "nothing of it", data: custom, none: true},
		{name: "nothing at all", data: "", none: true},
		{name: "two that differ", data: scheduler + separator + deployment("d", "", config+"# x\n"), wrong: "Deployment s, Deployment d have different configurations"},
		{name: "no YAML", data: "a: b: c", wrong: "reading a document"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			source, err := FindConfig([]byte(tc.data))
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Errorf("error %v, want %q", err, tc.wrong)
				}
				return
			}
			must.NoError(t, err)
			if tc.none {
				if source != nil {
					t.Errorf("found %q", source.Text)
				}
				return
			}
			account := ""
			if source.Namespace != "" || source.ServiceAccount != "" {
				account = source.Namespace + ":" + source.ServiceAccount
			}
			if string(source.Text) != config || account != tc.account {
				t.Errorf("found %q of %q, want %q of %q", source.Text, account, config, tc.account)
			}
		})
	}
}
