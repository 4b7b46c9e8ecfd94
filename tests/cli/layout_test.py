#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Stages, schedules and replicas change nothing but where the work is done."""

import json
import shutil

import numpy as np

import support


class Stages(support.TestCase):
    """With the codec `none` losses and weights are the same bits however the model is cut."""

    def weights(self, name):
        return (self.output(name) / "model" / "model.safetensors").read_bytes()

    def compare(self, deck, layouts, label):
        """Trains with one stage, then with each layout: (ranks, overrides)."""
        one = self.train(deck, f"{label}-one")
        self.assertTrue(np.isfinite(one.losses).all())
        for number, (stages, overrides) in enumerate(layouts):
            name = f"{label}-{number}"
            with self.subTest(label, stages=stages, overrides=overrides):
                run = self.train(deck, name, stages, [f"pipeline.stages={stages}", *overrides])
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
                           + [(1, ["pipeline.schedule=gpipe"])], "plain")
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
                            (4, ["training.recompute=true", "pipeline.schedule=gpipe"])], "dropout")

    def test_products_in_bf16(self):
        deck = self.small(training={"micro_batches": 3, "precision": "bf16"})
        run = self.compare(deck, [(2, []), (3, ["pipeline.schedule=gpipe"]),
                                  (4, ["pipeline.schedule=zb-h1"]),
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
                                 (2, ["pipeline.schedule=zb-h1"])], "incomplete")
        self.assertEqual(run.steps["samples"].tolist(), [6, 6, 1, 6, 6])

    def test_many_micro_batches_in_flight(self):
        deck = self.small(data={"max_train_samples": 140},
                          training={"steps": 2, "micro_batch_size": 1, "micro_batches": 140})
        run = self.compare(deck, [(2, ["pipeline.in_flight=70"]), (3, ["pipeline.in_flight=33"]),
                                  (2, ["pipeline.in_flight=126"])], "in-flight")
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
