#!/usr/bin/env bash
# Repeats make test-unit and make test-story, the second half of the runs beside a busy loop on each CPU. No result comes
# from Go's cache. In the end it prints each test that failed, with the number of its failures, and how many tests
# passed in the last run of each target. DIR gets the output and the events of each run.
# Usage: flakes.sh UNIT_RUNS STORY_RUNS [DIR]
set -uo pipefail
cd "$(dirname "$0")/.."
dir=$(realpath -m "${3:-bin/flakes}")
rm -rf "$dir"
mkdir -p "$dir"
loops=()
trap '[ ${#loops[@]} = 0 ] || kill "${loops[@]}"' EXIT
runs_of() { # TARGET RUNS
  [ "$2" -gt 0 ] || return
  for ((i = 1; i <= $2; i++)); do
    if ((i > $2 / 2 && ${#loops[@]} == 0)); then
      for ((cpu = 0; cpu < $(nproc); cpu++)); do
        while :; do :; done &
        loops+=($!)
      done
    fi
    export GO_TEST_EVENTS=$dir/$1-$i
    mkdir "$GO_TEST_EVENTS"
    GO_TEST_COUNT=1 hack/step.sh "make $1, run $i of $2${loops[*]:+, beside busy CPUs}" make --no-print-directory "$1" > "$GO_TEST_EVENTS.log" 2>&1
    grep -a "==> make $1, run" "$GO_TEST_EVENTS.log" | tail -1
  done
  [ ${#loops[@]} = 0 ] || { kill "${loops[@]}"; wait "${loops[@]}" 2> /dev/null; loops=(); }
  echo "$(cat "$GO_TEST_EVENTS"/* | grep '"Action":"pass"' | grep -c '"Test":') tests passed in the last run of make $1, subtests counted."
}
runs_of test-unit "$1"
runs_of test-story "$2"
failed=$(cat "$dir"/*/* | grep '"Action":"fail"' | sed -E 's/.*"Package":"([^"]*)"(.*"Test":"([^"]*)")?.*/\1 \3/' | sort | uniq -c)
steps=$(grep -al ': FAILED with status' "$dir"/*.log)
[ -n "$failed$steps" ] || { echo "No test failed."; exit 0; }
echo "These tests failed, so often; the runs that failed are in $(tr '\n' ' ' <<< "$steps"):"
echo "$failed"
exit 1
