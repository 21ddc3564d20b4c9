#!/usr/bin/env bash
# manifests.sh: writes the Homebrew formula and the krew manifest for the archives that exist.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
summary='Reconcile Kubernetes clusters with git, with staged upgrades'

digest() { sha256sum -- "$1" | cut -d' ' -f1; }

{
  cat <<EOF
class Pleach < Formula
  desc "$summary"
  homepage "${RELEASE_URL%/releases}"
  version "${VERSION#v}"
  license "Apache-2.0"

EOF
  for arch in amd64 arm64; do
    archive=pleach-$VERSION-linux-$arch.tar.gz
    [[ -f $archive ]] || continue
    cpu=$([[ $arch == amd64 ]] && echo intel || echo arm)
    cat <<EOF
  on_linux do
    on_$cpu do
      url "$RELEASE_URL/$VERSION/$archive"
      sha256 "$(digest "$archive")"
    end
  end

EOF
  done
  cat <<'EOF'
  def install
    bin.install "pleach", "pleach-engines"
    bash_completion.install "completions/pleach.bash" => "pleach"
    zsh_completion.install "completions/pleach.zsh" => "_pleach"
    fish_completion.install "completions/pleach.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/pleach version")
  end
end
EOF
} >pleach.rb

{
  cat <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: pleach
spec:
  version: $VERSION
  homepage: ${RELEASE_URL%/releases}
  shortDescription: $summary
  description: |
    Renders versioned bundles of manifests from git, compares them with the
    cluster through server-side apply, and executes an ordered plan: apply,
    wait, verify, prune.
  platforms:
EOF
  for arch in amd64 arm64; do
    archive=kubectl-pleach-$VERSION-linux-$arch.tar.gz
    [[ -f $archive ]] || continue
    cat <<EOF
    - selector:
        matchLabels:
          os: linux
          arch: $arch
      uri: $RELEASE_URL/$VERSION/$archive
      sha256: $(digest "$archive")
      bin: kubectl-pleach
      files:
        - from: kubectl-pleach
          to: .
        - from: pleach-engines
          to: .
        - from: LICENSE
          to: .
EOF
  done
} >krew.yaml

# The action knows the checksums of its own version.
checksums=''
for arch in amd64 arm64; do
  archive=pleach-$VERSION-linux-$arch.tar.gz
  [[ -f $archive ]] || continue
  runner=$([[ $arch == amd64 ]] && echo X64 || echo ARM64)
  checksums+="          $VERSION-$runner) arch=$arch sum=$(digest "$archive") ;;"$'\n'
done
while IFS= read -r line; do
  case $line in
    *@CHECKSUMS@*) printf '%s' "$checksums" ;;
    *)
      line=${line//@VERSION@/$VERSION}
      printf '%s\n' "${line//@RELEASE_URL@/$RELEASE_URL}"
      ;;
  esac
done <action.yml.in >action.yml
