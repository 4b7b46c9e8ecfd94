#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that were not started alike say so, all of them, before they train."""

import json
import pathlib
import shutil

import support


class Starts(support.TestCase):
    def start(self, *ranks, limit=support.TIME_LIMIT):
        """Ranks with arguments of their own, as mpirun's application contexts."""
        command = [*support.MPIEXEC]
        for number, arguments in enumerate(ranks):
            if number > 0:
                command.append(":")
            command += [support.NUMPROC_FLAG, "1", support.PROGRAM, *map(str, arguments)]
        return support.finish(support.start_command(command), limit)

    def setUp(self):
        self.deck = self.deck_file(self.small(pipeline={"stages": 2}))

    def refused(self, *parts, first=(), second=(), command="train"):
        result = self.start([command, self.deck, *first], [command, self.deck, *second])
        self.assert_stops(result, *parts)

    def refused_and_foreseen(self, *parts, first=(), second=()):
        """`check` refuses what `train` does."""
        self.refused(*parts, first=first, second=second)
        self.refused(*parts, first=first, second=second, command="check")

    def test_same(self):
        result = self.start(["train", self.deck], ["train", self.deck])
        self.assertEqual(result.status, 0, str(result))

    def test_commands_of_one_process_need_no_mpi(self):
        """As in a batch job without its launcher: MPI cannot start here."""
        broken = {"OMPI_MCA_ess": "nonsense", "HOME": "/nowhere", "SLURM_PROCID": "0",
                  "SLURM_NTASKS": "8"}
        for command in (["--help"], ["--version"], ["check", "--reference"], ["check", self.deck],
                        ["tokenize", self.deck, f"output.directory={self.output('tokens')}"]):
            with self.subTest(command[0]):
                result = support.run_command(support.command_of(command, 1), **broken)
                self.assertEqual(result.status, 0, str(result))
                self.assertTrue(result.out)
        result = support.run_command(support.command_of(["--version"], 2))
        self.assertEqual(result.out.count("deltapipe "), 1, str(result))

    def test_decks(self):
        for key, one, two in (("training.optimizer.learning_rate", "0.001", "0.002"),
                              ("pipeline.schedule", '"gpipe"', '"1f1b"'),
                              ("pipeline.stages", "2", "1"),
                              ("boundary.forward.codec", '"aqsgd"', '"none"'),
                              ("training.seed", "1", "2")):
            with self.subTest(key):
                self.refused("rank 1", "deck", f"{key} = {two}", one,
                             first=[f"{key}={one}"], second=[f"{key}={two}"])

    def test_commands(self):
        result = self.start(["train", self.deck], ["evaluate", self.deck])
        self.assert_stops(result, "rank 1", "command", "evaluate on rank 1, train on rank 0")

    def test_texts(self):
        other = self.place / "other.txt"
        text = self.text.read_text(encoding="utf-8")
        other.write_text(text[:15000] + text[15000:].replace("a", "e", 1), encoding="utf-8")
        self.refused_and_foreseen("rank 1", "samples", "hash", second=[f"data.train={other}"])
        # The same text elsewhere is the same text.
        copy = self.place / "copy.txt"
        shutil.copy(self.text, copy)
        for command in ("check", "train"):
            result = self.start([command, self.deck], [command, self.deck, f"data.train={copy}"])
            self.assertEqual(result.status, 0, str(result))

    def test_directories(self):
        file = self.place / "file"
        file.write_text("")
        for key in ("output.directory", "checkpoint.directory", "cache.directory"):
            for path in (file, file / "below", "a" * 300):
                with self.subTest(key=key, path=str(path)[-20:]):
                    given = ["boundary.forward.codec=aqsgd", "cache.budget=1 MB",
                             "checkpoint.every=1", f"{key}={path}"]
                    for command in ("train", "check"):
                        result = self.start(*[[command, self.deck, *given]] * 2)
                        self.assert_stops(result, "cannot create the directory", status=1)

    def test_directories_that_nobody_needs(self):
        file = self.place / "file"
        file.write_text("")
        for given in ([f"checkpoint.directory={file}/x"],
                      ["boundary.forward.codec=aqsgd", f"cache.directory={file}/x"]):
            for command in ("check", "train"):
                result = self.start(*[[command, self.deck, *given]] * 2)
                self.assertEqual(result.status, 0, str(result))

    def test_other_numbers_of_ranks(self):
        result = self.start(*[["check", self.deck]] * 3)
        self.assertEqual(result.status, 0, str(result))
        self.assertIn("# 3 ranks were started and the run has 2: they are not compared",
                      result.out)

    def test_missing_files(self):
        missing = self.place / "nowhere.txt"
        for command in ("check", "train"):
            result = self.start([command, self.deck],
                                [command, self.deck, f"data.train={missing}"])
            self.assert_stops(result, "nowhere.txt", status=2)

    def test_texts_of_stages_between(self):
        """They are not read."""
        other = self.place / "other.txt"
        other.write_text(self.text.read_text(encoding="utf-8")[:-1000], encoding="utf-8")
        base = self.output("base")
        self.succeed(["train", self.deck, f"output.directory={base}", "pipeline.stages=1"])
        self.deck = self.deck_file(self.small(
            pipeline={"stages": 3},
            tokenizer={"path": str(base / "model"), "train_vocabulary": 0}))
        for command in ("check", "train"):
            result = self.start(*([command, self.deck, *text] for text in
                                  ([], [f"data.train={other}"], [])))
            self.assertEqual(result.status, 0, str(result))

    def test_models(self):
        base = self.output("base")
        self.succeed(["train", self.deck, f"output.directory={base}", "pipeline.stages=1"])
        other = self.place / "other-model"
        shutil.copytree(base / "model", other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"resid_pdrop": 0.25}))
        known = [f"model.path={base}/model", "tokenizer.train_vocabulary=0"]
        self.refused_and_foreseen("rank 1", "model configuration", "resid_pdrop = 0.25",
                                  "resid_pdrop = 0", first=known,
                                  second=[f"model.path={other}", known[1]])
        self.refused("rank 1", "model", "a new one", first=known, second=[])
        smaller = self.output("smaller")
        self.succeed(["train", self.deck, f"output.directory={smaller}", "pipeline.stages=1",
                      "tokenizer.train_vocabulary=290"])
        self.refused_and_foreseen("rank 1", "tokenizer", "290 tokens", "300 tokens", first=known,
                                  second=[*known, f"tokenizer.path={smaller}/model"])

    def test_budgets_may_differ(self):
        memories = ["boundary.forward.codec=aqsgd"]
        for one, two in (("0", "1 MB"), ("1 MB", "0")):
            with self.subTest(first=one, second=two):
                result = self.start(["train", self.deck, *memories, f"cache.budget={one}"],
                                    ["train", self.deck, *memories, f"cache.budget={two}"],
                                    limit=60)
                self.assertEqual(result.status, 0, str(result))

    def test_output_is_that_of_rank_0(self):
        one, two = self.output("one"), self.output("two")
        result = self.start(["train", self.deck, f"output.directory={one}"],
                            ["train", self.deck, f"output.directory={two}"])
        self.assertEqual(result.status, 0, str(result))
        self.assertTrue((one / "run.h5").exists())
        self.assertFalse(two.exists())

    def test_the_batch_script_leaves_checkpoints_to_the_deck(self):
        script = pathlib.Path(__file__).resolve().parents[2] / "scripts/train.sbatch"
        deck = self.place / "batch.toml"

        def arguments(text, *overrides):
            deck.write_text(text)
            result = support.run_command(["bash", script, deck, *overrides], DELTAPIPE="/bin/echo",
                                         DELTAPIPE_LAUNCH="env", SLURM_SUBMIT_DIR=str(self.place))
            self.assertEqual(result.status, 0, str(result))
            return result.out.splitlines()[-1]

        for text in ("[checkpoint]\nevery = \"2 h\"", "[checkpoint]\n\tevery_steps\t= 7",
                     "checkpoint.time_limit = 9", "checkpoint = { keep = 3, every = 60 }"):
            self.assertEqual(arguments(text), f"train {deck}", text)
        for text in ("training.evaluate_every = 3", "# every = 3", "cache = { verify_every = 2 }"):
            self.assertEqual(arguments(text), f"train {deck} checkpoint.every=15 min", text)
        self.assertEqual(arguments("", "checkpoint.every=3"), f"train {deck} checkpoint.every=3")


class Evaluation(support.TestCase):
    def test_without_validation_data(self):
        """No loss is better than that of other data than was asked for."""
        deck = self.deck_file(self.small(data={"validation_fraction": 0}))
        self.assert_stops(support.run(["evaluate", deck]), "validation_fraction", status=2)
        self.succeed(["evaluate", deck, f"data.validation={self.text}"])


if __name__ == "__main__":
    support.main()
