#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# usage: scripts/make_package_texts.sh DIRECTORY
# Writes DIRECTORY/train.tsv and DIRECTORY/validation.tsv: the one-line descriptions of Debian's
# packages, from the package lists of this machine (apt-get update), each with the section of the
# archive as its label. Sections with fewer than 200 packages are left out, and so are packages of
# which another one has the same description: a description in both files would be no test.
set -euo pipefail
(($# == 1)) || { echo "usage: scripts/make_package_texts.sh DIRECTORY" >&2; exit 2; }
directory=$1

descriptions() {
  apt-cache dumpavail | awk '
    /^Section: / { section = $2; sub(/^.*\//, "", section) }
    /^Description(-en)?: / {
      text = substr($0, index($0, ": ") + 2)
      gsub(/[\t\r]/, " ", text)
      if (section != "" && text != "") print section "\t" text
      section = ""
    }'
}

command -v apt-cache >/dev/null || { echo "make_package_texts: apt-cache is missing" >&2; exit 1; }
mkdir -p "$directory"
# The order by a hash of the text is the same on every machine with the same lists.
descriptions | python3 -c '
import collections, hashlib, pathlib, sys

directory = pathlib.Path(sys.argv[1])
section_of = {}
for line in sys.stdin:
    section, text = line.rstrip("\n").split("\t")
    section_of.setdefault(text, section)
counts = collections.Counter(section_of.values())
rows = [(text, section) for text, section in section_of.items() if counts[section] >= 200]
if not rows:
    sys.exit("make_package_texts: the package lists are empty; run apt-get update")
rows.sort(key=lambda row: hashlib.sha256(row[0].encode()).digest())
held_out = len(rows) // 20
for name, part in (("validation", rows[:held_out]), ("train", rows[held_out:])):
    path = directory / f"{name}.tsv"
    path.write_text("text\tsection\n" + "".join(f"{t}\t{s}\n" for t, s in part), encoding="utf-8")
    print(f"{path}: {len(part)} descriptions, {len({s for _, s in rows})} sections")
' "$directory"
