#!/usr/bin/env bash
# licenses.sh: prints the licenses of pleach, of all crates that it contains, and of all Go modules that
# pleach-engines contains, with their texts.
set -euo pipefail
cd "$ROOT"
cat LICENSE
registries=("${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/)

cargo tree --locked --package pleach --edges normal --target x86_64-unknown-linux-musl --prefix none --format '{p}|{l}' |
  sed -n 's/ (\*)$//; s/^\([^ ]*\) v\([^ |]*\)|\(.*\)$/\1-\2 \3/p' | sort --unique | while read -r crate license; do
  printf '\n%s\n%s, licensed under %s\n%s\n' "${crate//?/=}" "$crate" "$license" "${crate//?/=}"
  for registry in "${registries[@]}"; do
    [[ -d $registry$crate ]] || continue
    find "$registry$crate" -type f -not -path '*/winhttp/*' -not -path '*/zlib-ng/*' -not -path '*/contrib/*' \
      \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) | sort |
      while read -r text; do
        printf '\n--- %s\n\n' "${text#"$registry$crate/"}"
        cat "$text"
      done
    break
  done
done

# The program names its modules. Every build of the same commit has the same ones.
go version -m target/dist/amd64/pleach-engines | awk '$1 == "dep" { print $2, $3 }' | sort | while read -r module version; do
  # Capital letters are escaped in the cache.
  folder=$(go env GOMODCACHE)/$(sed 's/[A-Z]/!\l&/g' <<<"$module")@$version
  printf '\n%s\n%s\n%s\n' "${module//?/=}" "$module $version" "${module//?/=}"
  find "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort |
    while read -r text; do
      printf '\n--- %s\n\n' "${text#"$folder/"}"
      cat "$text"
    done
done
