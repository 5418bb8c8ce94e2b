#!/usr/bin/env bash
# Builds a binary as a step, whose last line also says how large the binary is.
# Usage: build.sh FILE ARG ..., what go build is given after -o
set -euo pipefail
STEP_FILE=$1 exec "$(dirname "$0")/step.sh" "build $(basename "$1")" go build -o "$@"
