#!/usr/bin/env bash
# image.sh ARCH...: makes pleach-image.oci.tar, an OCI layout with one image for each architecture.
#
# Each image is one layer from scratch: the programs, certificates of public authorities, the user
# 65532, a folder for temporary files and the licenses.
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}"
work=$ROOT/target/dist/image
rm -rf -- "$work"
mkdir -p "$work/registry"
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)

# crane works on registries only.
crane registry serve --address 127.0.0.1:0 --disk "$work/registry" >"$work/registry.log" 2>&1 &
registry=$!
trap 'kill "$registry"' EXIT
address=''
for _ in {1..100}; do
  address=$(sed -n 's/.*serving on port \([0-9]*\).*/127.0.0.1:\1/p' "$work/registry.log")
  [[ -z $address ]] || break
  sleep 0.1
done
[[ -n $address ]] || { cat "$work/registry.log" >&2; exit 1; }
name=$address/pleach

members=()
for arch in "$@"; do
  root=$work/$arch
  mkdir -p "$root"/{etc/ssl/certs,home/nonroot,tmp,usr/local/bin,usr/share/licenses}
  install --mode=755 "$ROOT/target/dist/$arch/pleach"{,-engines} "$root/usr/local/bin"
  cabundle >"$root/etc/ssl/certs/ca-certificates.crt"
  ./licenses.sh >"$root/usr/share/licenses/pleach"
  echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$root/etc/passwd"
  echo 'nonroot:x:65532:' >"$root/etc/group"
  chmod --recursive u=rwX,go=rX "$root"
  # Folders of the user, and of everybody.
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    --exclude=./tmp --exclude=./home/nonroot --directory "$root" . >"$work/$arch.tar"
  tar --append --mtime="@$SOURCE_DATE_EPOCH" --owner=65532 --group=65532 --numeric-owner --format=ustar \
    --mode=700 --file "$work/$arch.tar" --directory "$root" ./home/nonroot
  tar --append --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    --mode=1777 --file "$work/$arch.tar" --directory "$root" ./tmp

  crane append --oci-empty-base --platform "linux/$arch" --new_layer "$work/$arch.tar" --new_tag "$name:$arch" >/dev/null
  crane mutate "$name:$arch" --tag "$name:$arch" --set-platform "linux/$arch" --user 65532:65532 \
    --entrypoint /usr/local/bin/pleach --cmd help --workdir /home/nonroot \
    --env HOME=/home/nonroot --env PATH=/usr/local/bin --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    --annotation "org.opencontainers.image.title=pleach" \
    --annotation "org.opencontainers.image.version=$VERSION" \
    --annotation "org.opencontainers.image.created=$created" \
    --annotation "org.opencontainers.image.licenses=Apache-2.0" >/dev/null
  crane validate --remote "$name:$arch" >/dev/null
  members+=(--manifest "$name:$arch")
done
crane index append "${members[@]}" --tag "$name:$VERSION" >/dev/null
digest=$(crane digest "$name:$VERSION")
crane pull --format=oci "$name@$digest" "$work/layout"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  --mode='u=rwX,go=rX' --format=ustar --directory "$work/layout" . >pleach-image.oci.tar
echo "$digest" >pleach-image.digest
echo "image $IMAGE:$VERSION@$digest"
