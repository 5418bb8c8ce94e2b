#!/usr/bin/env bash
# Runs a command as a step: a line before it, and a line after it with its duration.
# Usage: step.sh NAME COMMAND [ARG ...]
set -uo pipefail
name=$1
shift
echo "==> $name"
start=$SECONDS
"$@"
code=$?
result=done
[ $code -eq 0 ] || result="FAILED with status $code"
echo "==> $name: $result after $((SECONDS - start)) s"
exit $code
