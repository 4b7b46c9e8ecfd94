#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes core/text/unicode_classes.inc, core/text/bert_characters.inc and
core/text/grapheme_classes.inc: how the tokenizers library treats every code point. Also writes
tests/unit/core/text/bert_characters_sums.inc, checksums of the library's answers for a test.

GPT-2's pre-tokenisation asks of a character whether it is a letter (\\p{L}), a number (\\p{N}) or a
space (\\s). BERT's removes control characters and accents, cuts at spaces, around punctuation and
around ideographs, and lowers letters. The charsmap of a Unigram tokenizer is looked up for graphemes
(Unicode Standard Annex 29). The tables hold the library's own answers, so that ids are
the library's whatever Unicode version other libraries of a system know.

usage: make_unicode_classes.py [--check]     with the newest tokenizers library installed
  --check   write nothing; exit status 1 if a committed table differs from the library's answers
"""

import argparse
import itertools
import pathlib
import struct
import sys
import zlib

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLASSES = ((r"\p{L}", 1), (r"\p{N}", 2), (r"\s", 3))  # UnicodeClass of core/text/unicode_class.hpp
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
DOTTED_I = 0x130  # the only letter whose lower case is two characters
BLOCK = 4096
# Bits of BertCharacter in core/text/bert_characters.hpp.
REMOVED, SPACE, PUNCTUATION, IDEOGRAPH, MARK, DECOMPOSES = 1, 2, 4, 8, 16, 32
# Bits of GraphemeClass in core/text/grapheme_class.hpp.
EXTENDS, PREPENDS, CONTROL, PICTURE, CONSONANT, LINKER, CONJOINS = 1, 2, 4, 8, 16, 32, 64


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
    for c, result in bases.items():
        bits[c] |= DECOMPOSES if result else MARK
    return bits, bases, normalized(lowercase=True)


def counting_normalizer():
    """Makes one x of a grapheme of up to five bytes, and one of each character of a longer one.

    The charsmap is a double array, as sentencepiece writes it, in which every character has the
    replacement x. Only the first match in a grapheme counts.
    """
    root, one_more, two_more, three_more, end = (256 * i for i in range(1, 6))
    units = [0xFF] * (256 * 6)

    def put(state, byte, next_state):
        position = state ^ byte
        units[position] = (position ^ next_state) << 10 | (256 if next_state == end else 0) | byte

    units[0] = root << 10
    for bytes_, next_state in ((range(1, 0x80), end), (range(0xC2, 0xE0), one_more),
                               (range(0xE0, 0xF0), two_more), (range(0xF0, 0xF5), three_more)):
        for byte in bytes_:
            put(root, byte, next_state)
    for byte in range(0x80, 0xC0):
        put(one_more, byte, end)
        put(two_more, byte, one_more)
        put(three_more, byte, two_more)
    units[end] = 1 << 31
    trie = struct.pack(f"<{len(units)}I", *units)
    return tokenizers.normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"x\0")


def grapheme_classes():
    """Bits of every code point. Some that only concern graphemes of more bytes are not set."""
    normalizer = counting_normalizer()

    def count(text):
        return len(normalizer.normalize_str(text))

    bits = bytearray(CODE_POINTS)
    bits[0] = CONTROL  # ends a search in the charsmap
    ka, virama, acute = "\u0915", "\u094d", "\u0301"
    for c in (c for c in range(1, CODE_POINTS) if c not in SURROGATES):
        text = chr(c)
        if count("a" + text) == 1:
            bits[c] |= EXTENDS
        if count(text + "a") == 1:
            bits[c] |= PREPENDS
        if c < 0x10000 and count(text + acute) == 2:
            bits[c] |= CONTROL
        if count("\u00a9\u200d" + text) == 3 and not bits[c] & EXTENDS:
            bits[c] |= PICTURE
        if c < 0x10000 and count(ka + virama + text + acute) == 4 and not bits[c] & (EXTENDS | CONTROL):
            bits[c] |= CONSONANT
        if bits[c] & EXTENDS and count(ka + text + ka + acute) == 4:
            bits[c] |= LINKER
        if bits[c] & EXTENDS and count(ka + text + virama + ka + acute) == 5:
            bits[c] |= CONJOINS
    return bits


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


def case_table(lower):
    """Runs of all letters, or of every second one, whose lower case is at one distance."""
    runs = []  # first, last, step, distance
    assert lower[DOTTED_I] == "i\u0307"
    for c, to in sorted((c, ord(to)) for c, to in lower.items() if c != DOTTED_I):
        first, last, step, distance = runs[-1] if runs else (0, 0, 0, 0)
        starts_pair = first == last and c - last == 2
        if to - c == distance and (c - last == step or starts_pair):
            runs[-1] = (first, c, c - last, distance)
        else:
            runs.append((c, c, 1, to - c))
    return ("// Letters with a lower case: first and last of a run, step from letter to letter, "
            f"distance to the\n// lower case.\nconstexpr std::array<CaseRun, {len(runs)}> kCaseRuns "
            "= {{\n" + wrapped(f"{{{a:#x}, {b:#x}, {step}, {d}}}," for a, b, step, d in runs)
            + "\n}};\n")


def checksum(changed):
    """CRC-32 of all code points and what they become, as UTF-8."""
    lines = (f"{chr(c)}{changed.get(c, chr(c))}\n" for c in range(CODE_POINTS) if c not in SURROGATES)
    return f"{zlib.crc32(''.join(lines).encode()):#010x}"


def tables():
    """Names and contents of the files."""
    bits, bases, lower = bert_characters()
    return {
        "core/text/unicode_classes.inc": header() + range_table(
            "kClassStarts", library_classes(), 2,
            "// Changes of the class: the first code point << 2 | UnicodeClass.\n"),
        "tests/unit/core/text/bert_characters_sums.inc": header()
        + f"constexpr std::uint32_t kWithoutAccents = {checksum(bases)};\n"
        + f"constexpr std::uint32_t kInLowerCase = {checksum(lower)};\n",
        "core/text/bert_characters.inc": header() + range_table(
            "kCharacterStarts", bits, 6,
            "// Changes of the bits: the first code point << 6 | bits of BertCharacter.\n")
        + case_table(lower),
        "core/text/grapheme_classes.inc": header() + range_table(
            "kGraphemeStarts", grapheme_classes(), 7,
            "// Changes of the bits: the first code point << 7 | bits of GraphemeClass.\n"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    status = 0
    for name, text in tables().items():
        if not arguments.check:
            (ROOT / name).write_text(text)
        elif (ROOT / name).read_text().splitlines()[2:] != text.splitlines()[2:]:
            print(f"{name} is not what tokenizers {tokenizers.__version__} says; run "
                  "scripts/make_unicode_classes.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
