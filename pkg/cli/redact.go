package cli

import (
	"maps"
	"slices"
	"strings"
)

// leftOut replaces values that may be secret and are not needed.
const leftOut = "(left out)"

// keptAnnotations are the prefixes of the annotations that are dumped, because this project or an autoscaler reads
// them. Other annotations may hold anything, even whole manifests.
var keptAnnotations = []string{
	"poolpriority.dev/", "cluster-autoscaler.kubernetes.io/", "controller.kubernetes.io/", "karpenter.sh/", "kubernetes.io/config.", "deployment.kubernetes.io/", "scheduling.x-k8s.io/",
}

// redact removes what may be secret or is not needed from an object, or from a part of one: values of variables,
// command lines (unless keepCommands is set), addresses, attributes of probes and volumes, annotations that are not
// kept, and the long lists of a node.
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
	case "labels", "matchLabels", "nodeSelector", "data": // users choose the keys in these fields
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
	case "hostAliases": // the gate reads only whether there are any
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

// blankValues replaces the values in a list of names and values. It keeps the names and references to other values.
func blankValues(value any) {
	list, _ := value.([]any)
	for _, item := range list {
		if pair, ok := item.(map[string]any); ok && pair["value"] != nil {
			pair["value"] = leftOut
		}
	}
}
