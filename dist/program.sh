#!/usr/bin/env bash
# program.sh ARCH: builds the static programs for one architecture into target/dist/ARCH: pleach, and
# pleach-engines, which renders charts and overlays.
#
# No path of this machine gets into it: `__FILE__` of C and locations of panics are mapped.
set -euo pipefail
arch=$1
case $arch in
  amd64) target=x86_64-unknown-linux-musl ;;
  arm64) target=aarch64-unknown-linux-musl ;;
  *) echo "program.sh: there is no architecture $arch" >&2; exit 1 ;;
esac
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)

maps=("$ROOT=/source" "$sysroot=/rust" "$cargo_home=/cargo")
# The last map that matches wins. Folders of registries have the name of a mirror.
for registry in "$cargo_home"/registry/src/*/; do
  maps+=("${registry%/}=/crates")
done
rust='' c=''
for map in "${maps[@]}"; do
  rust+=" --remap-path-prefix=$map"
  c+=" -ffile-prefix-map=$map"
done

export RUSTFLAGS=$rust CFLAGS=$c CXXFLAGS=$c CARGO_TARGET_DIR=$ROOT/target
cd "$ROOT"
rustup target list --installed | grep --quiet --line-regexp "$target" || rustup target add "$target"
cargo auditable zigbuild --release --locked --bin pleach --target "$target"
install -D --mode=755 "$CARGO_TARGET_DIR/$target/release/pleach" "target/dist/$arch/pleach"
GOARCH=$arch GOOS=linux engines/build.sh "target/dist/$arch/pleach-engines"
