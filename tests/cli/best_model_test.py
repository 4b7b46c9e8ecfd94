#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""training.keep_best and training.patience: which model is kept, when training ends, and that a run
that was interrupted ends like one that was not."""

import shutil

import h5py
import numpy as np

import support

NEW_BEST = "the lowest validation loss so far"


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


class BestModel(support.TestCase):
    """With few samples and a high rate the validation loss falls until step 12, then it grows."""

    def deck(self, **sections):
        return support.merged(
            self.small(training={"steps": 40, "evaluate_every": 4, "keep_best": True,
                                 "patience": 2},
                       training__optimizer={"learning_rate": 1e-2, "schedule": "cosine"},
                       data={"max_train_samples": 8}, pipeline={"stages": 2},
                       boundary__forward={"codec": "aqsgd", "bits": 8},
                       checkpoint={"milestone_every": 6}, output={"overwrite": False}),
            {name.replace("__", "."): keys for name, keys in sections.items()})

    def start(self, deck, output, *overrides, ranks=2):
        return self.succeed(["train", self.deck_file(deck), f"output.directory={output}",
                             *overrides], ranks)

    def reference(self):
        output = self.output("reference")
        if not output.exists():
            type(self).said = self.start(self.deck(), output).out
        return output, support.Run(output / "run.h5"), self.said

    def unfinished(self, name, step):
        """The reference as if it had been killed at its end, with this checkpoint as the newest."""
        output = self.output(name)
        shutil.copytree(self.reference()[0], output)
        for directory in (output / "checkpoints").glob("step-*"):
            if int(directory.name[5:]) > step:
                shutil.rmtree(directory)
        shutil.rmtree(output / "model")
        with h5py.File(output / "run.h5", "a") as file:
            for attribute in ("finished", "reason"):
                del file.attrs[attribute]
        return output

    def test_the_best_model_is_kept_and_training_ends(self):
        output, run, said = self.reference()
        losses = run.evaluations["loss"]
        self.assertEqual(run.evaluations["step"].tolist(), [4, 8, 12, 16, 20])
        self.assertEqual(losses.argmin(), 2)
        self.assertEqual(run.attributes["best_step"], 12)
        self.assertEqual(run.attributes["best_loss"], losses[2])
        self.assertEqual(run.steps["step"].tolist(), list(range(1, 21)))
        self.assertEqual((run.attributes["status"], run.attributes["finished"]), ("finished", 1))
        reason = ("stopped early after step 20 of 40: training.patience = 2, no lower validation "
                  "loss in 2 evaluation(s) since step 12")
        self.assertEqual(run.attributes["reason"], reason)
        self.assertEqual(said.count(reason), 2)
        self.assertEqual(said.count(NEW_BEST), (np.diff(losses[:3]) < 0).sum() + 1)
        self.assertIn(f"{output}/best, of step 12 with the validation loss {losses[2]:.4f}", said)
        # The schedule is that of all 40 steps.
        rates = 1e-2 * (1 + np.cos(np.pi * np.arange(20) / 40)) / 2
        np.testing.assert_allclose(run.steps["learning_rate"], rates, rtol=1e-6)
        # The model of the last step, and that of step 12 as its checkpoint has it.
        self.succeed(["export", self.deck_file(self.deck()), f"output.directory={output}",
                      "--step", "12", "--to", self.output("exported")])
        self.assertEqual({path.name: path.read_bytes() for path in (output / "best").iterdir()},
                         {path.name: path.read_bytes()
                          for path in self.output("exported").iterdir()})
        self.assertNotEqual(weights(output / "best"), weights(output / "model"))
        # Once more: nothing is changed.
        self.assertIn("is already finished (20 steps): nothing is changed",
                      self.start(self.deck(), output).out)

    def assert_like_reference(self, output):
        reference, expected, _ = self.reference()
        found = support.Run(output / "run.h5")
        for name in ("best_step", "best_loss", "reason", "finished"):
            self.assertEqual(found.attributes[name], expected.attributes[name], name)
        for name in ("step", "loss"):
            np.testing.assert_array_equal(found.steps[name], expected.steps[name])
            np.testing.assert_array_equal(found.evaluations[name], expected.evaluations[name])
        for model in ("best", "model"):
            self.assertEqual(weights(output / model), weights(reference / model), model)

    def test_an_interrupted_run_ends_alike(self):
        # Before the best evaluation, whose model is there already; at its step; after the first
        # evaluation that counts for patience.
        for step in (6, 12, 18):
            output = self.unfinished(f"from-{step}", step)
            said = self.start(self.deck(), output).out
            self.assertIn(f"resuming from the checkpoint of step {step}", said)
            self.assertNotIn(NEW_BEST, said)
            self.assert_like_reference(output)
        # The kill came before the run file had the best evaluation, or the run file is gone.
        for name in ("older", "without"):
            output = self.unfinished(name, 6)
            shutil.copy(self.reference()[0] / "model/model.safetensors", output / "best")
            if name == "without":
                (output / "run.h5").unlink()
            else:
                with h5py.File(output / "run.h5", "a") as file:
                    file.attrs["best_step"] = np.uint64(4)
                    file.attrs["best_loss"] = file["evaluations/loss"][0]
            said = self.start(self.deck(), output).out
            self.assertEqual(said.count(NEW_BEST), 2, said)
            self.assert_like_reference(output)

    def test_patience_may_change_and_keep_best_may_not(self):
        output = self.unfinished("changed", 18)
        result = support.run(["train", self.deck_file(self.deck()), f"output.directory={output}",
                              "training.keep_best=false"], 2)
        self.assert_stops(result, "training.keep_best must not change at a restart")
        # The evaluation after step 16 has used up the patience.
        said = self.start(self.deck(), output, "training.patience=1").out
        self.assertIn("stopped early after step 18 of 40", said)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.evaluations["step"].tolist(), [4, 8, 12, 16, 18])
        self.assertEqual(weights(output / "best"), weights(self.reference()[0] / "best"))

    def test_training_is_the_same_without(self):
        _, run, _ = self.reference()
        other = self.train(self.deck(training={"keep_best": False, "patience": 0}), "neither", 2)
        self.assertEqual(len(other.losses), 40)
        self.assertNotIn("best_step", other.attributes)
        self.assertFalse((self.output("neither") / "best").exists())
        for name in ("loss", "forward_bytes", "backward_bytes", "tied_row_bytes",
                     "collective_bytes"):
            np.testing.assert_array_equal(run.steps[name], other.steps[name][:20], name)

    def test_stops_at_every_step(self):
        deck = self.deck(training={"evaluate_every": 1, "patience": 1, "steps": 20},
                         training__optimizer={"learning_rate": 0.1}, checkpoint={"every_steps": 5})
        expected = self.train(deck, "straight", 2)
        steps = len(expected.losses)
        self.assertLess(steps, 20)
        output = self.output("in-pieces")
        command = ["train", self.deck_file(deck), f"output.directory={output}",
                   "checkpoint.time_limit=0.001"]
        statuses = [75]
        while statuses[-1] == 75 and len(statuses) <= steps + 2:
            statuses.append(support.run(command, 2).status)
        found = support.Run(output / "run.h5")
        self.assertEqual(statuses, [75] * (steps + 1) + [0])
        for name in ("best_step", "best_loss", "reason"):
            self.assertEqual(found.attributes[name], expected.attributes[name])
        for model in ("best", "model"):
            self.assertEqual(weights(output / model), weights(self.output("straight") / model))

    def test_replicas_and_losses_through_the_codec(self):
        deck = self.deck(training={"steps": 6, "evaluate_every": 2, "micro_batches": 1,
                                   "patience": 0, "evaluate_at_start": True},
                         pipeline={"replicas": 2, "verify_replicas": 2},
                         evaluation={"boundary": "codec"}, checkpoint={"milestone_every": 0},
                         output={"save_model": False})
        run = self.train(deck, "replicas", 4)
        losses = run.evaluations["codec_loss"]
        best = losses.argmin()
        self.assertEqual(run.attributes["best_step"], run.evaluations["step"][best])
        self.assertEqual(run.attributes["best_loss"], losses[best])
        self.assertTrue((self.output("replicas") / "best/config.json").is_file())
        self.assertFalse((self.output("replicas") / "model").exists())

    def test_what_is_in_the_way_stays(self):
        deck = self.deck(training={"steps": 4, "patience": 0}, checkpoint={"milestone_every": 0})
        output = self.output("in-the-way")
        (output / "best").mkdir(parents=True)
        (output / "best/config.json").write_text("mine")
        command = ["train", self.deck_file(deck), f"output.directory={output}"]
        self.assert_stops(support.run(command, 2), output / "best", "output.overwrite", status=2)
        self.assertEqual((output / "best/config.json").read_text(), "mine")
        self.succeed([*command, "output.overwrite=true"], 2)
        self.assertEqual(weights(output / "best"), weights(output / "model"))

    def test_mistakes(self):
        deck = self.deck(data={"validation_fraction": 0})
        self.assert_stops(support.run(["train", self.deck_file(deck)], 2), "training.keep_best",
                          "needs validation samples", status=2)
        deck = self.deck(data={"validation_fraction": 0}, training={"keep_best": False})
        self.assert_stops(support.run(["train", self.deck_file(deck)], 2), "training.patience",
                          "needs validation samples", status=2)


if __name__ == "__main__":
    support.main()
