#!/usr/bin/env bash
# Unpacks prometheus and promtool of Debian's package into the directory given, to test alerts with. It is not installed: its service would listen
# on all interfaces. A mirror has only the newest package of a release, so that no version can be pinned: any of MAJORS is taken.
# Where there is none, that is said, and what needs it is skipped; with the variable CI set, as .ci/run does, it fails.
# Usage: debian-prometheus.sh DIR
set -euo pipefail
MAJORS="2 3"
cd "$(dirname "$0")/.."
out=$1
stamp=$(sha256sum "$0" | cut -d' ' -f1)
if [ "$(cat "$out/prometheus.stamp" 2> /dev/null)" = "$stamp" ]; then exit 0; fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
missing() {
  echo "Prometheus cannot be had from Debian: $1"
  if [ -n "${CI:-}" ]; then exit 1; fi
  echo "The alerts are not tested here."
  exit 0
}
download() { (cd "$dir" && apt-get -o APT::Sandbox::User=root download prometheus); }
command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || missing "this machine has no apt-get and dpkg-deb"
download > "$dir/log" 2>&1 || { apt-get update >> "$dir/log" 2>&1 && download >> "$dir/log" 2>&1; } || missing "$(tail -1 "$dir/log")"
dpkg-deb -x "$dir"/prometheus_*.deb "$dir/x"
version=$(dpkg-deb -f "$dir"/prometheus_*.deb Version)
[[ " $MAJORS " == *" ${version%%.*} "* ]] || missing "its version is $version, and the tests know those that begin with one of $MAJORS"
mkdir -p "$out"
install -m 755 "$dir"/x/usr/bin/{prometheus,promtool} "$out/"
echo "Prometheus $version"
echo "$stamp" > "$out/prometheus.stamp"
