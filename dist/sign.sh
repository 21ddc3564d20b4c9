#!/usr/bin/env bash
# sign.sh: writes SHA256SUMS, and signs it with the key in the file COSIGN_KEY (password: COSIGN_PASSWORD).
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
rm -f -- SHA256SUMS SHA256SUMS.sigstore.json
sha256sum -- {,kubectl-}pleach-"$VERSION"-linux-*.tar.gz "pleach_${VERSION#v}"_*.deb pleach-image.oci.tar pleach-image.digest "pleach-$VERSION.cdx.json" pleach.rb krew.yaml action.yml >SHA256SUMS
if [[ $VERSION == *-dirty || -z ${COSIGN_KEY:-} ]]; then
  echo "SHA256SUMS is not signed: set COSIGN_KEY and build a commit without changes"
  exit 0
fi
# Without a transparency log and without services: signing works offline.
echo '{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json"}' >"$ROOT/target/dist/signing-config.json"
cosign sign-blob --yes --key "$COSIGN_KEY" --signing-config "$ROOT/target/dist/signing-config.json" \
  --bundle SHA256SUMS.sigstore.json SHA256SUMS
cosign public-key --key "$COSIGN_KEY" >cosign.pub
