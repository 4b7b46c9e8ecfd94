#!/usr/bin/env bash
# From a fresh checkout to a first result in one command: installs, builds, and makes a small corpus
# from the King James Bible. What is there already is not made again.
#   --no-setup  install nothing
#   --fresh     make the corpus anew
set -euo pipefail
cd "$(dirname "$0")/.."

corpus=data/quickstart
setup=1
for option in "$@"; do
  case $option in
    --no-setup) setup=0 ;;
    --fresh) rm -rf "$corpus" ;;
    *) echo "usage: scripts/quickstart.sh [--no-setup] [--fresh]" >&2; exit 2 ;;
  esac
done

say() { printf 'quickstart: %s\n' "$*"; }

# make_once FILE COMMAND...: FILE from the command's output, whole or not at all.
make_once() {
  local file=$1
  shift
  [[ ! -s $file ]] || return 0
  "$@" >"$file.part"
  mv "$file.part" "$file"
}

# Chapters as paragraphs of whole lines; the verses' numbers are no part of the text.
book_text() {
  LC_ALL=C bible -f "$1" | python3 -c '
import re
import sys
import textwrap

chapter, verses = None, []

def flush():
    if verses:
        print(textwrap.fill(" ".join(verses), width=90, break_long_words=False))
        print()

for line in sys.stdin:
    match = re.fullmatch(r"(\w+?\d+|[\w ]+?\d+):\d+ (.*)\n?", line)
    if match is None:
        sys.exit("unexpected line of bible: " + line)
    if match.group(1) != chapter:
        flush()
        chapter, verses = match.group(1), []
    verses.append(match.group(2).strip())
flush()'
}

install_packages() {
  ((!setup)) || scripts/setup.sh
}

build() {
  say "building build/release"
  cmake --preset release >/dev/null
  cmake --build --preset release
}

make_corpus() {
  say "corpus in $corpus: the Old Testament to pretrain on, the New to fine-tune on"
  mkdir -p "$corpus"
  make_once "$corpus/pretrain.txt" book_text gen1:1-mal4:6
  make_once "$corpus/finetune.txt" book_text mat1:1-rev22:21
  wc -c "$corpus"/*.txt
}

steps=(install_packages build make_corpus)
for step in "${steps[@]}"; do
  "$step"
done
