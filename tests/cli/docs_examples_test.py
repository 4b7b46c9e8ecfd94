#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The examples of h5py in docs/output.md, as they stand there, read what the program writes."""

import contextlib
import io
import pathlib
import re

import numpy as np

import support

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/output.md"


def examples():
    """Python blocks of the document."""
    return re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"),
                      flags=re.MULTILINE | re.DOTALL)


class Examples(support.TestCase):
    CHANNELS = 72  # two tiles of 64 channels, nine lanes of codes
    TOKENS = 32

    def record_bytes(self, storage):
        values = self.TOKENS * self.CHANNELS
        if storage in ("fp32", "fp16", "bf16"):
            return values * (4 if storage == "fp32" else 2)
        return self.TOKENS * (int(storage[0]) * -(-self.CHANNELS // 8) + 2 * -(-self.CHANNELS // 64))

    def spilled(self, storage):
        """The sender's and the receiver's cache file of an epoch without learning: every sample has
        had its first visit, in fp32. Memory has room for four records and a little."""
        deck = self.small(**{
            "model__new": {"n_embd": self.CHANNELS},
            "training": {"steps": 8},
            "training.optimizer": {"learning_rate": 0},
            "pipeline": {"stages": 2},
            "boundary.forward": {"codec": "aqsgd", "memory.first_visit": "fp32"},
            "cache": {"storage": storage, "prefetch": 1, "keep": True,
                      "budget": 4 * self.record_bytes(storage) + 300}})
        self.train(deck, storage, 2)
        return [self.output(storage) / f"cache-replica0-boundary0-forward-{end}.h5"
                for end in ("sender", "receiver")]

    def test_run_file(self):
        self.train(self.small(pipeline={"stages": 2}), "run", 2)
        example = next(text for text in examples() if "run.h5" in text)
        example = re.sub(r'"[^"]*run\.h5"', repr(str(self.output("run") / "run.h5")), example)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example, DOCUMENT.name, "exec"), {})
        self.assertIn("finished 2 stages", printed.getvalue())
        self.assertRegex(printed.getvalue(), r"bytes forward, each boundary: \[\d+\]")
        self.assertRegex(printed.getvalue(), r"validation perplexity: \[\d+\.\d+")

    def test_memories(self):
        names = {}
        exec(compile(next(text for text in examples() if "def memory" in text), DOCUMENT.name,
                     "exec"), names)
        memory = names["memory"]
        sender, receiver = self.spilled("fp32")
        exact = [memory(sender, n) for n in range(30)]
        self.assertTrue(all(m is not None for m in exact))
        self.assertTrue(all(m.shape == (self.TOKENS, self.CHANNELS) for m in exact))
        for storage in ("fp32", "fp16", "bf16", "8bit", "4bit"):
            if storage != "fp32":
                sender, receiver = self.spilled(storage)
            for n in range(30):
                here, there = memory(sender, n), memory(receiver, n)
                np.testing.assert_array_equal(here, there)
                error = np.abs(here - exact[n])
                self.assertTrue((error <= self.bound(storage, exact[n])).all(), f"{storage} {n}")

    def bound(self, storage, exact):
        """Half of a unit in the last place, or of a quantiser's step for 64 channels of a token."""
        if storage == "fp32":
            return np.zeros_like(exact)
        if storage in ("fp16", "bf16"):
            return np.abs(exact) * 2.0 ** (-11 if storage == "fp16" else -8) + 2.0**-25
        levels = 2 ** (int(storage[0]) - 1) - 1
        largest = np.maximum.reduceat(np.abs(exact), np.arange(0, self.CHANNELS, 64), axis=1)
        # A step has 9 significant bits, rounded up.
        steps = np.repeat(largest, 64, axis=1)[:, : self.CHANNELS] / levels * (1 + 2.0**-8)
        return steps / 2 * (1 + 1e-6)


if __name__ == "__main__":
    support.main()
