#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Evaluation and generation through the codecs and without: losses, bytes, and what training makes
of them."""

import json
import random
import re

import numpy as np

import support

HEADER_BYTES = 104
TOKENS, CHANNELS, SAMPLES = 32, 32, 7
WHOLE = 4 * HEADER_BYTES + SAMPLES * TOKENS * CHANNELS * 4  # micro-batches of 2


class Evaluations(support.TestCase):
    @classmethod
    def deck(cls, **sections):
        return support.merged(
            cls.small(training={"steps": 8, "evaluate_every": 3}, pipeline={"stages": 2},
                      boundary__forward={"codec": "aqsgd", "bits": 3, "quantizer.rounding": "stochastic"},
                      boundary__backward={"codec": "directq", "bits": 6},
                      evaluation={"boundary": "both"}),
            {name.replace("__", "."): keys for name, keys in sections.items()})

    def test_both_are_measured_and_training_stays_the_same(self):
        run = self.train(self.deck(), "both", 2)
        table = run.evaluations
        self.assertEqual(table["step"].tolist(), [3, 6, 8])
        np.testing.assert_allclose(table["codec_perplexity"], np.exp(table["codec_loss"]))
        self.assertTrue((table["codec_loss"] != table["loss"]).all())
        np.testing.assert_allclose(table["codec_loss"], table["loss"], rtol=1e-2)
        self.assertEqual(table["forward_bytes"][:, 0].tolist(), [WHOLE] * 3)
        # First visits in 8 bits, a scale of 2 bytes for each token's 32 channels.
        first = 4 * HEADER_BYTES + SAMPLES * TOKENS * (CHANNELS + 2)
        self.assertEqual(table["codec_forward_bytes"][:, 0].tolist(), [first] * 3)
        np.testing.assert_array_equal(table["codec_tied_row_bytes"], table["tied_row_bytes"])
        self.assertTrue((table["codec_collective_bytes"] > 0).all())

        plain = self.train(self.deck(evaluation={"boundary": "fp32"}), "plain", 2)
        self.assertFalse([name for name in plain.evaluations if name.startswith("codec")])
        only = self.train(self.deck(evaluation={"boundary": "codec"}), "only", 2)
        self.assertTrue(np.isnan(only.evaluations["loss"]).all())
        self.assertFalse(only.evaluations["forward_bytes"].any())
        self.assertEqual(only.evaluations["codec_loss"].tobytes(), table["codec_loss"].tobytes())
        self.assertEqual(plain.evaluations["loss"].tobytes(), table["loss"].tobytes())
        for other in (plain, only):
            self.assertEqual(other.losses.tobytes(), run.losses.tobytes())
            np.testing.assert_array_equal(other.steps["forward_bytes"],
                                          run.steps["forward_bytes"])

    def test_evaluations_have_the_step_that_training_holds(self):
        """Not the first message's, with which these take 3 bits, scales and tables included."""
        for name, codec, changes in (("values", "directq", "first_visit"),
                                     ("changes", "aqsgd", "direct")):
            run = self.train(self.deck(
                boundary__forward={"codec": codec, "rate": 7}, training={"steps": 24},
                evaluation={"boundary": "codec", "changes": changes}), name, 2)
            sent = run.evaluations["codec_forward_bytes"][-1, 0] - 4 * HEADER_BYTES
            self.assertGreater(8 * sent / (SAMPLES * TOKENS * CHANNELS), 5, name)

    def test_plain_values_in_fewer_bits(self):
        runs = {name: self.train(self.deck(evaluation={"boundary": name}), name, 2)
                for name in ("fp32", "fp16", "quantize8")}
        whole = runs["fp32"].evaluations
        for name, row_bytes, error in (("fp16", 2 * CHANNELS + 2, 1e-4),
                                       ("quantize8", CHANNELS + 2, 1e-3)):
            table = runs[name].evaluations
            self.assertFalse([column for column in table if column.startswith("codec")])
            self.assertTrue((table["loss"] != whole["loss"]).all())
            np.testing.assert_allclose(table["loss"], whole["loss"], rtol=error)
            self.assertEqual(table["forward_bytes"][:, 0].tolist(),
                             [4 * HEADER_BYTES + SAMPLES * TOKENS * row_bytes] * 3)
            self.assertEqual(runs[name].losses.tobytes(), runs["fp32"].losses.tobytes())
        said = self.succeed(["generate", self.deck_file(self.deck()), "evaluation.boundary=fp16",
                             f"model.path={self.output('fp16') / 'model'}",
                             "tokenizer.train_vocabulary=0", "generate.max_new_tokens=2",
                             "--prompt", "Ka lo"], 2)
        self.assertIn("deltapipe: fp16 between stages: 2 tokens", said.err)

    def test_printed_figures_are_those_of_the_file(self):
        output = self.output("printed")
        said = self.succeed(["train", self.deck_file(self.deck()), f"output.directory={output}"], 2)
        table = support.Run(output / "run.h5").evaluations
        for name, words in (("", "validation loss"), ("codec_", "loss through the codec")):
            for epoch, loss in zip(table["epoch"], table[name + "loss"]):
                self.assertIn(f"epoch {epoch:.2f}: {words} {loss:.4f}, perplexity", said.out)
            total = table[name + "forward_bytes"].sum() + table[name + "tied_row_bytes"].sum()
            self.assertIn(f"all evaluations {total / 1000:.3g} kB on the wire", said.out)

    def evaluated(self, model, *overrides, ranks=2):
        """Losses and bytes of `evaluate`, fp32 and through the codec; None: not printed."""
        deck = self.deck(model={"path": str(model)}, tokenizer={"train_vocabulary": 0})
        out = self.succeed(["evaluate", self.deck_file(deck), f"pipeline.stages={ranks}",
                            *overrides], ranks).out
        found = []
        for words in ("^", "^through the codec: "):
            line = re.search(words + r"loss ([\d.]+), perplexity [\d.]+(?:; ([\d.]+) kB on the wire)?$",
                             out, re.MULTILINE)
            found.append(line and (float(line[1]), float(line[2] or 0)))
        return found

    def test_evaluate(self):
        self.train(self.deck(), "evaluate", 2)
        model = self.output("evaluate") / "model"
        run = support.Run(self.output("evaluate") / "run.h5").evaluations
        plain, codec = self.evaluated(model)
        self.assertAlmostEqual(plain[0], run["loss"][-1], places=6)
        self.assertAlmostEqual(codec[0], run["codec_loss"][-1], places=6)
        self.assertLess(codec[1], plain[1])
        self.assertEqual(self.evaluated(model, "evaluation.boundary=codec"), [None, codec])
        self.assertEqual(self.evaluated(model, "evaluation.boundary=fp32"), [plain, None])
        # C(x) in 3 bits is worse than a first visit in 8; that in fp32 is the uncompressed loss.
        direct = self.evaluated(model, "evaluation.changes=direct")[1]
        self.assertLess(direct[1], codec[1])
        self.assertNotEqual(direct[0], codec[0])
        self.assertEqual(*self.evaluated(model, "boundary.forward.memory.first_visit=fp32"))
        # Without a boundary, and with replicas.
        alone, through = self.evaluated(model, ranks=1)
        self.assertEqual(alone, through)
        self.assertAlmostEqual(alone[0], plain[0], places=5)
        replicas = self.evaluated(model, "pipeline.replicas=2", "pipeline.stages=2", ranks=4)
        self.assertAlmostEqual(replicas[0][0], plain[0], places=5)

    def test_what_a_codec_costs_a_model_that_was_trained_without(self):
        deck = self.deck(boundary__forward={"codec": "none"}, boundary__backward={"codec": "none"},
                         training={"steps": 60, "micro_batch_size": 4},
                         evaluation={"boundary": "fp32"},
                         training__optimizer={"learning_rate": 5e-3})
        self.train(deck, "without", 2)
        model = self.output("without") / "model"
        plain, eight = self.evaluated(model, "boundary.forward.codec=directq",
                                      "boundary.forward.bits=8")
        self.assertLess(abs(np.exp(eight[0] - plain[0]) - 1), 1e-3)
        _, ten = self.evaluated(model, "boundary.forward.codec=topk", "boundary.forward.topk=0.1")
        self.assertGreater(np.exp(ten[0] - plain[0]), 1.02)
        _, all_of_it = self.evaluated(model, "boundary.forward.codec=topk",
                                      "boundary.forward.topk=1", "boundary.forward.sparse.values=fp32")
        self.assertAlmostEqual(all_of_it[0], plain[0], places=5)
        # Strong enough a codec changes what is generated; what it sent is said.
        options = ["generate.temperature=0", "generate.max_new_tokens=24", "--prompt", "Ka lo"]
        texts = {}
        for mode in ("fp32", "codec", "both"):
            said = self.succeed(["generate", self.deck_file(deck), f"model.path={model}",
                                 "tokenizer.train_vocabulary=0", "boundary.forward.codec=topk",
                                 "boundary.forward.topk=0.02", f"evaluation.boundary={mode}",
                                 *options], 2)
            texts[mode] = said.out
            sent = dict(re.findall(r"deltapipe: ([\w ]+): \d+ tokens, ([\d.]+) kB of activations",
                                   said.err))
            self.assertEqual(len(sent), 2 if mode == "both" else 1, said.err)
        # topk looks at all tokens: the whole text, again and again; fp32 sends each token once.
        self.assertLess(float(sent["through the codec"]), float(sent["fp32 between stages"]))
        self.assertNotEqual(texts["fp32"], texts["codec"])
        self.assertEqual(texts["both"], "# fp32 between stages\n" + texts["fp32"]
                         + "\n# through the codec\n" + texts["codec"])

    def test_mistakes(self):
        for value, parts in (("cod", ['evaluation.boundary', '"fp32", "fp16", "quantize8", "codec", "both"']),
                             ("[fp32]", ["evaluation.boundary"])):
            deck = self.deck(evaluation={"boundary": value})
            self.assert_stops(support.run(["check", self.deck_file(deck)]), *parts, status=2)
        deck = self.deck(evaluation={"changes": "delta"})
        self.assert_stops(support.run(["check", self.deck_file(deck)]), "evaluation.changes",
                          '"first_visit", "direct"', status=2)
        deck = self.deck(evaluation={"bondary": "codec"})
        self.assert_stops(support.run(["check", self.deck_file(deck)]), "bondary", "boundary",
                          status=2)

    def test_codecs_that_change_nothing_are_warned_of(self):
        deck = self.deck(boundary__forward={"codec": "none"})
        said = self.succeed(["check", self.deck_file(deck)])
        self.assertIn("evaluations through the codec are those of fp32 here", said.out)
        said = self.succeed(["check", self.deck_file(self.deck())])
        self.assertNotIn("are those of fp32", said.out)
        # Two samples of 32 tokens in 8 bits.
        self.assertIn("evaluations through the codec send 2.18 kB a micro-batch", said.out)


