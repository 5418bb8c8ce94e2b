#!/usr/bin/env bash
# Writes the generated and the copied files anew. Usage: update-generated.sh [DIR], a copy of the tree to write into.
set -euo pipefail
cd "$(dirname "$0")/.."
lint=$PWD/bin/lint
plugins=$(hack/module-dir.sh . sigs.k8s.io/scheduler-plugins)
go build -o "$lint/" ./hack/metricsdoc ./hack/configdoc
cd "${1:-.}"
"$lint/metricsdoc" > docs/metrics.md
"$lint/configdoc" # the tables in docs/configuration.md
"$lint/deepcopy-gen" --go-header-file /dev/null --output-file zz_generated.deepcopy.go ./pkg/apis/config/v1
install -m 644 "$plugins/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml" manifests/crds/podgroup/podgroup-crd.yaml
# The chart's roles are those of the manifests.
for name in serviceaccount scheduler scheduler-volumes events controller write; do
  install -m 644 manifests/rbac/$name.yaml charts/pool-priority-scheduler/files/$name.yaml
done
for name in karpenter return coscheduling viewer override; do
  install -m 644 manifests/components/$name/rbac.yaml charts/pool-priority-scheduler/files/$name.yaml
done
for name in least-rights tenants; do
  install -m 644 manifests/components/$name/policy.yaml charts/pool-priority-scheduler/files/$name.yaml
done
install -m 644 manifests/components/network-policy/networkpolicy.yaml charts/pool-priority-scheduler/files/network-policy.yaml
install -m 644 manifests/components/opt-in/policy.yaml charts/pool-priority-scheduler/files/opt-in.yaml
install -m 644 manifests/base/flowschema.yaml charts/pool-priority-scheduler/files/
install -m 644 hack/kubernetes/released charts/pool-priority-scheduler/files/
# The chart's monitoring and alerts are those of the manifests, too. The ServiceMonitor of Azure is the same in another
# API group.
install -m 644 manifests/components/monitoring/{servicemonitor,reader}.yaml manifests/components/alerts/rules.yaml charts/pool-priority-scheduler/files/
install -m 644 manifests/components/monitoring/reader.yaml manifests/components/monitoring-azure/
sed -e '1i # Generated from ../monitoring/servicemonitor.yaml.' -e 's/monitoring.coreos.com/azmonitoring.coreos.com/' \
  manifests/components/monitoring/servicemonitor.yaml > manifests/components/monitoring-azure/servicemonitor.yaml
# The overlay aks-observe is the overlay aks with one more line: mode: Observe.
sed -e '1i # Generated from ../aks/config.yaml: the same pools, but nothing is held back.' \
  -e 's/^      pools: .*/      mode: Observe                         # decides, logs and counts; holds nothing, sets no gate taint\n&/' \
  manifests/overlays/aks/config.yaml > manifests/overlays/aks-observe/config.yaml
