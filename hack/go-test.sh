#!/usr/bin/env bash
# Runs go test, then prints the ten slowest tests.
# Usage: go-test.sh ARG ..., the arguments of go test
set -uo pipefail
export GOGC=${GOGC:-400} # less garbage collection saves a fifth of the tests' CPU time
hack=$(cd "$(dirname "$0")" && pwd)
gotestsum=$hack/../bin/gotestsum
mkdir -p "$hack/../bin"
CGO_ENABLED=0 "$hack/go-in.sh" "$hack/tools/gotestsum" build -o "$gotestsum" gotest.tools/gotestsum || exit 1
events=$(mktemp)
trap 'rm -f "$events"' EXIT
"$gotestsum" --format standard-quiet --hide-summary skipped --jsonfile "$events" -- "$@"
code=$?
echo "The slowest tests:"
"$gotestsum" tool slowest --num 10 --jsonfile "$events" | while read -r package test took; do
  printf '%10s  %s\n' "$took" "${package#poolpriority.dev/scheduler/} $test"
done
exit $code
