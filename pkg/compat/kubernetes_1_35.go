//go:build !kubernetes_1_36 && !kubernetes_1_37

package compat

// If the build tag and the module file are for different minor versions, this does not compile: false is a key twice.
var _ = map[bool]string{false: "", Minor == "1.35": ""}

// inTreeSince are Kubernetes' own plugins that the oldest supported minor version does not have.
var inTreeSince map[string][]string

// OutOfTree has the plugins of package outoftree, as InTree.
var OutOfTree = map[string][]string{"Coscheduling": {"preFilter", "postFilter"}, "NodeResourcesAllocatable": nil}
