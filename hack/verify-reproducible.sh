#!/usr/bin/env bash
# Fails if two builds of the image's binaries, from the same commit and VERSION in two directories, differ. The second
# build takes packages from the build cache, which -trimpath makes independent of the directory, and only links anew.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(git rev-parse HEAD)
arch=$(go env GOARCH)
copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT
for name in one another/place; do
  git clone --quiet . "$copies/$name"
  make --silent -C "$copies/$name" image-binaries PLATFORMS="$arch" VERSION="$version" >&2
done
cd "$copies/one/bin/image/linux/$arch"
for binary in *; do
  cmp "$binary" "$copies/another/place/bin/image/linux/$arch/$binary"
  echo "$binary: $(sha256sum < "$binary" | cut -c1-16)…, $(($(stat -c %s "$binary") / 1000000)) MB"
done
