#!/usr/bin/env bash
# Tests the build for each released minor version of Kubernetes: unit tests, the strict order, and the core on the
# control plane of that version and of the next. A control plane without a module file is left out, as that of a version
# that is not out yet. In the end a table says how long each step took.
set -uo pipefail
cd "$(dirname "$0")/.."
STEPS=$(mktemp)
export STEPS
trap 'hack/steps.sh "$STEPS"; rm -f "$STEPS"' EXIT
while read -r minor; do
  hack/step.sh "build for $minor" make test-unit test-strictness KUBERNETES_MINOR="$minor" < /dev/null || exit 1
  for server in "$minor" "1.$((${minor#1.} + 1))"; do
    if [ "$server" != 1.35 ] && [ ! -e "hack/kubernetes/control-plane-$server.mod" ]; then
      echo "==> build for $minor on Kubernetes $server: SKIPPED, because there is no hack/kubernetes/control-plane-$server.mod"
      continue
    fi
    hack/step.sh "build for $minor on Kubernetes $server" make test-core KUBERNETES_MINOR="$minor" CONTROL_PLANE_MINOR="$server" < /dev/null || exit 1
  done
done < hack/kubernetes/released
