#!/usr/bin/env bash
# Unpacks prometheus and promtool from Debian's package into the directory given, to test alerts with. The package is
# not installed, because its service would listen on all interfaces. No version can be pinned, because a mirror has only
# the newest package of a release: any major version in MAJORS is accepted. If there is no such package, the script says
# so and succeeds, and the tests that need it are skipped. If the variable CI is set, as .ci/run does, the script fails
# instead.
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
