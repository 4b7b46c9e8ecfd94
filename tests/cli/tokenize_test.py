#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""deltapipe tokenize, and runs from token files with and without a tokenizer."""

import os

import h5py
import numpy as np

import support


class TokenFiles(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lines = cls.place / "lines.jsonl"
        cls.lines.write_text("".join(f'{{"text": "Line {n} of many."}}\n' for n in range(60)))
        cls.deck = cls.deck_file(cls.small(
            data={"train": [str(cls.text), str(cls.lines)], "validation": [str(cls.lines)]}))
        cls.tokens = cls.place / "tokens"
        cls.said = support.run(["tokenize", cls.deck, f"output.directory={cls.tokens}"])
        assert cls.said.status == 0, cls.said

    def from_tokens(self, **sections):
        deck = self.small(data={"train": [str(self.tokens / "train.h5")],
                                "validation": [str(self.tokens / "validation.h5")]},
                          tokenizer={"train_vocabulary": 0,
                                     "path": str(self.tokens / "tokenizer")})
        return support.merged(deck, sections)

    def characters(self, name, symbols, count=4000, **attributes):
        """A token file of an invented language of single letters."""
        random_numbers = np.random.default_rng(3)
        steps = random_numbers.integers(1, 3, count)
        with h5py.File(self.place / name, "w") as file:
            file["tokens"] = (np.cumsum(steps) % symbols).astype(np.uint8)
            file.attrs.update(attributes)
        return str(self.place / name)

    def character_deck(self, file, **sections):
        return self.small(tokenizer={"train_vocabulary": 0}, data={"train": [file]}, **sections)

    def test_the_file_says_what_it_is(self):
        with h5py.File(self.tokens / "train.h5") as file:
            self.assertEqual(file.attrs["vocabulary_size"], 300)
            self.assertEqual(file.attrs["end_of_text"], 299)
            self.assertEqual(len(file.attrs["tokenizer"]), 32)
            self.assertEqual([str(self.text), str(self.lines)],
                             [source.decode() if isinstance(source, bytes) else source
                              for source in file.attrs["source"]])
            self.assertEqual(file["tokens"].dtype, np.uint16)
            offsets = file["document_offsets"][()]
            self.assertEqual(len(offsets), 61)
            self.assertEqual(offsets[0], 0)
            self.assertLess(file["tokens"][()].max(), 300)
        self.assertIn("train.h5: 61 documents", self.said.out)
        self.assertFalse(list(self.tokens.glob(".deltapipe*")))

    def test_cores_change_nothing(self):
        """One core means one thread."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("there is one core only")
        large = self.place / "large.txt"
        large.write_text(support.text_of(400000) * 12)
        deck = self.deck_file(self.small(data={"train": [str(large), str(self.lines)],
                                               "validation": [str(self.lines)]}))
        files = []
        for name, allowed in (("one", cores[:1]), ("all", cores)):
            output = self.output(name)
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, allowed)
            try:
                self.succeed(["tokenize", deck, f"output.directory={output}"])
            finally:
                os.sched_setaffinity(0, before)
            with h5py.File(output / "train.h5") as file:
                files.append((file["tokens"][()], file["document_offsets"][()],
                              {name: str(value) for name, value in file.attrs.items()}))
            self.assertEqual({path.name for path in output.iterdir()},
                             {"tokenizer", "train.h5", "validation.h5"})
        np.testing.assert_array_equal(files[0][0], files[1][0])
        np.testing.assert_array_equal(files[0][1], files[1][1])
        self.assertEqual(files[0][2], files[1][2])
        self.assertEqual(len(files[0][1]), 61)

    def test_a_mistake_in_a_text_leaves_the_former_file(self):
        output = self.output("former")
        bad = self.place / "bad.txt"
        bad.write_bytes(b"word " * 900000)
        deck = self.deck_file(self.small(data={"train": [str(self.text), str(bad)]}))
        overrides = [f"output.directory={output}", f"tokenizer.path={self.tokens / 'tokenizer'}",
                     "tokenizer.train_vocabulary=0"]
        self.succeed(["tokenize", deck, *overrides])
        former = (output / "train.h5").read_bytes()
        bad.write_bytes(b"word " * 900000 + b"\xff")
        self.assert_stops(support.run(["tokenize", deck, *overrides]), "bad.txt", "0xFF", status=1)
        self.assertTrue((output / "train.h5").read_bytes() == former)
        self.assertFalse(list(output.glob(".deltapipe*")))

    def test_tokens_train_as_their_text_does(self):
        text = self.train(self.small(data={"train": [str(self.text), str(self.lines)],
                                           "validation": [str(self.lines)]}), "from_text")
        tokens = self.train(self.from_tokens(), "from_tokens", ranks=2,
                            overrides=["pipeline.stages=2"])
        np.testing.assert_array_equal(text.losses, tokens.losses)
        np.testing.assert_array_equal(text.evaluations["loss"], tokens.evaluations["loss"])
        saved = [(self.output(run) / "model/tokenizer.json").read_bytes()
                 for run in ("from_text", "from_tokens")]
        self.assertEqual(*saved)

    def test_stages_between_the_ends_read_no_data(self):
        """Which shows where their file is none."""
        none = self.place / "none.h5"
        none.write_text("no HDF5 file")
        absent = self.place / "absent.h5"
        for packing in ("stream", "document"):
            deck = self.from_tokens(pipeline={"stages": 4}, data={"packing": packing},
                                    training={"steps": 6}, **{"model.new": {"n_layer": 4}})
            expected = self.train(deck, f"all-read-{packing}", 1,
                                  overrides=["pipeline.stages=1"])
            output = self.output(f"ends-read-{packing}")
            files = {1: none, 2: absent}
            command = support.command_of_each(
                [support.PROGRAM, "train", self.deck_file(deck), f"output.directory={output}",
                 *(f"data.{part}={files[rank]}" for part in ("train", "validation")
                   if rank in files)] for rank in range(4))
            result = support.run_command(command)
            self.assertEqual(result.status, 0, str(result))
            run = support.Run(output / "run.h5")
            np.testing.assert_array_equal(run.losses, expected.losses)
            np.testing.assert_array_equal(run.evaluations["loss"], expected.evaluations["loss"])
            # The last one does read it.
            self.assert_stops(support.run_command([*command, f"data.train={none}"]), "none.h5",
                              status=1)

    def test_vocabularies_of_27_and_52_need_no_tokenizer(self):
        for symbols in (27, 52):
            with self.subTest(symbols=symbols):
                file = self.characters(f"c{symbols}.h5", symbols, vocabulary_size=symbols)
                deck = self.character_deck(
                    file, pipeline={"stages": 2}, boundary__forward={"codec": "aqsgd"},
                    training={"steps": 30, "micro_batch_size": 2, "micro_batches": 2})
                run = self.train(deck, f"chars{symbols}", ranks=2)
                self.assertAlmostEqual(run.losses[0], np.log(symbols), delta=0.2)
                self.assertLess(run.losses[-1], run.losses[0] - 0.1)
                model = self.output(f"chars{symbols}") / "model"
                self.assertEqual({path.name for path in model.iterdir()},
                                 {"config.json", "model.safetensors"})
                said = self.succeed(["evaluate", self.deck_file(deck), "pipeline.stages=1",
                                     f"model.path={model}"])
                self.assertIn(f"{run.evaluations['loss'][-1]:.6f}"[:6], said.out)

    def test_samples_to_hold_out_come_from_train(self):
        output = self.output("no_validation")
        deck = self.deck_file(self.small())
        said = self.succeed(["tokenize", deck, f"output.directory={output}"])
        self.assertIn("no validation.h5", said.out)
        self.assertIn("hold out the last 0.05", said.out)
        self.assertFalse((output / "validation.h5").exists())

    def test_generation_needs_a_tokenizer(self):
        file = self.characters("g.h5", 27, vocabulary_size=27)
        deck = self.deck_file(self.character_deck(file))
        result = support.run(["generate", deck, "--prompt", "a"])
        self.assert_stops(result, "generate needs a tokenizer", "tokenizer.path", status=2)

    def test_mistakes(self):
        unknown = self.deck_file(self.character_deck(self.characters("u.h5", 27)))
        self.assert_stops(support.run(["train", unknown]), "u.h5", "vocabulary_size", status=1)
        low = self.deck_file(self.character_deck(self.characters("l.h5", 27, vocabulary_size=20)))
        self.assert_stops(support.run(["check", low]), "l.h5", "vocabulary of 20", status=1)
        again = self.deck_file(self.from_tokens())
        self.assert_stops(support.run(["tokenize", again]), "train.h5", "tokens already", status=2)
        self.assert_stops(
            support.run(["tokenize", self.deck, f"output.directory={self.tokens}",
                         "output.overwrite=false"]), "tokens/tokenizer", "is there already",
            "output.overwrite = true", status=2)
        other = self.deck_file(self.from_tokens())
        with_other = support.run(["check", other, "tokenizer.path=",
                                  "tokenizer.train_vocabulary=280", f"data.train={self.text}"])
        self.assert_stops(with_other, "validation.h5", "another tokenizer", status=1)
        both = support.run(["check", self.deck, f"model.path={self.place}",
                            "tokenizer.train_vocabulary=280"])
        self.assert_stops(both, "model.path and tokenizer.train_vocabulary", status=2)


if __name__ == "__main__":
    support.main()
