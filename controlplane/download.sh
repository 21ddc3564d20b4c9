#!/usr/bin/env bash
# download.sh FOLDER: downloads the programs of the throw-away control plane that
# controlplane/checksums pins for the versions of go.mod and this architecture.
#
# CONTROLPLANE_URL replaces scheme and host of every address, for a mirror.
# Exits with 1 if a file differs from its checksum, and with 2 if there is
# nothing to download or no way to.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
folder=$1

case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64) arch=arm64 ;;
  *) exit 2 ;;
esac
command -v curl >/dev/null || exit 2

# What is downloaded, and the module whose version its address contains.
programs="kube-apiserver kube-controller-manager kube-scheduler kubectl etcd kwok"
module_of() { # PROGRAM
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kwok) echo sigs.k8s.io/kwok ;;
    *) echo k8s.io/kubernetes ;;
  esac
}

# Prints checksum and address of a program. Fails if none is pinned.
pin_of() { # PROGRAM
  local version
  version=$(awk -v module="$(module_of "$1")" '$1 == module && $2 ~ /^v[0-9]/ { print $2; exit }' go.mod)
  awk -v program="$1" -v arch="$arch" -v version="/$version/" '
    $2 == program && $3 == arch && index($4, version) { print $1, $4; found = 1; exit }
    END { exit !found }' checksums
}

for program in $programs; do
  pin_of "$program" >/dev/null || exit 2
done

mkdir -p "$folder"
file=$folder/.download
trap 'rm -f -- "$file"' EXIT
downloaded=
for program in $programs; do
  read -r sum url < <(pin_of "$program")
  [[ -z ${CONTROLPLANE_URL:-} ]] || url=${CONTROLPLANE_URL%/}/${url#*://*/}
  # One archive can contain several programs.
  [[ $url == "$downloaded" ]] ||
    curl --fail --silent --show-error --location --connect-timeout 10 --speed-time 30 --speed-limit 1024 \
      --output "$file" -- "$url" || exit 2
  downloaded=$url
  printf '%s  %s\n' "$sum" "$file" | "sha$((${#sum} * 4))sum" --check --status || {
    echo "controlplane: $url differs from its checksum in controlplane/checksums" >&2
    exit 1
  }
  if [[ $url == *.tar.gz ]]; then
    tar --extract --gzip --file "$file" --to-stdout --wildcards "*/$program" >"$folder/$program"
  else
    mv -- "$file" "$folder/$program"
  fi
  chmod +x "$folder/$program"
  # The same checksum shows later that this is the pinned program.
  echo "$sum" >"$folder/$program.sha256"
done
