#!/usr/bin/env bash
# Compares throughputs with scheduler_perf, Kubernetes' own benchmark. The variants take turns, each in its own process.
# A ratio is the median of the ratios of all rounds. Usage: bench-scheduler-perf.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3}
export PATH=$PWD/bin/tools:$PATH # etcd
binary=$PWD/bin/schedulerperf.test
hack/go-in.sh test/schedulerperf test -c -o "$binary" .
results=$(mktemp)
log=$(mktemp)
items=$(mktemp -d)
trap 'rm -rf "$results" "$log" "$items"' EXIT
variants=(default preferred hundred ours)
for size in 1000Nodes 5000Nodes; do
  for ((round = 0; round < rounds; round++)); do
    for ((i = 0; i < ${#variants[@]}; i++)); do
      variant=${variants[(i + round) % ${#variants[@]}]}
      (cd test/schedulerperf && "$binary" -test.run '^$' -test.benchtime 1x -test.timeout 15m -test.bench "PerfScheduling/^$variant\$/^$size\$" \
        -perf-scheduling-label-filter performance -data-items-dir "$items") > "$log" 2>&1 || { tail -30 "$log" && exit 1; }
      value=$(grep -o '[0-9.]* SchedulingThroughput/Average' "$log" | cut -d' ' -f1)
      [ -n "$value" ] || { echo "no throughput for $variant, $size:" && tail -30 "$log" && exit 1; }
      echo "$size $round $variant $value" | tee -a "$results" >&2
    done
  done
done
awk '
  function median(list, n,   sorted, i, j, t) {
    for (i = 1; i <= n; i++) sorted[i] = list[i]
    for (i = 1; i < n; i++) for (j = i + 1; j <= n; j++) if (sorted[j] < sorted[i]) { t = sorted[i]; sorted[i] = sorted[j]; sorted[j] = t }
    return sorted[int((n + 1) / 2)]
  }
  { value[$1, $2, $3] = $4; if ($2 + 1 > rounds) rounds = $2 + 1 }
  function row(size, against, target,   r, ratios, mine, theirs) {
    for (r = 0; r < rounds; r++) { mine[r + 1] = value[size, r, "ours"]; theirs[r + 1] = value[size, r, against]; ratios[r + 1] = mine[r + 1] / theirs[r + 1] }
    printf "%-10s %-10s %12.0f %12.0f %8.2f   %-6s %s\n", size, against, median(mine, rounds), median(theirs, rounds), median(ratios, rounds), \
      (target ? ">= " target : "-"), (target ? (median(ratios, rounds) >= target ? "ok" : "MISSED") : "")
  }
  END {
    printf "%-10s %-10s %12s %12s %8s   %s\n", "cluster", "against", "ours, pods/s", "theirs", "ratio", "target"
    row("1000Nodes", "default", 1.1); row("1000Nodes", "preferred", 0); row("1000Nodes", "hundred", 0)
    row("5000Nodes", "default", 1.5); row("5000Nodes", "preferred", 1.8); row("5000Nodes", "hundred", 0)
  }' "$results"
