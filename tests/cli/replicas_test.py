#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compressed sums over replicas: quality, bytes, restarts, links and mistakes."""

import json
import re
import time

import numpy as np

import support

SAME = ["pipeline.replicas=2", "pipeline.verify_replicas=1"]


def quantized(bits, *more):
    return [*SAME, "replicas.codec=quantized", f"replicas.bits={bits}", *more]


def moments(bits, *more):
    return [*SAME, "replicas.codec=adam_moment", f"replicas.bits={bits}",
            "replicas.warmup_epochs=1", *more]


def local(steps, *more):
    return [*SAME, f"replicas.local_steps={steps}", f"training.evaluate_every={steps}", *more]


class Replicas(support.TestCase):
    def deck(self, **sections):
        return support.merged(self.small(training={"steps": 40, "micro_batches": 1}),
                              {name.replace("__", "."): keys for name, keys in sections.items()})

    def weights(self, name):
        return (self.output(name) / "model" / "model.safetensors").read_bytes()

    def check_parts(self, deck, layout, name, stops=1):
        """A run that stops as soon as it may, `stops` times, and resumes has the bits of a whole
        one. Returns the steps after which it last stopped."""
        whole = self.train(deck, f"{name}-whole", 4, layout)
        output = self.output(f"{name}-parts")
        deck = support.merged(deck, {"output": {"overwrite": False}})
        command = ["train", self.deck_file(deck), f"output.directory={output}", *layout]
        for _ in range(stops):
            stopped = support.run([*command, "checkpoint.time_limit=0.001"], 4)
            self.assertEqual(stopped.status, 75, str(stopped))
        steps = len(support.Run(output / "run.h5").losses)
        self.succeed(command, 4)
        parts = support.Run(output / "run.h5")
        self.assertEqual(parts.losses.tobytes(), whole.losses.tobytes())
        np.testing.assert_array_equal(parts.steps["replica_error"], whole.steps["replica_error"])
        self.assertEqual(self.weights(f"{name}-parts"), self.weights(f"{name}-whole"))
        return steps

    def test_losses_and_bytes(self):
        """AdamW divides by the root of squares that the errors of few bits raise."""
        most = {"bf16": 0.002, "8": 0.005, "4": 0.04, "2": 0.1, "1": 0.1,
                "moment8": 0.05}  # its second moments are those of 8 steps
        deck = self.deck()
        plain = self.train(deck, "plain", 2, SAME)
        parameters = plain.attributes["trained_parameters"]
        self.assertTrue(np.isnan(plain.steps["replica_error"]).all())
        last = plain.losses[-10:].mean()
        for name, bits, layout in (("bf16", 16, [*SAME, "replicas.codec=bf16"]),
                                   *((str(bits), bits, quantized(bits)) for bits in (8, 4, 2, 1)),
                                   ("moment8", 8, moments(8))):
            with self.subTest(name):
                run = self.train(deck, f"codec{name}", 2, layout)
                self.assertNotEqual(run.losses.tobytes(), plain.losses.tobytes())
                self.assertLess(abs(run.losses[-10:].mean() / last - 1), most[name])
                # Both legs of two replicas, scales and headers included.
                least = 2 * parameters * bits / 8
                sent = run.steps["replica_bytes"][20:, 0]
                self.assertTrue(((sent > least) & (sent < 1.2 * least + 3000)).all(), sent)
                if name != "bf16":
                    error = np.nanmean(run.steps["replica_error"])
                    self.assertTrue(0 < error < 1, error)

    def test_check_predicts_the_bytes(self):
        for name, layout in (("plain", SAME), ("coded", quantized(3)),
                             ("warm", quantized(3, "replicas.warmup_epochs=0.5")),
                             ("moment", moments(3)), ("local", local(4)),
                             ("largest", local(3, "replicas.codec=topk", "replicas.topk=0.02",
                                               "replicas.bits=2")),
                             ("rest", local(5, "replicas.codec=quantized", "replicas.bits=4",
                                            "replicas.warmup_epochs=0.5"))):
            with self.subTest(name):
                deck = self.deck(training={"steps": 12}, pipeline={"stages": 2})
                run = self.train(deck, f"plan-{name}", 4, layout)
                result = self.succeed(["check", self.deck_file(deck), *layout])
                planned = [int(re.sub(r"[ ,]", "", number)) for number in re.findall(
                    r"(?m)^# sums over replicas, rank \d+ +([\d ,]+);", result.out)]
                self.assertEqual(planned, run.steps["replica_bytes"].sum(axis=0).tolist())

    def test_check_predicts_replicas_without_boundaries(self):
        deck = self.deck(training={"steps": 6}, pipeline={"stages": 1, "replicas": 3},
                         network={"wire": "rank", "bandwidth": "20 Mbit/s"})
        said = self.succeed(["check", self.deck_file(deck)]).out
        run = self.train(deck, "one-stage", 3)
        sent = int(run.steps["replica_bytes"].sum())
        self.assertIn(f"# sums over replicas, rank 0    {sent:,}; ", said)
        self.assertNotIn("at most", said)
        # A third is sent by each rank, which has a wire.
        seconds = float(re.search(r"# link of rank 0 out: busy ([\d.]+) s", said)[1])
        self.assertAlmostEqual(seconds / (8 * sent / 6 / 3 / 20e6), 1.05, delta=0.05)
        step = float(re.search(r"# links: about ([\d.]+) s a step", said)[1])
        self.assertGreaterEqual(step, seconds)
        measured = np.median(np.diff(run.steps["seconds"]))
        self.assertGreater(measured, 0.95 * step)
        plan = json.loads(self.succeed(["check", self.deck_file(deck), "--plan", "--json",
                                        "plan.flops=1 Tflop/s"]).out)
        self.assertGreater(plan["step_seconds"], seconds)
        self.assertEqual(plan["bandwidth"], 20e6)

    def test_check_counts_compressed_sums(self):
        deck = self.deck_file(self.deck(training={"steps": 8}, pipeline={"stages": 1, "replicas": 2}))
        said = self.succeed(["check", deck, *quantized(4)]).out
        share = float(re.search(r", ([\d.]+) % of fp32", said)[1])
        self.assertAlmostEqual(share, 100 * 4 / 32, delta=2)
        self.assertIn('network.replicas.bandwidth="100 Mbit/s"', said)
        said = self.succeed(["check", deck, *quantized(4),
                             "network.replicas.bandwidth=1 Mbit/s"]).out
        self.assertIn("# link of rank 0 to replicas: busy ", said)

    def test_restart(self):
        deck = self.deck(checkpoint={"every_steps": 1000000}, training={"steps": 8})
        layout = quantized(2, "pipeline.stages=2", "replicas.warmup_epochs=0.1")
        self.check_parts(deck, layout, "restart")

    def test_moments_resume(self):
        """Also the errors of a sum of moments, which the next step reports."""
        deck = self.deck(checkpoint={"every_steps": 1000000}, training={"steps": 8})
        layout = moments(4, "pipeline.stages=2", "replicas.warmup_epochs=0.01",
                         "output.log_every=1")
        self.assertGreater(self.check_parts(deck, layout, "moments-restart", stops=3), 2)

    def test_restart_on_another_layout(self):
        deck = self.deck(checkpoint={"every_steps": 1000000}, training={"steps": 8},
                         output={"overwrite": False})
        output = self.output("other")
        command = ["train", self.deck_file(deck), f"output.directory={output}"]
        stopped = support.run([*command, *quantized(4), "checkpoint.time_limit=0.001"], 2)
        self.assertEqual(stopped.status, 75, str(stopped))
        result = self.succeed([*command, *quantized(4, "pipeline.stages=2")], 4)
        self.assertIn("errors of sums over replicas start from zero", result.out)
        self.assertTrue(np.isfinite(support.Run(output / "run.h5").losses).all())

    def test_local_steps_learn(self):
        """Few bytes, and losses that fall as those of summed gradients."""
        deck = self.deck(training={"steps": 60})
        plain = self.train(deck, "summed", 2, SAME)
        last = plain.losses[-10:].mean()
        first = plain.losses[:5].mean()
        for name, more in (("fp32", []), ("4 bits", ["replicas.codec=quantized", "replicas.bits=4"])):
            with self.subTest(name):
                run = self.train(deck, f"local{name[0]}", 2, local(10, *more))
                sent = run.steps["replica_bytes"].sum(axis=1)
                self.assertEqual(np.flatnonzero(sent).tolist(), list(range(9, 60, 10)))
                # Times and errors are those of the steps whose bytes they are.
                waits = run.steps["replica_wait_seconds"].sum(axis=1)
                self.assertGreater(waits[9::10].min(), np.delete(waits, slice(9, None, 10)).max())
                self.assertEqual(np.isfinite(run.steps["replica_error"]).any(), bool(more))
                self.assertLess(10 * sent.sum(), 1.01 * plain.steps["replica_bytes"].sum())
                # Local steps learn most of what summed gradients learn.
                self.assertLess(run.losses[-10:].mean(), last + 0.3 * (first - last))
                self.assertEqual(run.evaluations["step"].tolist(), list(range(10, 61, 10)))

    def test_local_steps_resume(self):
        deck = self.deck(checkpoint={"every_steps": 1000000}, training={"steps": 14})
        layout = local(4, "checkpoint.every_steps=4", "pipeline.stages=2",
                       "replicas.codec=quantized", "replicas.bits=2")
        stopped = self.check_parts(deck, layout, "local")
        self.assertEqual(stopped, 4)  # after an outer step
        deck = support.merged(deck, {"output": {"overwrite": False}})
        # Another layout, whose replicas all begin with the same state.
        for name, stages, replicas in (("k1", 1, 2), ("r1", 2, 1)):
            other = self.output(f"local-{name}")
            command = ["train", self.deck_file(deck), f"output.directory={other}", *layout]
            self.assertEqual(support.run([*command, "checkpoint.time_limit=0.001"], 4).status, 75)
            self.succeed([*command, f"pipeline.stages={stages}", f"pipeline.replicas={replicas}",
                          f"training.micro_batches={2 // replicas}"], stages * replicas)

    def test_links(self):
        deck = self.deck(training={"steps": 5})
        link = "network.replicas.bandwidth=4 Mbit/s"
        plain = self.train(deck, "link-plain", 2, [*SAME, link])
        least = plain.steps["replica_bytes"][0, 0] / 2 * 8 / 4e6
        self.assertGreater(np.median(plain.steps["wall_seconds"]), least)
        self.assertGreater(np.median(plain.steps["replica_wait_seconds"]), 0.5 * least)
        small = self.train(deck, "link-4", 2, quantized(4, link))
        self.assertLess(np.median(small.steps["wall_seconds"]),
                        0.6 * np.median(plain.steps["wall_seconds"]))

    def test_time_limit_counts_outer_steps(self):
        """Also if an evaluation follows each of them. One takes 1.2 s, there and back."""
        deck = self.deck_file(self.deck(training={"steps": 6000, "evaluate_every": 6}))
        begin = time.monotonic()
        result = support.run(["train", deck, *local(6), "network.replicas.latency=600 ms",
                              "checkpoint.every_steps=6000", "checkpoint.time_limit=8",
                              f"output.directory={self.output('limit')}"], 2)
        self.assertEqual(result.status, 75, str(result))
        self.assertLess(time.monotonic() - begin, 9)

    def test_warns_of_topk(self):
        deck = self.deck_file(self.deck(training={"steps": 24}))
        for overrides, message in (
                (["replicas.codec=topk", "replicas.topk=0.01", "replicas.local_steps=12",
                  "training.evaluate_every=12"],
                 "sends each value 0.02 times on average in the 2 sums"),
                (["replicas.codec=topk", "replicas.topk=0.1"], "is meant for local steps"),
                (["replicas.topk=0.1"], "replicas.topk has no effect"),
                (["replicas.bits=4"], "replicas.bits has no effect")):
            with self.subTest(message):
                self.assertIn(message, self.succeed(["check", deck, *SAME, *overrides]).out)

    def test_errors_of_outer_steps(self):
        """Only outer steps report an error, each its own."""
        deck = self.deck(training={"steps": 12}, output={"log_every": 1})
        run = self.train(deck, "errors", 2, local(4, "replicas.codec=quantized", "replicas.bits=4"))
        error = run.steps["replica_error"]
        is_outer = np.arange(1, 13) % 4 == 0
        self.assertTrue((np.isfinite(error) == is_outer).all(), error)
        self.assertEqual(len(set(error[is_outer])), 3)

    def test_mistakes(self):
        deck = self.deck_file(self.deck())
        for override, *parts in (
                ("replicas.bits=9", "replicas.bits", "1 to 8"),
                ("replicas.topk=0.3", "replicas.topk", "0.25"),
                ("replicas.topk=0", "replicas.topk", "0.001 to 0.25"),
                ("replicas.codec=adam_moment", "replicas.warmup_epochs", "warm-up"),
                ("replicas.codec=quantised", "replicas.codec", "quantized"),
                ("network.replicas.latency=[1,2]", "network.replicas", "one value"),
                ("network.replicas.latency=1 ms", "network.replicas", "network.wire")):
            overrides = [override] + ["network.wire=rank"] * ("network.wire" in parts)
            with self.subTest(override):
                self.assert_stops(support.run(["check", deck, *overrides]), *parts)
        for overrides, parts in (
                (["training.evaluate_every=6"], ["training.evaluate_every", "set", "8"]),
                (["checkpoint.every_steps=3"], ["checkpoint.every_steps", "multiple"]),
                (["checkpoint.milestone_every=9"], ["checkpoint.milestone_every", "12"]),
                (["replicas.codec=adam_moment", "replicas.warmup_epochs=1"],
                 ["replicas.local_steps", "not moments"]),
                (["replicas.outer_momentum=1"], ["replicas.outer_momentum"])):
            with self.subTest(overrides):
                self.assert_stops(support.run(["check", deck, "replicas.local_steps=4",
                                               *overrides]), *parts)
        # Without evaluate_every, evaluations are due after epochs.
        self.assert_stops(support.run(["train", deck, *SAME, "replicas.local_steps=1000",
                                       f"output.directory={self.output('epochs')}"], 2),
                          "the steps of an epoch", "training.evaluate_every")


if __name__ == "__main__":
    support.main()
