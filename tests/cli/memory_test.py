#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What check predicts of memory is what runs take, and what it refuses train refuses as well."""

import json
import re
import shutil

import numpy as np

import support

DELTA = {"boundary.forward": {"codec": "aqsgd", "bits": 4},
         "boundary.backward": {"codec": "directq", "bits": 8}}
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def predicted_peaks(text):
    """Bytes a stage, of the line '# peak  217 MB  1.9 GB'."""
    line, = (line for line in text.splitlines() if re.match(r"# peak  ", line))
    return [float(number) * UNITS[unit]
            for number, unit in re.findall(r"([\d.]+) ?([kMG]?)B", line)]


class Memory(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text.write_text(support.text_of(540000), encoding="utf-8")

    @classmethod
    def deck(cls, n_layer=6, n_embd=384, tokens=32, batch=(2, 2), **sections):
        """Large enough that a rank takes 100 to 300 MB, small enough for seconds of work."""
        deck = {
            "model.new": {"n_layer": n_layer, "n_embd": n_embd, "n_head": 4,
                          "n_positions": tokens},
            "tokenizer": {"train_vocabulary": 400},
            "data": {"train": [str(cls.text)], "max_train_samples": 16,
                     "max_validation_samples": 4},
            "training": {"steps": 2, "micro_batch_size": batch[0], "micro_batches": batch[1]},
            "output": {"save_model": False},
        }
        return support.merged(deck, {name.replace("__", "."): keys
                                     for name, keys in sections.items()})

    def compare(self, name, deck, stages, replicas=1):
        deck = support.merged(deck, {"pipeline": {"stages": stages, "replicas": replicas}})
        output = self.output(name)
        overrides = [f"output.directory={output}"]
        said = self.succeed(["check", self.deck_file(deck), *overrides]).out
        predicted = np.tile(predicted_peaks(said), replicas)
        run = self.train(deck, name, stages * replicas)
        self.assertEqual(len(predicted), stages * replicas)
        for rank, (expected, peak) in enumerate(zip(predicted, run.memory["peak"])):
            with self.subTest(name, rank=rank):
                self.assertGreater(peak, 50e6)
                self.assertLess(abs(expected / peak - 1), 0.1,
                                f"predicted {expected / 1e6:.0f} MB, taken {peak / 1e6:.0f} MB")
        shutil.rmtree(output)

    def test_one_stage(self):
        self.compare("one", self.deck(), 1)

    def test_replicas(self):
        # Few of the bytes are gradients: how many sums MPI has under way at once is its affair.
        self.compare("replicas", self.deck(12, 64, 64, (8, 4), pipeline={"schedule": "gpipe"},
                                           data={"max_train_samples": 64}, training={"steps": 1}),
                     1, 2)

    def test_three_stages(self):
        self.compare("three", self.deck(9, batch=(2, 6)), 3)

    def test_frozen_parameters(self):
        """Without moments and gradients of the first half, on one stage and on a whole stage."""
        frozen = {"training__optimizer": {"frozen": ["wte", "wpe", "h.[0-2]"]}}
        self.compare("frozen-one", self.deck(**frozen), 1)
        self.compare("frozen-two", self.deck(**frozen, pipeline={"partition": [3, 3]}), 2)

    def test_recompute_and_model_saved(self):
        self.compare("recompute", self.deck(training={"recompute": True},
                                            output={"save_model": True}), 2)

    def test_forward_passes_first(self):
        # Most of it are activations.
        self.compare("gpipe", self.deck(12, 64, 64, (8, 8), pipeline={"schedule": "gpipe"},
                                        data={"max_train_samples": 64}, training={"steps": 1}), 2)

    @classmethod
    def memories(cls, **sections):
        """An epoch of a small model: records of 16 kB for each of 960 samples."""
        return cls.deck(2, 32, 128, (16, 4), **support.merged({
            **DELTA, "data": {"max_train_samples": 960}, "training": {"steps": 15},
            "cache": {"storage": "fp32"}}, sections))

    def test_activation_memories(self):
        self.compare("delta", self.memories(), 2)

    def test_spilled_activation_memories(self):
        self.compare("spill", self.memories(cache={"budget": "7 MB"}), 2)

    def test_errors_of_gradients(self):
        """What they take, on the last stage only: with error feedback less without."""
        predicted, taken = [], []
        for feedback in ("none", "ef"):
            deck = self.memories(boundary__forward={"codec": "none"},
                                 boundary__backward={"codec": "directq",
                                                     "feedback.kind": feedback})
            deck = support.merged(deck, {"pipeline": {"stages": 2}})
            name = f"feedback-{feedback}"
            said = self.succeed(["check", self.deck_file(deck),
                                 f"output.directory={self.output(name)}"]).out
            predicted.append(np.array(predicted_peaks(said)))
            taken.append(self.train(deck, name, 2).memory["peak"].astype(float))
        records = 960 * 128 * 32 * 4
        for what, (without, with_errors) in (("predicted", predicted), ("taken", taken)):
            more = with_errors - without
            self.assertLess(abs(more[0]), 0.2 * records, what)
            self.assertLess(abs(more[1] / records - 1), 0.2, what)

    def test_delta_with_replicas(self):
        self.compare("delta-replicas", self.deck(12, 64, 64, (8, 8), **DELTA,
                                                 pipeline={"schedule": "gpipe"},
                                                 data={"max_train_samples": 128}), 2, 2)

    # --- what check refuses and when

    def both(self, deck, *parts, ranks=1):
        """check, started like the run, and train refuse with the same message."""
        deck = self.deck_file(deck)
        messages = []
        for command in ("check", "train"):
            result = support.run([command, deck], ranks)
            self.assert_stops(result, *parts, status=2)
            messages.append(result.errors[0])
        return messages

    def test_budget_below_a_micro_batch(self):
        check, train = self.both(
            self.deck(pipeline={"stages": 2}, **DELTA, cache={"budget": "1 kB"}),
            "the activation cache's budget is too small", "set cache.budget to at least", ranks=2)
        self.assertEqual(check, train)
        # One process is enough to see it.
        deck = self.deck(pipeline={"stages": 2}, **DELTA, cache={"budget": "1 kB"})
        self.assert_stops(support.run(["check", self.deck_file(deck)]), "cache.budget", status=2)

    def test_more_than_the_machine_has(self):
        self.both(self.deck(n_layer=2000, n_embd=16384), "more memory than the machine",
                  "deltapipe check")

    def test_before_anything_is_there(self):
        # config.json alone says what the model takes.
        directory = self.place / "bare"
        deck = self.deck_file(self.deck(
            model={"path": str(directory)}, tokenizer={},
            pipeline={"stages": 8, "partition": [6] * 8},
            data={"train": ["nowhere.jsonl"], "sequence_length": 1024, "max_train_samples": 0}, **DELTA,
            cache={"budget": "1 GB"}) | {"model.new": {}, "tokenizer": {}})
        result = support.run(["check", deck])
        self.assert_stops(result, "missing", "config.json", "hf download", status=2)
        for part in ("config.json", "model.safetensors", "nowhere.jsonl", "tokenizer.json"):
            self.assertRegex(result.out, f"# .*{part}.*missing" if part != "tokenizer.json"
                             else f"# a tokenizer.*missing.*{part}")
        self.assertIn("# ranks: 8 stage(s)", result.out)
        self.assertEqual(re.findall("# peak.*", result.out), [])
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({
            "model_type": "gpt2", "n_layer": 48, "n_head": 25, "n_embd": 1600,
            "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"}))
        result = support.run(["check", deck])
        self.assert_stops(result, "missing", "model.safetensors", status=2)
        peaks = predicted_peaks(result.out)
        self.assertEqual(len(peaks), 8)
        # 16 bytes a parameter: six blocks of 12 C^2 + 13 C each.
        self.assertGreater(min(peaks), 16 * 6 * (12 * 1600**2 + 13 * 1600))
        self.assertRegex(result.out, r"3\.28 MB per sample, the number of samples is not known yet")

    def test_untied_model_from_a_file(self):
        self.train(self.deck(output={"save_model": True}, training={"steps": 1}), "tied")
        directory = self.output("tied") / "model"
        config = json.loads((directory / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (directory / "config.json").write_text(json.dumps(config))
        weights = directory / "model.safetensors"
        header, data = support.read_safetensors(weights)
        table = dict(header["transformer.wte.weight"])
        begin, end = table["data_offsets"]
        table["data_offsets"] = [len(data), len(data) + end - begin]
        header["lm_head.weight"] = table
        support.write_safetensors(weights, header, data + data[begin:end])
        deck = self.deck(model={"path": str(directory)})
        del deck["model.new"], deck["tokenizer"]
        self.compare("untied", deck, 2)


if __name__ == "__main__":
    support.main()
