#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Bytes on the wire by formula, and what the compression does to a run."""

import re
import subprocess
import time

import h5py
import numpy as np

import support
from support import HEADER_BYTES

CHANNELS = 32  # of the small model
TOKENS = 32


def code_bytes(bits, tile, channels=CHANNELS):
    """A row of codes: a step of two bytes for each tile, codes in whole bytes for 8 channels."""
    tiles = -(-channels // tile)
    return 2 * tiles + bits * -(-channels // 8)


def block_bytes(row_bytes, tokens):
    """A sample's block in a payload ends at a multiple of four bytes."""
    return -(-row_bytes * tokens // 4) * 4


class Bytes(support.TestCase):
    def test_whole_values(self):
        deck = self.small(training={"micro_batches": 3})
        # fp16 has a scale of two bytes per token.
        for codec, row in (("none", 4 * CHANNELS), ("fp16", 2 * CHANNELS + 2),
                           ("bf16", 2 * CHANNELS)):
            with self.subTest(codec):
                run = self.train(deck, codec, 3, [
                    "pipeline.stages=3", f"boundary.forward.codec={codec}",
                    f"boundary.backward.codec={codec}"])
                step = 3 * (HEADER_BYTES + 2 * TOKENS * row)
                expected = np.full((3, 2), step)
                np.testing.assert_array_equal(run.steps["forward_bytes"], expected)
                np.testing.assert_array_equal(run.steps["backward_bytes"], expected)

    def test_padding_is_not_sent(self):
        tokens = self.place / "documents.h5"
        lengths = [5, 40, 9, 33, 21, 12]
        with h5py.File(tokens, "w") as file:
            file["tokens"] = np.arange(sum(lengths), dtype=np.int32) % 200
            file["document_offsets"] = np.cumsum([0] + lengths[:-1])
        base = self.deck_file(self.small(training={"steps": 1}))
        self.succeed(["train", base, f"output.directory={self.place}/base"])
        deck = self.small(model={"path": str(self.place / "base" / "model")},
                          tokenizer={"train_vocabulary": 0},
                          data={"train": [str(tokens)], "packing": "document",
                                "validation": [str(tokens)], "max_train_samples": 0},
                          training={"steps": 2, "micro_batch_size": 3, "micro_batches": 2},
                          pipeline={"stages": 2})
        run = self.train(deck, "padded", 2)
        # Every document ends with the end-of-text token: as many targets as it has tokens. Those
        # of 40 and 33 are two windows, which makes 8 samples: batches of 6 and 2.
        self.assertEqual(run.steps["samples"].tolist(), [6, 2])
        self.assertEqual(int(run.steps["tokens"].sum()), sum(lengths))
        messages = np.array([2, 1])
        expected = messages * HEADER_BYTES + run.steps["tokens"] * CHANNELS * 4
        np.testing.assert_array_equal(run.steps["forward_bytes"][:, 0], expected)
        np.testing.assert_array_equal(run.steps["backward_bytes"][:, 0], expected)

    def test_codes(self):
        # Two passes over 10 samples in batches of 4, 4 and 2.
        deck = self.small(data={"max_train_samples": 10}, training={"steps": 6},
                          pipeline={"stages": 2}, cache={"verify_every": 0},
                          boundary__forward={"codec": "aqsgd", "bits": 3, "quantizer.tile": 16,
                                             "memory.first_visit": "quantize8"},
                          boundary__backward={"codec": "directq", "bits": 6, "quantizer.tile": CHANNELS})
        run = self.train(deck, "codes", 2)
        samples = np.array([4, 4, 2] * 2)
        messages = np.array([2, 2, 1] * 2)
        first = block_bytes(code_bytes(8, 16), TOKENS)
        later = block_bytes(code_bytes(3, 16), TOKENS)
        visit = np.array([first] * 3 + [later] * 3)
        np.testing.assert_array_equal(run.steps["forward_bytes"][:, 0],
                                      messages * HEADER_BYTES + samples * visit)
        gradient = block_bytes(code_bytes(6, CHANNELS), TOKENS)
        np.testing.assert_array_equal(run.steps["backward_bytes"][:, 0],
                                      messages * HEADER_BYTES + samples * gradient)
        for name in ("forward_error", "backward_error"):
            self.assertGreater(run.steps[name][0, 0], 0)
            self.assertLess(run.steps[name][0, 0], 0.2)

    def test_targets(self):
        """Bits per value over a run are those of the deck, boundary by boundary."""
        deck = self.small(data={"max_train_samples": 16}, training={"steps": 60},
                          pipeline={"stages": 3}, network={"bandwidth": ["1 Gbit/s", "2 Gbit/s"]},
                          boundary__forward={"codec": "auto", "rate": [5, 6.5]},
                          boundary__backward={"codec": "auto", "rate": 5.5,
                                              "quantizer.budget": "time"})
        said = self.succeed(["check", "--deck", self.deck_file(deck)]).out
        output = self.output("targets")
        done = self.succeed(["train", self.deck_file(deck), f"output.directory={output}"], 3)
        run = support.Run(output / "run.h5")
        values = run.steps["samples"].sum() * TOKENS * CHANNELS
        # 5.5 bits on average, in proportion to the links but at most 6.
        for direction, targets in (("forward", (5, 6.5)), ("backward", (5, 6))):
            bits = 8 * run.steps[f"{direction}_bytes"].sum(axis=0) / values
            np.testing.assert_allclose(bits, targets, rtol=0.03)
            steps = run.steps[f"{direction}_step"]
            self.assertGreater(np.nanmin(steps), 0.05)
            self.assertLess(np.nanmax(steps), 1.9)
            for boundary, target in enumerate(targets):
                bytes_of_step = target * values / len(run.steps["step"]) / 8
                line, = [line for line in said.splitlines()
                         if line.startswith(f"# target {direction}, boundary {boundary}:")]
                shown, prefix = re.search(rf": {target:g} bits per value, ([\d.]+) ?(k?)B per step",
                                          line).groups()
                self.assertLess(abs(float(shown) * (1e3 if prefix else 1) / bytes_of_step - 1),
                                0.01, line)
        # First visits have steps of their own.
        np.testing.assert_array_equal(np.isnan(run.steps["forward_step"][:, 0]),
                                      run.steps["epoch"] <= 1)
        self.assertFalse(np.isnan(run.steps["backward_step"]).any())
        self.assertNotIn("missed", done.err)
        self.assertIn('codec = "aqsgd"', said)

    def test_a_target_that_is_missed(self):
        deck = self.small(data={"max_train_samples": 16}, training={"steps": 12},
                          pipeline={"stages": 2},
                          boundary__backward={"codec": "auto", "rate": 0.3})
        done = self.succeed(["train", self.deck_file(deck),
                             f"output.directory={self.output('missed')}"], 2)
        self.assertEqual(done.err.count("boundary.backward.rate = 0.3 was missed at boundary "
                                        "0"),
                         1)
        self.assertIn("had the largest step, 1.9", done.err)
        self.assertNotIn("boundary.forward", done.err)

    def test_check_predicts_the_wire(self):
        deck = self.deck_file(self.small(
            pipeline={"stages": 3}, training={"steps": 12, "micro_batches": 3, "evaluate_at_start": True},
            data={"max_train_samples": 18}, boundary__forward={"codec": "aqsgd", "bits": 4},
            boundary__backward={"codec": "directq", "bits": 6}))
        said = self.succeed(["check", deck]).out
        output = self.output("predicted")
        self.succeed(["train", deck, f"output.directory={output}"], 3)
        run = support.Run(output / "run.h5")
        for direction in ("forward", "backward"):
            line, = [line for line in said.splitlines() if line.startswith(f"# {direction}")]
            value, prefix = re.search(r"([\d.]+) ?(k|M|)B$", line).groups()
            predicted = float(value) * {"": 1, "k": 1e3, "M": 1e6}[prefix]
            for boundary in (0, 1):
                last = run.steps[f"{direction}_bytes"][-1, boundary]
                self.assertLess(abs(predicted / last - 1), 0.006, line)  # three digits are shown
        self.assertRegex(said, r"# +0 +\d+ .*\n# +1 +\d+ .*\n# +2 +\d+ ")
        self.assert_plan(said, run)
        self.assertEqual(run.evaluations["step"].tolist(), [0, 3, 6, 9, 12])

    def assert_plan(self, said, run):
        """Every row of the plan is, to the byte, what the run sent."""
        rows = {}
        for name, rest in re.findall(r"(?m)^# (.+?)  +([\d,]+(?: \+ [\d,]+ = [\d,]+)?); ", said):
            rows[name] = int(rest.split()[-1].replace(",", ""))
        expected = {}
        for direction in ("forward", "backward"):
            for boundary, sent in enumerate(run.steps[f"{direction}_bytes"].sum(axis=0)):
                expected[f"boundary {boundary} {direction}"] = sent
        def evaluated(column):
            return sum(run.evaluations[name].sum(axis=0) for name in (column, "codec_" + column)
                       if name in run.evaluations)

        for boundary, sent in enumerate(evaluated("forward_bytes")):
            expected[f"evaluations, boundary {boundary}"] = sent
        expected["evaluations, token rows"] = evaluated("tied_row_bytes")
        expected["token rows"] = run.steps["tied_row_bytes"].sum()
        expected["token row gradients"] = run.steps["tied_gradient_bytes"].sum()
        for rank, sent in enumerate(run.steps["replica_bytes"].sum(axis=0)):
            expected[f"sums over replicas, rank {rank}"] = sent
        self.assertEqual(rows, {name: sent for name, sent in expected.items() if sent > 0})

    def test_plans_of_other_layouts(self):
        """An epoch that ends in a part of a step; gradients that end early; both evaluations."""
        feedback = {"codec": "directq", "bits": 4, "feedback.kind": "ef21"}
        decks = (
            (2, {"pipeline": {"stages": 4, "stages_per_rank": 2, "schedule": "interleaved"},
                 "evaluation": {"boundary": "both"}, "cache": {"verify_every": 2},
                 "boundary.forward": {"codec": "aqsgd", "quantizer.scale": "channel"},
                 "boundary.backward": feedback}),
            (2, {"pipeline": {"stages": 2}, "evaluation": {"boundary": "quantize8"},
                 "boundary.forward": {"codec": "aqsgd", "warmup_epochs": 0.5},
                 "boundary.backward": {**feedback, "feedback.of": "position"},
                 "cache": {"verify_every": 2},
                 "network": {"bandwidth": "1 Gbit/s", "wire": "rank"}}),
            (3, {"pipeline": {"stages": 3}, "training.optimizer": {"frozen": ["w*", "h.0"]}}))
        for number, (ranks, sections) in enumerate(decks):
            deck = self.deck_file(support.merged(self.small(
                training={"steps": 7, "micro_batches": 3},
                data={"max_train_samples": 13}), sections))
            said = self.succeed(["check", deck]).out
            output = self.output(f"layout-{number}")
            self.succeed(["train", deck, f"output.directory={output}"], ranks)
            with self.subTest(sections):
                self.assert_plan(said, support.Run(output / "run.h5"))

    def test_the_plan_of_replicas_and_links(self):
        deck = self.deck_file(self.small(
            pipeline={"stages": 2, "replicas": 2}, training={"steps": 9, "micro_batches": 2},
            data={"max_train_samples": 13}, cache={"verify_every": 3},
            boundary__forward={"codec": "aqsgd", "bits": 2, "warmup_epochs": 1},
            boundary__backward={"codec": "directq", "bits": 4}, network={"bandwidth": "1 Gbit/s"}))
        said = self.succeed(["check", deck]).out
        output = self.output("planned")
        self.succeed(["train", deck, f"output.directory={output}"], 4)
        self.assert_plan(said, support.Run(output / "run.h5"))
        for part in ("# network: ", "% of fp32", "# links: about ", "# link of rank 0 to 1: busy "):
            self.assertIn(part, said)
        self.assertNotIn("at most", said)
        self.assertNotIn("warning: network", said)
        said = self.succeed(["check", deck, "network.bandwidth=100", "network.latency=10"]).out
        for part in ("network.bandwidth is 100 bit/s", '"100 Mbit/s"', "network.latency is 10 s",
                     '"10 ms"'):
            self.assertIn(part, said)
        said = self.succeed(["check", deck, "boundary.forward.codec=auto"]).out
        self.assertIn("# network: at most ", said)
        said = self.succeed(["check", deck, "training.micro_batches=1"]).out
        self.assertRegex(said, r"warning: with training.micro_batches = 1 the 2 stages .* 50 %")
        self.assertIn("activation cache", said)

    def test_tied_rows(self):
        """Each distinct token's row travels once per step, and as many gradients."""
        base = self.deck_file(self.small(training={"steps": 1}))
        self.succeed(["train", base, f"output.directory={self.place}/base"])
        tokens = self.place / "known.h5"
        with h5py.File(tokens, "w") as file:
            file["tokens"] = np.arange(4 * TOKENS, dtype=np.int32) // 2
        deck = self.small(model={"path": str(self.place / "base" / "model")},
                          tokenizer={"train_vocabulary": 0},
                          data={"train": [str(tokens)], "validation": [str(tokens)]},
                          training={"steps": 2}, pipeline={"stages": 2})
        for stages in (2, 3):
            run = self.train(deck, "tied", stages, [f"pipeline.stages={stages}"])
            # All four samples in each step: 64 tokens, each twice, in one of two micro-batches.
            step = 2 * HEADER_BYTES + 64 * CHANNELS * 4
            for column in ("tied_row_bytes", "tied_gradient_bytes"):
                self.assertEqual(run.steps[column].tolist(), [step, step])
        with h5py.File(tokens, "r+") as file:
            file["tokens"][:] = np.arange(4 * TOKENS) % 8
        run = self.train(deck, "tied-all", 2)
        # Both micro-batches need the same 8 tokens: rows come with the first, gradients with the
        # second.
        for column in ("tied_row_bytes", "tied_gradient_bytes"):
            self.assertEqual(run.steps[column].tolist(), [HEADER_BYTES + 8 * CHANNELS * 4] * 2)
        one = self.train(deck, "tied-one", 1, ["pipeline.stages=1"])
        self.assertFalse(one.steps["tied_row_bytes"].any())

    def test_warm_up(self):
        # An epoch of 8 samples is two steps; the memories are there after it.
        deck = self.small(data={"max_train_samples": 8}, training={"steps": 4},
                          pipeline={"stages": 2}, cache={"verify_every": 0},
                          boundary__forward={"codec": "aqsgd", "bits": 2, "warmup_epochs": 1},
                          boundary__backward={"codec": "directq", "warmup_epochs": 1})
        run = self.train(deck, "warm-up", 2, ["output.log_every=1"])
        whole = 2 * HEADER_BYTES + 4 * TOKENS * CHANNELS * 4
        later = 2 * HEADER_BYTES + 4 * block_bytes(code_bytes(2, CHANNELS), TOKENS)
        self.assertEqual(run.steps["forward_bytes"][:, 0].tolist(), [whole, whole, later, later])
        # Tied rows and their gradients: four bytes per value, then about one.
        for name in ("tied_row", "tied_gradient"):
            sent = run.steps[f"{name}_bytes"]
            self.assertGreater(sent[:2].min(), 2.5 * sent[2:].max())
            error = run.steps[f"{name}_error"]
            self.assertEqual(error[:2].tolist(), [0, 0])
            self.assertTrue((error[2:] > 0).all() and (error[2:] < 0.02).all(), error)

    def test_settings_of_tied_rows(self):
        """Scales, rounding and levels are those of the boundaries, the bits are not."""
        deck = self.small(data={"max_train_samples": 8}, training={"steps": 6},
                          pipeline={"stages": 2}, output={"log_every": 1},
                          boundary__forward={"codec": "aqsgd", "bits": 2},
                          boundary__backward={"codec": "directq", "bits": 2})
        run = self.train(deck, "tied-nearest", 2)
        for changed in (["quantizer.rounding=stochastic"], ["quantizer.scale=channel"], ["quantizer.levels=asymmetric"]):
            other = self.train(deck, "tied-other", 2,
                               [f"boundary.{direction}.{setting}" for setting in changed
                                for direction in ("forward", "backward")])
            for name in ("tied_row", "tied_gradient"):
                error, before = other.steps[f"{name}_error"][3:], run.steps[f"{name}_error"][3:]
                self.assertTrue((error != before).all(), changed)
                self.assertTrue((error < 0.05).all(), error)
        whole = self.train(deck, "tied-whole", 2, ["boundary.forward.codec=none",
                                                   "boundary.backward.codec=none"])
        for name in ("tied_row_error", "tied_gradient_error"):
            self.assertFalse(whole.steps[name].any())

    def test_replicas_are_counted(self):
        deck = self.small(pipeline={"stages": 2, "replicas": 2})
        run = self.train(deck, "replicas", 4)
        step = 2 * 2 * (HEADER_BYTES + 2 * TOKENS * CHANNELS * 4)
        np.testing.assert_array_equal(run.steps["forward_bytes"], np.full((3, 1), step))

    def test_all_that_is_sent_is_counted(self):
        """Gradients between replicas, evaluations and sums over ranks."""
        deck = self.small(pipeline={"stages": 2, "replicas": 2, "partition": [2, 2],
                                    "verify_replicas": 0},
                          training={"evaluate_every": 2},
                          boundary__forward={"codec": "directq"})
        run = self.train(deck, "all-bytes", 4)
        header, _ = support.read_safetensors(self.output("all-bytes") / "model"
                                             / "model.safetensors")
        sizes = {name: int(np.prod(tensor["shape"])) for name, tensor in header.items()
                 if name != "__metadata__"}
        last = ("h.2.", "h.3.", "ln_f.", "wte.")
        stages = [0, 0]
        for name, size in sizes.items():
            stages[name.removeprefix("transformer.").startswith(last)] += size
        # As in a ring, each of two sends half of it twice. Tensors are padded to 64 bytes, and
        # every bucket (blocks, embeddings, norm) has two messages with headers each way.
        ring = 2 * 4 * np.array(stages, np.int64)
        sent = run.steps["replica_bytes"].astype(np.int64)
        np.testing.assert_array_equal(sent, np.tile(sent[0], (3, 1)))
        self.assertTrue((sent[0] > ring).all(), sent)
        self.assertTrue((sent[0] < ring + 2 * 64 * len(sizes) + 6 * 4 * HEADER_BYTES).all(), sent)
        # Evaluations send fp32, whatever training sends: 7 samples in micro-batches of 2 or 1.
        self.assertEqual(run.evaluations["step"].tolist(), [2, 3])
        self.assertEqual(run.evaluations["forward_bytes"][:, 0].tolist(),
                         [4 * HEADER_BYTES + 7 * TOKENS * CHANNELS * 4] * 2)
        rows = run.evaluations["tied_row_bytes"]
        self.assertEqual(rows[0], rows[1])
        self.assertGreater(rows[0], 2 * HEADER_BYTES)
        # A number of 8 bytes for each tensor's norm, replica's loss, rank's clock, measurement.
        sent = run.steps["collective_bytes"] / (2 * 3 * 8)
        self.assertTrue(len(sizes) + 2 + 4 < sent[0] < len(sizes) + 100, sent)
        self.assertEqual((sent - sent[0]).tolist(), [0, 0, 0])
        self.assertEqual((run.evaluations["collective_bytes"] / (2 * 3 * 8)).tolist(), [3, 3])

        one = self.train(self.small(), "all-bytes-one", 1)
        for name in ("replica_bytes", "collective_bytes", "tied_row_bytes"):
            self.assertFalse(one.steps[name].any(), name)
        self.assertEqual(one.evaluations["forward_bytes"].shape[1], 0)


class Compressed(support.TestCase):
    """Two stages, 3-bit changes forward and 6-bit gradients backward."""

    @classmethod
    def deck(cls, **sections):
        return support.merged(
            cls.small(data={"max_train_samples": 12}, training={"steps": 12},
                      pipeline={"stages": 2},
                      boundary__forward={"codec": "aqsgd", "bits": 3, "quantizer.rounding": "stochastic"},
                      boundary__backward={"codec": "directq", "bits": 6,
                                          "quantizer.rounding": "stochastic"}),
            {name.replace("__", "."): keys for name, keys in sections.items()})

    def same(self, run, other):
        self.assertEqual(run.losses.tobytes(), other.losses.tobytes())
        self.assertEqual(run.evaluations["loss"].tobytes(), other.evaluations["loss"].tobytes())
        np.testing.assert_array_equal(run.steps["forward_bytes"], other.steps["forward_bytes"])

    def test_learns(self):
        whole = self.train(self.deck(boundary__forward={"codec": "none"},
                                     boundary__backward={"codec": "none"}), "whole", 2)
        run = self.train(self.deck(), "delta", 2)
        self.assertLess(run.losses[-3:].mean(), run.losses[:3].mean() - 0.1)
        np.testing.assert_allclose(run.losses, whole.losses, rtol=0.02)
        self.assertNotEqual(run.losses.tobytes(), whole.losses.tobytes())
        # The seed is that of the rounding too: a second run is the same.
        self.same(self.train(self.deck(), "again", 2), run)
        self.same(self.train(self.deck(), "gpipe", 2, ["pipeline.schedule=gpipe"]), run)

    def test_spilling_changes_nothing(self):
        for storage in ("fp16", "4bit"):
            run = self.train(self.deck(cache={"storage": storage}), "memory", 2)
            row = {"fp16": 2 * CHANNELS, "4bit": CHANNELS // 2}[storage]
            budget = 12 * TOKENS * row // 4
            spilled = self.train(self.deck(cache={"storage": storage, "budget": budget,
                                                  "prefetch": 1}), f"spilled-{storage}", 2)
            self.same(spilled, run)

    def test_error_feedback(self):
        """Errors of gradients: in the senders' memory or files only, with no byte on the wire."""
        settings = {"codec": "directq", "bits": 2, "feedback.kind": "ef"}
        deck = self.deck(boundary__backward=settings, boundary__forward={"codec": "none"},
                         cache={"storage": "fp32"})
        run = self.train(deck, "feedback", 2)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertLess(run.losses[-3:].mean(), run.losses[:3].mean() - 0.1)
        for name, overrides in (("feedback-gpipe", ["pipeline.schedule=gpipe"]),
                                ("feedback-replay", [])):
            self.same(self.train(deck, name, 2, overrides), run)
        without = self.train(deck, "no-feedback", 2, ["boundary.backward.feedback.kind=none"])
        np.testing.assert_array_equal(run.steps["backward_bytes"], without.steps["backward_bytes"])
        # 12 samples in batches of 4: errors are zero in the first three steps.
        self.assertEqual(run.losses[:4].tobytes(), without.losses[:4].tobytes())
        self.assertTrue((run.losses[5:] != without.losses[5:]).all())
        # By position they are not zero from the second step on, and each place has one record.
        position = ["boundary.backward.feedback.of=position"]
        placed = self.train(deck, "feedback-position", 2, position)
        self.assertEqual(placed.losses[:2].tobytes(), without.losses[:2].tobytes())
        self.assertTrue((placed.losses[2:] != without.losses[2:]).all())
        self.same(self.train(deck, "feedback-position-gpipe", 2,
                             [*position, "pipeline.schedule=gpipe"]), placed)
        said = self.succeed(["check", self.deck_file(deck), *position]).out
        self.assertRegex(said, r"# errors of gradients at each sender: 4\.1\d? kB per place of a step; ")
        record = TOKENS * CHANNELS * 4
        spilled = self.train(deck, "feedback-spilled", 2, [
            f"cache.budget={3 * record}", "cache.prefetch=1", "cache.keep=true"])
        self.same(spilled, run)
        files = sorted(path.name for path in self.output("feedback-spilled").glob("cache-*.h5"))
        self.assertEqual(files, ["cache-replica0-boundary0-backward-sender.h5"])
        with h5py.File(self.output("feedback-spilled") / files[0], "r") as file:
            self.assertEqual(file["records"].shape, (12, record))
            self.assertEqual(file.attrs["direction"], b"backward")
        self.assertEqual(spilled.steps["cache_bytes_read"][:, 0].sum(), 0)
        self.assertGreater(spilled.steps["cache_bytes_read"][:, 1].sum(), 0)
        said = self.succeed(["check", self.deck_file(deck)]).out
        self.assertRegex(said, r"# errors of gradients at each sender: 4\.1\d? kB per sample; ")
        self.assertNotIn("activation cache at", said)

    def test_topk(self):
        """AQ-SGD with TopK forward, EF21 with TopK backward: memories at both ends."""
        deck = self.deck(
            boundary__forward={"codec": "aqsgd_topk", "topk": 0.2, "sparse.values": "codes"},
            boundary__backward={"codec": "topk", "topk": 0.2, "feedback.kind": "ef21"},
            cache={"storage": "fp32", "verify_every": 1})
        run = self.train(deck, "topk", 2)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertLess(run.losses[-3:].mean(), run.losses[:3].mean() - 0.1)
        self.same(self.train(deck, "topk-gpipe", 2, ["pipeline.schedule=gpipe"]), run)
        record = TOKENS * CHANNELS * 4
        self.same(self.train(deck, "topk-spilled", 2,
                             [f"cache.budget={3 * record}", "cache.prefetch=1"]), run)
        # 4 samples a step: 20 % of the values in 16 bits, positions in less than 5 bits each.
        self.assertLess(run.steps["backward_bytes"].max(), 4 * record * 0.2 * 22 / 32 + 2000)
        self.assertLess(run.steps["forward_bytes"][3:].max(), 4 * record * 0.2 * 11 / 32 + 2000)
        said = self.succeed(["check", self.deck_file(deck)]).out
        self.assertRegex(said, r"# memories of gradients at each boundary end: 4\.1\d? kB per sample; ")
        self.assertRegex(said, r"# backward .*B, at most")

    def test_topk_at_the_activations_positions(self):
        """Gradients without positions of their own, whatever the order of the micro-batches."""
        deck = self.deck(
            boundary__forward={"codec": "topk", "topk": 0.2, "sparse.values": "fp32"},
            boundary__backward={"codec": "topk", "topk": 0.2, "sparse.values": "fp32",
                                "sparse.positions": "forward"})
        run = self.train(deck, "mask", 2)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertLess(run.losses[-3:].mean(), run.losses[:3].mean() - 0.1)
        self.same(self.train(deck, "mask-gpipe", 2, ["pipeline.schedule=gpipe"]), run)
        self.same(self.train(deck, "mask-ahead", 2, ["pipeline.in_flight=3"]), run)
        # The same number of values both ways; headers and, forward only, positions.
        values = run.steps["backward_bytes"][:, 0] - 2 * HEADER_BYTES - 4 * 12
        positions = run.steps["forward_bytes"][:, 0] - run.steps["backward_bytes"][:, 0]
        self.assertTrue((positions > values * 3 / 32).all(), (positions, values))
        self.assertTrue((positions < values * 6 / 32).all(), (positions, values))
        three = self.train(deck, "mask-3", 3, ["pipeline.stages=3"])
        self.assertLess(three.losses[-3:].mean(), three.losses[:3].mean() - 0.1)
        own = self.train(deck, "mask-own", 2, ["boundary.backward.sparse.positions=largest"])
        self.assertNotEqual(own.losses.tobytes(), run.losses.tobytes())
        for overrides in (["boundary.forward.codec=directq"],
                          ["boundary.backward.codec=directq"],
                          ["boundary.backward.feedback.kind=mixed"]):
            said = support.run(["check", self.deck_file(deck), *overrides])
            self.assert_stops(said, "boundary.backward", "positions", status=2)

    def test_replicas(self):
        run = self.train(self.deck(pipeline={"stages": 2, "replicas": 2}), "replicas", 4)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertLess(run.losses[-3:].mean(), run.losses[:3].mean() - 0.05)
        # 12 samples in batches of 8: each is seen again after two steps, as a change.
        self.assertLess(run.steps["forward_bytes"][2:].max(),
                        0.7 * run.steps["forward_bytes"][0].min())

    def test_replicas_share_the_memories(self):
        """A replica's files have the records of its own samples and of no others."""
        base = {"pipeline": {"stages": 2, "replicas": 2}, "data": {"max_train_samples": 13}}
        run = self.train(self.deck(**base), "shared", 4)
        spilled = self.train(self.deck(**base, cache={"budget": 3 * TOKENS * 2 * CHANNELS,
                                                      "prefetch": 1, "keep": True}),
                             "shared-spilled", 4)
        self.same(spilled, run)
        for replica, samples in ((0, 7), (1, 6)):
            for end in ("sender", "receiver"):
                name = f"cache-replica{replica}-boundary0-forward-{end}.h5"
                with h5py.File(self.output("shared-spilled") / name, "r") as file:
                    said = {key: int(file.attrs[key])
                            for key in ("samples", "first_sample", "sample_stride")}
                    self.assertEqual(said, {"samples": samples, "first_sample": replica,
                                            "sample_stride": 2})
                    self.assertEqual(file["records"].shape[0], samples)

    def test_memories_are_compared(self):
        """Hashes of both ends' memories travel; they find nothing and change nothing."""
        for storage, replicas, budget in (("fp16", 1, 3), ("8bit", 2, 0), ("4bit", 2, 3)):
            row = {"fp16": 2 * CHANNELS, "4bit": CHANNELS // 2 + 2, "8bit": CHANNELS + 2}
            deck = self.deck(pipeline={"stages": 2, "replicas": replicas},
                             cache={"storage": storage, "prefetch": 1,
                                    "budget": budget * TOKENS * row[storage]})
            with self.subTest(storage, replicas=replicas, budget=budget):
                off = self.train(deck, "unverified", 2 * replicas, ["cache.verify_every=0"])
                on = self.train(deck, "verified", 2 * replicas, ["cache.verify_every=1"])
                self.assertEqual(on.losses.tobytes(), off.losses.tobytes())
                np.testing.assert_array_equal(on.steps["forward_bytes"][:, 0],
                                              off.steps["forward_bytes"][:, 0]
                                              + 8 * on.steps["samples"])
                rows = on.steps["tied_row_bytes"] - off.steps["tied_row_bytes"]
                self.assertTrue((rows % 8 == 0).all() and (rows > 8 * 20).all(), rows)

    def test_slow_links_slow_the_run(self):
        # Token rows and their gradients take the same link as the boundary.
        deck = self.deck(network={"bandwidth": "1 Mbit/s"}, training={"steps": 4},
                         boundary__forward={"codec": "none"}, boundary__backward={"codec": "none"})
        run = self.train(deck, "slow", 2)
        forward = run.steps["forward_bytes"][:, 0] + run.steps["tied_gradient_bytes"]
        backward = run.steps["backward_bytes"][:, 0] + run.steps["tied_row_bytes"]
        least = (np.maximum(forward, backward) - HEADER_BYTES) * 8 / 1e6
        seconds = np.diff(run.steps["seconds"], prepend=0)
        self.assertTrue((seconds >= least).all(), f"{seconds} {least}")
        fast = self.train(deck, "fast", 2, ["network.bandwidth=0"])
        self.assertEqual(fast.losses.tobytes(), run.losses.tobytes())

    def test_damaged_spill_file(self):
        """Another program writes to the memories while the run continues, which does not end it."""
        deck = self.deck_file(self.deck(cache={"budget": 12 * TOKENS * 2 * CHANNELS // 4,
                                               "prefetch": 1, "verify_every": 1},
                                        training={"steps": 2000, "evaluate_every": 100000}))
        output = self.output("damaged")
        process = support.start(["train", deck, f"output.directory={output}",
                                 "output.log_every=100000"], 2)
        spill = output / "cache-replica0-boundary0-forward-receiver.h5"
        end = time.monotonic() + support.TIME_LIMIT
        while process.poll() is None and time.monotonic() < end:
            if spill.exists() and spill.stat().st_size > 20000:
                with open(spill, "r+b") as file:
                    file.seek(spill.stat().st_size // 3)
                    file.write(b"\x55" * (spill.stat().st_size // 3))
            time.sleep(0.5)
        result = support.finish(process)
        self.assertEqual(result.status, 0, str(result))
        run = support.Run(output / "run.h5")
        self.assertEqual(len(run.losses), 2000)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertGreater(run.steps["cache_damaged"].sum(), 0)
        self.assertIn("both ends reset", result.err)


if __name__ == "__main__":
    support.main()