class ExactMatch(support.TestCase):
    """A model that has learnt some of 24 facts by heart."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rng = random.Random(1)
        cls.facts = [(f"k{i:02d}:", f" {rng.randint(0, 99):02d}{rng.choice('abcdef')}")
                     for i in range(24)]
        cls.texts = cls.lines("facts.jsonl", [{"text": prompt + answer}
                                              for prompt, answer in cls.facts])
        cls.prompts = cls.lines("prompts.jsonl", [{"question": prompt, "answer": answer}
                                                  for prompt, answer in cls.facts])
        cls.deck = {
            "model.new": {"n_layer": 3, "n_head": 2, "n_embd": 64, "n_positions": 16},
            "tokenizer": {"train_vocabulary": 270},
            "data": {"train": [cls.texts], "validation": [cls.texts], "packing": "document"},
            "training": {"steps": 330, "micro_batch_size": 4, "micro_batches": 2,
                         "evaluate_every": 165},
            "training.optimizer": {"learning_rate": 2e-2},
            "pipeline": {"stages": 3},
            "boundary.forward": {"codec": "directq", "bits": 3, "quantizer.tile": 16},
            "evaluation": {"boundary": "both", "prompts": [cls.prompts],
                           "prompt_field": "question"},
        }
        cls.run_output = cls.output("facts")
        cls.said = support.run(["train", cls.deck_file(cls.deck),
                                f"output.directory={cls.run_output}"], 3)
        cls.trained = [f"model.path={cls.run_output / 'model'}", "tokenizer.train_vocabulary=0"]

    @classmethod
    def lines(cls, name, rows):
        path = cls.place / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def evaluated(self, *overrides, ranks=3):
        """Exact match in per cent, plain and through the codec."""
        out = self.succeed(["evaluate", self.deck_file(self.deck), f"pipeline.stages={ranks}",
                            *self.trained, *overrides], ranks).out
        return [float(share) for share in re.findall(r"exact match ([\d.]+) %", out)]

    def generated(self, *overrides):
        """The same, from what `generate` writes for each prompt."""
        prompts = json.dumps([prompt for prompt, _ in self.facts])
        out = self.succeed(["generate", self.deck_file(self.deck), *self.trained, *overrides,
                            "generate.temperature=0", "generate.max_new_tokens=10",
                            f"generate.prompts={prompts}"], 3).out
        shares = []
        for part in out.split("# through the codec"):
            texts = [line for line in part.splitlines() if line and not line.startswith("#")]
            self.assertEqual(len(texts), len(self.facts))
            exact = sum(text == prompt + answer
                        for text, (prompt, answer) in zip(texts, self.facts))
            shares.append(float(f"{100 * exact / len(self.facts):.4g}"))
        return shares

    def test_exact_match_counts_what_generate_writes(self):
        table = support.Run(self.run_output / "run.h5").evaluations
        for name, share in zip(("exact_match", "codec_exact_match"), self.evaluated()):
            self.assertGreater(share, 0)
            self.assertLess(share, 100)
            self.assertAlmostEqual(100 * table[name][-1], share, places=1)
            self.assertIn(f"exact match {share:.2f} %", self.said.out)
        self.assertIn("24 prompts with answers", self.said.out)
        for overrides in ((), ("boundary.forward.codec=topk", "boundary.forward.topk=0.25")):
            np.testing.assert_allclose(self.evaluated(*overrides), self.generated(*overrides),
                                       atol=0.01)
        alone = self.evaluated(ranks=1)
        self.assertEqual(alone, [self.evaluated()[0]] * 2)
        replicas = self.evaluated("pipeline.replicas=2", "pipeline.stages=2", ranks=4)
        self.assertEqual(replicas[0], alone[0])

    def test_check_counts_the_bytes(self):
        table = support.Run(self.run_output / "run.h5").evaluations
        said = self.succeed(["check", self.deck_file(self.deck)]).out
        for boundary in range(2):
            sent = sum(int(table[name][:, boundary].sum())
                       for name in ("forward_bytes", "codec_forward_bytes"))
            self.assertRegex(said, rf"evaluations, boundary {boundary} .* = {sent:,};")

    def test_another_end(self):
        # The end of every answer is a token that the model never writes.
        self.assertEqual(self.evaluated('evaluation.answer_end=" "'), [0, 0])

    def test_mistakes(self):
        result = support.run(["evaluate", self.deck_file(self.deck), "pipeline.stages=1",
                              *self.trained, "evaluation.prompt_field=prompt"])
        self.assert_stops(result, "prompts.jsonl:1", "'prompt'", "evaluation.prompt_field", status=1)
        result = support.run(["check", self.deck_file(self.deck), "evaluation.prompts=[none.jsonl]"])
        self.assertIn("none.jsonl", result.out + result.err)


if __name__ == "__main__":
    support.main()
