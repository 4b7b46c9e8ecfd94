#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Models and tokenizers go from transformers to deltapipe and back.

usage: transformers_test.py PROGRAM [--newest]
  --newest   this interpreter is to have transformers 5 or later

Exit status 77: transformers, PyTorch or h5py is missing.
"""

import functools
import json
import os
import pathlib
import random
import re
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
    import safetensors.torch
    import tokenizers
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    print(f"skipped: {error} (scripts/setup_python.sh)")
    sys.exit(77)
if NEWEST and int(transformers.__version__.split(".")[0]) < 5:
    print(f"skipped: no build/venv-newest (scripts/setup_python.sh), here is transformers "
          f"{transformers.__version__}")
    sys.exit(77)

import support  # noqa: E402

FIXTURE = ROOT / "tests/fixtures/tokenizer"
WIDTH = 32  # tokens of a sample
torch.set_num_threads(1)


def is_settled(code_point):
    """Whether the tokenizers library here classes it as the newest one does."""
    return NEWEST or unicodedata.category(chr(code_point)) != "Cn"


CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and is_settled(c)]


@functools.lru_cache(maxsize=None)
def mixed_text():
    """Characters of all kinds among words, spaces, line ends and added tokens."""
    numbers = random.Random(5)
    common = ["'s", "'ll", "'RE", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "don't", "word",
              "123", "<|endoftext|>", "<|endof", "hello", "wOw", "<pad>", "\U0001f469\u200d\U0001f680",
              "e\u0301", "\u0645\u0631", "\u65e5\u672c", "\x07\x1b[0m", "\ufeff"]
    text = [f"a{chr(c)}1{chr(c)}! {chr(c)} " for c in CODE_POINTS if c < 0x3000]
    text += [numbers.choice(common) if numbers.random() < 0.7 else chr(numbers.choice(CODE_POINTS))
             for _ in range(40000)]
    return "".join(text)


@functools.lru_cache(maxsize=None)
def every_code_point():
    """In an order that puts unlike ones side by side."""
    shuffled = CODE_POINTS[:]
    random.Random(6).shuffle(shuffled)
    return "".join(map(chr, shuffled))


def gpt2_tokenizer(directory):
    """transformers' tokenizer from vocab.json and merges.txt."""
    cls = getattr(transformers, "GPT2TokenizerFast", None) or transformers.GPT2Tokenizer
    return cls.from_pretrained(directory)


def make_model(directory, tokenizer, **config):
    torch.manual_seed(11)
    end = tokenizer.eos_token_id
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=len(tokenizer), n_layer=2, n_embd=48, n_head=3, n_positions=WIDTH,
        initializer_range=0.2, bos_token_id=end, eos_token_id=end,
        **{"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0, **config}))
    if not model.config.tie_word_embeddings:
        torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    model.save_pretrained(directory, max_shard_size="150KB")
    return model


def load_model(directory):
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.double().eval()


def mean_loss(model, ids):
    """Of ids cut into windows of WIDTH inputs, as deltapipe cuts them."""
    loss, tokens = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, WIDTH):
            window = ids[start:start + WIDTH + 1]
            logits = model(torch.tensor([window[:-1]])).logits[0]
            targets = torch.tensor(window[1:])
            loss += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            tokens += len(targets)
    return loss / tokens


