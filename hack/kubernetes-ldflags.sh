#!/usr/bin/env bash
# Prints the -ldflags that stamp Kubernetes' binaries with the version that a module file pins.
# Usage: kubernetes-ldflags.sh [FILE], by default that of hack/tools/kubernetes
set -euo pipefail
dir=$(cd "$(dirname "$0")" && pwd)
version=$(MODFILE=${1:-$dir/tools/kubernetes/go.mod} "$dir/go-in.sh" "$dir/tools/kubernetes" list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
v=k8s.io/component-base/version
echo "-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitTreeState=clean -X $v.gitCommit=$version"
