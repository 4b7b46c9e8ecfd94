#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Stages, schedules and replicas change nothing but where the work is done."""

import json
import shutil

import numpy as np

import support


STOPPED = 75  # in order, with a checkpoint


def interleaved(stages_per_rank):
    return ["pipeline.schedule=interleaved", f"pipeline.stages_per_rank={stages_per_rank}"]


def ranks_of(stages, overrides):
    each = [int(key.split("=")[1]) for key in overrides if "stages_per_rank" in key]
    return stages // each[0] if each else stages


class Stages(support.TestCase):
    """With the codec `none` losses and weights are the same bits however the model is cut."""

    def weights(self, name):
        return (self.output(name) / "model" / "model.safetensors").read_bytes()

    def compare(self, deck, layouts, label):
        """Trains with one stage, then with each layout: (stages, overrides)."""
        one = self.train(deck, f"{label}-one")
        self.assertTrue(np.isfinite(one.losses).all())
        for number, (stages, overrides) in enumerate(layouts):
            name = f"{label}-{number}"
            with self.subTest(label, stages=stages, overrides=overrides):
                run = self.train(deck, name, ranks_of(stages, overrides),
                                 [f"pipeline.stages={stages}", *overrides])
                self.assertEqual(run.losses.dtype, np.float64)
                self.assertEqual(run.losses.tobytes(), one.losses.tobytes())
                for column in ("gradient_norm", "learning_rate", "tokens", "samples", "epoch"):
                    self.assertEqual(run.steps[column].tobytes(), one.steps[column].tobytes(),
                                     column)
                self.assertEqual(run.evaluations["loss"].tobytes(),
                                 one.evaluations["loss"].tobytes())
                self.assertEqual(self.weights(name), self.weights(f"{label}-one"))
        return one

    def test_plain(self):
        run = self.compare(self.small(training={"micro_batches": 3}),
                           [(stages, [f"pipeline.schedule={schedule}"]) for stages in (2, 3, 4)
                            for schedule in ("gpipe", "1f1b", "zb-h1")]
                           + [(1, ["pipeline.schedule=gpipe"]), (4, interleaved(2))], "plain")
        self.assertEqual(len(run.losses), 3)
        self.assertLess(run.losses[-1], run.losses[0])

    def test_dropout_recomputation_and_unequal_parts(self):
        deck = self.small(model={"dropout_embedding": 0.1, "dropout_attention": 0.1,
                                 "dropout_residual": 0.1})
        self.compare(deck, [(1, ["training.recompute=true"]),
                            (2, ["pipeline.schedule=gpipe"]), (3, ["pipeline.schedule=zb-h1"]),
                            (2, ["training.recompute=true", "pipeline.schedule=zb-h1"]),
                            (2, ["pipeline.partition=[1, 3]", "training.recompute_stages=[1]"]),
                            (3, ["training.recompute=true", "pipeline.partition=[2, 1, 1]"]),
                            (4, ["training.recompute_stages=[0, 3]", *interleaved(2)]),
                            (4, ["training.recompute=true", "pipeline.schedule=gpipe"])], "dropout")

    def test_products_in_bf16(self):
        deck = self.small(training={"micro_batches": 3, "precision": "bf16"})
        run = self.compare(deck, [(2, []), (3, ["pipeline.schedule=gpipe"]),
                                  (4, ["pipeline.schedule=zb-h1"]), (4, interleaved(2)),
                                  (2, ["training.recompute=true"])], "bf16")
        self.assertLess(run.losses[-1], run.losses[0])
        self.assertRegex(run.attributes["kokkos"], r", (oneDNN \d+\.\d+\.\d+|cuBLAS|emulated bf16)$")
        exact = self.train(deck, "bf16-not", 1, ["training.precision=fp32"])
        self.assertNotEqual(run.losses.tobytes(), exact.losses.tobytes())
        np.testing.assert_allclose(run.losses, exact.losses, rtol=2e-3)
        self.assertNotIn("bf16", exact.attributes["kokkos"])

    def test_incomplete_last_batch(self):
        # 13 samples in batches of 6: the third step of an epoch has one sample, one micro-batch.
        deck = self.small(data={"max_train_samples": 13},
                          training={"steps": 5, "micro_batches": 3})
        run = self.compare(deck, [(2, []), (3, ["pipeline.schedule=gpipe"]),
                                 (2, ["pipeline.schedule=zb-h1"]), (4, interleaved(2))],
                           "incomplete")
        self.assertEqual(run.steps["samples"].tolist(), [6, 6, 1, 6, 6])

    def test_many_micro_batches_in_flight(self):
        deck = self.small(data={"max_train_samples": 140},
                          training={"steps": 2, "micro_batch_size": 1, "micro_batches": 140})
        run = self.compare(deck, [(2, ["pipeline.in_flight=70"]), (3, ["pipeline.in_flight=33"]),
                                  (2, ["pipeline.in_flight=126"]),
                                  (4, ["pipeline.in_flight=31", *interleaved(2)])], "in-flight")
        self.assertEqual(run.steps["samples"].tolist(), [140, 140])

    def test_documents_are_padded(self):
        documents = self.place / "documents.jsonl"
        lines = support.text_of(3000, seed=5).splitlines()
        with open(documents, "w", encoding="utf-8") as file:
            for line in lines:
                file.write('{"text": "%s"}\n' % line)
        deck = self.small(data={"train": [str(documents)], "packing": "document"})
        for size, batches in ((1, 4), (3, 2)):
            run = self.compare(deck | {"training": {"steps": 3, "micro_batch_size": size,
                                                    "micro_batches": batches}},
                               [(2, []), (4, ["pipeline.schedule=gpipe"])], f"padded{size}")
            self.assertLess(run.steps["tokens"].max(), 32 * size * batches)


