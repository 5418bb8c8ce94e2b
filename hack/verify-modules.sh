#!/usr/bin/env bash
# Fails if go mod tidy would change a module, or if the scheduler, kwok and the control plane would be built from
# different versions of a module: they would then share nothing in the build cache.
set -euo pipefail
cd "$(dirname "$0")/.."
for dir in . test/karpenter test/monitoring test/upstream hack/tools/*/; do
  (cd "$dir" && go mod tidy -diff) || { echo "go.mod or go.sum in $dir is not tidy; run go mod tidy there"; exit 1; }
done
versions() { awk '/^require/ {r = 1; next} /^\)/ {r = 0} r && NF >= 2 {print $1, $2}' "$1" | sort; }
for file in go.mod hack/tools/kwok/go.mod; do
  # kwok does not compile with the cri-api of the control plane.
  differ=$(join <(versions "$file") <(versions hack/tools/kubernetes/go.mod) | awk '$2 != $3 && $3 != "v0.0.0" && $1 != "k8s.io/cri-api"')
  if [ -n "$differ" ]; then
    echo "$file and hack/tools/kubernetes/go.mod select different versions; take the newer in both, or exclude kwok's:"
    echo "$differ"
    exit 1
  fi
done
