//go:build kubernetes_1_36

package compat

// If the build tag and the module file are for different minor versions, this does not compile: false is a key twice.
var _ = map[bool]string{false: "", Minor == "1.36": ""}

// inTreeSince are Kubernetes' own plugins that the oldest supported minor version does not have.
var inTreeSince = map[string][]string{"TopologyPlacementGenerator": nil, "PodGroupPodsCount": nil}

// OutOfTree has the plugins of package outoftree, as InTree.
var OutOfTree map[string][]string
