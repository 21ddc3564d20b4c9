#!/usr/bin/env bash
# pin.sh: writes controlplane/checksums for the versions of go.mod. It needs the
# internet, and compares with the checksums that the projects publish, where they do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

version_of() { # MODULE
  awk -v module="$1" '$1 == module && $2 ~ /^v[0-9]/ { print $2; exit }' go.mod
}
kubernetes=$(version_of k8s.io/kubernetes)
etcd=$(version_of go.etcd.io/etcd/server/v3)
kwok=$(version_of sigs.k8s.io/kwok)

new=$(mktemp)
file=$(mktemp)
trap 'rm -f -- "$new" "$file"' EXIT
sed -n '/^#/p' checksums >"$new"

pin() { # PROGRAM ARCH URL [PUBLISHED-CHECKSUM]
  local sum
  curl --fail --silent --show-error --location --output "$file" -- "$3"
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  [[ -z ${4:-} || $4 == "$sum" ]] || {
    echo "pin.sh: $3 differs from the checksum that its project publishes" >&2
    exit 1
  }
  echo "$sum $1 $2 $3" >>"$new"
}

for arch in amd64 arm64; do
  for program in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
    url=https://dl.k8s.io/$kubernetes/bin/linux/$arch/$program
    pin "$program" "$arch" "$url" "$(curl --fail --silent --show-error --location -- "$url.sha256")"
  done
  url=https://github.com/etcd-io/etcd/releases/download/$etcd
  name=etcd-$etcd-linux-$arch.tar.gz
  sum=$(curl --fail --silent --show-error --location -- "$url/SHA256SUMS" | awk -v name="$name" '$2 == name { print $1 }')
  pin etcd "$arch" "$url/$name" "${sum:?pin.sh: $url/SHA256SUMS does not list $name}"
  url=https://github.com/kubernetes-sigs/kwok/releases/download/$kwok
  pin kwok "$arch" "$url/kwok-linux-$arch"
done
mv -- "$new" checksums
