#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes tests/fixtures/sentencepiece: a small spm.model and the ids of texts of all kinds.

The model is trained, unless it exists, with the settings of DeBERTa-v3 on this repository's documents
and on the lines of tests/fixtures/tokenizer/mixed.bin. The ids are those of DebertaV2Tokenizer
(spm.model) and of the DebertaV2TokenizerFast (tokenizer.json) that transformers converts it to, also
with the normalizer of version 5.

    build/venv/bin/python tests/golden/make_sentencepiece_fixtures.py

Needs transformers 4.46, sentencepiece 0.1.99 and protobuf: scripts/setup_python.sh. Version 5 of
transformers has no DebertaV2TokenizerFast, and its DebertaV2Tokenizer drops the model's character
map. Version 0.2 of sentencepiece resolves some ties otherwise than Debian's 0.1.97.
"""

import io
import json
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import Regex, normalizers
from transformers import DebertaV2Tokenizer, DebertaV2TokenizerFast

from make_tokenizer_fixtures import fnv1a, is_valid, splitmix64

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
OUT = FIXTURES / "sentencepiece"
VOCABULARY = 2000
SURROGATES = range(0xD800, 0xE000)
BLOCK = 0x8000
OPTIONS = [{}, {"split_by_punct": True}, {"do_lower_case": True},
           {"do_lower_case": True, "split_by_punct": True}]
NORMALIZER_5 = normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(),
                                     normalizers.Strip(left=False, right=True)])
SPECIAL = ["", " ", "   ", "\u200b", "[CLS] marks [SEP] in [MASK] a [PAD]text [UNK][UNK] [sep] [ SEP ]",
           "[CLS", " [MASK]a", "a[UNK]b", "a [UNK] b", "<s></s><unk>", "a" * 300, "\u2581a\u2581\u2581b \u2581", "x\ty\nz\r\nw ",
           "  two  spaces   three\u00a0\u00a0\u3000", "\u200bzero\u200b width\u200b", "\x00nul\x00 \x01\x02\x1b[0m\x7f",
           "\uff28\uff25\uff2c\uff2c\uff2f \ufb01ne \u33a5 \u2460 \ufdfa", "e\u0301 \u00e9 \uff21\u0301 \ufb01\u0301 \u1e9b\u0323",
           "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u1100\u1161\u0301", "\u0958\u094d\u0958\u0301 \u0915\u094d\u0958\u0301",
           "\u0600\uff11 \u0600\u00a0", "\u00a9\u200d\U0001f600 \u00ae\u200dx", "\u0130STANBUL \u03a3\u03a3 \u00df\u1e9e",
           "\U0001f469\u200d\U0001f680\U0001f1e9\U0001f1ea \u2764\ufe0f", "Hello, world! (it's) \u201cquoted\u201d -- a_b",
           "\u4e2d\u6587\uff0c\u6587\u5b57\u3002", "\ufffd\ufeff\u00ad", "a  [SEP]  b", "x" + "\u0301" * 40]
# Characters of all classes that graphemes depend on, and some that the character map has.
MIXED = ["a", " ", "\uff21", "\u00c5", "\u212b", "\ufb01", "\u0301", "\u0323", "\u0345", "\u200d", "\u200c", "\u0600", "\u06dd", "\u0903", "\u0915",
         "\u0958", "\u094d", "\u093c", "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u3131", "\uff71", "\uff9e", "\u00a9", "\u203c",
         "\U0001f600", "\U0001f1e6", "\U0001f3fb", "\r", "\n", "\t", "\u00a0", "\u2028", "\ufeff", "\u00ad", "\u0e33", "\u0f73", "\u0344",
         "\u1e9b", "\u2126", "\u0340", "\U0001d15e", "\U0001d165", "\ufdfa", "\u2460", "1", ",", "\u2581", "\u3000"]
MIXTURES, LENGTH = 60, 500


def train():
    """The bytes of an spm.model."""
    texts = [line for file in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
             for line in file.read_text(encoding="utf-8").splitlines()]
    texts += (FIXTURES / "tokenizer/mixed.bin").read_bytes().decode(errors="ignore").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in texts if line.strip()]), model_writer=model, vocab_size=VOCABULARY,
        model_type="unigram", normalization_rule_name="nmt_nfkc", pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
        bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", num_threads=1, minloglevel=2)
    return model.getvalue()


def texts():
    """The lines of mixed.bin, as bytes, and the texts that all tokenizers encode."""
    mixed = (FIXTURES / "tokenizer" / "mixed.bin").read_bytes()
    lines, start = [], 0
    for length, *_ in json.loads((FIXTURES / "tokenizer" / "expected.json").read_text())["lines"]:
        lines.append(mixed[start:start + length])
        start += length
    return lines, [line.decode() for line in lines if is_valid(line)] + SPECIAL


def mixtures():
    return ["".join(MIXED[splitmix64(i * LENGTH + j) % len(MIXED)] for j in range(LENGTH)) for i in range(MIXTURES)]


def blocks():
    every = [f"a{chr(c)}b " for c in range(0x110000) if c not in SURROGATES]
    return ["".join(every[i:i + BLOCK]) for i in range(0, len(every), BLOCK)]


def megabyte(lines):
    drawn, size, counter = [], 0, 0
    while size < 1 << 20:
        drawn.append(lines[splitmix64(counter) % len(lines)])
        size += len(drawn[-1].encode())
        counter += 1
    return "".join(drawn)


def summaries(tokenizer, lines):
    def summary(text):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        return {"ids": len(ids), "hash": fnv1a(ids)}
    pair = tokenizer("The first text", "and the second")
    return {"lines": [summary(line) for line in lines], "mixtures": [summary(text) for text in mixtures()],
            "megabyte": summary(megabyte(lines)), "blocks": [summary(block) for block in blocks()],
            "pair": pair.input_ids, "segments": pair.token_type_ids}


def without_pieces(whole):
    """A tokenizer.json without what spm.model has."""
    del whole["model"]["vocab"]
    for step in whole["normalizer"]["normalizers"]:
        if step["type"] == "Precompiled":
            del step["precompiled_charsmap"]
    return whole


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    if not (OUT / "spm.model").exists():
        (OUT / "spm.model").write_bytes(train())
    lines, valid = texts()
    expected = {"special": SPECIAL, "mixed": MIXED, "jsons": [],
                "model": summaries(DebertaV2Tokenizer.from_pretrained(OUT), valid)}
    for options, normalizer in [*((options, None) for options in OPTIONS), ({}, NORMALIZER_5)]:
        with tempfile.TemporaryDirectory() as folder:
            fast = DebertaV2TokenizerFast.from_pretrained(OUT, **options)
            if normalizer is not None:
                fast.backend_tokenizer.normalizer = normalizer
            fast.save_pretrained(folder)
            whole = without_pieces(json.loads((Path(folder) / "tokenizer.json").read_text()))
        decoded = [fast.backend_tokenizer.decode(fast(text, add_special_tokens=False).input_ids, skip_special_tokens=False)
                   for text in SPECIAL]
        expected["jsons"].append({"config": options, "json": whole, "decoded": decoded, **summaries(fast, valid)})
    library = sentencepiece.SentencePieceProcessor(model_file=str(OUT / "spm.model"))
    malformed = [library.encode(line) for line in lines if not is_valid(line)]
    expected["malformed"] = [{"ids": len(ids), "hash": fnv1a(ids)} for ids in malformed]
    (OUT / "expected.json").write_bytes((json.dumps(expected, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main()