class Transformers(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
              f"PyTorch {torch.__version__}")
        cls.text.write_text(support.text_of(6000) + "hello wOw <pad>, don't", encoding="utf-8")
        cls.pair = cls.place / "pair"
        cls.pair.mkdir()
        for name in ("vocab.json", "merges.txt"):
            (cls.pair / name).write_bytes((FIXTURE / name).read_bytes())

    def deck(self, model, **sections):
        return support.merged(
            self.small(data={"train": [str(self.text)], "validation": [str(self.text)],
                             "max_train_samples": 0, "max_validation_samples": 0},
                       training={"steps": 2}), {"model": {"path": str(model)},
                                                "tokenizer": {"train_vocabulary": 0}}, sections)

    def evaluated(self, model):
        said = self.succeed(["evaluate", self.deck_file(self.deck(model))])
        return float(re.search(r"loss ([0-9.]+)", said.out)[1]), said

    def assert_same_loss(self, directory, model, tokenizer):
        ids = tokenizer(self.text.read_text(encoding="utf-8"))["input_ids"]
        expected = mean_loss(model, ids + [tokenizer.eos_token_id])
        loss, said = self.evaluated(directory)
        self.assertLess(abs(loss / expected - 1), 1e-5, (loss, expected))
        return said

    def assert_same_ids(self, tokenizer_directory, tokenizer, name, text):
        output = self.output(f"tokens_{name}")
        file = self.place / f"{name}.txt"
        file.write_text(text, encoding="utf-8", newline="")
        deck = self.small(data={"train": [str(file)]},
                          tokenizer={"train_vocabulary": 0, "path": str(tokenizer_directory)})
        self.succeed(["tokenize", self.deck_file(deck), f"output.directory={output}"])
        with h5py.File(output / "train.h5") as file:
            ids = file["tokens"][()].tolist()
        expected = tokenizer(text)["input_ids"]
        if ids == expected:
            return
        at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]),
                  min(len(ids), len(expected)))
        self.fail(f"{name}: ids differ at {at}: {ids[at:at + 6]}, {expected[at:at + 6]}: "
                  f"{tokenizer.decode(expected[at - 3:at + 6])!r}")

    def there_and_back(self, name, directory, tokenizer):
        """Loss, training, saving and loading of one model."""
        self.assert_same_loss(directory, load_model(directory), tokenizer)
        self.train(self.deck(directory), name, ranks=2, overrides=["pipeline.stages=2"])
        saved = self.output(name) / "model"
        again, tokenizer_again = load_model(saved), AutoTokenizer.from_pretrained(saved)
        self.assertEqual(len(tokenizer_again), len(tokenizer))
        self.assertEqual(tokenizer_again.eos_token_id, tokenizer.eos_token_id)
        self.assert_same_loss(saved, again, tokenizer_again)
        self.assertEqual(tokenizer_again("a <|endoftext|>hello wOw")["input_ids"],
                         tokenizer("a <|endoftext|>hello wOw")["input_ids"])
        greedy = tokenizer_again("Ka lo")["input_ids"]
        with torch.no_grad():
            for _ in range(8):
                greedy.append(int(again(torch.tensor([greedy])).logits[0, -1].argmax()))
        said = self.succeed(["generate", self.deck_file(self.deck(saved)), "generate.temperature=0",
                             "generate.max_new_tokens=8", "--prompt", "Ka lo"])
        text = tokenizer_again.decode(greedy).split("<|endoftext|>")[0]
        # For a sequence of UTF-8 that breaks off Python writes one U+FFFD, deltapipe one a byte.
        self.assertEqual(*(re.sub("\ufffd+", "\ufffd", t.rstrip("\n")) for t in (said.out, text)))
        return again, tokenizer_again

    def test_tied_and_sharded_with_a_saved_tokenizer(self):
        directory = self.place / "tied"
        tokenizer = gpt2_tokenizer(self.pair)
        make_model(directory, tokenizer)
        tokenizer.save_pretrained(directory)
        self.assertTrue((directory / "model.safetensors.index.json").exists())
        self.assertTrue((directory / "tokenizer.json").exists())
        model, _ = self.there_and_back("tied_run", directory, tokenizer)
        self.assertTrue(model.config.tie_word_embeddings)

    def test_untied_with_vocabulary_and_merges(self):
        directory = self.place / "untied"
        tokenizer = gpt2_tokenizer(self.pair)
        make_model(directory, tokenizer, tie_word_embeddings=False, layer_norm_epsilon=1e-4,
                   activation_function="gelu_pytorch_tanh", n_inner=80)
        for name in ("vocab.json", "merges.txt"):
            (directory / name).write_bytes((FIXTURE / name).read_bytes())
        model, _ = self.there_and_back("untied_run", directory, tokenizer)
        self.assertFalse(model.config.tie_word_embeddings)
        self.assertEqual(model.config.layer_norm_epsilon, 1e-4)
        self.assertEqual(model.config.n_inner, 80)

    def test_only_tokenizer_json_and_added_tokens(self):
        directory = self.place / "added"
        tokenizer = gpt2_tokenizer(self.pair)
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
        tokenizer.add_tokens(["hello", "wOw"])
        make_model(directory, tokenizer, pad_token_id=tokenizer.pad_token_id)
        tokenizer.save_pretrained(directory)
        for path in directory.iterdir():
            if path.name in ("vocab.json", "merges.txt", "added_tokens.json"):
                path.unlink()
        model, tokenizer_again = self.there_and_back("added_run", directory, tokenizer)
        self.assertEqual(model.config.pad_token_id, tokenizer.pad_token_id)
        self.assert_same_ids(directory, tokenizer, "added", mixed_text())
        self.assert_same_ids(self.output("added_run") / "model", tokenizer_again, "added_back",
                             mixed_text())

    def test_ids_of_every_code_point(self):
        tokenizer = gpt2_tokenizer(self.pair)
        saved = self.place / "saved_tokenizer"
        tokenizer.save_pretrained(saved)
        self.assert_same_ids(self.pair, tokenizer, "every", every_code_point())
        self.assert_same_ids(saved, tokenizer, "saved", mixed_text())
        back = self.output("tokens_saved") / "tokenizer"
        self.assert_same_ids(back, AutoTokenizer.from_pretrained(back), "back", mixed_text())
        library = tokenizers.Tokenizer.from_file(str(back / "tokenizer.json"))
        self.assertEqual(library.encode(mixed_text()).ids, tokenizer(mixed_text())["input_ids"])

    def test_an_output_matrix_of_its_own_under_a_tied_config(self):
        directory = self.place / "own_head"
        tokenizer = gpt2_tokenizer(self.pair)
        make_model(self.place / "own_head_parts", tokenizer, tie_word_embeddings=False)
        load_model(self.place / "own_head_parts").float().save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        if NEWEST:  # earlier versions tie whatever the file holds
            said = self.assert_same_loss(directory, load_model(directory), tokenizer)
            self.assertIn("lm_head.weight is another matrix", said.err)
        self.train(self.deck(directory), "own_head_run")
        saved = self.output("own_head_run") / "model"
        model = load_model(saved)
        self.assertFalse(model.config.tie_word_embeddings)
        self.assert_same_loss(saved, model, tokenizer)
        equal = safetensors.torch.load_file(directory / "model.safetensors")
        equal["lm_head.weight"] = equal["transformer.wte.weight"].clone()
        safetensors.torch.save_file(equal, directory / "model.safetensors", {"format": "pt"})
        said = self.assert_same_loss(directory, load_model(directory), tokenizer)
        self.assertNotIn("warning", said.err)

    def test_tokenizers_that_add_tokens_are_refused(self):
        if not NEWEST:
            self.skipTest("the fast tokenizer of transformers 4.46 does not know add_bos_token")
        directory = self.place / "with_bos"
        cls = transformers.GPT2Tokenizer
        tokenizer = cls.from_pretrained(self.pair, add_bos_token=True)
        make_model(directory, tokenizer)
        tokenizer.save_pretrained(directory)
        self.assert_stops(support.run(["check", self.deck_file(self.deck(directory))]),
                          "adds tokens to a text", "add_bos_token=False")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
