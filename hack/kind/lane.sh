#!/usr/bin/env bash
# Runs the end-to-end tests: builds the images, creates the kind cluster, runs the tests on it and deletes it. If they
# fail, the logs are in bin/kind/logs. This needs a Docker engine (engine.sh) and the binaries in bin/ and bin/tools/.
# With two releases it builds no image, and runs only the test that installs the first one and upgrades to the second.
# Usage: lane.sh NODE-IMAGE LOCAL-NODE-IMAGE [RELEASE NEXT-RELEASE] (make kind-node-image builds the second)
set -euo pipefail
cd "$(dirname "$0")/../.."
node_image=$1
release=${3:+$(realpath "$3")}
next=${4:+$(realpath "$4")}
docker image inspect "$node_image" > /dev/null 2>&1 || docker pull --quiet "$node_image" || {
  echo "There is no node image $node_image here, and it cannot be pulled. Set KIND_NODE_IMAGE to one of Kubernetes 1.35, or build one, as root:" >&2
  echo "  make kind-node-image && make test-e2e KIND_NODE_IMAGE=$2" >&2
  exit 1
}
out=bin/kind
mkdir -p "$out/image"
hack/go-in.sh hack/tools/kind build -ldflags "-s -w" -o "$PWD/$out/" tool

rm -rf "$out/logs"
hack/kind/cluster.sh delete > /dev/null 2>&1 || true # a killed run may have left one
trap 'wait; hack/step.sh "delete the kind cluster" hack/kind/cluster.sh delete > /dev/null 2>&1 || true' EXIT
trap 'exit 143' TERM INT
failed() {
  hack/kind/cluster.sh logs "$out/logs" || true
  echo "the logs are in $out/logs"
  exit 1
}
# The cluster gets ready while the images are built.
hack/step.sh "create the kind cluster" hack/kind/cluster.sh create "$node_image" &
creating=$!
hack/go-in.sh hack/tools/kind build -ldflags "-s -w" -o "$PWD/$out/image/" ./pause
go build -ldflags "-s -w" -o "$out/image/agent" ./test/e2e/image
if [ -z "$release" ]; then
  hack/step.sh "build the image" make --no-print-directory image IMAGE=localhost/pool-priority-scheduler VERSION=e2e
fi
hack/step.sh "build the tests' image" docker build --quiet --file test/e2e/image/Dockerfile --tag pool-priority-e2e:e2e "$out/image"
wait "$creating" || failed
images=(pool-priority-e2e:e2e)
[ -n "$release" ] || images+=(localhost/pool-priority-scheduler:e2e)
hack/step.sh "load the images" hack/kind/cluster.sh load "${images[@]}" || failed
test=(-run .)
if [ -n "$release" ]; then
  hack/step.sh "load the releases' images" hack/kind/cluster.sh import "$release/oci/kubernetes1.35" "$next/oci/kubernetes1.35" || failed
  test=(-run '^TestRelease$' -release "$release" -next "$next")
fi
hack/step.sh "end-to-end tests" hack/go-test.sh -count=1 -timeout 20m ./test/e2e -v "${test[@]}" -kubeconfig "$PWD/$out/kubeconfig" -bin "$PWD/bin" -logs "$PWD/$out/logs/ours" || failed
