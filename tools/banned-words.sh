#!/usr/bin/env bash
# Lists words of the former private language in code, comments, messages and docs. With `--strict`
# only the unambiguous ones, and fails if there are any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unambiguous='anew|heirs?|whoever|brought about|begin anew|is told|are told|taken away'
others='look at|looked at|told|says?|said|somebody|nobody|wanted|former|desk|deployer|held|goes|take back|settle[sd]?|carry out|rights'

find_words() {
  git ls-files -- src crates docs README.md ARCHITECTURE.md CONTRIBUTING.md |
    grep -E '\.(rs|md|snap)$' | grep -v '^docs/decisions/' |
    xargs grep --line-number --ignore-case --word-regexp --extended-regexp --color=auto "$1" || true
}

if [[ ${1:-} == --strict ]]; then
  found=$(find_words "$unambiguous")
  [[ -z $found ]] || { printf '%s\n' "$found"; exit 1; }
else
  find_words "$unambiguous|$others"
fi
