#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes core/text/unicode_classes.inc: how the tokenizers library classes every code point.

GPT-2's pre-tokenisation asks of a character whether it is a letter (\\p{L}), a number (\\p{N}) or a
space (\\s). The table holds the answers of the library's own regular expressions, so that ids are
the library's whatever Unicode version other libraries of a system know.

usage: make_unicode_classes.py [--check]     with the newest tokenizers library installed
  --check   write nothing; exit status 1 if the committed table differs from the library's answers
"""

import argparse
import itertools
import pathlib
import sys

import tokenizers

TABLE = pathlib.Path(__file__).resolve().parent.parent / "core/text/unicode_classes.inc"
CLASSES = ((r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 3))  # UnicodeClass of core/text/unicode_class.hpp
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
BLOCK = 4096


def library_classes():
    """The class of every code point; 0: none of the three."""
    classes = bytearray(CODE_POINTS)
    for pattern, number in CLASSES:
        remove = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
        for start in range(0, CODE_POINTS, BLOCK):
            block = [c for c in range(start, start + BLOCK) if c not in SURROGATES]
            left = {c for piece, _ in remove.pre_tokenize_str("".join(map(chr, block)))
                    for c in map(ord, piece)}
            for c in block:
                if c not in left:
                    classes[c] = number
    return classes


def table(classes):
    """Starts of the ranges of equal class, shifted left by two bits, with the class in those."""
    starts = []
    position = 0
    for number, members in itertools.groupby(classes):
        starts.append(position << 2 | number)
        position += sum(1 for _ in members)
    values = [f"{start:#x}," for start in starts]
    lines, line = [], ""
    for value in values:
        if len(line) + len(value) + 1 > 98:
            lines.append(line)
            line = ""
        line += (" " if line else "  ") + value
    lines.append(line)
    return ("// SPDX-License-Identifier: BSD-3-Clause\n"
            f"// Made by scripts/make_unicode_classes.py from tokenizers {tokenizers.__version__}.\n"
            "// Changes of the class: the first code point << 2 | UnicodeClass.\n"
            f"constexpr std::array<std::uint32_t, {len(starts)}> kClassStarts = {{\n"
            + "\n".join(lines) + "\n};\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = table(library_classes())
    if not arguments.check:
        TABLE.write_text(text)
        return 0
    if TABLE.read_text().splitlines()[1:] == text.splitlines()[1:]:
        return 0
    print(f"{TABLE.name} is not what tokenizers {tokenizers.__version__} says; run "
          "scripts/make_unicode_classes.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
