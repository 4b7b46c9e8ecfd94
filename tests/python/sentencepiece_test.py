#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Unigram tokenizers have the ids of transformers and of the tokenizers library for a megabyte of
mixed text.

usage: sentencepiece_test.py PROGRAM [--newest]
  --newest   this interpreter is to have transformers 5 or later

Version 4 of transformers encodes with DebertaV2Tokenizer and DebertaV2TokenizerFast, version 5 with
its only DebertaV2Tokenizer, which has another normalisation. The tokenizer.json of version 4 is
compared with the tokenizers library. Exit status 77: transformers, sentencepiece or h5py is missing.
"""

import functools
import json
import os
import pathlib
import random
import sys
import unicodedata
import unittest

os.environ["DELTAPIPE_PROGRAM"] = sys.argv[1]
NEWEST = "--newest" in sys.argv[2:]
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
os.environ.update(TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

try:
    import h5py
    import transformers
    if not NEWEST:
        import sentencepiece
except ImportError as error:
    print(f"skipped: {error} (scripts/setup_python.sh)")
    sys.exit(77)
VERSION = int(transformers.__version__.split(".")[0])
if (VERSION >= 5) != NEWEST:
    print(f"skipped: no build/venv{'-newest' if NEWEST else ''} (scripts/setup_python.sh), here is "
          f"transformers {transformers.__version__}")
    sys.exit(77)

import sentencepiece_files  # noqa: E402
import support  # noqa: E402

SIZE = 1 << 20
SETTLED = [c for c in range(1, 0x110000)
           if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
SCRIPTS = ["The quick brown fox", "l'été où ça naît", "Привет, мир", "γειά σου Κόσμε", "שלום עולם",
           "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界。", "こんにちは世界", "안녕하세요 세계",
           "ｆｕｌｌ　ｗｉｄｔｈ", "ﬁne ﬂow ½ ² ™ ㎏"]
ODD = [" ", "  ", "     ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u200d", "\u2028", "\x01",
       "\x07\x1b[0m", "\x7f", "\u0085", "\ufeff", "\u00ad", "\u2581", "\u2581\u2581", "e\u0301", "a\u0323\u0301", "\uff21\u0301",
       "\u1112\u1161\u11ab", "\U0001f469\u200d\U0001f680", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f3fb", "[CLS]",
       "[SEP]", "[MASK]", "[PAD]", "[UNK]", "[sep]", "<s>", "</s>", "123,456.78", "''``", "can't!",
       "<one>", "<one>two", "\u4f60\u597d"]


@functools.lru_cache(maxsize=None)
def mixed_texts():
    """Documents of a megabyte together, some of them of many kilobytes."""
    numbers = random.Random(7)
    words = support.text_of(20000).split()

    def piece():
        chance = numbers.random()
        if chance < 0.45:
            return numbers.choice(words) + " "
        if chance < 0.6:
            return numbers.choice(numbers.choice(SCRIPTS).split()) + numbers.choice(" \n")
        if chance < 0.8:
            return numbers.choice(ODD)
        return chr(numbers.choice(SETTLED))

    texts, size = [], 0
    while size < SIZE:
        length = numbers.choice([1, 3, 10, 50, 500, 20000])
        texts.append("".join(piece() for _ in range(length)))
        size += len(texts[-1].encode())
    return texts


@unittest.skipUnless(hasattr(os, "sched_getaffinity"), "needs Linux")
class Unigram(support.TestCase):
    def tokenized(self, directory, texts):
        """The ids of texts, each a file, from `deltapipe tokenize`."""
        files = []
        for i, text in enumerate(texts):
            files.append(self.place / f"text{i}.txt")
            files[-1].write_text(text, encoding="utf-8", newline="")
        output = self.output(f"tokens_{directory.name}")
        deck = self.small(data={"train": [str(file) for file in files]},
                          tokenizer={"train_vocabulary": 0, "path": str(directory)})
        self.succeed(["tokenize", self.deck_file(deck), f"output.directory={output}"])
        with h5py.File(output / "train.h5") as file:
            tokens, offsets = file["tokens"][()], file["document_offsets"][()]
        self.assertEqual(len(offsets), len(texts))
        return [tokens[a:b].tolist() for a, b in zip(offsets, [*offsets[1:], len(tokens)])]

    def assert_same_ids(self, directory, encode, joined=False):
        texts = ["".join(mixed_texts())] if joined else [text for text in mixed_texts() if text]
        for text, ids in zip(texts, self.tokenized(directory, texts)):
            expected = encode(text)
            if ids == expected:
                continue
            at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]),
                      min(len(ids), len(expected)))
            self.fail(f"ids differ at {at}: {ids[at - 2:at + 6]}, {expected[at - 2:at + 6]}; "
                      f"{text[:200]!r}")

    def test_tokenizer_json_and_the_library(self):
        directory = sentencepiece_files.write_json(self.place / "json")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(directory / "tokenizer.json"))

        def encode(text):
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        self.assert_same_ids(directory, encode)
        self.assert_same_ids(directory, encode, joined=True)

    @unittest.skipUnless(NEWEST, "version 4 writes another tokenizer.json")
    def test_deberta_tokenizers_of_version_5(self):
        source = sentencepiece_files.write_json(self.place / "source5")
        pieces = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
        for options in ({}, {"do_lower_case": True}, {"split_by_punct": True}):
            with self.subTest(options):
                tokenizer = transformers.DebertaV2Tokenizer(
                    vocab=[tuple(piece) for piece in pieces], unk_id=3, **options)
                directory = self.place / f"version5{len(options)}{'_'.join(options)}"
                tokenizer.save_pretrained(directory)

                def encode(text, tokenizer=tokenizer):
                    return tokenizer(text, add_special_tokens=False)["input_ids"]
                self.assert_same_ids(directory, encode)
                self.assert_same_ids(directory, encode, joined=True)

    @unittest.skipIf(NEWEST, "version 5 has other rules for texts")
    def test_deberta_tokenizers(self):
        source = sentencepiece_files.write_model(self.place / "model")
        for cls in (transformers.DebertaV2Tokenizer, transformers.DebertaV2TokenizerFast):
            tokenizer = cls.from_pretrained(source)
            directory = self.place / cls.__name__
            tokenizer.save_pretrained(directory)
            self.assertEqual((directory / "tokenizer.json").exists(), tokenizer.is_fast)

            def encode(text, tokenizer=tokenizer):
                return tokenizer(text, add_special_tokens=False)["input_ids"]
            self.assert_same_ids(directory, encode)
            self.assert_same_ids(directory, encode, joined=True)
            if not tokenizer.is_fast:
                self.assert_same_ids(source, encode)

    @unittest.skipIf(NEWEST, "sentencepiece comes with the oldest transformers")
    def test_other_sentencepiece_models(self):
        """User-defined pieces, bytes for unknown characters, other normalisation."""
        lines = [*support.text_of(100000).splitlines(), *20 * SCRIPTS]
        for name, options in (
                ("bytes", {"byte_fallback": True}),
                ("symbols", {"user_defined_symbols": ["<one>", "<one>two", "\u4f60\u597d"]}),
                ("identity", {"normalization_rule_name": "identity",
                              "remove_extra_whitespaces": False}),
                ("suffix", {"treat_whitespace_as_suffix": True}),
                ("no_prefix", {"add_dummy_prefix": False}),
                ("folded", {"normalization_rule_name": "nmt_nfkc_cf"})):
            with self.subTest(name):
                directory = self.place / name
                directory.mkdir()
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=iter(lines), model_prefix=str(directory / "spm"),
                    vocab_size=700, pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
                    bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", num_threads=1,
                    hard_vocab_limit=False, character_coverage=0.99, minloglevel=2, **options)
                tokenizer = transformers.DebertaV2Tokenizer.from_pretrained(directory)

                def encode(text, tokenizer=tokenizer):
                    return tokenizer(text, add_special_tokens=False)["input_ids"]
                self.assert_same_ids(directory, encode)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