class Interleaved(support.TestCase):
    """Several stages on a rank compute and send what as many ranks would."""

    CODECS = {
        "auto": ["boundary.forward.codec=auto", "boundary.backward.codec=auto",
                 "boundary.forward.rate=[2, 3, 2.5]"],
        "sparse": ["boundary.forward.codec=aqsgd_topk", "boundary.backward.codec=topk",
                   "boundary.backward.feedback.kind=ef21"],
        "delta": ["boundary.forward.codec=aqsgd", "boundary.forward.bits=3",
                  "boundary.forward.quantizer.rounding=stochastic", "boundary.backward.codec=directq",
                  "evaluation.boundary=both", "cache.budget=30 kB"],
    }

    def columns_of(self, run):
        return [run.losses.tobytes()] + [run.steps[name].tobytes() for name in (
            "forward_bytes", "backward_bytes", "tied_row_bytes", "tied_gradient_bytes",
            "gradient_norm", "forward_error", "backward_error")]

    def test_codecs(self):
        deck = self.small(data={"max_train_samples": 13}, training={"steps": 9, "micro_batches": 3})
        for name, codec in self.CODECS.items():
            for replicas in (1, 2):
                layout = ["pipeline.stages=4", f"pipeline.replicas={replicas}"]
                with self.subTest(name, replicas=replicas):
                    wide = self.train(deck, f"{name}-wide{replicas}", 4 * replicas, layout + codec)
                    run = self.train(deck, f"{name}-{replicas}", 2 * replicas,
                                     layout + codec + interleaved(2))
                    self.assertEqual(self.columns_of(run), self.columns_of(wide))
                    self.assertEqual(run.evaluations["loss"].tobytes(),
                                     wide.evaluations["loss"].tobytes())
                    self.assertEqual(run.attributes["stages_per_rank"], 2)
                    self.assertEqual(run.steps["wall_seconds"].shape, (9, 2))
                    self.assertEqual(run.steps["forward_bytes"].shape, (9, 3))

    def test_goes_on_on_another_layout(self):
        """A boundary with as many blocks before it has its memories wherever its ends are now."""
        deck = self.small(training={"steps": 12, "micro_batches": 3})
        codec = ["boundary.forward.codec=aqsgd", "boundary.forward.bits=3",
                 "boundary.backward.codec=directq", "pipeline.stages=4"]
        layouts = [(4, []), (2, interleaved(2))]
        expected = self.columns_of(self.train(deck, "whole", 4, codec))
        for first in range(2):
            output = self.output(f"alternating{first}")
            arguments = ["train", self.deck_file(deck), f"output.directory={output}", *codec]
            for start in range(8):  # each one step further, the last one to the end
                ranks, overrides = layouts[(first + start) % 2]
                limit = ["checkpoint.time_limit=0.001"] if start < 7 else []
                result = support.run([*arguments, *overrides, *limit], ranks)
                self.assertEqual(result.status, STOPPED if limit else 0, str(result))
                if start > 0:
                    self.assertIn(f"resuming from the checkpoint of step {start}", result.out)
            self.assertEqual(self.columns_of(support.Run(output / "run.h5")), expected)

    def test_links_between_ranks(self):
        """Two boundaries between the same ranks share a link."""
        deck = self.small(training={"steps": 2})
        slow = ["pipeline.stages=4", "network.bandwidth=20 Mbit/s", *interleaved(2)]
        run = self.train(deck, "slow", 2, slow)
        # 2 micro-batches x 2 boundaries x 2 x 31 x 32 values of 4 bytes pass it one by one.
        self.assertGreater(np.median(run.steps["wall_seconds"]), 4 * 2 * 31 * 32 * 4 * 8 / 20e6)
        for lists, ranks in (("[20e6]", 2), ("[20e6, 20e6, 20e6]", 3)):
            self.succeed(["check", self.deck_file(deck), f"pipeline.stages={2 * ranks}",
                          f"network.bandwidth={lists}", "model.new.n_layer=6", *interleaved(2)])
        result = support.run(["check", self.deck_file(deck), *slow[:1], *interleaved(2),
                              "network.bandwidth=[1e6, 2e6, 3e6]"])
        self.assert_stops(result, "network bandwidth needs one value or one per link",
                          "3 values, 1 link", status=2)

    def test_generates_and_evaluates(self):
        deck = self.small(training={"steps": 2}, pipeline={
            "stages": 4, "stages_per_rank": 2, "schedule": "interleaved"})
        self.train(deck, "model", 2)
        arguments = [self.deck_file(deck), f"model.path={self.output('model')}/model",
                     "tokenizer.train_vocabulary=0", "generate.max_new_tokens=8"]
        for command in ("generate", "evaluate"):
            one = self.succeed([command, *arguments, "pipeline.stages=1"])
            two = self.succeed([command, *arguments], 2)
            self.assertEqual(two.out.splitlines()[-1].split(";")[0], one.out.splitlines()[-1])

    def test_mistakes(self):
        deck = self.deck_file(self.small())
        for overrides, parts in (
                (["pipeline.stages=4", "pipeline.stages_per_rank=2"],
                 ['"1f1b" has one stage on each rank', 'use schedule = "interleaved"']),
                (["pipeline.stages=4", "pipeline.schedule=interleaved"],
                 ["requires several stages on each rank", "pipeline.stages_per_rank to 2"]),
                (["pipeline.stages=3", *interleaved(2)],
                 ["must be a multiple of pipeline.stages_per_rank", "3 stages, 2 on each rank"]),
                (["pipeline.stages=2", *interleaved(2)], ["for at least two ranks", "4, 6"]),
                (["pipeline.stages=4", "pipeline.in_flight=40", *interleaved(2)],
                 ["too large for an interleaved schedule", "40 x 2", "at most 63"])):
            with self.subTest(overrides=overrides):
                self.assert_stops(support.run(["check", deck, *overrides]), *parts, status=2)
        result = support.run(["train", deck, "pipeline.stages=4", *interleaved(2)], 3)
        self.assert_stops(result, "4 stages / 2 a rank x 1 replicas = 2 ranks, but 3 were started")


