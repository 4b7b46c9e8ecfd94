#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes core/text/unicode_classes.inc and core/text/bert_characters.inc: how the tokenizers
library treats every code point.

GPT-2's pre-tokenisation asks of a character whether it is a letter (\\p{L}), a number (\\p{N}) or a
space (\\s). BERT's removes control characters and accents, cuts at spaces, around punctuation and
around ideographs, and lowers letters. The tables hold the library's own answers, so that ids are
the library's whatever Unicode version other libraries of a system know.

usage: make_unicode_classes.py [--check]     with the newest tokenizers library installed
  --check   write nothing; exit status 1 if a committed table differs from the library's answers
"""

import argparse
import itertools
import pathlib
import sys

import tokenizers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "core/text"
CLASSES = ((r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 3))  # UnicodeClass of core/text/unicode_class.hpp
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xD7A4)  # syllables, whose decomposition is a formula
BLOCK = 4096
# Bits of BertCharacter in core/text/bert_characters.hpp.
REMOVED, SPACE, PUNCTUATION, IDEOGRAPH, MARK = 1, 2, 4, 8, 16


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


def normalized(**steps):
    """What one step of BERT's normaliser makes of every code point that it changes."""
    none = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    normalizer = tokenizers.normalizers.BertNormalizer(**{**none, **steps})
    changed = {}
    for start in range(0, CODE_POINTS, BLOCK):
        block = [c for c in range(start, start + BLOCK) if c not in SURROGATES and c != ord("|")]
        results = normalizer.normalize_str("|".join(map(chr, block))).split("|") if block else []
        assert len(results) == len(block)
        changed.update({c: r for c, r in zip(block, results) if r != chr(c)})
    return changed


def bert_characters():
    """Bits of every code point, and what it is without accents and in lower case."""
    bits = bytearray(CODE_POINTS)
    cut = tokenizers.pre_tokenizers.BertPreTokenizer()
    for start in range(0, CODE_POINTS, BLOCK):
        block = [c for c in range(start, start + BLOCK) if c not in SURROGATES]
        kept = set()  # positions in the text "a?a?a ... a"
        for _, (begin, end) in cut.pre_tokenize_str("a" + "".join(chr(c) + "a" for c in block)):
            kept.update(range(begin, end))
            if end == begin + 1 and begin % 2 == 1:
                bits[block[begin // 2]] |= PUNCTUATION
        for i, c in enumerate(block):
            if 2 * i + 1 not in kept:
                bits[c] |= SPACE
    for c, result in normalized(clean_text=True).items():
        assert result in ("", " ")
        if not result:
            bits[c] |= REMOVED
    for c in normalized(handle_chinese_chars=True):
        bits[c] |= IDEOGRAPH
    bases = normalized(strip_accents=True)
    for c in [c for c, result in bases.items() if not result]:
        bits[c] |= MARK
        del bases[c]
    return bits, {c: r for c, r in bases.items() if c not in HANGUL}, normalized(lowercase=True)


def wrapped(values):
    lines, line = [], ""
    for value in values:
        if len(line) + len(value) + 1 > 98:
            lines.append(line)
            line = ""
        line += (" " if line else "  ") + value
    return "\n".join(lines + [line])


def header():
    return ("// SPDX-License-Identifier: BSD-3-Clause\n"
            f"// Made by scripts/make_unicode_classes.py from tokenizers {tokenizers.__version__}.\n")


def range_table(name, values, shift, comment):
    """Starts of the ranges of equal value, shifted left, with the value in the lower bits."""
    starts = []
    position = 0
    for number, members in itertools.groupby(values):
        starts.append(position << shift | number)
        position += sum(1 for _ in members)
    return (comment + f"constexpr std::array<std::uint32_t, {len(starts)}> {name} = {{\n"
            + wrapped(f"{start:#x}," for start in starts) + "\n};\n")


def mapping_table(name, mapping, comment):
    """Pairs of a code point and one that replaces it, several of them in the text's order."""
    pairs = [(c, ord(to)) for c, result in sorted(mapping.items()) for to in result]
    return (comment + f"constexpr std::array<CharacterMapping, {len(pairs)}> {name} = {{{{\n"
            + wrapped(f"{{{c:#x}, {to:#x}}}," for c, to in pairs) + "\n}};\n")


def tables():
    """Names and contents of the files."""
    bits, bases, lower = bert_characters()
    return {
        "unicode_classes.inc": header() + range_table(
            "kClassStarts", library_classes(), 2,
            "// Changes of the class: the first code point << 2 | UnicodeClass.\n"),
        "bert_characters.inc": header() + range_table(
            "kCharacterStarts", bits, 5,
            "// Changes of the bits: the first code point << 5 | bits of BertCharacter.\n")
        + mapping_table("kWithoutAccents", bases,
                        "// Characters without their accents; Hangul syllables are a formula.\n")
        + mapping_table("kLowerCase", lower, "// Characters in lower case.\n"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    status = 0
    for name, text in tables().items():
        if not arguments.check:
            (FOLDER / name).write_text(text)
        elif (FOLDER / name).read_text().splitlines()[2:] != text.splitlines()[2:]:
            print(f"{name} is not what tokenizers {tokenizers.__version__} says; run "
                  "scripts/make_unicode_classes.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
