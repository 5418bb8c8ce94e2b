#!/usr/bin/env bash
# Fails if go mod tidy would change a module, or if the scheduler and the control plane would be built from different
# versions of a module: they would then share nothing in the build cache.
set -euo pipefail
cd "$(dirname "$0")/.."
for dir in . test/karpenter test/schedulerperf test/monitoring test/upstream hack/tools/*/; do
  (cd "$dir" && go mod tidy -diff) || { echo "go.mod or go.sum in $dir is not tidy; run go mod tidy there"; exit 1; }
done
versions() { awk '/^require/ {r = 1; next} /^\)/ {r = 0} r && NF >= 2 {print $1, $2}' "$1" | sort; }
differ=$(join <(versions go.mod) <(versions hack/tools/kubernetes/go.mod) | awk '$2 != $3 && $3 != "v0.0.0"')
if [ -n "$differ" ]; then
  echo "go.mod and hack/tools/kubernetes/go.mod select different versions; take the newer in both:"
  echo "$differ"
  exit 1
fi
