#!/usr/bin/env bash
# Fails if the generated or the copied files are not what update-generated.sh writes.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard -z | xargs -0 tar cf - | tar xf - -C "$copy"
hack/update-generated.sh "$copy"
diff -r -q --exclude bin --exclude .devcluster --exclude .git . "$copy" || { echo "run make generate"; exit 1; }
