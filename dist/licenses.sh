#!/usr/bin/env bash
# licenses.sh: prints the licenses of pleach and of all crates that the program contains, with their texts.
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
