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
  program=$ROOT/target/dist/$arch/pleach
  file=$(readelf --program-headers --dynamic "$program")
  [[ $file != *INTERP* && $file != *NEEDED* ]] || fail "$arch: the program is not static"
  at_most "$program" 35000000
  at_most "pleach-$VERSION-linux-$arch.tar.gz" $((15 << 20))
  for place in "$ROOT" "$HOME"; do
    ! grep --quiet --fixed-strings --text -- "$place" "$program" || fail "$arch: the program names the folder $place"
  done
done
at_most pleach-image.oci.tar $((2 * (16 << 20)))

for name in pleach-image.oci.tar "pleach-$VERSION"-linux-*.tar.gz; do
  tar --list --file "$name" >/dev/null || fail "$name cannot be read"
done
for file in pleach_*.deb; do
  mkdir -p "$work/deb"
  ! command -v dpkg-deb >/dev/null || dpkg-deb --extract "$file" "$work/deb"
done
! command -v ruby >/dev/null || ruby -c pleach.rb >/dev/null || fail "pleach.rb is no Ruby"
actionlint -color=false ../docs/guides/*.workflow.yaml 2>/dev/null || true

exit "$failed"
