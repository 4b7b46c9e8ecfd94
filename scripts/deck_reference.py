#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/deck.md from what `deltapipe check --reference` prints.

usage: deck_reference.py [--check] [PROGRAM]     default: build/release/bin/deltapipe
  --check   write nothing; exit status 1 if docs/deck.md differs
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "docs/deck.md"
INTRODUCTION = """\
<!-- Made by scripts/deck_reference.py from what the program prints. Edit the keys in app/deck/keys. -->
# Deck reference

A deck is a TOML file that describes a run. Every key has a default. An unknown key or a value out of
range is an error that names the line, the column and, for a key, the nearest known one. On the command
line, `section.key=value` overrides the deck.

- `deltapipe check --deck DECK` prints a deck with all defaults.
- `deltapipe check --reference` prints the tables below.
- Every `run.h5` holds the deck of its run.
- The decks in [`inputs/`](../inputs) have a comment on each line. [`inputs/minimal.toml`](../inputs/minimal.toml)
  is the shortest.

Editors with taplo (Even Better TOML) complete and check keys with a JSON schema. Write it with
`deltapipe check --schema > deck.schema.json`, and begin the deck with the line `#:schema ./deck.schema.json`.

"""


def reference(program):
    try:
        printed = subprocess.run([program, "check", "--reference"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"deck_reference: {error}")
    text = re.sub(r"^#{3,4} ", "## ", printed, flags=re.MULTILINE).strip() + "\n"
    sections = re.findall(r"^## `\[([\w.]+)\]`$", text, flags=re.MULTILINE)
    if not sections:
        sys.exit("deck_reference: the program printed no sections")
    links = [f"- [`[{name}]`](#{name.replace('.', '')})" for name in sections]
    return INTRODUCTION + "\n".join(links) + "\n\n" + text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("program", nargs="?", default=ROOT / "build/release/bin/deltapipe")
    arguments = parser.parse_args()
    text = reference(arguments.program)
    if PLACE.exists() and PLACE.read_text(encoding="utf-8") == text:
        print("docs/deck.md is current")
        return 0
    if arguments.check:
        print("docs/deck.md is not what the program prints: run scripts/deck_reference.py")
        return 1
    PLACE.write_text(text, encoding="utf-8")
    print("docs/deck.md written")
    return 0


sys.exit(main())
