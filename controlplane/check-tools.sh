#!/usr/bin/env bash
# check-tools.sh [TARGET]: finds what a make target needs and this machine
# lacks. Without a target: what `make test` needs.
#
# Installs missing Debian packages where that needs no password, and announces it
# in one line. Otherwise, or with NO_INSTALL=1, prints that line to paste, and
# exits with 1.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"

target=${1:-test}
case $target in
  build | check | controlplane | dist | engines | demo | sandbox | bench | chaos | facts | schemas | test | test-nodes) ;;
  *)
    echo "check-tools.sh: there is no target $target" >&2
    exit 2
    ;;
esac

packages=()
others=()
# Some programs lie where only root looks by default.
PATH=$PATH:/usr/sbin:/sbin

has() { command -v "$1" >/dev/null; }
add() { # PACKAGE
  [[ " ${packages[*]-} " == *" $1 "* ]] || packages+=("$1")
}
need() { # PROGRAM PACKAGE
  has "$1" || add "$2"
}

need_rust() {
  has cargo || {
    others+=("cargo: the Rust toolchain of rust-toolchain.toml, from https://rustup.rs (Debian: rustup)")
    return
  }
  # rustup fetches the toolchain by itself; any other cargo has to be new enough.
  has rustup && return
  local want have
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../Cargo.toml)
  have=$(cargo --version | cut -d' ' -f2)
  printf '%s\n' "$want" "$have" | sort --version-sort --check=quiet ||
    others+=("cargo: version $want or newer, this is $have; rustup (Debian: rustup) fetches it")
}

# The Go command can fetch the exact version that go.mod asks for, but only
# since 1.21, and not where that is switched off.
need_go() {
  local word number want='' have
  while read -r word number; do
    [[ $word != go ]] || want=${number%.*}
  done <go.mod
  if ! has go; then
    others+=("go: Go $want or newer, from https://go.dev/dl (Debian: golang-go, perhaps from backports)")
  elif ! have=$(go env GOVERSION 2>/dev/null) ||
    ! printf '%s\n' "$want" "${have#go}" | sort --version-sort --check=quiet; then
    others+=("go: Go $want or newer, this is $(GOTOOLCHAIN=local go version | cut -d' ' -f3)")
  fi
}

if [[ $target != controlplane && $target != engines ]]; then
  need_rust
  need git git
  need cc gcc
fi
# Whether controlplane/build.sh builds instead of downloading.
is_built() {
  [[ -n ${CONTROLPLANE_BUILD:-} ]] || ! has curl ||
    ! grep --quiet "/$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ { print $2; exit }' go.mod)/" checksums
}
case $target in build | check) ;; *)
  if [[ $target == dist || $target == engines ]] || is_built; then
    need_go
  fi
  need flock util-linux
  ;;
esac
if [[ $target == dist ]]; then
  has rustup || others+=("rustup: it adds the musl targets, from https://rustup.rs (Debian: rustup)")
  # zig compiles C for musl and links. Another version gives other bytes.
  zig=$(zig version 2>/dev/null || python3 -m ziglang version 2>/dev/null || true)
  [[ $zig == 0.17.1 ]] ||
    others+=("zig: version 0.17.1${zig:+, this is $zig}, from https://ziglang.org (or: pip install ziglang==0.17.1)")
  need readelf binutils
fi
case $target in demo | sandbox | bench | chaos | facts | schemas | test | test-nodes)
  need ip iproute2
  need unshare util-linux
  need setpriv util-linux
  ;;
esac
if [[ $target == test-nodes ]]; then
  need runc runc
  [[ -x /usr/lib/cni/bridge ]] || add containernetworking-plugins
  # Containers need mounts, devices and control groups of the machine.
  groups=/sys/fs/cgroup
  [[ -e $groups/cgroup.controllers ]] || groups=$groups/memory
  if [[ $(id --user) != 0 ]]; then
    others+=("root: real nodes cannot run as another user")
  elif ! mkdir "$groups/pleach-check-$$" 2>/dev/null; then
    others+=("writable control groups in $groups: real nodes cannot run in a container without them")
  else
    rmdir "$groups/pleach-check-$$"
    unshare --mount --net --pid --fork true 2>/dev/null ||
      others+=("namespaces: the kernel refuses new ones for mounts, networks and processes")
  fi
fi
if [[ $target == test || $target == check ]]; then
  # Repositories over ssh, and signed commits.
  need ssh openssh-client
  need ssh-keygen openssh-client
  need sshd openssh-server
  need gpg gnupg
  # The page of the controller.
  need chromium chromium
  need chromedriver chromium-driver
fi

install=(apt-get install --yes --no-install-recommends "${packages[@]}")
if [[ ${#packages[@]} != 0 && -z ${NO_INSTALL:-} ]] && has apt-get; then
  # RUNLEVEL=1: a service, such as that of sshd, does not start. Tests start their own.
  as_root=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
  if [[ $(id --user) != 0 ]]; then
    as_root=(sudo --non-interactive "${as_root[@]}")
  fi
  if "${as_root[@]}" true 2>/dev/null; then
    echo "make $target: ${install[*]}" >&2
    "${as_root[@]}" apt-get update --quiet=2 >&2
    "${as_root[@]}" "${install[@]}" >/dev/null
    packages=()
  fi
fi

((${#packages[@]} + ${#others[@]})) || exit 0
{
  echo "make $target needs what this machine lacks:"
  ((${#packages[@]} == 0)) || echo "  ${install[*]}"
  ((${#others[@]} == 0)) || printf '  %s\n' "${others[@]}"
} >&2
exit 1
