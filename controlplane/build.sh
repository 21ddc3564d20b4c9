#!/usr/bin/env bash
# build.sh [nodes]: downloads or builds the programs of the throw-away control
# plane into the user's cache, and with `nodes` builds those of real nodes too:
#
#   ${XDG_CACHE_HOME:-~/.cache}/pleach/controlplane/VERSION/
#
# Programs are downloaded if controlplane/checksums pins them, unless
# CONTROLPLANE_BUILD is set. Does only what is missing. Every file appears whole or not at all, and of
# several builds at the same time one works while the others wait.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# go.mod and nodes/go.mod are the only places that name versions.
version_of() { # MODULE
  awk -v module="$1" '$1 == module && $2 ~ /^v[0-9]/ { print $2; exit }' go.mod nodes/go.mod
}
kubernetes=$(version_of k8s.io/kubernetes)
[[ $kubernetes =~ ^v1\.([0-9]+)\.[0-9]+$ ]] || {
  echo "controlplane/go.mod names no release of k8s.io/kubernetes" >&2
  exit 1
}
minor=${BASH_REMATCH[1]}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pleach/controlplane
target=$cache/${kubernetes#v}
mkdir -p "$cache"

# Closed for the long-running child below, so that a killed build frees the
# lock at once.
exec 9>"$cache/.lock"
flock --nonblock 9 || {
  echo "waiting for another build of the control plane"
  flock 9
}

# What killed builds left; nobody else works here while the lock is held.
rm -rf -- "$cache"/.new-*
new=$cache/.new-$$
trap 'rm -rf -- "$new"' EXIT
mkdir "$new"

is_pinned() { # PROGRAM
  [[ -s $target/$1.sha256 ]] &&
    grep --quiet "^$(<"$target/$1.sha256") $1 " checksums
}
has() { # PROGRAM MODULE
  [[ -x $target/$1 ]] || return
  is_pinned "$1" ||
    go version -m "$target/$1" | grep --fixed-strings "$2"$'\t'"$(version_of "$2")" >/dev/null
}
is_complete() {
  local program
  for program in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
    has "$program" k8s.io/kubernetes || return
  done
  has etcd go.etcd.io/etcd/server/v3 && has kwok sigs.k8s.io/kwok
}

# Moves programs into the cache.
install() {
  if [[ -d $target ]]; then # incomplete or of other versions
    rm -f -- "$target"/*.sha256
    mv -- "$new/bin"/* "$target/"
  else
    mv -- "$new/bin" "$target"
  fi
}

if ! is_complete && [[ -z ${CONTROLPLANE_BUILD:-} ]]; then
  status=0
  ./download.sh "$new/bin" 9>&- || status=$?
  case $status in
    0)
      install
      echo "downloaded Kubernetes $kubernetes, etcd and kwok into $target"
      ;;
    2) rm -rf -- "$new/bin" ;;
    *) exit 1 ;;
  esac
fi

flags="-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes"
flags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"

if ! is_complete; then
  command -v go >/dev/null || {
    echo "controlplane: the programs cannot be downloaded, and Go is not there to build them" >&2
    exit 1
  }
  echo "building Kubernetes $kubernetes, etcd and kwok into $target; this takes some minutes"
  mkdir "$new/bin"
  CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$new/bin/" \
    k8s.io/kubernetes/cmd/kube-apiserver \
    k8s.io/kubernetes/cmd/kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler \
    k8s.io/kubernetes/cmd/kubectl \
    go.etcd.io/etcd/server/v3 \
    sigs.k8s.io/kwok/cmd/kwok 9>&-
  mv -- "$new/bin/server" "$new/bin/etcd"
  install
fi

[[ ${1:-} == nodes ]] || exit 0

if ! has kubelet k8s.io/kubernetes; then
  echo "building the kubelet into $target; this takes a minute"
  CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$new/" k8s.io/kubernetes/cmd/kubelet 9>&-
  mv -- "$new/kubelet" "$target/"
fi

containerd=github.com/containerd/containerd/v2
if ! has containerd "$containerd" || ! has containerd-shim-runc-v2 "$containerd"; then
  echo "building containerd $(version_of "$containerd") into $target; this takes a minute"
  mkdir "$new/containerd"
  CGO_ENABLED=0 go build -C nodes -trimpath -ldflags '-s -w' \
    -tags no_aufs,no_btrfs,no_devmapper,no_zfs -o "$new/containerd/" \
    "$containerd/cmd/containerd" "$containerd/cmd/containerd-shim-runc-v2" 9>&-
  mv -- "$new/containerd"/* "$target/"
fi

# The program of test pods has no version.
CGO_ENABLED=0 go build -C nodes -trimpath -buildvcs=false -ldflags '-s -w' -o "$new/pod" ./pod 9>&-
cmp --silent "$new/pod" "$target/pod" || mv -- "$new/pod" "$target/pod"
