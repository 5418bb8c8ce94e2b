#!/usr/bin/env bash
# Runs a command as a step. It prints a line before the command, and a line after it with the duration and the CPU time
# (user and system) of the command and of the processes that it waited for. If STEPS names a file, a line with these
# figures is appended to it, and hack/steps.sh makes a table of these lines. In that file, STEP_NOTE is added to the
# step's name, but not to the names of steps within it. If STEP_FILE names a file, the last line has its size.
# Usage: step.sh NAME COMMAND [ARG ...]
set -uo pipefail
name=$1
shift
echo "==> $name"
began=$(date +%s.%N)
parent=${STEP:-0}
note=${STEP_NOTE:-}
file=${STEP_FILE:-}
unset STEP_NOTE STEP_FILE
TIMEFORMAT='%0R %0U %0S'
export STEP=$$
exec 8>&1 9>&2
figures=$({ time "$@" >&8 2>&9 8>&- 9>&-; } 2>&1)
code=$?
read -r wall user system <<< "$figures"
result=done
[ $code -eq 0 ] || result="FAILED with status $code"
size=
[ ! -f "$file" ] || size=", $(($(wc -c < "$file") / 1000000)) MB"
echo "==> $name: $result after $wall s (user+system $((user + system)) s)$size"
[ -z "${STEPS:-}" ] || printf '%s %s %s %s %s %s %s\n' "$began" "$$" "$parent" "$wall" "$((user + system))" "$code" "$name$note" >> "$STEPS"
exit $code
