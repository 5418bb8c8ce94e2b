#!/usr/bin/env bash
# Runs go test, then prints the ten slowest tests. Go's cache may give the result of a test that has passed before. With
# GO_TEST_COUNT=1 it does not. The events go to a file in the directory GO_TEST_EVENTS, if it is set.
# Usage: go-test.sh ARG ..., the arguments of go test
set -uo pipefail
export GOGC=${GOGC:-400} # less garbage collection saves a fifth of the tests' CPU time
hack=$(cd "$(dirname "$0")" && pwd)
gotestsum=$hack/../bin/gotestsum
mkdir -p "$hack/../bin"
CGO_ENABLED=0 "$hack/go-in.sh" "$hack/tools/gotestsum" build -o "$gotestsum" gotest.tools/gotestsum || exit 1
events=$(mktemp ${GO_TEST_EVENTS:+-p "$GO_TEST_EVENTS"})
[ -n "${GO_TEST_EVENTS:-}" ] || trap 'rm -f "$events"' EXIT
"$gotestsum" --format standard-quiet --hide-summary skipped --jsonfile "$events" -- ${GO_TEST_COUNT:+-count="$GO_TEST_COUNT"} "$@"
code=$?
echo "The slowest tests:"
"$gotestsum" tool slowest --num 10 --jsonfile "$events" | while read -r package test took; do
  printf '%10s  %s\n' "$took" "${package#poolpriority.dev/scheduler/} $test"
done
exit $code
