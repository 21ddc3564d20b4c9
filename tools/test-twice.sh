#!/usr/bin/env bash
# Runs the tests of one target. Up to three tests that fail beside others run again, alone. One
# that passes alone is reported as flaky: it is a defect, but of the test or of a busy machine.
# usage: tools/test-twice.sh TARGET [ARGUMENTS OF THE TEST PROGRAM...]
set -euo pipefail
target=$1
shift
run=(cargo test --workspace --all-features --no-fail-fast --test "$target" --)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if "${run[@]}" "$@" 2>&1 | tee "$log"; then
  exit 0
fi
mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
if ((${#failed[@]} == 0 || ${#failed[@]} > 3)); then
  exit 1
fi
RUST_TEST_THREADS=1 "${run[@]}" --exact "${failed[@]}"
printf 'flaky: %s failed beside other tests and passed alone\n' "${failed[@]}" >&2
