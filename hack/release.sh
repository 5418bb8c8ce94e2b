#!/usr/bin/env bash
# Builds the binaries of a release, for each minor version of Kubernetes in hack/kubernetes/released, and writes the
# release into OUT (hack/tools/release). Every clone of a commit gives the same files with the same version of Go.
# Environment: VERSION, REGISTRY, DOWNLOADS and OUT; optional are SIGNING_KEY with COSIGN_PASSWORD, SOURCE (the URL of
# the source) and ALLOW_DIRTY=1.
set -euo pipefail
cd "$(dirname "$0")/.."
want() {
  [[ "${!1:-}" =~ $2 ]] || { echo "make release: set $1, for example $1=$3" >&2; exit 1; }
}
want VERSION '^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$' v1.2.3
want REGISTRY '^(localhost|[a-z0-9-]+[.:][a-z0-9.:-]+)(/[a-z0-9][a-z0-9._-]*)*$' registry.example.com/team # as the chart wants it
want DOWNLOADS '^https?://[^ ]+$' https://downloads.example.com/pool-priority
want OUT . bin/release
[ -z "$(ls -A "$OUT" 2> /dev/null)" ] || { echo "make release: $OUT is not empty: remove it, or set another OUT" >&2; exit 1; }
revision=$(git rev-parse HEAD)
if [ -n "$(git status --porcelain)" ]; then
  [ "${ALLOW_DIRTY:-}" = 1 ] || { echo "make release: the work tree has changes; commit them, or set ALLOW_DIRTY=1" >&2; exit 1; }
  revision+=-dirty
fi
binaries=bin/release-binaries
for minor in $(cat hack/kubernetes/released); do
  make --no-print-directory image-binaries VERSION="$VERSION" KUBERNETES_MINOR="$minor" PLATFORMS="amd64 arm64" IMAGE_OUT="$binaries/$minor"
done
make --no-print-directory plugin-binaries VERSION="$VERSION" KUBERNETES_MINOR="$(head -n 1 hack/kubernetes/released)" PLUGIN_OUT="$binaries/plugin"
hack/go-in.sh hack/tools/release build -o "$PWD/bin/release-tool" .
hack/step.sh "write the release" bin/release-tool build -version "$VERSION" -registry "$REGISTRY" -downloads "$DOWNLOADS" -source "${SOURCE:-}" \
  -revision "$revision" -created "$(git show -s --format=%ct HEAD)" -binaries "$binaries" -out "$OUT" -key "${SIGNING_KEY:-}"
