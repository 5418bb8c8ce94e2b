#!/usr/bin/env bash
# Checks on an AKS cluster, with the scheduler installed, what docs/limits.md assumes about AKS, and writes a report with
# yes, no or "not seen" for each assumption. It needs bash 4, kubectl and kubectl-pools. By default it only reads, for two minutes. With --play it fills the pools in
# a namespace of its own, for at most 45 minutes: it says first what that may cost, and cleans up in the end.
# Usage: conformance.sh [--aks FILE] [--quota FILE] [--status NAMESPACE/NAME] [--for SECONDS] [--play] [--yes] [REPORT]
set -euo pipefail

aks=() status=pool-priority-system/pool-priority-status watch=120 play= yes= report=
while [ $# -gt 0 ]; do
  case $1 in
    --aks | --quota) aks+=("$1" "$2"); shift ;;
    --status) status=$2; shift ;;
    --for) watch=$2; shift ;;
    --play) play=1 ;;
    --yes) yes=1 ;;
    -*) sed -n '2,5s/^# //p' "$0"; exit 2 ;;
    *) report=$1 ;;
  esac
  shift
done
report=${report:-aks-conformance-$(date -u +%Y%m%d-%H%M%S).txt}
namespace=pool-priority-conformance
pools() { kubectl pools "$@" --status="$status"; }
command -v kubectl-pools > /dev/null || { echo "conformance.sh: put kubectl-pools on the PATH: make build makes bin/kubectl-pools" >&2; exit 2; }
pools -o name > /dev/null || { echo "conformance.sh: there is no running scheduler to check" >&2; exit 2; }

say() { printf '%s\n' "$*" | tee -a "$report"; }
no=0
answer() { # NUMBER yes|no|"not seen" TEXT
  [ "$2" != no ] || no=$((no + 1))
  say "$(printf 'A%-3s %-9s %s' "$1" "$2" "$3")"
}
is() { # NUMBER TEXT COMMAND ...: yes if the command succeeds
  local number=$1 text=$2
  shift 2
  if "$@" > /dev/null; then answer "$number" yes "$text"; else answer "$number" no "$text"; fi
}
# Each prints a line for each node: "=" and the value at the JSONPATH.
nodes() { kubectl get nodes -o jsonpath="{range .items[*]}=$1{'\n'}{end}"; }
vms() { kubectl get nodes -l 'type!=virtual-kubelet' -o jsonpath="{range .items[*]}=$1{'\n'}{end}"; }
autoscaler() { kubectl -n kube-system get configmap cluster-autoscaler-status -o jsonpath="$1" 2> /dev/null || true; }
groups() { autoscaler '{.data.status}' | sed -nE 's/^ *(- )?name: *//p'; }

: > "$report"
say "Kubernetes $(kubectl get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p'), $(pools version | tr '\n' ' ')"
say "$(date -u +%FT%TZ), $(nodes '{.metadata.name}' | wc -l) nodes"

# lint prints what it finds. Its exit status is 1 for errors, which the report has.
say "" "$(pools lint "${aks[@]}" 2>&1 || true)" ""

every() { # every line of the input matches the pattern, and there is a line
  local lines
  lines=$(cat)
  [ -n "$lines" ] && ! grep -qvE "$1" <<< "$lines"
}
has_mode() { vms '{.metadata.labels.kubernetes\.azure\.com/mode}' | every '^=(user|system)$'; }
has_pool() { vms '{.metadata.labels.kubernetes\.azure\.com/agentpool}' | every '^=.'; }
has_scale_set() { vms '{.spec.providerID}' | every '/virtualMachine(ScaleSets|s)/'; }
are_groups() { # each group is the scale set of nodes, has a name of that form, or is POOL/SIZE
  local sets group
  sets=$(vms '{.spec.providerID}' | sed -n 's|.*/virtualMachineScaleSets/\([^/]*\)/.*|\1|p' | sort -u)
  groups | grep -q . || return 1
  while read -r group; do
    grep -qixF "$group" <<< "$sets" || grep -qE '^aks-.*-vmss$|/' <<< "$group" || return 1
  done <<< "$(groups)"
}
is 1 "VMs have the label kubernetes.azure.com/mode, user or system" has_mode
is 2 "VMs have the label kubernetes.azure.com/agentpool" has_pool
is 3 "the providerID of VMs names their scale set" has_scale_set
virtual=$(kubectl get nodes -l type=virtual-kubelet -o jsonpath='{.items[*].metadata.name}')
taints() { kubectl get nodes -l type=virtual-kubelet -o jsonpath="{range .items[*]}={.spec.taints[*].key}{'\n'}{end}"; }
if [ -n "$virtual" ]; then
  is 4 "virtual nodes ($virtual) have the label type=virtual-kubelet and the taint virtual-kubelet.io/provider" every '[= ]virtual-kubelet\.io/provider( |$)' < <(taints)
else
  answer 4 "not seen" "virtual nodes have the label type=virtual-kubelet and the taint virtual-kubelet.io/provider"
fi

before=$(autoscaler '{.metadata.annotations.cluster-autoscaler\.kubernetes\.io/last-updated}')
[ -n "$before" ] || before=$(autoscaler '{.data.status}' | sed -n 's/^time: *//p')
gated=yes
for ((i = 0; i == 0 || i < watch; i += 5)); do
  if now=$(taints); then # a request that fails says nothing
    every '[= ]poolpriority\.dev/gate( |$)' <<< "$now" || gated=no
  fi
  sleep 5
