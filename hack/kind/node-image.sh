#!/usr/bin/env bash
# Builds a node image for kind from Debian packages and Go modules, for machines that cannot reach an image registry. It
# does what the Dockerfile of kind's base image does, with the same files, which are in kind's module.
# hack/tools/kubernetes pins the version of Kubernetes. This needs root (for debootstrap) and Docker. An image that is
# up to date is left alone.
# Usage: node-image.sh IMAGE
set -euo pipefail
image=$1
self=$(realpath "$0")
cd "$(dirname "$0")/../.."
stamp=$(cat hack/tools/{kubernetes,kind}/go.sum hack/tools/kind/*/*.go "$self" | sha256sum | cut -d' ' -f1)
if [ "$(docker image inspect --format '{{.Config.Labels.stamp}}' "$image" 2> /dev/null)" = "$stamp" ]; then exit 0; fi
out=bin/kind
mkdir -p "$out"
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl; do ln -sf "../tools/$name" "$out/$name"; done
command -v debootstrap > /dev/null || hack/step.sh "install debootstrap" hack/kind/apt-install.sh debootstrap

hack/step.sh "build the control plane" hack/build-tools.sh bin/tools
hack/step.sh "build what nodes run" hack/go-in.sh hack/tools/kubernetes build -ldflags "$(hack/kubernetes-ldflags.sh)" -o "$PWD/$out/" \
  k8s.io/kubernetes/cmd/{kubelet,kubeadm,kube-proxy}
hack/step.sh "build pause, and a stand-in for crictl" hack/go-in.sh hack/tools/kind build -ldflags "-s -w" -o "$PWD/$out/" ./crictl ./pause

suite=bookworm # its containerd and its runc still support cgroup v1
base=local/kind-base:$suite
if ! docker image inspect "$base" > /dev/null 2>&1; then
  root=$(mktemp -d)
  packages=systemd,dbus,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,pigz,ca-certificates,curl,jq,procps
  hack/step.sh "debootstrap" bash -c "debootstrap --variant=minbase --include=$packages,containerd,runc,containernetworking-plugins $suite '$root' > '$out/debootstrap.log' 2>&1 || { tail -20 '$out/debootstrap.log'; exit 1; }"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}
  tar -C "$root" -c . | docker import - "$base" > /dev/null
  rm -rf "$root"
fi

version=$(hack/go-in.sh hack/tools/kubernetes list -m -f '{{.Version}}' k8s.io/kubernetes)
kind=$(hack/module-dir.sh hack/tools/kind sigs.k8s.io/kind)
files=$kind/images/base/files
container=$(docker run --detach --privileged --entrypoint sleep "$base" infinity)
trap 'docker rm --force --volumes "$container" > /dev/null' EXIT
within() { docker exec --interactive "$container" "$@"; }

# These commands copy kind's files and the binaries, then do what kind's Dockerfile does to a Debian image.
tar -C "$files" --owner=0 --group=0 --mode=u=rwX,go=rX -c etc kind usr | within tar -x
for name in kubelet kubeadm kubectl; do docker cp --follow-link "$out/$name" "$container:/usr/bin/$name" > /dev/null; done
docker cp "$out/crictl" "$container:/usr/local/bin/crictl" > /dev/null
names=$("$out/kubeadm" config images list --kubernetes-version "$version" 2> /dev/null)
named() { grep "/$1:" <<< "$names"; }
within sh -euc '
  chmod 755 /usr/local/bin/* /kind /kind/bin /kind/bin/*
  ln -s /usr/bin/containerd /usr/bin/ctr /usr/bin/containerd-shim-runc-v2 /usr/local/bin/
  mkdir -p /opt/cni/bin /etc/kubernetes/manifests /kind/manifests
  ln -s /usr/lib/cni/* /opt/cni/bin/
  find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
  rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* /lib/systemd/system/local-fs.target.wants/*
  rm -f /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/*
  echo ReadKMsg=no >> /etc/systemd/journald.conf
  ln -sf /usr/lib/systemd/systemd /sbin/init
  systemctl enable --quiet kubelet.service containerd.service undo-mount-hacks.service
  systemctl mask --quiet systemd-binfmt.service
  # On some machines no process may lower its oom_score_adj. The second change lets containerd start containers there.
  sed -i -e "s|sandbox_image = .*|sandbox_image = \"$1\"|" -e "s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/" /etc/containerd/config.toml
  ctr oci spec | jq ".hooks.createContainer += [{path: \"/kind/bin/mount-product-files.sh\"}] | del(.process.rlimits)" > /etc/containerd/cri-base.json
  printf %s "$2" > /kind/version
' sh "$(named pause)" "$version"

# The images of the control plane: each holds one binary and has the name that kubeadm expects. The image of kube-proxy
# also has iptables and nft, with the libraries that these and their extensions need.
stage=$(mktemp -d)
trap 'docker rm --force --volumes "$container" > /dev/null; rm -rf "$stage"' EXIT
binary() { # NAME FILE: stages an image of one binary
  mkdir -p "$stage/$1/usr/local/bin" "$stage/$1/tmp"
  cp --dereference "$2" "$stage/$1/usr/local/bin/"
}
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd; do binary "$name" "$out/$name"; done
binary pause "$out/pause"
within sh -euc '
  cd /
  files="$(ls usr/sbin/xtables-nft-multi usr/sbin/ip*tables* usr/sbin/nft usr/sbin/conntrack usr/lib/*/xtables/*.so)"
  libraries=$(ldd $files 2> /dev/null | grep -o "/[^ ]*\.so[^ ]* (0x" | sed "s,^/,,;s, (0x,," | sort -u)
  tar -ch $libraries $files
' | tar -C "$stage/kube-proxy" -x
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd pause; do
  tar -C "$stage/$name" --owner=0 --group=0 -c . |
    docker import --change 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin' --change "ENTRYPOINT [\"/usr/local/bin/$name\"]" - "$(named "$name")" > /dev/null
done
within sh -c 'containerd > /tmp/containerd.log 2>&1 &'
for _ in $(seq 50); do within ctr version > /dev/null 2>&1 && break; sleep 0.2; done
mapfile -t all < <(for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd pause; do named "$name"; done)
docker save "${all[@]}" | within ctr --namespace k8s.io images import --no-unpack - > /dev/null
within sh -c 'kill $(pidof containerd); while pidof containerd > /dev/null; do sleep 0.1; done; rm -f /tmp/containerd.log'
docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' --change 'ENV container=docker' --change "LABEL stamp=$stamp" "$container" "$image" > /dev/null
