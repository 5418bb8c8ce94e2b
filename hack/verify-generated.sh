#!/usr/bin/env bash
# Fails if the generated or the copied files are not what update-generated.sh writes.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
files=(pkg/apis/config/v1/zz_generated.deepcopy.go manifests/crds/podgroup/podgroup-crd.yaml
  manifests/overlays/aks-observe/config.yaml manifests/components/monitoring-azure/{servicemonitor,reader}.yaml docs/metrics.md
  charts/pool-priority-scheduler/files/{serviceaccount,scheduler,scheduler-volumes,controller,write,karpenter,least-rights,tenants,return,coscheduling,viewer,override,network-policy,opt-in,flowschema,servicemonitor,reader,rules}.yaml
  charts/pool-priority-scheduler/files/released)
cp -r --parents go.mod go.sum pkg/apis pkg/compat manifests/base manifests/components manifests/crds manifests/overlays manifests/rbac charts docs/metrics.md hack/kubernetes/released "$copy"
rm "${files[@]/#/$copy/}"
cp docs/configuration.md "$copy/docs/" # only its tables are generated
files+=(docs/configuration.md)
hack/update-generated.sh "$copy"
for file in "${files[@]}"; do
  diff -u "$file" "$copy/$file" || { echo "$file is not up to date; run make generate"; exit 1; }
done
