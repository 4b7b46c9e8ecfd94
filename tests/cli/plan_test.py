#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""`check --plan`: published step times, sweeps, rates of a run, JSON, and mistakes; and the bytes
that `check` predicts for memories of places."""

import json
import pathlib

import h5py

import support

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("compute_seconds", "codec_seconds", "wire_exposed_seconds", "bubble_seconds",
         "replica_wait_seconds")


class Plan(support.TestCase):
    def plan(self, deck, *arguments, ranks=1):
        path = self.deck_file(deck) if isinstance(deck, dict) else deck
        return json.loads(self.succeed(["check", "--plan", "--json", path, *arguments], ranks).out)

    @classmethod
    def deck(cls, **sections):
        return cls.small(**support.merged(
            {"plan": {"flops": "1 Gflop/s"}, "pipeline": {"stages": 2},
             "training": {"micro_batches": 4},
             "network": {"bandwidth": "1 Mbit/s", "latency": "1 ms"}}, sections))

    def check_parts(self, plan):
        for entry in [plan, *plan["sweep"]]:
            self.assertAlmostEqual(sum(entry[part] for part in PARTS), entry["step_seconds"],
                                   delta=1e-9 * entry["step_seconds"])

    def test_steps_of_protocol_nanogpt(self):
        """Published: 100.475 s for 4,096 bytes a token and 19.889 s for 644."""
        deck = str(SOURCE / "inputs/protocol_nanogpt.toml")
        model = f"model.path={SOURCE}/inputs/protocol_nanogpt"
        for bits, seconds in (16, 100.475), (8 * 644 / 2 / 1024, 19.889):
            plan = self.plan(deck, model, f"plan.forward_bits={bits}", f"plan.backward_bits={bits}")
            self.assertAlmostEqual(plan["step_seconds"] / seconds, 1, delta=0.05)
            self.check_parts(plan)

    def test_one_micro_batch_by_hand(self):
        """Two stages, one micro-batch, no latency: passes and messages follow each other."""
        plan = self.plan(self.deck(training={"micro_batches": 1}, network={"latency": 0}))
        link = 8 * sum(plan["codecs"][0][name] for name in ("forward_bytes", "backward_bytes")) / 1e6
        self.assertEqual(plan["codecs"][0]["codec"], "none")
        none, = (entry for entry in plan["sweep"] if entry["codec"] == "none")
        # Both ranks compute, one after the other; token rows hide behind nothing.
        self.assertGreater(none["step_seconds"], 2 * none["compute_seconds"] + link)
        self.assertLess(none["step_seconds"], 2 * none["compute_seconds"] + 2 * link)

    def test_a_sweep(self):
        plan = self.plan(self.deck(), "--bandwidth", "100Mbit/s,10 Mbit/s,1000 kbit/s")
        self.check_parts(plan)
        codecs = [codec["codec"] for codec in plan["codecs"]]
        self.assertEqual(codecs, ["none", "aqsgd 4/8", "aqsgd 3/6", "aqsgd 2/4"])
        seconds = {(entry["bandwidth"], entry["codec"]): entry["step_seconds"]
                   for entry in plan["sweep"]}
        self.assertEqual(len(seconds), 12)
        for codec in codecs:
            self.assertLess(seconds[100e6, codec], seconds[10e6, codec])
            self.assertLess(seconds[10e6, codec], seconds[1e6, codec])
        for bandwidth in 100e6, 10e6, 1e6:
            times = [seconds[bandwidth, codec] for codec in codecs]
            self.assertEqual(times, sorted(times, reverse=True))
        # At the bandwidth that a codec needs a step is 5 % longer than without a limit.
        for codec in plan["codecs"]:
            there = self.plan(self.deck(), f"plan.bandwidths=[{codec['bandwidth_needed']}, 0]")
            slow, fast = (next(entry["step_seconds"] for entry in there["sweep"]
                               if (entry["bandwidth"] > 0) == limited
                               and entry["codec"] == codec["codec"]) for limited in (True, False))
            self.assertAlmostEqual(slow / fast, 1.05, delta=0.002)

    def test_the_slowest_link_decides(self):
        """In whatever order bandwidths are given."""
        for bandwidths in "100Mbit/s,1Mbit/s,10Mbit/s", "1Mbit/s,100Mbit/s,10Mbit/s":
            plan = self.plan(self.deck(pipeline={"in_flight": 3}), "--bandwidth", bandwidths)
            self.assertEqual(plan["recommended"]["bandwidth"], 1e6)
            own, = (entry["step_seconds"] for entry in plan["sweep"]
                    if entry["bandwidth"] == 1e6 and entry["codec"] == "none")
            self.assertLessEqual(plan["recommended"]["step_seconds"], 1.02 * own)

    def test_what_is_recommended_is_predicted(self):
        deck = self.deck(training={"micro_batch_size": 4}, pipeline={"stages": 4})
        plan = self.plan(deck)
        best = plan["recommended"]
        self.assertLessEqual(best["step_seconds"], 1.02 * plan["step_seconds"])
        again = self.plan(deck, f"pipeline.schedule={best['schedule']}",
                          f"pipeline.in_flight={best['in_flight']}",
                          f"training.micro_batches={best['micro_batches']}",
                          f"training.micro_batch_size={16 // best['micro_batches']}")
        self.assertAlmostEqual(again["step_seconds"], best["step_seconds"])

    def test_replicas_and_several_stages_on_a_rank(self):
        for sections in ({"pipeline": {"replicas": 2}}, {"network": {"wire": "rank"}},
                         {"network": {"wire": "rank"}, "pipeline": {"replicas": 3}},
                         {"pipeline": {"stages": 4, "stages_per_rank": 2,
                                       "schedule": "interleaved"}},
                         {"pipeline": {"stages": 1, "replicas": 2}}):
            with self.subTest(sections):
                deck = self.deck(**support.merged(
                    {"network.replicas": {"bandwidth": "1 Mbit/s"}}
                    if "wire" not in sections.get("network", {}) else {}, sections))
                plan = self.plan(deck)
                self.check_parts(plan)
                if sections.get("pipeline", {}).get("replicas", 1) > 1:
                    self.assertGreater(plan["codecs"][0]["replica_bytes"], 0)
                    self.assertGreater(plan["replica_wait_seconds"], 0)

    def test_rates_of_a_run(self):
        deck = self.deck(training={"steps": 24}, plan={"flops": 0}, network={"latency": 0},
                         **{"boundary.forward": {"codec": "aqsgd", "quantizer.step": 1},
                            "boundary.backward": {"codec": "directq", "bits": 4}})
        deck["network"] = {}
        run = self.train(deck, "measured", 2)
        file = str(self.output("measured") / "run.h5")
        plan = self.plan(deck, f"plan.run={file}")
        self.check_parts(plan)
        self.assertEqual(plan["rates"]["source"], file)
        self.assertEqual(len(plan["rates"]["flops"]), 2)
        # The measured bytes of a codec whose payloads depend on the values.
        later = (run.steps["cache_first_visits"].sum(axis=1) == 0) & (run.steps["step"] > 1)
        self.assertTrue(4 < later.sum() <= 20)
        measured = run.steps["forward_bytes"][later].mean() / run.steps["samples"][later].mean() * 2
        codec, = (codec for codec in plan["codecs"] if codec["codec"] == "deck")
        self.assertAlmostEqual(codec["forward_bytes"] / measured, 1, delta=0.01)
        # Another layout uses the mean rate.
        self.assertEqual(len(self.plan(deck, f"plan.run={file}", "pipeline.stages=1")
                             ["rates"]["flops"]), 1)
        # Bits of first visits are not those of later ones.
        early = self.train(deck, "early", 2, ["training.steps=4"])
        self.assertTrue((early.steps["cache_first_visits"].sum(axis=1) > 0).all())
        plan = self.plan(deck, f"plan.run={self.output('early') / 'run.h5'}")
        self.assertEqual({entry["codec"] for entry in plan["sweep"] if entry["at_most"]}, {"deck"})
        with h5py.File(self.output("early") / "run.h5", "r+") as damaged:
            damaged.attrs["partition"] = [1, 1]
        for overrides, parts in (([f"plan.run={file}", "model.new.n_layer=3"],
                                  ["the run is of another model", "plan.run"]),
                                 ([f"plan.run={self.output('early') / 'run.h5'}"], ["partition"]),
                                 ([f"plan.run={file}", "data.sequence_length=16"],
                                  ["data.sequence_length"]),
                                 ([f"plan.run={self.text}"], [str(self.text)]),
                                 (["plan.run=none.h5"], ["none.h5"])):
            with self.subTest(overrides):
                self.assert_stops(support.run(["check", "--plan", self.deck_file(deck), *overrides]),
                                  *parts)

    def test_the_table(self):
        deck = self.deck_file(self.deck())
        out = self.succeed(["check", "--plan", deck]).out
        for part in ("1.00 Mbit/s", "aqsgd 3/6", "plan.flops", "pipeline.in_flight=",
                     "mildest codec"):
            self.assertIn(part, out)
        self.assertEqual(self.succeed(["check", "--plan", deck], 2).out, out)
        said = self.succeed(["check", "--plan", deck, "--bandwidth", "1 Gbit/s,10"]).err
        self.assertIn('write "10 Mbit/s" for megabits', said)

    def test_bytes_with_memories_of_places(self):
        """Hashes that compare memories travel at some visits of a place."""
        for every in 2, 7:
            feedback = {"codec": "directq", "feedback.kind": "ef21", "feedback.of": "position"}
            deck = self.small(pipeline={"stages": 2}, training={"steps": 11},
                              cache={"verify_every": every},
                              **{"boundary.forward": {**feedback, "bits": 3},
                                 "boundary.backward": {**feedback, "bits": 4}})
            said = self.succeed(["check", self.deck_file(deck)]).out
            run = self.train(deck, f"places{every}", 2)
            for direction in "forward", "backward":
                sent = int(run.steps[f"{direction}_bytes"].sum())
                self.assertRegex(said, rf"# boundary 0 {direction} .* = {sent:,};")

    def test_mistakes(self):
        deck = self.deck_file(self.deck())
        for arguments, parts in ((["plan.flops=0"], ["requires the rate", "plan.run"]),
                                 (["plan.flops=10"], ["too small", "10 Tflop/s"]),
                                 (["plan.flops=fast"], ["plan.flops", "Tflop/s"]),
                                 (["plan.flops=-1"], ["plan.flops"]),
                                 (["--bandwidth", "10 parsecs"], ["plan.bandwidths", "Mbit/s"]),
                                 (["plan.forward_bits=65"], ["plan.forward_bits"])):
            with self.subTest(arguments):
                self.assert_stops(support.run(["check", "--plan", deck, *arguments]), *parts)
        self.assert_stops(support.run(["check", "--json", deck]), "--plan")


if __name__ == "__main__":
    support.main()
