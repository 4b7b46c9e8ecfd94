#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Everything that has to hold: packages, build with warnings as errors, all tests, style checks, and
# the unit and MPI tests again under the address and undefined-behaviour sanitizers.
# The last line is "N passed, N failed"; exit status 0 only if none failed.
#   --no-setup       install nothing
#   --no-sanitizers  leave the second build out
set -euo pipefail
cd "$(dirname "$0")/.."

setup=1 sanitizers=1
for option in "$@"; do
  case $option in
    --no-setup) setup=0 ;;
    --no-sanitizers) sanitizers=0 ;;
    *) echo "usage: scripts/test.sh [--no-setup] [--no-sanitizers]" >&2; exit 2 ;;
  esac
done
passed=0 failed=0 skipped=0

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# build_in PRESET [cmake options]
build_in() {
  local preset=$1
  shift
  step "build/$preset"
  cmake --preset "$preset" "$@"
  cmake --build --preset "$preset"
}

# test_in PRESET [ctest options]: adds to passed, failed, skipped
test_in() {
  local preset=$1 results="$PWD/build/$1/results.xml" totals
  shift
  step "tests of build/$preset"
  rm -f "$results"
  ctest --preset "$preset" --output-junit "$results" --no-tests=error "$@" || true
  totals=$(python3 - "$results" <<'PYTHON'
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot()
tests, failures, disabled, skipped = (
    int(suite.get(name, 0)) for name in ("tests", "failures", "disabled", "skipped"))
print(tests - failures - disabled - skipped, failures, disabled + skipped)
PYTHON
  )
  local p f s
  read -r p f s <<<"$totals"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

((!setup)) || { step "packages"; scripts/setup.sh tests; }
step "transformers, to compare with"
scripts/setup_python.sh || (($? == 77))

build_in release -DDELTAPIPE_WERROR=ON -DDELTAPIPE_BENCHMARKS=ON
test_in release
if ((sanitizers)); then
  build_in asan
  grep -q '^DELTAPIPE_SANITIZE:.*=address,undefined$' build/asan/CMakeCache.txt ||
    { echo "build/asan has no sanitizers: remove it" >&2; exit 1; }
  # Two and four ranks have all kinds of stages.
  test_in asan --exclude-regex '^mpi\.[13]$'
fi

step "done"
((skipped == 0)) || echo "$skipped skipped"
echo "$passed passed, $failed failed"
((failed == 0))