class Replicas(support.TestCase):
    """Replicas share a batch: without shuffling, sums come in another order and nothing else
    changes."""

    def compare(self, deck, batches, layouts):
        label = f"replicas{batches}"
        one = self.train(deck, f"{label}-one", 1, [f"training.micro_batches={batches}"])
        expected = self.tensors(f"{label}-one")
        for stages, replicas in layouts:
            with self.subTest(stages=stages, replicas=replicas):
                name = f"{label}-{stages}-{replicas}"
                run = self.train(deck, name, stages * replicas,
                                 [f"pipeline.stages={stages}", f"pipeline.replicas={replicas}",
                                  "pipeline.verify_replicas=1",
                                  f"training.micro_batches={batches // replicas}"])
                for column in ("tokens", "samples", "epoch", "learning_rate"):
                    np.testing.assert_array_equal(run.steps[column], one.steps[column])
                np.testing.assert_allclose(run.losses, one.losses, rtol=1e-6)
                np.testing.assert_allclose(run.steps["gradient_norm"],
                                           one.steps["gradient_norm"], rtol=1e-5)
                np.testing.assert_allclose(run.evaluations["loss"], one.evaluations["loss"],
                                           rtol=1e-6)
                for tensor, values in self.tensors(name).items():
                    # AdamW's first steps are as large as the learning rate whatever the
                    # gradient: epsilon in the deck keeps rounding errors rounding errors.
                    np.testing.assert_allclose(values, expected[tensor], rtol=1e-4, atol=1e-6,
                                               err_msg=tensor)

    def tensors(self, name):
        header, data = support.read_safetensors(self.output(name) / "model" / "model.safetensors")
        return {tensor: np.frombuffer(data[slice(*about["data_offsets"])], dtype="<f4")
                for tensor, about in header.items() if tensor != "__metadata__"}

    def test_two(self):
        deck = self.small(data={"shuffle": False},
                          **{"training.optimizer": {"learning_rate": 1e-3, "epsilon": 1e-4}})
        self.compare(deck, 4, [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])

    def test_products_in_bf16(self):
        deck = self.small(data={"shuffle": False}, training={"precision": "bf16"})
        one = self.train(deck, "bf16-one", 1, ["training.micro_batches=4"])
        for stages, replicas in ((1, 2), (2, 2)):
            run = self.train(deck, "bf16-replicas", stages * replicas,
                             [f"pipeline.stages={stages}", f"pipeline.replicas={replicas}",
                              "training.micro_batches=2", "pipeline.verify_replicas=1"])
            # Emulated products are a BLAS', and OpenBLAS' kernels for AVX2 add a row's terms in an
            # order that depends on the row's place; see docs/guarantees.md.
            kokkos = run.attributes["kokkos"]
            if "emulated bf16" not in kokkos:
                self.assertEqual(run.losses[0], one.losses[0])
            # A rounding error of a sum may round an operand to another bf16.
            np.testing.assert_allclose(run.losses, one.losses, rtol=1e-4)

    def test_untied_embeddings(self):
        """The output matrix is a bucket of its own, summed over replicas as all others."""
        self.train(self.small(training={"steps": 1}), "tied")
        model = self.untie("tied")
        deck = self.small(model={"path": str(model)}, tokenizer={"train_vocabulary": 0},
                          data={"max_train_samples": 13, "shuffle": False},
                          **{"training.optimizer": {"learning_rate": 1e-3, "epsilon": 1e-4}})
        # 13 samples in batches of 4: the fourth step has one, for the first of two replicas.
        self.compare(deck | {"training": deck["training"] | {"steps": 5}}, 2,
                     [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])

    def untie(self, name):
        """A copy of a run's model with an output matrix other than its token embedding."""
        source, target = self.output(name) / "model", self.output(f"{name}-untied")
        shutil.copytree(source, target)
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        header, data = support.read_safetensors(target / "model.safetensors")
        prefix = "transformer." if "transformer.wte.weight" in header else ""
        about = header[f"{prefix}wte.weight"]
        values = np.frombuffer(data[slice(*about["data_offsets"])], dtype="<f4")[::-1].tobytes()
        header["lm_head.weight"] = about | {"data_offsets": [len(data), len(data) + len(values)]}
        support.write_safetensors(target / "model.safetensors", header, data + values)
        return target

    def test_more_replicas_than_samples(self):
        # 13 samples in batches of 12: the last step of an epoch has one sample for three replicas.
        deck = self.small(data={"max_train_samples": 13, "shuffle": False},
                          training={"steps": 4},
                          **{"training.optimizer": {"learning_rate": 1e-3, "epsilon": 1e-4}})
        self.compare(deck, 6, [(1, 3), (2, 3)])


if __name__ == "__main__":
    support.main()
