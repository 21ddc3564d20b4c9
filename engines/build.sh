#!/usr/bin/env bash
# build.sh [FILE]: builds pleach-engines, by default as target/engines/pleach-engines.
# build.sh tools: builds age-keygen, helm, sops, kustomize, crane, cosign, the registry of
# distribution and a program on the library of Flux, which tests compare with,
# into the user's cache:
#
#   ${XDG_CACHE_HOME:-~/.cache}/pleach/referees/
#
# The programs are static and appear whole or not at all. Referees are built only if they are
# missing or of other versions, and of several builds at the same time one works while the others
# wait.
set -euo pipefail

# A relative FILE belongs to the folder of the caller.
output=${1:+$(realpath --canonicalize-missing -- "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")"
output=${output:-$(realpath --canonicalize-missing ../target/engines/pleach-engines)}

command -v go >/dev/null || {
  echo "engines: Go is not there to build the programs" >&2
  exit 1
}

# A workspace or vendored modules of the user would change the versions.
export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=readonly"

if [[ ${1:-} != tools ]]; then
  mkdir -p "$(dirname "$output")"
  new=$(dirname "$output")/.new-$$
  trap 'rm -f -- "$new"' EXIT
  go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$(<VERSION)" -o "$new" .
  mv -- "$new" "$output"
  exit 0
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pleach/referees
mkdir -p "$cache"
cd referees

# Closed for the long-running child below, so that a killed build frees the lock at once.
exec 9>"$cache/.lock"
flock --nonblock 9 || {
  echo "waiting for another build of the referees"
  flock 9
}
rm -rf -- "$cache"/.new-*
new=$cache/.new-$$
trap 'rm -rf -- "$new"' EXIT
mkdir "$new"

# The files go.mod are the only places that name versions.
version_of() { # MODULE
  awk -v module="$1" '$1 == "require" { $0 = substr($0, index($0, $2)) } $1 == module && $2 ~ /^v[0-9]/ { print $2; exit }' go.mod
}
build() { # PROGRAM MODULE PACKAGE
  if [[ -x $cache/$1 ]] && go version -m "$cache/$1" | grep --fixed-strings "$2"$'\t'"$(version_of "$2")" >/dev/null; then
    return
  fi
  echo "building $1 $(version_of "$2") into $cache; this takes some minutes"
  go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$new/$1" "$3" 9>&-
  mv -- "$new/$1" "$cache/$1"
}
build age-keygen filippo.io/age filippo.io/age/cmd/age-keygen
build helm helm.sh/helm/v4 helm.sh/helm/v4/cmd/helm
build sops github.com/getsops/sops/v3 github.com/getsops/sops/v3/cmd/sops
build kustomize sigs.k8s.io/kustomize/kustomize/v5 sigs.k8s.io/kustomize/kustomize/v5
build crane github.com/google/go-containerregistry github.com/google/go-containerregistry/cmd/crane
build cosign github.com/sigstore/cosign/v3 github.com/sigstore/cosign/v3/cmd/cosign
cd oci
[[ ! flux/main.go -nt $cache/flux ]] || rm -f -- "$cache/flux"
build registry github.com/distribution/distribution/v3 github.com/distribution/distribution/v3/cmd/registry
build flux github.com/fluxcd/pkg/oci ./flux
