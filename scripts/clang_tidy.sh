#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Runs clang-tidy 14 with the checks of .clang-tidy.
#   scripts/clang_tidy.sh [options]         files that differ from the merge base with main
#   scripts/clang_tidy.sh [options] FILE... these
#     --all          all sources of the build
#     --build DIR    where compile_commands.json is; default: build/release
#     --most N       of changed files the N with the most changed lines; default: all
# A changed header is looked at through a source that includes it. On main itself the changes are
# those of its last commit. DELTAPIPE_TIDY_BASE names another revision than main to compare with.
# Exit status 77: clang-tidy 14, git's history or something to look at is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "clang_tidy: $*"; }
skip() { say "skipped: $*"; exit 77; }
usage() { sed -n '/^# *scripts\/clang_tidy/,/^# *--most/s/^# \{0,3\}//p' "$0"; }

all=0 build=build/release most=100000 files=()
while (($#)); do
  case $1 in
    --all) all=1 ;;
    --build) build=${2:?--build needs a folder}; shift ;;
    --most) most=${2:?--most needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done

tidy=$(command -v clang-tidy-14 || command -v clang-tidy || true)
[[ -n $tidy ]] || skip "clang-tidy is not installed (Debian: clang-tidy-14)"
[[ $("$tidy" --version) == *"version 14."* ]] || skip "other versions know other checks than clang-tidy 14"
database=$build/compile_commands.json
[[ -e $database ]] || { say "there is no $database: cmake --preset release" >&2; exit 2; }

# The revision that changed files differ from.
find_base() {
  local name base=
  if [[ -n ${DELTAPIPE_TIDY_BASE:-} ]]; then
    git rev-parse --verify --quiet "$DELTAPIPE_TIDY_BASE^{commit}"
    return
  fi
  for name in origin/main main; do
    base=$(git merge-base HEAD "$name" 2>/dev/null) && break
  done
  [[ -n $base ]] || return 1
  if [[ $base == "$(git rev-parse HEAD)" ]]; then
    git rev-parse --verify --quiet HEAD^1
  else
    echo "$base"
  fi
}

# Changed C++ files, those with the most changed lines first, and new ones.
changed_files() {
  git ls-files --others --exclude-standard -- '*.cpp' '*.hpp'
  git diff --numstat --no-renames --diff-filter=d "$1" -- '*.cpp' '*.hpp' |
    awk '{ print $1 + $2, $3 }' | sort -k1,1nr -k2 | cut -d' ' -f2
}

# source_of FILE: the source itself; of a header the source of its name, or one that includes it.
source_of() {
  if [[ $1 == *.cpp ]]; then
    echo "$1"
  elif [[ -e ${1%.hpp}.cpp ]]; then
    echo "${1%.hpp}.cpp"
  else
    git grep -l -F "#include \"${1#tests/}\"" -- '*.cpp' | head -n 1 || true
  fi
}

in_build() { grep -qF "\"$PWD/$1\"" "$once/compile_commands.json"; }

# A source that several targets compile is looked at once, and by itself: not as a part of a unity
# build, and without the compiler's precompiled headers, so that what it forgets to include is found.
once=$build/clang_tidy
mkdir -p "$once"
python3 - "$database" "$once/compile_commands.json" <<'PYTHON'
import json
import re
import sys

UNITY = re.compile(r"/Unity/unity_\w+_cxx\.cxx$")
INCLUDED = re.compile(r'^#include "(.*)"$', re.MULTILINE)
PRECOMPILED = re.compile(r"-Winvalid-pch|(-Xclang )?-include(-pch)? (-Xclang )?\S*cmake_pch\.hxx\S*")

def parts_of(command):
    """The command for each source that a unity build compiles by it."""
    unity = command["file"]
    if not UNITY.search(unity):
        return [command]
    with open(unity) as file:
        return [{**command, "file": source, "command": command["command"].replace(unity, source)}
                for source in INCLUDED.findall(file.read())]


with open(sys.argv[1]) as file:
    commands = [part for command in json.load(file) for part in parts_of(command)]
for command in commands:
    command["command"] = PRECOMPILED.sub("", command["command"])
with open(sys.argv[2], "w") as file:
    json.dump(list({command["file"]: command for command in reversed(commands)}.values()), file)
PYTHON

if ((all)); then
  mapfile -t files < <(git ls-files -- '*.cpp')
elif ((${#files[@]} == 0)); then
  git rev-parse --git-dir >/dev/null 2>&1 || skip "not a git checkout"
  base=$(find_base) || skip "no revision to compare with"
  mapfile -t files < <(changed_files "$base")
  ((${#files[@]})) || { say "no C++ file differs from ${base:0:7}"; exit 0; }
fi

sources=()
for file in "${files[@]}"; do
  source=$(source_of "$file")
  [[ -n $source && " ${sources[*]} " != *" $source "* ]] || continue
  if in_build "$source"; then
    sources+=("$source")
  else
    say "not in $build: $source"
  fi
done
((${#sources[@]})) || skip "nothing of this is in $build"
if ((${#sources[@]} > most)); then
  say "the $most of ${#sources[@]} sources with the most changed lines; the others: --all"
  sources=("${sources[@]:0:most}")
fi

# GCC's own flags and warnings are not Clang's.
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "$tidy" -p "$once" --quiet --extra-arg=-w \
    2> >(grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -' >&2)
say "${#sources[@]} sources, no mistakes"
