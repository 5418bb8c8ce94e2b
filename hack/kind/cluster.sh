#!/usr/bin/env bash
# Makes the kind cluster of test/e2e, loads images into it, or deletes it. Needs a Docker engine (engine.sh).
# Usage: cluster.sh create NODE-IMAGE | load IMAGE ... | import OCI-LAYOUT ... | logs DIR | delete
set -euo pipefail
cd "$(dirname "$0")/../.."
name=pool-priority-e2e
kubeconfig=$PWD/bin/kind/kubeconfig
kind=bin/kind/kind

create() {
  node_image=$1
  # Nodes become ready only after their CNI configuration is written below, so kind cannot wait for them.
  "$kind" create cluster --name "$name" --config test/e2e/kind.yaml --image "$node_image" --kubeconfig "$kubeconfig" --wait 0
  export KUBECONFIG=$kubeconfig
  nodes=$("$kind" get nodes --name "$name")
  want=$(wc -l <<< "$nodes")
  for _ in $(seq 300); do
    pods=$(bin/tools/kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' | awk 'NF == 3')
    [ "$(wc -l <<< "$pods")" = "$want" ] && break
    sleep 0.2
  done
  # The pods of each node have their own network. Each node gets routes to the networks of the other nodes.
  while read -r node cidr _; do
    docker exec --interactive "$node" sh -euc 'mkdir -p /etc/cni/net.d && cat > /etc/cni/net.d/10-pods.conflist' << END
{"cniVersion": "0.3.1", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "$cidr"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
    awk -v self="$node" '$1 != self {print "ip route replace " $2 " via " $3}' <<< "$pods" | docker exec --interactive "$node" sh -eu
  done <<< "$pods"
  # As on AKS, kube-proxy does not run on the virtual node.
  bin/tools/kubectl --namespace kube-system patch daemonset kube-proxy --patch '{"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}]}]}}}}}}}' > /dev/null
  bin/tools/kubectl wait --for=condition=Ready --timeout=120s nodes --all > /dev/null
}

# import gives the nodes the image of each OCI layout, under its name and digest, as if they had pulled it.
import() {
  archive=$(mktemp)
  for layout in "$@"; do
    read -r image digest < <(jq -r '.manifests[0] | .annotations["io.containerd.image.name"] + " " + .digest' "$layout/index.json")
    tar -C "$layout" -cf "$archive" .
    "$kind" load image-archive --name "$name" "$archive"
    for node in $("$kind" get nodes --name "$name"); do
      docker exec "$node" ctr --namespace=k8s.io images tag --force "$image" "${image%:*}@$digest" > /dev/null
    done
  done
  rm "$archive"
}

case $1 in
create) create "$2" ;;
load) shift && said=$("$kind" load docker-image --name "$name" "$@" 2>&1) || { echo "$said" && exit 1; } ;;
import) shift && import "$@" ;;
logs) "$kind" export logs --name "$name" "$2" > /dev/null ;;
delete) "$kind" delete cluster --name "$name" --kubeconfig "$kubeconfig" ;;
*) echo "usage: $0 create NODE-IMAGE | load IMAGE ... | import OCI-LAYOUT ... | logs DIR | delete" >&2 && exit 2 ;;
esac
