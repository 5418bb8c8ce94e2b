#!/usr/bin/env bash
# Prints the directory of a module that the module in DIR requires. It downloads the module first: for a module that was
# not downloaded, go list prints an empty line and does not fail.
# Usage: module-dir.sh DIR MODULE
set -euo pipefail
"$(dirname "$0")/go-in.sh" "$1" mod download "$2"
dir=$("$(dirname "$0")/go-in.sh" "$1" list -m -f '{{.Dir}}' "$2")
[ -d "$dir" ] || { echo "module-dir.sh: $2, which $1 requires, has no directory" >&2; exit 1; }
echo "$dir"
