#!/usr/bin/env bash
# Builds the programs of the throw-away control plane into the user's cache:
#
#   ${XDG_CACHE_HOME:-~/.cache}/pleach/controlplane/VERSION/
#
# Does only what is missing. Every file appears whole or not at all, and of
# several builds at the same time one works while the others wait.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# go.mod is the one place that names the version.
version=$(sed -n 's|^\s*k8s\.io/kubernetes v\([0-9.]*\).*|\1|p' go.mod)
[[ $version =~ ^1\.([0-9]+)\.[0-9]+$ ]] || {
  echo "controlplane/go.mod names no version of k8s.io/kubernetes" >&2
  exit 1
}
minor=${BASH_REMATCH[1]}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pleach/controlplane
target=$cache/$version
programs=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok)
mkdir -p "$cache"

# Not inherited by children, so that a killed build frees the lock at once.
exec {lock}>"$cache/.lock"
flock --nonblock "$lock" || {
  echo "waiting for another build of the control plane"
  flock "$lock"
}

# What killed builds left; nobody else works here while the lock is held.
rm -rf -- "$cache"/.new-*
new=$cache/.new-$$
trap 'rm -rf -- "$new"' EXIT

is_complete() {
  local program
  for program in "${programs[@]}"; do
    [[ -x $target/$program ]] || return 1
  done
}

if ! is_complete; then
  echo "building Kubernetes $version, etcd and kwok into $target; this takes some minutes"
  mkdir -p "$new/bin"
  flags="-s -w -X k8s.io/component-base/version.gitVersion=v$version"
  flags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor"
  CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$new/bin/" \
    k8s.io/kubernetes/cmd/kube-apiserver \
    k8s.io/kubernetes/cmd/kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler \
    k8s.io/kubernetes/cmd/kubectl \
    go.etcd.io/etcd/server/v3 \
    sigs.k8s.io/kwok/cmd/kwok {lock}>&-
  mv "$new/bin/server" "$new/bin/etcd"
  if [[ -d $target ]]; then # incomplete, and perhaps with files of a user's
    mv -- "$new/bin"/* "$target/"
  else
    mv -- "$new/bin" "$target"
  fi
fi

# kwok has no stages of its own: nodes and pods do nothing without these.
mkdir -p "$new"
kwok=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
if [[ -z $kwok ]]; then
  go mod download sigs.k8s.io/kwok
  kwok=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
fi
for stage in node/fast/node-initialize node/heartbeat/node-heartbeat pod/fast/pod-{ready,complete,delete}; do
  cat "$kwok/kustomize/stage/$stage.yaml"
  echo "---"
done >"$new/kwok-stages.yaml"
cat stages/pod-crash.yaml >>"$new/kwok-stages.yaml"
if ! cmp --silent "$new/kwok-stages.yaml" "$target/kwok-stages.yaml"; then
  mv -- "$new/kwok-stages.yaml" "$target/kwok-stages.yaml"
fi
