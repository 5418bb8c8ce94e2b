//go:build kubernetes_1_36

package compat

// A map with the key false twice does not compile: the build's tag is another minor's than its module file.
var _ = map[bool]string{false: "", Minor == "1.36": ""}
