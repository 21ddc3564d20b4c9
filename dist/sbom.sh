#!/usr/bin/env bash
# sbom.sh: writes the bill of materials of the program. The program itself contains it too (cargo-auditable).
set -euo pipefail
cd "$ROOT"
# The tool writes one file beside each manifest of the workspace; that of the program is the one needed.
name=sbom-$$
trap 'find . -path ./target -prune -o -name "$name.json" -exec rm -f {} +' EXIT
cargo cyclonedx --format json --spec-version 1.5 --target x86_64-unknown-linux-musl --override-filename "$name" --quiet
# Paths of this machine are not part of it.
sed "s#$ROOT#/source#g" "$name.json" >"dist/pleach-$VERSION.cdx.json"
