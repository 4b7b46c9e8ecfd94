#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""training.optimizer.frozen: what is frozen stays as it is, the rest trains, on any layout."""

import fnmatch
import re

import numpy as np

import support

KEY = "training.optimizer.frozen"


def tensors(path):
    header, data = support.read_safetensors(path / "model.safetensors")
    return {name.removeprefix("transformer."): data[slice(*about["data_offsets"])]
            for name, about in header.items() if name != "__metadata__"}


class Frozen(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.trained_model()
        cls.before = tensors(cls.model)

    def deck(self, frozen, **sections):
        return support.merged(
            self.small(model={"path": str(self.model), "dropout_residual": 0.1},
                       tokenizer={"train_vocabulary": 0}, training={"micro_batches": 3}),
            {"training.optimizer": {"learning_rate": 1e-3, "frozen": frozen}}, sections)

    def changed(self, name):
        after = tensors(self.output(name) / "model")
        self.assertEqual(after.keys(), self.before.keys())
        return {tensor for tensor, data in after.items() if data != self.before[tensor]}

    def expect(self, *patterns):
        """All tensors but those."""
        return {tensor for tensor in self.before
                if not any(fnmatch.fnmatchcase(tensor, pattern) for pattern in patterns)}

    def compare(self, label, frozen, trained, layouts, **sections):
        one = self.train(self.deck(frozen, **sections), f"{label}-one")
        self.assertEqual(self.changed(f"{label}-one"), trained)
        sizes = {tensor: len(data) // 4 for tensor, data in self.before.items()}
        self.assertEqual(one.attributes["parameters"], sum(sizes.values()))
        self.assertEqual(one.attributes["trained_parameters"],
                         sum(sizes[tensor] for tensor in trained))
        for number, (stages, replicas, overrides) in enumerate(layouts):
            name = f"{label}-{number}"
            with self.subTest(label, stages=stages, replicas=replicas):
                run = self.train(self.deck(frozen, **sections), name, stages * replicas,
                                 [f"pipeline.stages={stages}", f"pipeline.replicas={replicas}",
                                  f"training.micro_batches={3 // replicas}",
                                  "pipeline.verify_replicas=1", *overrides])
                self.assertEqual(self.changed(name), trained)
                if replicas > 1:
                    self.assertTrue(np.isfinite(run.losses).all())
                    continue
                if stages > 1:
                    # Both stages hold all rows of a frozen embedding.
                    travels = "wte.weight" in trained
                    for table in (run.steps, run.evaluations):
                        self.assertEqual(table["tied_row_bytes"].any(), travels)
                    self.assertEqual(run.steps["tied_gradient_bytes"].any(), travels)
                self.assertEqual(run.losses.tobytes(), one.losses.tobytes())
                self.assertEqual(run.steps["gradient_norm"].tobytes(),
                                 one.steps["gradient_norm"].tobytes())
                self.assertEqual(run.evaluations["loss"].tobytes(),
                                 one.evaluations["loss"].tobytes())
                self.assertEqual(tensors(self.output(name) / "model"),
                                 tensors(self.output(f"{label}-one") / "model"))
        return one

    def test_prefix(self):
        """Names as the field has them: modules, tensors, patterns, with and without prefix."""
        self.compare("prefix", ["wte", "transformer.wpe.weight", "h.0", "h.1.*"],
                     self.expect("w*", "h.[01].*"),
                     [(2, 1, []), (4, 1, ["pipeline.schedule=gpipe"]), (2, 3, []),
                      (2, 1, ["training.recompute=true"])])

    def test_tied_embedding_alone(self):
        self.compare("tied", "wte.weight", self.expect("wte.weight"), [(2, 1, []), (3, 1, [])])

    def test_products_in_bf16(self):
        one = self.compare("bf16", ["wte", "h.1.*"], self.expect("wte.weight", "h.1.*"),
                           [(2, 1, []), (3, 1, ["pipeline.schedule=zb-h1"]), (2, 3, [])],
                           training={"precision": "bf16"})
        exact = self.train(self.deck(["wte", "h.1.*"]), "bf16-not")
        self.assertNotEqual(one.losses.tobytes(), exact.losses.tobytes())
        np.testing.assert_allclose(one.losses, exact.losses, rtol=2e-3)

    def test_all_but_the_last_norm(self):
        self.compare("head", ["w*", "h"], {"ln_f.weight", "ln_f.bias"},
                     [(2, 1, []), (4, 1, []), (1, 3, [])])

    def test_norm_is_that_of_what_trains(self):
        all_of_it = self.train(self.deck([]), "norm-all")
        head = self.train(self.deck(["w*", "h"]), "norm-head")
        self.assertEqual(head.losses[0], all_of_it.losses[0])
        self.assertLess(head.steps["gradient_norm"][0], 0.5 * all_of_it.steps["gradient_norm"][0])

    def test_no_gradients_cross_below(self):
        deck = self.deck(["w*", "h.0", "h.1"], **{
            "boundary.forward": {"codec": "aqsgd", "bits": 4},
            "boundary.backward": {"codec": "directq", "bits": 4, "feedback.kind": "ef"}})
        run = self.train(deck, "below", 4, ["pipeline.stages=4"])
        steps = run.steps
        self.assertEqual(steps["backward_bytes"][:, :2].sum(), 0)
        self.assertTrue((steps["backward_bytes"][:, 2] > 0).all())
        self.assertTrue((steps["forward_bytes"] > 0).all())
        self.assertEqual(steps["tied_row_bytes"].sum(), 0)
        self.assertEqual(steps["tied_gradient_bytes"].sum(), 0)
        self.assertEqual(self.changed("below"), self.expect("w*", "h.[01].*"))

    def test_compressed_boundaries_have_the_exact_embedding(self):
        """Rows that travel are compressed where activations are; those of a copy are not."""
        exact_at_first = {"boundary.forward": {"codec": "aqsgd", "bits": 4, "memory.first_visit": "fp32"},
                          "boundary.backward": {"codec": "directq", "bits": 4}}
        one = self.train(self.deck("wte"), "exact-one")
        for stages in (2, 3):
            with self.subTest(stages=stages):
                layout = f"pipeline.stages={stages}"
                run = self.train(self.deck("wte", **exact_at_first), "exact", stages, [layout])
                self.assertEqual(run.losses[0], one.losses[0])
                for name in ("tied_row_bytes", "tied_gradient_bytes"):
                    self.assertEqual(run.steps[name].sum(), 0)
                trained = self.train(self.deck("h.0", **exact_at_first), "rounded", stages,
                                     [layout])
                self.assertNotEqual(trained.losses[0], one.losses[0])
                self.assertTrue((trained.steps["tied_row_bytes"] > 0).all())

    def test_generates_over_stages(self):
        options = ["generate.max_new_tokens=12", "generate.temperature=0", "--prompt", "Ka lo"]
        texts = set()
        for stages in (1, 2, 3):
            said = self.succeed(["generate", self.deck_file(self.deck("wte")), *options,
                                 f"pipeline.stages={stages}"], stages)
            texts.add(said.out)
            if stages > 1:
                self.assertIn("and 0B of token rows", said.err)
        self.assertEqual(len(texts), 1)

    def test_restarts_on_other_layouts(self):
        deck = self.deck("wte", checkpoint={"every_steps": 1}, training={"steps": 4})
        one = self.train(deck, "restart-one")
        output = self.output("restarted")
        for stages in (1, 2, 3):
            result = support.run(["train", self.deck_file(deck), f"output.directory={output}",
                                  f"pipeline.stages={stages}", "checkpoint.time_limit=0.001"],
                                 stages)
            self.assertEqual(result.status, 75, str(result))
        # The checkpoint counts, not the present content of the model's directory.
        self.train(self.small(training={"steps": 2}), "other")
        run = self.train(deck, "restarted", 2, ["pipeline.stages=2",
                                                f"model.path={self.output('other')}/model"])
        self.assertEqual(run.losses.tobytes(), one.losses.tobytes())
        self.assertEqual(tensors(output / "model"), tensors(self.output("restart-one") / "model"))

    def test_summary(self):
        result = self.succeed(["train", self.deck_file(self.deck(["w*", "h"])),
                               f"output.directory={self.output('summary')}"])
        self.assertRegex(result.out, r"\nparameters +64 of \d+\.?\d* k trained\n")
        result = self.succeed(["train", self.deck_file(self.deck([])),
                               f"output.directory={self.output('summary')}"])
        self.assertRegex(result.out, r"\nparameters +\d+\.?\d* k\n")

    # --- check

    def check(self, frozen, *overrides):
        return self.succeed(["check", self.deck_file(self.deck(frozen)), *overrides]).out

    def row(self, text, name):
        line, = (line for line in text.splitlines() if line.startswith(f"# {name} "))
        units = {"": 1, "k": 1e3, "M": 1e6}
        return [float(number) * units[unit]
                for number, unit in re.findall(r"([\d.]+) ?([kM]?)B", line)]

    def test_check_tells_what_is_saved(self):
        for stages in (1, 2, 4):
            with self.subTest(stages=stages):
                layout = f"pipeline.stages={stages}"
                everything = self.check([], layout)
                half = self.check(["w*", "h.0", "h.1"], layout)
                self.assertIn(" trained", half)
                self.assertNotIn(" trained", everything)
                weights = np.array(self.row(half, "weights"))
                copied = weights - self.row(everything, "weights")
                table = 300 * 32 * 4 if stages > 1 else 0  # the first stage's copy
                np.testing.assert_allclose(copied, [table] + [0] * (stages - 1),
                                           atol=0.01 * weights.max())
                self.assertIn("\n# embeddings ", everything)
                self.assertNotIn("\n# embeddings ", half)
                less, all_of_it = self.row(half, "optimizer"), self.row(everything, "optimizer")
                self.assertLess(sum(less), 0.6 * sum(all_of_it))
                if stages > 1:
                    self.assertEqual(less[0], 0)
                    self.assertIn(f"backward passes end at stage {stages // 2}", half)
                if stages == 1:
                    self.assertLess(self.row(half, "activations")[0],
                                    0.8 * self.row(everything, "activations")[0])

    def test_check_of_layouts_without_gradients(self):
        codecs = {"boundary.forward": {"codec": "aqsgd", "bits": 4},
                  "boundary.backward": {"codec": "directq", "bits": 4, "feedback.kind": "ef"}}
        for frozen, says in ((["w*", "h"], False), (["w*", "h.0"], True), ([], True)):
            out = self.succeed(["check", self.deck_file(self.deck(frozen, **codecs)),
                                "pipeline.stages=3", "pipeline.partition=[1, 2, 1]"]).out
            self.assertIn("activation cache at each boundary end", out)
            self.assertEqual("errors of gradients at each sender" in out, says)

    def test_check_shows_no_bytes_where_no_gradients_cross(self):
        def backward(frozen, *overrides):
            out = self.check(frozen, "pipeline.stages=4", *overrides)
            line, = (line for line in out.splitlines() if line.startswith("# backward  "))
            return line

        everything = backward([])
        self.assertNotIn("none", everything)
        self.assertEqual(backward(["w*", "h.0"]), everything + ", none at boundary 0")
        self.assertEqual(backward(["w*", "h.0", "h.1"]),
                         everything + ", none at boundaries 0 ... 1")
        nothing = backward(["w*", "h"])
        self.assertEqual(nothing.split(), "# backward none none none".split())
        targets = {"boundary.backward": {"codec": "auto", "rate": 3}}
        out = self.succeed(["check", self.deck_file(self.deck(["w*", "h.0"], **targets)),
                            "pipeline.stages=4"]).out
        self.assertEqual(re.findall("target backward, boundary ([0-9])", out), ["1", "2"])

    def test_schedule_without_backward_passes(self):
        out = self.succeed(["check", self.deck_file(self.deck(["w*", "h.0"])), "--schedule",
                            "pipeline.stages=4"]).out
        rows = [line for line in out.splitlines() if re.match(r"# stage \d \| ", line)]
        self.assertEqual([row.count("F") for row in rows], [3] * 4)
        self.assertEqual([row.count("B") for row in rows], [0, 3, 3, 3])

    # --- mistakes

    def refuse(self, frozen, *parts):
        deck = self.deck_file(self.deck(frozen))
        lines = deck.read_text().splitlines()
        line = 1 + next(i for i, text in enumerate(lines) if text.startswith("frozen"))
        messages = set()
        for command, ranks in (("check", 1), ("train", 1), ("train", 2)):
            with self.subTest(command, ranks=ranks, frozen=frozen):
                result = support.run([command, deck, f"pipeline.stages={ranks}"], ranks)
                self.assert_stops(result, f"{deck}:{line}:", KEY, *parts, status=2)
                messages.add(result.errors[0])
        self.assertEqual(len(messages), 1)

    def test_pattern_without_a_parameter(self):
        self.refuse(["wte", "h.4.*"], 'got "h.4.*"', 'did you mean "h.0"?', "4 blocks",
                    "h.*.attn.c_attn.weight", "wte.weight")
        self.refuse(["wpe.weigth"], 'did you mean "wpe.weight"?')
        for pattern in ("lm_head", "lm_head.weight", "lm_*"):
            self.refuse([pattern], f'got "{pattern}"', "lm_head.weight, which is wte.weight",
                        'name "wte.weight"')
        self.refuse([""], 'got ""')

    def test_nothing_left_to_train(self):
        self.refuse(["*"], "nothing to train")
        self.refuse(["h", "ln_f", "wte", "wpe"], "nothing to train")

    def test_mistake_on_the_command_line(self):
        result = support.run(["check", self.deck_file(self.deck([])), f"{KEY}=h.9"])
        self.assert_stops(result, f"argument '{KEY}=h.9'", 'got "h.9"', status=2)

    def test_not_a_list_of_texts(self):
        result = support.run(["check", self.deck_file(self.deck([1]))])
        self.assert_stops(result, KEY, status=2)


if __name__ == "__main__":
    support.main()
