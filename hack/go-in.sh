#!/usr/bin/env bash
# Runs go in the directory of another module. GOFLAGS may name this module's file for another minor version of
# Kubernetes, which must not be the other module's. MODFILE names the other module's file, if it is not its go.mod.
# Usage: go-in.sh DIR ARG ...
set -euo pipefail
export GOFLAGS="-trimpath -buildvcs=false${MODFILE:+ -modfile=$MODFILE}"
exec go -C "$@"
