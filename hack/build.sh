#!/usr/bin/env bash
# Builds a binary as a step. The step's last line also has the binary's size.
# Usage: build.sh FILE ARG ..., the arguments of go build after -o
set -euo pipefail
STEP_FILE=$1 exec "$(dirname "$0")/step.sh" "build $(basename "$1")" go build -o "$@"
