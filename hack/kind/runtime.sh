#!/usr/bin/env bash
# An OCI runtime: runc without CAP_SYS_RESOURCE, which some machines do not have. For a privileged container, Docker
# before version 23 asks for every capability that it knows, and runc fails if one is missing.
set -euo pipefail
bundle=. process=
args=("$@")
for ((i = 0; i < $#; i++)); do
  case ${args[i]} in
  --bundle | -b) bundle=${args[i + 1]} ;;
  --process | -p) process=${args[i + 1]} ;;
  esac
done
drop() {
  local spec
  spec=$(jq -c 'walk(if type == "array" then map(select(. != "CAP_SYS_RESOURCE")) else . end)' "$1")
  printf %s "$spec" > "$1"
}
for arg in "$@"; do
  case $arg in
  create | run) drop "$bundle/config.json" && break ;;
  exec) [ -z "$process" ] || drop "$process" && break ;;
  esac
done
exec runc "$@"
