#!/usr/bin/env bash
# Prints two numbers of code lines: those of our files that the three binaries are built from, and those of all other Go
# files. Blank lines, comments and generated files do not count. With two limits as arguments, it fails if a number is
# above its limit. Usage: lines.sh [SHIPPED OTHER]
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(go list -m)
shipped=$(go list -deps -f '{{if .Module}}{{if eq .Module.Path "'"$module"'"}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}' \
  ./cmd/scheduler ./cmd/controller ./cmd/kubectl-pools | sed "s#^$PWD/##" | sort)
other=$(git ls-files --cached --others --exclude-standard '*.go' | sort | comm -23 - <(echo "$shipped"))
# count prints the code lines of the files on standard input.
count() {
  { xargs grep -LE '^// Code generated .* DO NOT EDIT\.$' || true; } | xargs cat | grep -cvE '^[[:space:]]*(//.*)?$'
}
ours=$(count <<< "$shipped")
rest=$(count <<< "$other")
echo "what ships:   $ours${1:+ of at most $1}"
echo "all other Go: $rest${2:+ of at most $2}"
if [ $# -eq 2 ] && { [ "$ours" -gt "$1" ] || [ "$rest" -gt "$2" ]; }; then
  echo "There are more code lines than the Makefile allows. Delete some, or raise the number and say in the commit what the lines buy." >&2
  exit 1
fi
