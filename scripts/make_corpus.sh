#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# make_corpus.sh DIRECTORY: the text of the quick start and of the studies, from Debian's bible-kjv:
# pretrain.txt, the Old Testament, and finetune.txt, the New. Existing files are not made again.
set -euo pipefail
corpus=${1:?usage: make_corpus.sh DIRECTORY}

if ! command -v bible >/dev/null; then
  echo "make_corpus.sh: no program 'bible'; install the package bible-kjv" >&2
  exit 1
fi

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

mkdir -p "$corpus"
make_once "$corpus/pretrain.txt" book_text gen1:1-mal4:6
make_once "$corpus/finetune.txt" book_text mat1:1-rev22:21
wc -c "$corpus"/*.txt