done
after=$(autoscaler '{.metadata.annotations.cluster-autoscaler\.kubernetes\.io/last-updated}')
[ -n "$after" ] || after=$(autoscaler '{.data.status}' | sed -n 's/^time: *//p')
if [ -n "$after" ]; then
  is 5 "the autoscaler's status is kube-system/cluster-autoscaler-status, and is written all the time" [ "$before" != "$after" ]
  is 6 "node groups have the names of scale sets, or POOL/SIZE" are_groups
else
  answer 5 "not seen" "the autoscaler's status is kube-system/cluster-autoscaler-status"
  answer 6 "not seen" "node groups have the names of scale sets, or POOL/SIZE"
fi
if [ -n "$virtual" ]; then
  answer 7 $gated "the controller may set the gate taint, and nothing removes it for $watch s"
else
  answer 7 "not seen" "the controller may set the gate taint, and nothing removes it"
fi

# play fills the pools with pods of 1 CPU, and empties them again.
where() { kubectl -n $namespace get pods -l app=fill -o jsonpath="{range .items[*]}{.metadata.annotations.poolpriority\.dev/pool} {.status.phase}{'\n'}{end}"; }
count() { where | grep -cE "$1" || true; }
until_() { # SECONDS COMMAND ...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 5
  done
}
# Each is asked until it is true.
settled() { [ "$(count ' Running$')" = $replicas ]; }
bursting() { [ "$(count "^$last ")" -gt 0 ]; }
burst() { [ "$(count "^$last Running")" -gt 0 ]; }
left() { [ "$(count .)" = $replicas ] && [ "$(count "^$last ")" = 0 ]; }
if [ -n "$play" ]; then
  names=$(pools -o name | sed 's|^pool/||')
  last=$(tail -1 <<< "$names")
  say "" "$(pools)" ""
  echo "This adds VMs up to the maxima of the pools above, and then 2 container groups of 1 CPU in $last, for at most 45 minutes."
  if [ -z "$yes" ]; then
    read -rp "Type yes to go on: " yes
    [ "$yes" = yes ] || exit 2
  fi
  trap 'kubectl delete namespace $namespace --ignore-not-found --wait=false > /dev/null' EXIT
  trap 'exit 130' INT TERM
  kubectl create namespace $namespace > /dev/null
  kubectl label namespace $namespace poolpriority.dev/burst=Allowed > /dev/null
  scheduler=$(pools status -o json | sed -n 's/.*"schedulerName": *"\([^"]*\)".*/\1/p' | head -1)
  kubectl -n $namespace create deployment fill --image=mcr.microsoft.com/oss/kubernetes/pause:3.6 --replicas=1 --dry-run=client -o yaml |
    sed "s/^    spec:/    spec:\n      schedulerName: ${scheduler:-pool-priority-scheduler}/; s/resources: {}/resources: {requests: {cpu: '1', memory: 1Gi}, limits: {cpu: '1', memory: 1Gi}}/" | kubectl -n $namespace create -f - > /dev/null
  vms_before=$(vms x | wc -l) deadline=$((SECONDS + 2400)) replicas=1 grew=
  while ! bursting && [ $SECONDS -lt $deadline ]; do # one more, as long as the VMs take all
    if settled; then
      replicas=$((replicas + 1))
      kubectl -n $namespace scale deployment fill --replicas=$replicas > /dev/null
    fi
    [ "$(vms x | wc -l)" -le "$vms_before" ] || grew=1
    sleep 5
  done
  say "" "$(pools)" "" "$replicas pods: $(where | sort | uniq -c | tr '\n' ';')"
  if [ -n "$grew" ]; then answer 8 yes "pods that wait make the autoscaler add VMs beside a virtual node with room"; else answer 8 "not seen" "pods that wait make the autoscaler add VMs (were the pools at their maxima?)"; fi
  if bursting; then
    is 9 "when no pool can grow, a pod runs on a virtual node" until_ 300 burst
    replicas=$((replicas + 1))
    kubectl -n $namespace scale deployment fill --replicas=$replicas > /dev/null
    until_ 300 settled || true
    # A VM pod that is newer than those on the virtual node: by age alone, it would go first.
    kubectl -n $namespace delete "$(kubectl -n $namespace get pods -l app=fill -o name --sort-by=.metadata.creationTimestamp | head -1)" > /dev/null
    until_ 300 settled || true
    replicas=$((replicas - $(count "^$last ")))
    kubectl -n $namespace scale deployment fill --replicas=$replicas > /dev/null
    is 10 "when the workload shrinks, its pods on virtual nodes go first" until_ 300 left
  else
    answer 9 "not seen" "when no pool can grow, a pod runs on a virtual node (40 minutes were too short)"
    answer 10 "not seen" "when the workload shrinks, its pods on virtual nodes go first"
  fi
  say "" "$(kubectl pools -o wide --status="$status" 2>&1 || true)"
else
  for i in "8 pods that wait make the autoscaler add VMs beside a virtual node with room" "9 when no pool can grow, a pod runs on a virtual node" "10 when the workload shrinks, its pods on virtual nodes go first"; do
    answer "${i%% *}" "not seen" "${i#* } (--play)"
  done
fi
say "" "$no of 10 assumptions do not hold."
echo "The report is $report." >&2
[ $no = 0 ]
