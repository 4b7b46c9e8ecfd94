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
jobs=() # in the background

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# Ends what is in the background, with what it started.
end_jobs() {
  local job
  for job in "${jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done
}
trap end_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# background LOG COMMAND ...: starts it in a process group of its own.
background() {
  local log=$1
  shift
  mkdir -p build
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  set +m
  jobs+=($!)
}

# await LOG: waits for the last job and prints what it said. Returns its exit status.
await() {
  local status=0
  wait "${jobs[-1]}" || status=$?
  unset 'jobs[-1]'
  cat "$1"
  return "$status"
}

# build PRESET [cmake options]
build() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@"
  cmake --build --preset "$preset"
}

# build_of_sanitizers: uses what the tests leave idle.
build_of_sanitizers() {
  build asan
  grep -q '^DELTAPIPE_SANITIZE:.*=address,undefined$' build/asan/CMakeCache.txt ||
    { echo "build/asan has no sanitizers: remove it"; return 1; }
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
step "build/release"
background build/setup_python.out scripts/setup_python.sh
build release -DDELTAPIPE_WERROR=ON -DDELTAPIPE_BENCHMARKS=ON
step "transformers, to compare with"
await build/setup_python.out || (($? == 77))
cmake --preset release # finds them
if ((sanitizers)); then
  background build/asan.out nice -n 19 bash -c "$(declare -f build build_of_sanitizers)
    set -euo pipefail; build_of_sanitizers"
fi
test_in release
if ((sanitizers)); then
  step "build/asan"
  await build/asan.out
  # Two and four ranks have all kinds of stages.
  test_in asan --exclude-regex '^mpi\.[13]$'
fi

step "done"
((skipped == 0)) || echo "$skipped skipped"
echo "$passed passed, $failed failed"
((failed == 0))
