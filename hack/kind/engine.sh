#!/usr/bin/env bash
# Runs a command with a Docker engine: the one that answers, or else an engine of its own. This script starts its own
# engine as root from Debian's docker.io, and stops it when the command ends. The engine's images stay in
# bin/kind/engine.
# Usage: engine.sh COMMAND [ARG ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
if docker info > /dev/null 2>&1; then exec "$@"; fi
if [ "$(id -u)" != 0 ]; then
  echo "no Docker engine answers (docker info), and only root can start one: start Docker, or set DOCKER_HOST" >&2
  exit 1
fi
for command in dockerd iptables jq; do
  command -v $command > /dev/null || { hack/step.sh "install Docker" hack/kind/apt-install.sh docker.io iptables jq && break; }
done
dir=$PWD/bin/kind/engine
run=$(mktemp -d) # the path of a socket must be short
mkdir -p "$dir"
export DOCKER_HOST=unix://$run/docker.sock
setsid dockerd --data-root "$dir" --exec-root "$run/exec" --pidfile "$run/docker.pid" --host "$DOCKER_HOST" \
  --add-runtime "plain=$PWD/hack/kind/runtime.sh" --default-runtime plain > bin/kind/engine.log 2>&1 &
engine=$!
stop() {
  kill "$engine" 2> /dev/null && wait "$engine" || true
  rm -rf "$run" 2> /dev/null || true
}
trap stop EXIT
trap 'exit 143' TERM INT
for _ in $(seq 150); do
  docker info > /dev/null 2>&1 && break
  kill -0 "$engine" 2> /dev/null || { tail -5 bin/kind/engine.log >&2; echo "the Docker engine has ended: bin/kind/engine.log" >&2; exit 1; }
  sleep 0.2
done
"$@" &
wait $!
