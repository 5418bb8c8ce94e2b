package cli

import (
	"maps"
	"slices"
	"strings"
)

// leftOut replaces values that may be secret.
const leftOut = "(left out)"

// keptAnnotations are the prefixes of the annotations that are dumped. This project or an autoscaler reads these
// annotations. Other annotations may contain anything, even whole manifests.
var keptAnnotations = []string{
	"poolpriority.dev/", "cluster-autoscaler.kubernetes.io/", "controller.kubernetes.io/", "karpenter.sh/", "kubernetes.io/config.", "deployment.kubernetes.io/", "scheduling.x-k8s.io/",
}

// redact removes fields that may be secret or that a bug report does not need. part is an object or a part of an
// object. redact removes addresses, the long lists of a node, and annotations that are not in keptAnnotations. It
// replaces the values of variables, and the attributes of probes and volumes. It also replaces command lines, except if
// keepCommands is set.
func redact(part any, keepCommands bool) {
	switch x := part.(type) {
	case []any:
		for _, item := range x {
			redact(item, keepCommands)
		}
	case map[string]any:
		for key := range x {
			redactField(x, key, keepCommands)
		}
	}
}

func redactField(fields map[string]any, key string, keepCommands bool) {
	value := fields[key]
	switch key {
	case "labels", "matchLabels", "nodeSelector", "data": // users choose the keys in these fields, so nothing is removed
	case "managedFields", "hostIP", "hostIPs", "podIP", "podIPs", "addresses", "images", "volumesInUse", "volumesAttached":
		delete(fields, key)
	case "annotations":
		annotations, _ := value.(map[string]any)
		if maps.DeleteFunc(annotations, isDropped); len(annotations) == 0 {
			delete(fields, key)
		}
	case "command", "args":
		if !keepCommands {
			blank(value)
		}
	case "volumeAttributes", "options":
		blank(value)
	case "env", "httpHeaders":
		blankValues(value)
	case "httpGet":
		if get, ok := value.(map[string]any); ok {
			get["path"] = leftOut
		}
		redact(value, keepCommands)
	case "hostAliases": // the gate reads only whether the list is empty
		fields[key] = []any{map[string]any{"ip": leftOut}}
	default:
		redact(value, keepCommands)
	}
}

// isDropped reports whether the annotation with the key is not dumped.
func isDropped(key string, _ any) bool {
	return !slices.ContainsFunc(keptAnnotations, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// blank replaces the values of a map, or the strings in a list.
func blank(value any) {
	switch x := value.(type) {
	case []any:
		for i := range x {
			if _, ok := x[i].(string); ok {
				x[i] = leftOut
			}
		}
	case map[string]any:
		for key := range x {
			x[key] = leftOut
		}
	}
}

// blankValues replaces the values in a list of names and values. It keeps the names and each valueFrom.
func blankValues(value any) {
	list, _ := value.([]any)
	for _, item := range list {
		if pair, ok := item.(map[string]any); ok && pair["value"] != nil {
			pair["value"] = leftOut
		}
	}
}
