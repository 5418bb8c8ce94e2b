#!/usr/bin/env bash
# Builds the binaries of the embedded cluster from Go modules into the directory given: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubectl and kwok. A stamp holds the modules' checksums. If they have not
# changed, nothing is built.
# Usage: build-tools.sh DIR [MINOR]. MINOR is the minor version of Kubernetes, by default hack/tools/kubernetes/go.mod's.
set -euo pipefail
: "${CGO_ENABLED:?is set by make: run make tools}"
out=$(realpath -m "$1")
cd "$(dirname "$0")/tools"
modules=$PWD/kubernetes/go
[ "${2:-1.35}" = 1.35 ] || modules=$(realpath ../kubernetes)/control-plane-$2
stamp=$(cat "$modules".{mod,sum} kwok/go.{mod,sum} "../$(basename "$0")" ../kubernetes-ldflags.sh <(go version) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
mkdir -p "$out"

ldflags=$(../kubernetes-ldflags.sh "$modules.mod")
build() { # NAME MODULE ARG ...: in the module's directory
  STEP_FILE=$out/$1 ../step.sh "build $1" ../go-in.sh "$2" build -o "$out/$1" "${@:3}"
}
echo "The control plane: 9 to 12 minutes the first time on 2 cores, most of them for etcd and kube-apiserver; seconds later."
export MODFILE=$modules.mod
build etcd kubernetes -ldflags "$ldflags" go.etcd.io/etcd/server/v3
for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  build $name kubernetes -ldflags "$ldflags" k8s.io/kubernetes/cmd/$name
done
unset MODFILE

# kwok makes a Node Ready before its cache has the lease that it has just created, and skips for ever a pod that is bound
# there meanwhile. It never tries again to write a status that the API server refused with most errors. In the copy of
# the module that the build uses, kwok holds the lease from the moment it is written, and tries again until the object is
# gone.
kwok=$(mktemp -d)
trap 'rm -rf "$kwok"' EXIT
cp -r "$(../module-dir.sh kwok sigs.k8s.io/kwok)/." "$kwok"
chmod -R u+w "$kwok"
leases=$kwok/pkg/kwok/controllers/node_lease_controller.go
sed -i -e '/^func (c \*NodeLeaseController) Held(/a if first, ok := c.holdLeaseSet.Load(name); ok \&\& !first { return true }' \
  -e 's/^\t*c\.onNodeManaged(nodeName)$/c.holdLeaseSet.Store(nodeName, false)\n&/' "$leases"
[ "$(grep -cE '!first \{|Store\(nodeName, false\)' "$leases")" = 4 ] || { echo "build-tools.sh: kwok's leases do not have the lines that they had" >&2; exit 1; }
retries=$kwok/pkg/kwok/controllers/utils.go
sed -i '/ignore all other cases/{n;s/return false/return !apierrors.IsNotFound(err)/}' "$retries"
[ "$(grep -c 'return !apierrors.IsNotFound(err)' "$retries")" = 1 ] || { echo "build-tools.sh: kwok's retries do not have the line that they had" >&2; exit 1; }
cp kwok/go.mod "$kwok/build.mod"
cp kwok/go.sum "$kwok/build.sum"
go mod edit -replace "sigs.k8s.io/kwok=$kwok" "$kwok/build.mod"
MODFILE=$kwok/build.mod build kwok kwok -ldflags "-s -w" sigs.k8s.io/kwok/cmd/kwok
# kwok has no built-in stages. Its module has files with the stages that make nodes and pods ready at once.
stages=$kwok/kustomize/stage
{
  printf 'apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions: {podPlayStageParallelism: 16, nodePlayStageParallelism: 4, nodeLeaseParallelism: 4}\n'
  for f in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do
    echo ---
    cat "$stages/$f.yaml"
  done
} > "$out/kwok-stages.yaml"
echo "$stamp" > "$out/.stamp"
