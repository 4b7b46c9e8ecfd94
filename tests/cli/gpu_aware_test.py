#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Messages and sums that MPI finds in device memory change no bit and no byte of a run."""

import re

import numpy as np

import support

ON = "pipeline.gpu_aware_mpi=true"
BYTES = ("forward_bytes", "backward_bytes", "tied_row_bytes", "tied_gradient_bytes",
         "collective_bytes", "replica_bytes")
DELTA = {"boundary.forward": {"codec": "aqsgd", "bits": 3},
         "boundary.backward": {"codec": "directq", "bits": 4, "feedback.kind": "ef"},
         "cache": {"verify_every": 1}}


class GpuAware(support.TestCase):
    def weights(self, name):
        return (self.output(name) / "model" / "model.safetensors").read_bytes()

    def compare(self, name, deck, ranks, overrides=()):
        """The same run with and without the key; both runs."""
        without = self.train(deck, f"{name}-without", ranks, overrides)
        run = self.train(deck, f"{name}-with", ranks, [*overrides, ON])
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertLess(run.losses[-1], run.losses[0])
        self.assertIn("gpu_aware_mpi = true", run.attributes["deck"])
        self.assertEqual(run.losses.tobytes(), without.losses.tobytes())
        for column in (*BYTES, "gradient_norm", "forward_error", "backward_error"):
            if column in without.steps:
                self.assertEqual(run.steps[column].tobytes(), without.steps[column].tobytes(),
                                 column)
        self.assertEqual(run.evaluations["loss"].tobytes(), without.evaluations["loss"].tobytes())
        self.assertEqual(self.weights(f"{name}-with"), self.weights(f"{name}-without"))
        return run, without

    def test_stages(self):
        for codec in ("none", "auto"):
            for stages, overrides in ((2, []), (3, ["pipeline.schedule=zb-h1"]),
                                      (2, ["pipeline.schedule=gpipe", "pipeline.in_flight=3"])):
                with self.subTest(codec, stages=stages, overrides=overrides):
                    deck = self.small(training={"steps": 12, "micro_batches": 3},
                                      pipeline={"stages": stages},
                                      boundary__forward={"codec": codec},
                                      boundary__backward={"codec": codec})
                    run, _ = self.compare(f"{codec}-{stages}-{len(overrides)}", deck, stages,
                                          overrides)
                    self.assertGreater(run.steps["tied_row_bytes"].min(), 0)

    def test_replicas(self):
        deck = support.merged(self.small(training={"steps": 12}), DELTA)
        for stages in (1, 2):
            run, _ = self.compare(f"replicas{stages}", deck, 2 * stages,
                                  [f"pipeline.stages={stages}", "pipeline.replicas=2",
                                   "pipeline.verify_replicas=1"])
            if stages == 1:
                ring = 2 * 4 * run.attributes["trained_parameters"]
                sent = run.steps["replica_bytes"]
                self.assertTrue(((sent > ring) & (sent < 1.1 * ring)).all(), sent)

    def test_many_replicas(self):
        """Their weights are compared at every step."""
        deck = self.small(training={"steps": 6, "micro_batches": 3})
        layout = ["pipeline.replicas=3", "pipeline.verify_replicas=1"]
        without = self.train(deck, "three-without", 3, layout)
        run = self.train(deck, "three-with", 3, [*layout, ON])
        np.testing.assert_array_equal(run.losses, without.losses)
        for column in BYTES:
            if column in run.steps:
                np.testing.assert_array_equal(run.steps[column], without.steps[column], column)

    def test_frozen_and_recomputed(self):
        deck = support.merged(self.small(training={"steps": 8, "recompute": True},
                                         training__optimizer={"frozen": ["h.0", "wpe"]}), DELTA)
        self.compare("frozen", deck, 4, ["pipeline.stages=2", "pipeline.replicas=2"])

    def test_emulated_links(self):
        deck = support.merged(self.small(training={"steps": 5}), DELTA)
        for wire in ("boundary", "rank"):
            run, without = self.compare(
                f"links-{wire}", deck, 4,
                ["pipeline.stages=2", "pipeline.replicas=2", "network.bandwidth=20 Mbit/s",
                 "network.latency=2 ms", f"network.wire={wire}"])
            if wire == "rank":  # sums pass the emulated wires, as without
                parameters = run.attributes["trained_parameters"]
                least = 4 * parameters / 2 * 8 / 20e6
                for each in (run, without):
                    self.assertGreater(np.median(each.steps["wall_seconds"].max(axis=1)), least)

    def test_spilled_memories(self):
        deck = support.merged(self.small(training={"steps": 30}, pipeline={"stages": 2}), DELTA,
                              {"cache": {"budget": "12 kB", "prefetch": 1}})
        run, _ = self.compare("spilled", deck, 2)
        self.assertGreater(run.steps["cache_misses"].sum(), 0)

    def test_evaluates_and_generates(self):
        deck = self.small(training={"steps": 2}, pipeline={"stages": 2},
                          evaluation={"boundary": "both"},
                          boundary__forward={"codec": "aqsgd"})
        self.compare("model", deck, 2)
        arguments = [self.deck_file(deck), f"model.path={self.output('model-with')}/model",
                     "tokenizer.train_vocabulary=0", "generate.max_new_tokens=8"]
        for command in ("generate", "evaluate"):
            without = self.succeed([command, *arguments], 2)
            run = self.succeed([command, *arguments, ON], 2)
            self.assertEqual(run.out.splitlines()[-1].split(";")[0],
                             without.out.splitlines()[-1].split(";")[0])

    def test_goes_on_with_another_setting(self):
        """A restart may change it."""
        deck = support.merged(self.small(training={"steps": 8}, pipeline={"stages": 2}), DELTA)
        whole = self.train(deck, "whole", 2)
        output = self.output("changed")
        arguments = ["train", self.deck_file(deck), f"output.directory={output}"]
        result = support.run([*arguments, "checkpoint.time_limit=0.001"], 2)
        self.assertEqual(result.status, 75, str(result))
        self.succeed([*arguments, ON], 2)
        self.assertEqual(support.Run(output / "run.h5").losses.tobytes(), whole.losses.tobytes())

    def test_ranks_with_other_settings(self):
        """One line, whichever rank has the key."""
        deck = self.deck_file(self.small(pipeline={"stages": 2}))
        arguments = ["train", deck, f"output.directory={self.output('other')}"]
        for first, second in ((["pipeline.gpu_aware_mpi=false"], [ON]),
                              ([ON], ["pipeline.gpu_aware_mpi=false"])):
            result = support.run_command(support.command_of_each(
                [support.PROGRAM, *arguments, *own] for own in (first, second)))
            self.assert_stops(result, "rank 1 was started with another deck than rank 0",
                              "pipeline.gpu_aware_mpi = " + second[0].split("=")[1],
                              "same deck", status=2)

    def test_check(self):
        """Accepted where device memory is the host's; headers of sums are in the host's."""
        deck = self.deck_file(self.small(pipeline={"stages": 2, "replicas": 2}))
        taken = []
        for overrides in ([], [ON]):
            said = self.succeed(["check", deck, *overrides]).out
            line = re.search(r"(?m)^# replicas +(.*)$", said).group(1)
            taken.append(np.array([float(number) for number in re.findall(r"([\d.]+) kB", line)]))
        self.assertEqual(len(taken[0]), 2)
        # Payloads in device memory, and room for a first piece of 60 KiB for each of 16 buffers.
        self.assertTrue((np.array(taken[1]) > taken[0]).all(), taken)
        self.assertTrue((np.array(taken[1]) < np.array(taken[0]) + 16 * 62).all(), taken)
        result = support.run(["check", deck, "pipeline.gpu_aware_mpi=yes"])
        self.assert_stops(result, "pipeline.gpu_aware_mpi", "yes", status=2)


if __name__ == "__main__":
    support.main()
