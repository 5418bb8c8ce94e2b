#!/usr/bin/env bash
# Installs Debian packages, quietly unless that fails. Needs root.
# Usage: apt-install.sh PACKAGE ...
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" > "$log" 2>&1; }
install "$@" || { apt-get update > "$log" 2>&1 && install "$@"; } || { cat "$log"; exit 1; }
