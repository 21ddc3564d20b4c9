#!/usr/bin/env bash
# Lists words that the code, comments, messages and docs of pleach do not use, for a review. With
# `--strict`: only the unambiguous ones, and fails if there are any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unambiguous='anew|heirs?|whoever|brought about|begin anew|is told|are told|taken away'
others='look at|looked at|told|says?|said|somebody|nobody|wanted|former|desk|deployer|held|goes|take back|settle[sd]?|carry out|rights'

# Exit code 1 of grep means that nothing was found; any other is a failure.
find_words() {
  grep --recursive --line-number --ignore-case --word-regexp --extended-regexp \
    --include='*.rs' --include='*.md' --include='*.snap' --exclude-dir=decisions \
    "$1" src crates docs README.md ARCHITECTURE.md CONTRIBUTING.md || [[ $? == 1 ]]
}

if [[ ${1:-} == --strict ]]; then
  found=$(find_words "$unambiguous")
  [[ -z $found ]] || { printf '%s\n' "$found"; exit 1; }
else
  find_words "$unambiguous|$others"
fi
