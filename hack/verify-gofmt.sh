#!/usr/bin/env bash
# Fails if gofmt would change a file, and prints the names of such files.
set -euo pipefail
cd "$(dirname "$0")/.."
files=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l)
if [ -n "$files" ]; then
  echo "gofmt would change these; run gofmt -w on them:"
  echo "$files"
  exit 1
fi
