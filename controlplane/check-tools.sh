#!/usr/bin/env bash
# Names what building and testing need and this machine lacks, with the Debian
# package that has it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

missing=()
# Some of these lie where only root looks by default.
PATH=$PATH:/usr/sbin:/sbin

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || missing+=("$1: $2")
}
need_library() { # PKG-CONFIG-NAME PACKAGE
  ! command -v pkg-config >/dev/null || pkg-config --exists "$1" || missing+=("library $1: $2")
}

need cargo "the Rust toolchain of rust-toolchain.toml, from https://rustup.rs (Debian: rustup)"
# rustup fetches the toolchain by itself; any other cargo has to be new enough.
if command -v cargo >/dev/null && ! command -v rustup >/dev/null; then
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../Cargo.toml)
  have=$(cargo --version | cut -d' ' -f2)
  printf '%s\n' "$want" "$have" | sort --version-sort --check=quiet ||
    missing+=("cargo: version $want or newer, this is $have; rustup (Debian: rustup) fetches it")
fi
need git git
need cc gcc
need pkg-config pkg-config
need_library openssl libssl-dev
need_library zlib zlib1g-dev
need ip iproute2
need unshare util-linux
need setpriv util-linux
need flock util-linux
# Sources of the loop over ssh, and signed commits.
need ssh openssh-client
need ssh-keygen openssh-client
need sshd openssh-server
need gpg gnupg

# The Go command can fetch the exact version that go.mod asks for, but only
# since 1.21, and not where that is switched off.
want=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
if ! command -v go >/dev/null; then
  missing+=("go: Go $want or newer, from https://go.dev/dl (Debian: golang-go, perhaps from backports)")
elif ! have=$(go env GOVERSION 2>/dev/null) ||
  ! printf '%s\n' "$want" "${have#go}" | sort --version-sort --check=quiet; then
  missing+=("go: Go $want or newer, this is $(GOTOOLCHAIN=local go version | cut -d' ' -f3)")
fi

if ((${#missing[@]})); then
  {
    echo "missing on this machine:"
    printf '  %s\n' "${missing[@]}"
  } >&2
  exit 1
fi
