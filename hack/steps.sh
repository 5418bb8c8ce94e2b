#!/usr/bin/env bash
# Prints where the time went, from what step.sh wrote to the file: a line for each step, with the steps within it below.
# Usage: steps.sh FILE
set -euo pipefail
printf '%8s  %13s  %s\n' wall user+system step
sort -n -k1,1 -k2,2 "$1" | while read -r _ depth wall cpu code name; do
  [ "$code" = 0 ] || name="$name: FAILED"
  printf '%6d s  %11d s  %*s%s\n' "$wall" "$cpu" $((2 * depth)) "" "$name"
done
