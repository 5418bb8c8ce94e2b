//go:build kubernetes_1_36

package compat

// If the build tag and the module file are for different minor versions, this does not compile: false is a key twice.
var _ = map[bool]string{false: "", Minor == "1.36": ""}
