#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Fuzzes everything that reads bytes from outside (tests/fuzz) with libFuzzer under the address and
# undefined-behaviour sanitizers, two targets at a time.
#   scripts/fuzz.sh [SECONDS [TARGET ...]]   seconds for each target, default 60; all targets
# DELTAPIPE_FUZZ_RUNS=N ends a target after N inputs, if SECONDS have not passed before.
# Findings are in build/fuzz/found; `build/fuzz/TARGET_fuzz FILE` runs one again. New inputs are
# kept in build/fuzz/corpus and used by the next run. DELTAPIPE_FUZZ_SEED makes runs reproducible
# (default: another seed each time). Exit status 77: Clang or libFuzzer is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS [TARGET ...]]" >&2; exit 2; }
build=$PWD/build/fuzz

clang=$(command -v clang-14 || command -v clang || true)
if [[ -z $clang ]]; then
  echo "skipped: clang is not installed (Debian: clang-14 libclang-rt-14-dev)"
  exit 77
fi
clangxx=${clang/%clang-14/clang++-14}
[[ $clangxx != "$clang" ]] || clangxx=${clang/%clang/clang++}
mkdir -p "$build"
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  "$clangxx" -x c++ - -fsanitize=fuzzer,address,undefined -o "$build/probe" 2>"$build/probe.log"; then
  echo "skipped: clang has no libFuzzer here (Debian: libclang-rt-14-dev); see build/fuzz/probe.log"
  exit 77
fi

cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_C_COMPILER="$clang" -DCMAKE_CXX_COMPILER="$clangxx" >"$build/configure.log"

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.cpp; do
    targets+=("$(basename "$source" _fuzz.cpp)")
  done
fi
cmake --build "$build" --target "${targets[@]/%/_fuzz}"

# run_target TARGET: silent unless something is found
run_target() {
  local target=$1 corpus="$build/corpus/$1" found="$build/found/$1-" log="$build/$1.log"
  mkdir -p "$corpus" "$build/found"
  local options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384
    -runs="${DELTAPIPE_FUZZ_RUNS:--1}" -seed="${DELTAPIPE_FUZZ_SEED:-0}" -artifact_prefix="$found" -print_final_stats=1)
  # The HDF5 library keeps some of what it took when it refuses something.
  [[ $target != hdf5 ]] || options+=(-detect_leaks=0)
  [[ ! -e tests/fuzz/$target.dict ]] || options+=(-dict="tests/fuzz/$target.dict")
  if "$build/${target}_fuzz" "${options[@]}" "$corpus" "tests/fuzz/seeds/$target" >"$log" 2>&1; then
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
