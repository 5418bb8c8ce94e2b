#!/usr/bin/env bash
# Runs Kubernetes' integration tests of the scheduler, from its module, with the plugin in their schedulers.
# Usage: test-upstream.sh [ARG ...], arguments of test/upstream
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(hack/module-dir.sh test/upstream k8s.io/kubernetes)
cd test/upstream
go build -o ../../bin/upstream-tests .
exec ../../bin/upstream-tests -kubernetes "$module" "$@"
