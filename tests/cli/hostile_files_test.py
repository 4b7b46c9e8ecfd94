#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Files that are made to hang, crash or fill a machine are one line and an exit status."""

import json
import os
import shutil
import socket
import struct
import time

import h5py
import numpy as np

import support

MEMORY_LIMIT = 3 << 30  # bytes of address space; a small run takes less than one


class HostileFiles(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.trained_model()

    def deck(self, model, **sections):
        return self.deck_file(self.small(
            model={"path": str(model)}, tokenizer={"train_vocabulary": 0}, **sections))

    def copy(self):
        target = self.place / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.model, target)
        return target

    def stops(self, deck, *parts, seconds=30):
        """Under a limit of memory; a machine with other work gets some time."""
        limited = ["prlimit", f"--as={MEMORY_LIMIT}", support.PROGRAM, "train", str(deck)]
        start = time.monotonic()
        result = support.run_command(limited)
        self.assert_stops(result, *parts)
        self.assertLess(time.monotonic() - start, seconds)
        self.assertNotIn("not enough memory", result.err)

    def kinds(self, path, make_deck):
        """The path as each thing that is no regular file; a deck that reads it."""
        def make_fifo():
            os.mkfifo(path)

        def make_device():
            path.symlink_to("/dev/zero")

        def make_socket():
            here = os.getcwd()
            os.chdir(path.parent)
            try:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(path.name)
            finally:
                os.chdir(here)

        for make, part in ((make_fifo, "named pipe"), (make_device, "device"),
                           (path.mkdir, "directory"), (make_socket, "socket")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            make()
            with self.subTest(path.name, kind=part):
                self.stops(make_deck(), path, part)

    def test_decks_that_are_no_files(self):
        path = self.place / "kind.toml"
        self.kinds(path, lambda: path)

    def test_data_that_are_no_files(self):
        for name in ("kind.txt", "kind.jsonl", "kind.h5"):
            path = self.place / name
            self.kinds(path, lambda: self.deck(self.model, data={"train": [str(path)]}))

    def test_model_files_that_are_no_files(self):
        for name in ("config.json", "model.safetensors", "tokenizer.json",
                     "tokenizer_config.json", "added_tokens.json"):
            model = self.copy()
            self.kinds(model / name, lambda: self.deck(model))
        for name in ("vocab.json", "merges.txt"):
            model = self.copy()
            (model / "tokenizer.json").unlink()
            self.kinds(model / name, lambda: self.deck(model))
        model = self.copy()
        for name in ("tokenizer.json", "vocab.json", "merges.txt"):
            (model / name).unlink()
        self.kinds(model / "spm.model", lambda: self.deck(model))

    def test_depth(self):
        deep = "[" * 200_000
        for name, text in (("config.json", '{"a":' + deep), ("tokenizer.json", '{"model":' + deep),
                           ("tokenizer.json", '{"added_tokens":' + deep),
                           ("tokenizer_config.json", '{"eos_token":' + deep)):
            model = self.copy()
            (model / name).write_text(text)
            with self.subTest(name):
                self.stops(self.deck(model), f"{name}:1:", "nested deeper than 64")
        lines = self.place / "deep.jsonl"
        lines.write_text('{"text": "a"}\n{"text": ' + deep + "\n")
        self.stops(self.deck(self.model, data={"train": [str(lines)]}), "deep.jsonl:2:", "nested")
        deck = self.place / "deep.toml"
        for text in ("a." * 50_000 + "a = 1\n", "a = " + deep, "[" + "a." * 50_000 + "a]\n"):
            deck.write_text(text)
            self.stops(deck, "deep.toml:1: nested deeper")

    def test_many_keys(self):
        model = self.copy()
        config = json.loads((model / "config.json").read_text())
        config |= {f"key{i}": i for i in range(200_000)}
        (model / "config.json").write_text(json.dumps(config | {"n_head": 5}))
        self.stops(self.deck(model), "n_head")

    def test_many_tensors(self):
        model = self.copy()
        header = ",".join(f'"t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{4 * i},{4 * i + 4}]}}'
                          for i in range(1_000_000))
        text = ("{" + header + "}").encode()
        with open(model / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + 4_000_000)
        self.stops(self.deck(model), "has no tensor", seconds=60)

    def test_vast_vocabulary(self):
        model = self.copy()
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"vocab_size": 2**26}))
        self.stops(self.deck(model), "wte.weight", str(2**26))

    def test_claimed_tokens(self):
        path = self.place / "claim.h5"
        for chunks in (None, (1024,)):
            with h5py.File(path, "w") as file:
                file.create_dataset("tokens", (2**40,), np.int32, chunks=chunks)
            self.stops(self.deck(self.model, data={"train": [str(path)]}), "claim.h5", "written")

    def test_data_of_other_files(self):
        path, other = self.place / "elsewhere.h5", self.place / "other"
        other.write_bytes(bytes(range(100)))
        with h5py.File(path, "w") as file:
            file["tokens"] = h5py.ExternalLink(str(other), "tokens")
        self.stops(self.deck(self.model, data={"train": [str(path)]}), "elsewhere.h5", "link")
        with h5py.File(path, "w") as file:
            file.create_dataset("tokens", (100,), np.uint8, external=[(str(other), 0, 100)])
        self.stops(self.deck(self.model, data={"train": [str(path)]}), "elsewhere.h5",
                   "other files")

    def test_messages_are_one_harmless_line(self):
        escape = "\x1b]0;owned\x07\x1b[2J"
        deck = self.small(data={"train": [f"a{escape}\nb.txt"]})
        self.stops(self.deck_file(deck), "a\\x1B]0;owned\\x07\\x1B[2J\\nb.txt")
        deck = self.place / "nul.toml"
        deck.write_text('[data]\ntrain = ["a\\u0000b.txt"]\n')
        self.stops(deck, "nul.toml:2", "NUL", "a\\x00b.txt")
        model = self.copy()
        (model / "tokenizer.json").unlink()
        (model / "merges.txt").write_bytes(b"x\xff" + escape.encode() + b" y\n")
        self.stops(self.deck(model), "merges.txt:1", "x\\xFF", "\\x1B[2J")
        lines = self.place / "escape.jsonl"
        lines.write_text(json.dumps({escape: 1}, ensure_ascii=False).replace("\x1b", "\\u001b")
                         .replace("\x07", "\\u0007") + "\n")
        self.stops(self.deck(self.model, data={"train": [str(lines)]}), "escape.jsonl:1")
        result = support.run(["train", str(self.deck_file(self.small())), f"--{escape}"])
        self.assertNotIn("\x1b", result.err)
        self.assertEqual(result.status, 2)


if __name__ == "__main__":
    support.main()
