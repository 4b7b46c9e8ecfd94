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
declare -A jobs=()

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# Ends the jobs and everything they started.
end_jobs() {
  local job
  for job in "${jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done
}
trap end_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# start NAME COMMAND ...: a job, in a process group of its own.
start() {
  local name=$1
  shift
  set -m
  "$@" </dev/null &
  set +m
  jobs[$name]=$!
}

# await NAME: returns the job's exit status. Unlike a command, it lets traps run.
await() {
  local status=0
  wait "${jobs[$1]}" || status=$?
  unset "jobs[$1]"
  return "$status"
}

# to_log LOG COMMAND ...
to_log() {
  local log=$1
  shift
  mkdir -p build
  "$@" >"$log" 2>&1
}

# build PRESET [cmake options]
build() {
  cmake --preset "$@" && cmake --build --preset "$1"
}

# test_in PRESET [ctest options]: adds to passed, failed, skipped
test_in() {
  local preset=$1 results="$PWD/build/$1/results.xml" totals
  shift
  step "tests of build/$preset"
  rm -f "$results"
  start tests ctest --preset "$preset" --output-junit "$results" --no-tests=error "$@"
  await tests || true
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
start python to_log build/setup_python.out scripts/setup_python.sh
start release build release -DDELTAPIPE_WERROR=ON -DDELTAPIPE_BENCHMARKS=ON
await release

step "transformers, to compare with"
status=0
await python || status=$?
cat build/setup_python.out
((status == 0 || status == 77)) || exit "$status"
cmake --preset release # finds them

# The second build uses what the tests leave idle.
((!sanitizers)) || start asan to_log build/asan.out nice -n 19 bash -c "$(declare -f build); build asan"
test_in release

if ((sanitizers)); then
  step "build/asan"
  status=0
  await asan || status=$?
  cat build/asan.out
  ((status == 0)) || exit "$status"
  grep -q '^DELTAPIPE_SANITIZE:.*=address,undefined$' build/asan/CMakeCache.txt ||
    { echo "build/asan has no sanitizers: remove it" >&2; exit 1; }
  # Two and four ranks have all kinds of stages.
  test_in asan --exclude-regex '^mpi\.[13]$'
fi

step "done"
((skipped == 0)) || echo "$skipped skipped"
echo "$passed passed, $failed failed"
((failed == 0))
