#!/usr/bin/env bash
# Runs Kubernetes' integration tests of the scheduler, or its benchmark (-bench), from its module, with the plugin in
# their schedulers.
# Usage: test-upstream.sh MINOR [ARG ...], arguments of test/upstream
set -euo pipefail
cd "$(dirname "$0")/.."
minor=$1
shift
if [ "$minor" != 1.35 ]; then
  export MODFILE=$PWD/test/upstream/$minor.mod
  [ -e "$MODFILE" ] || { echo "test-upstream.sh: there is no test/upstream/$minor.mod: KUBERNETES_MINOR may be 1.35 or a minor version that has such a file" >&2; exit 1; }
fi
module=$(hack/module-dir.sh test/upstream k8s.io/kubernetes)
export GOFLAGS="-trimpath -buildvcs=false${MODFILE:+ -modfile=$MODFILE -tags=kubernetes_${minor/./_}}"
cd test/upstream
go build -o ../../bin/upstream-tests .
exec ../../bin/upstream-tests -kubernetes "$module" "$@"
