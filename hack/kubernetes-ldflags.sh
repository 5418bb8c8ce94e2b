#!/usr/bin/env bash
# Prints the -ldflags that stamp Kubernetes' binaries with the version that hack/tools/kubernetes pins.
set -euo pipefail
version=$(go -C "$(dirname "$0")/tools/kubernetes" list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
v=k8s.io/component-base/version
echo "-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} -X $v.gitTreeState=clean -X $v.gitCommit=$version"
