#!/usr/bin/env bash
# Fails if go mod tidy would change a module, if the module files name different toolchains, or if Dependabot's list is
# not the list of modules. It also fails if the scheduler, kwok and the control plane would be built from different
# versions of a module: they would then share nothing in the build cache.
set -euo pipefail
cd "$(dirname "$0")/.."
toolchain=$(grep '^toolchain ' go.mod)
# check DIR MODFILE: whether the module file, with its checksums, is tidy for the module in the directory.
check() {
  MODFILE=$PWD/$2 hack/go-in.sh "$1" mod tidy -diff || { echo "$2 or its checksums are not tidy; run in $1: go mod tidy -modfile=$(realpath --relative-to="$1" "$2")"; exit 1; }
  grep -qx "$toolchain" "$2" || { echo "$2 lacks the line of go.mod: $toolchain"; exit 1; }
}
modules=$(git ls-files --cached --others --exclude-standard go.mod '**/go.mod')
for file in $modules; do
  check "$(dirname "$file")" "$file"
done
diff <(sed 's#^#/#; s#/go.mod$##; s#^$#/#' <<< "$modules" | sort) <(sed -n 's#^  - /#/#p' .github/dependabot.yml | sort) ||
  { echo ".github/dependabot.yml (right) does not list the modules (left)"; exit 1; }
for file in hack/kubernetes/*.mod; do
  case $file in */control-plane-*) check hack/tools/kubernetes "$file" ;; *) check . "$file" ;; esac
done
for file in test/upstream/1.*.mod; do
  check test/upstream "$file"
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
