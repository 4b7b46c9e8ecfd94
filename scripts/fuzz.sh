#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Fuzzes everything that reads bytes from outside (tests/fuzz) with libFuzzer under the address and
# undefined-behaviour sanitizers, two targets at a time.
#   scripts/fuzz.sh [SECONDS [TARGET ...]]   seconds for each target, default 60; all targets
# DELTAPIPE_FUZZ_RUNS=N ends a target after N inputs, if SECONDS have not passed before.
# The targets are those of build/asan (preset asan), or of the build in DELTAPIPE_BUILD. Findings are
# in build/asan/fuzz/found; `build/asan/bin/TARGET_fuzz FILE` runs one again. New inputs are kept in
# build/asan/fuzz/corpus and used by the next run. DELTAPIPE_FUZZ_SEED makes runs reproducible
# (default: another seed each time).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS [TARGET ...]]" >&2; exit 2; }
build=${DELTAPIPE_BUILD:-$PWD/build/asan}
work=$build/fuzz
[[ -e $build/CMakeCache.txt ]] || cmake --preset asan -B "$build"

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.cpp; do
    targets+=("$(basename "$source" _fuzz.cpp)")
  done
fi
cmake --build "$build" --target "${targets[@]/%/_fuzz}"
# As in tests/CMakeLists.txt.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}intercept_tls_get_addr=0"

# run_target TARGET: silent unless something is found
run_target() {
  local target=$1 corpus="$work/corpus/$1" found="$work/found/$1-" log="$work/$1.log"
  mkdir -p "$corpus" "$work/found"
  local options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384
    -runs="${DELTAPIPE_FUZZ_RUNS:--1}" -seed="${DELTAPIPE_FUZZ_SEED:-0}" -artifact_prefix="$found" -print_final_stats=1)
  # The HDF5 library keeps some of what it took when it refuses something.
  [[ $target != hdf5 ]] || options+=(-detect_leaks=0)
  [[ ! -e tests/fuzz/$target.dict ]] || options+=(-dict="tests/fuzz/$target.dict")
  if "$build/bin/${target}_fuzz" "${options[@]}" "$corpus" "tests/fuzz/seeds/$target" >"$log" 2>&1; then
    echo "$target: nothing found in $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs$(sed -n 's/^inputs: / of /p' "$log")"
  else
    tail -n 60 "$log"
    echo "$target: FAILED, see ${found}*"
    return 1
  fi
}

failed=0 running=0
for target in "${targets[@]}"; do
  if ((running == 2)); then
    wait -n || failed=1
    running=1
  fi
  run_target "$target" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
