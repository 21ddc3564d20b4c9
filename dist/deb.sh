#!/usr/bin/env bash
# deb.sh ARCH...: makes packages for Debian and Ubuntu. Cargo.toml has their contents.
set -euo pipefail
cd "$ROOT"
declare -A targets=([amd64]=x86_64-unknown-linux-musl [arm64]=aarch64-unknown-linux-musl)
version=${VERSION#v}
rm -f -- "dist/pleach_${version}"_*.deb
for arch in "$@"; do
  # cargo-deb knows one place for all architectures.
  install -D --mode=755 "target/dist/$arch/pleach-engines" target/dist/archives/pleach-engines
  cargo deb --quiet --locked --no-build --no-strip --target "${targets[$arch]}" \
    --deb-version "${version/-/\~}" --output "dist/pleach_${version}_$arch.deb"
done
rm -- target/dist/archives/pleach-engines
