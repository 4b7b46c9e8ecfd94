#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes tests/fixtures/wordpiece: a small WordPiece vocabulary and the ids of texts of all kinds.

The ids come from transformers' BertTokenizer, whose backend is the tokenizers library. The texts are
the lines of tests/fixtures/tokenizer/mixed.bin that are valid UTF-8.

    DELTAPIPE_DATA=<folder of real texts> python3 tests/golden/make_wordpiece_fixtures.py

Needs the newest transformers. DELTAPIPE_DATA holds bert_vocab, wikitext2, tinyshakespeare and
arxiv_abstracts.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from tokenizers import BertWordPieceTokenizer
from transformers import AutoTokenizer

from make_tokenizer_fixtures import fnv1a, is_valid, splitmix64

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
OUT = FIXTURES / "wordpiece"
DATA = Path(os.environ.get("DELTAPIPE_DATA", ""))
VOCABULARY = 2000
SURROGATES = range(0xD800, 0xE000)
BLOCK = 0x8000
CONFIGS = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
]
SPECIAL = ["[CLS] marks [SEP] in [MASK] a [PAD]text [UNK][UNK] [sep] [ SEP ]", "[CLS", "##ing ## #", "a" * 100, "a" * 101,
           "x" * 300 + " short", "\u00e9" * 100, "e\u0301" * 100, "\u00c0\u0300\u0345A", "\u0130stanbul \u03a3\u03a3 \u00df\u1e9e",
           "\ud55c\uad6d\uc5b4 \uc640 \ubdc1", "\u226e\u037e\u1fef\u2000\u0344", "caf\u00e9\u200bs\u00ad \ufffd\u0000x"]


def saved(folder, config):
    """The tokenizer that a directory with this configuration gives."""
    for name in ("vocab.txt",):
        (Path(folder) / name).write_bytes((OUT / name).read_bytes())
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    return AutoTokenizer.from_pretrained(folder)


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def summary(ids):
    return {"ids": len(ids), "hash": fnv1a(ids)}


def main():
    if not (DATA / "bert_vocab" / "vocab.txt").exists():
        sys.exit("set DELTAPIPE_DATA to the folder with bert_vocab, wikitext2, tinyshakespeare and arxiv_abstracts")
    OUT.mkdir(parents=True, exist_ok=True)
    mixed = (FIXTURES / "tokenizer" / "mixed.bin").read_bytes()
    lines, start = [], 0
    for length, *_ in json.loads((FIXTURES / "tokenizer" / "expected.json").read_text())["lines"]:
        lines.append(mixed[start:start + length])
        start += length
    lines = [line.decode() for line in lines if is_valid(line)] + SPECIAL

    trainer = BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    trainer.train_from_iterator(lines + ["a b c"] + [line.lower() for line in lines], vocab_size=VOCABULARY, min_frequency=2,
                                show_progress=False, limit_alphabet=800)
    vocabulary = sorted(trainer.get_vocab().items(), key=lambda entry: entry[1])
    names = [name for name, _ in vocabulary]
    names += [name for name in ("a", "##b", "b") if name not in names]
    (OUT / "vocab.txt").write_bytes(("\n".join(names) + "\n").encode())

    expected = {"configs": [], "special": SPECIAL}
    every = [f"a{chr(c)}b " for c in range(0x110000) if c not in SURROGATES]
    blocks = ["".join(every[i:i + BLOCK]) for i in range(0, len(every), BLOCK)]
    for config in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = saved(folder, config)
            drawn, size, counter = [], 0, 0
            while size < 1 << 20:
                drawn.append(lines[splitmix64(counter) % len(lines)])
                size += len(drawn[-1].encode())
                counter += 1
            tokenizer.save_pretrained(Path(folder) / "whole")
            whole = json.loads((Path(folder) / "whole" / "tokenizer.json").read_text())
            del whole["model"]["vocab"]
            pair = tokenizer("The first text", "and the second")
            expected["configs"].append({
                "config": config, "json": whole,
                "lines": [summary(ids_of(tokenizer, line)) for line in lines],
                "megabyte": summary(ids_of(tokenizer, "".join(drawn))),
                "blocks": [summary(ids_of(tokenizer, block)) for block in blocks],
                "pair": pair.input_ids, "segments": pair.token_type_ids})
    expected["bert"] = {}
    bert = BertWordPieceTokenizer(str(DATA / "bert_vocab" / "vocab.txt"))
    for name in ("wikitext2/test.raw.txt", "wikitext2/train.raw.1MB.txt", "wikitext2/valid.raw.100kB.txt",
                 "arxiv_abstracts/abstracts.jsonl", "tinyshakespeare/input.txt"):
        ids = bert.encode((DATA / name).read_bytes().decode(), add_special_tokens=False).ids
        expected["bert"][name] = summary(ids)
    (OUT / "expected.json").write_bytes((json.dumps(expected, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main()
