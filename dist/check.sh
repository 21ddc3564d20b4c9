#!/usr/bin/env bash
# check.sh ARCH...: checks the artifacts: static programs, sizes, image, package, signature, manifests.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
failed=0
fail() {
  echo "dist: $*" >&2
  failed=1
}
at_most() { # FILE BYTES
  local size
  size=$(stat --format=%s -- "$1")
  ((size <= $2)) || fail "$1 has $size bytes, at most $2 are allowed"
}
work=$(mktemp --directory)
trap 'rm -rf -- "$work"' EXIT

sha256sum --check --quiet SHA256SUMS || fail "a file differs from SHA256SUMS"
if [[ -f SHA256SUMS.sigstore.json ]]; then
  cosign verify-blob --key cosign.pub --insecure-ignore-tlog --bundle SHA256SUMS.sigstore.json SHA256SUMS ||
    fail "SHA256SUMS: the signature does not verify"
fi

for arch in "$@"; do
  for program in "$ROOT/target/dist/$arch/pleach"{,-engines}; do
    file=$(readelf --program-headers --dynamic "$program")
    [[ $file != *INTERP* && $file != *NEEDED* ]] || fail "$program is not static"
    for place in "$ROOT" "$HOME"; do
      ! grep --quiet --fixed-strings --text -- "$place" "$program" || fail "$program names the folder $place"
    done
  done
  at_most "$ROOT/target/dist/$arch/pleach" 35000000
  at_most "$ROOT/target/dist/$arch/pleach-engines" 42000000
  at_most "pleach-$VERSION-linux-$arch.tar.gz" $((30 << 20))
done
at_most pleach-image.oci.tar $((2 * (31 << 20)))

for name in pleach-image.oci.tar "pleach-$VERSION"-linux-*.tar.gz; do
  tar --list --file "$name" >/dev/null || fail "$name cannot be read"
done
# Installs and removes the package in an empty root.
if command -v dpkg >/dev/null && [[ $(id --user) == 0 && $(dpkg --print-architecture) == amd64 ]]; then
  root=$work/debian
  mkdir -p "$root"/var/lib/dpkg/{info,updates}
  touch "$root/var/lib/dpkg/status"
  dpkg --root="$root" --log=/dev/null --install "pleach_${VERSION#v}_amd64.deb" >/dev/null
  [[ $("$root/usr/bin/pleach" version) == "pleach ${RELEASE#v}" ]] || fail "the package has another program"
  [[ -x $root/usr/bin/pleach-engines ]] || fail "the package lacks pleach-engines"
  [[ -f $root/usr/share/bash-completion/completions/pleach ]] || fail "the package has no completion"
  dpkg --root="$root" --log=/dev/null --purge pleach >/dev/null
  [[ ! -e $root/usr/bin/pleach ]] || fail "the package leaves its program behind"
fi
! command -v ruby >/dev/null || ruby -c pleach.rb >/dev/null || fail "pleach.rb is no Ruby"

# The workflow of the guide, as people paste it.
awk '/^GitHub Actions/ { found = 1 } found && /^```yaml/ { inside = 1; next } inside && /^```/ { exit } inside' \
  ../docs/guides/preview-pull-requests.md >"$work/workflow.yaml"
[[ -s $work/workflow.yaml ]] || fail "the guide has no workflow"
actionlint "$work/workflow.yaml" || fail "the workflow of the guide is not valid"

# What a user would run: the program of the archive, alone in an empty root.
root=$work/root
mkdir -p "$root"
tar --extract --file "pleach-$VERSION-linux-amd64.tar.gz" --directory "$root" pleach
if [[ $(id --user) == 0 && $(uname --machine) == x86_64 ]]; then
  found=$(chroot --userspec=65532:65532 "$root" /pleach version)
  [[ $found == "pleach ${RELEASE#v}" ]] || fail "the program calls itself $found"
fi

exit "$failed"
