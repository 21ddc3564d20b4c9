#!/usr/bin/env bash
# archives.sh ARCH...: packs the programs. One archive each for use by itself and as a plugin of kubectl.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
work=$ROOT/target/dist/archives
rm -rf -- "$work"
mkdir -p "$work/completions"

program=$ROOT/target/dist/amd64/pleach
for shell in bash zsh fish; do
  "$program" completion "$shell" >"$work/completions/pleach.$shell"
done
./licenses.sh >"$work/THIRD-PARTY-LICENSES"
cp ../LICENSE "$work/LICENSE"

# pack ARCHIVE PATH...: sorted, with one time and one owner.
pack() {
  local archive=$1
  shift
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode='u=rwX,go=rX' --format=ustar --directory "$work" "$@" | gzip --no-name --best >"$archive"
}

# Those of other architectures may be of an earlier commit.
rm -f -- {,kubectl-}pleach-"$VERSION"-linux-*.tar.gz
for arch in "$@"; do
  install --mode=755 "$ROOT/target/dist/$arch/pleach"{,-engines} "$work"
  pack "pleach-$VERSION-linux-$arch.tar.gz" pleach pleach-engines LICENSE THIRD-PARTY-LICENSES completions
  mv -- "$work/pleach" "$work/kubectl-pleach"
  pack "kubectl-pleach-$VERSION-linux-$arch.tar.gz" kubectl-pleach pleach-engines LICENSE THIRD-PARTY-LICENSES
  rm -- "$work"/{kubectl-pleach,pleach-engines}
done
