#!/usr/bin/env bash
# Prints a table of the times that step.sh wrote to the file. It has a line for each step, and below it a line for each
# step within it. The times of steps that ran beside one another overlap.
# Usage: steps.sh FILE
set -euo pipefail
sort -n "$1" | awk '
  function show(id, depth,   i, n, list) {
    if (id in name) printf "%6d s  %11d s  %*s%s%s\n", wall[id], cpu[id], 2 * depth, "", name[id], (code[id] ? ": FAILED" : "")
    n = split(children[id], list, " ")
    for (i = 1; i <= n; i++) show(list[i], (id in name) ? depth + 1 : depth)
  }
  BEGIN { printf "%8s  %13s  %s\n", "wall", "user+system", "step" }
  {
    id = $2; children[$3] = children[$3] " " id; wall[id] = $4; cpu[id] = $5; code[id] = $6
    $1 = $2 = $3 = $4 = $5 = $6 = ""; sub(/^ +/, ""); name[id] = $0; parent[id] = 1
  }
  END { show(0, 0) }'
