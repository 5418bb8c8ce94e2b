// Package compat holds what differs between the minor versions of Kubernetes that this tree is built for. go.mod has the
// modules of one minor, hack/kubernetes those of the others, and a build tag for each of these selects the files here.
// KUBERNETES_MINOR in the Makefile sets both.
package compat

import "k8s.io/component-base/version"

// Minor is the minor version of Kubernetes that is built in, such as "1.35".
const Minor = version.DefaultKubeBinaryVersion
