#!/usr/bin/env bash
# Builds Karpenter with its kwok provider from Go modules into the directory given, and copies its CRDs to
# karpenter-crds/ in it. A stamp holds the modules' checksums. If they have not changed, nothing is built.
# Usage: build-karpenter.sh DIR
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/tools/karpenter"
stamp=$(cat go.mod go.sum "../../$(basename "$0")" <(go version) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/.karpenter-stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
mkdir -p "$out/karpenter-crds"
echo "Building Karpenter $(../../go-in.sh . list -m -f '{{.Version}}' sigs.k8s.io/karpenter) from Go modules: about 2 minutes on 2 cores the first time." >&2
module=$(../../module-dir.sh . sigs.k8s.io/karpenter)

# The build uses a copy of the module with three changes. Karpenter serves its metrics and probes on all interfaces, and
# no flag changes that: the copy serves them on loopback only. The VMs of the kwok provider report their pods' requests
# as their capacity, so a NodePool would never reach its limits: in the copy they report their size, as real VMs do. The
# kwok provider creates the node after it has answered, so the VM never comes if Karpenter ends in between. A cloud's VM
# comes all the same: in the copy, the provider creates the node before it answers.
copy=$out/karpenter-source
rm -rf "$copy"
cp -r "$module" "$copy"
chmod -R u+w "$copy"
sed -i 's/Sprintf(":%d"/Sprintf("127.0.0.1:%d"/' "$copy/pkg/operator/operator.go"
[ "$(grep -c '"127.0.0.1:%d"' "$copy/pkg/operator/operator.go")" = 2 ] || { echo "build-karpenter.sh: operator.go does not have the two addresses that it had" >&2; exit 1; }
sed -i 's/Capacity:    nodeClaim.Spec.Resources.Requests,/Capacity:    instanceType.Capacity,/' "$copy/kwok/cloudprovider/cloudprovider.go"
[ "$(grep -c 'instanceType.Capacity,' "$copy/kwok/cloudprovider/cloudprovider.go")" = 1 ] || { echo "build-karpenter.sh: cloudprovider.go does not have the capacity that it had" >&2; exit 1; }
sed -i 's/^\tgo func() {$/\tfunc() {/' "$copy/kwok/cloudprovider/cloudprovider.go"
grep -A1 '^'$'\t''func() {$' "$copy/kwok/cloudprovider/cloudprovider.go" | grep -q 'time.Sleep(' || { echo "build-karpenter.sh: cloudprovider.go does not create the node in a goroutine any more" >&2; exit 1; }
cp go.mod "$copy/build.mod"
cp go.sum "$copy/build.sum"
go mod edit -replace "sigs.k8s.io/karpenter=$copy" "$copy/build.mod"
MODFILE=$copy/build.mod ../../go-in.sh . build -ldflags "-s -w" -o "$out/karpenter" sigs.k8s.io/karpenter/kwok
cp "$copy"/pkg/apis/crds/*.yaml "$copy"/kwok/apis/crds/*.yaml "$out/karpenter-crds/"
rm -rf "$copy"
echo "$stamp" > "$out/.karpenter-stamp"
