#!/usr/bin/env bash
# tools.sh NAME: builds one tool of the release into $TOOLS/bin, at its pinned version.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
tool=$1
mkdir -p "$TOOLS/bin"

case $tool in
  cargo-*)
    version=$(awk -v tool="$tool" '$1 == tool { print $2 }' tools.lock)
    [[ -n $version ]] || { echo "tools.sh: tools.lock has no $tool" >&2; exit 1; }
    # The target folder is kept between the tools: they share dependencies.
    CARGO_TARGET_DIR=$TOOLS/target cargo install --quiet --locked --root "$TOOLS" "$tool@$version"
    ;;
  cabundle) go build -trimpath -o "$TOOLS/bin/" ./cabundle ;;
  crane) go build -trimpath -o "$TOOLS/bin/" github.com/google/go-containerregistry/cmd/crane ;;
  cosign) go build -trimpath -o "$TOOLS/bin/" github.com/sigstore/cosign/v3/cmd/cosign ;;
  actionlint) go build -trimpath -o "$TOOLS/bin/" github.com/rhysd/actionlint/cmd/actionlint ;;
  *) echo "tools.sh: there is no tool $tool" >&2; exit 1 ;;
esac
