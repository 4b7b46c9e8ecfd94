#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What training does not change comes back from it; padded vocabularies; samples of one token."""

import json
import os
import shutil

import numpy as np

import support


class RoundTrip(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = cls.place / "source"
        shutil.copytree(cls.trained_model(), cls.source)
        cls.config = json.loads((cls.source / "config.json").read_text())
        cls.pad_vocabulary(320)

    @classmethod
    def pad_vocabulary(cls, rows):
        """The model gets more embeddings than its tokenizer has tokens; all have equal logits."""
        path = cls.source / "model.safetensors"
        header, data = support.read_safetensors(path)
        tensors = {name: np.frombuffer(data[slice(*about["data_offsets"])], "<f4").reshape(
            about["shape"]) for name, about in header.items() if name != "__metadata__"}
        name = next(name for name in tensors if name.endswith("wte.weight"))
        tensors[name] = np.zeros((rows, tensors[name].shape[1]), "<f4")
        tensors["score.weight"] = np.zeros((2, 3), "<f4")
        header, data = {}, b""
        for name, tensor in tensors.items():
            header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                            "data_offsets": [len(data), len(data) + tensor.nbytes]}
            data += tensor.tobytes()
        support.write_safetensors(path, header, data)
        cls.config["vocab_size"] = rows
        (cls.source / "config.json").write_text(json.dumps(cls.config))

    def fine_tuned(self, **sections):
        return support.merged(self.small(training={"steps": 1}), {
            "model": {"path": str(self.source)}, "tokenizer": {"train_vocabulary": 0}}, sections)

    def test_an_export_needs_no_data(self):
        """Unless the tokenizer was trained from it."""
        deck = self.fine_tuned(checkpoint={"milestone_every": 1})
        output = self.output("no-data")
        self.succeed(["train", self.deck_file(deck), f"output.directory={output}"])
        gone = [f"output.directory={output}", "data.train=gone.txt"]
        self.succeed(["export", self.deck_file(deck), *gone])
        self.assertEqual((output / "model-step-1/model.safetensors").read_bytes(),
                         (output / "model/model.safetensors").read_bytes())
        self.assert_stops(support.run(["export", self.deck_file(deck), *gone,
                                       "tokenizer.train_vocabulary=300", f"--to={output}/other"]),
                          status=2)

    def test_files_and_keys_that_training_does_not_change(self):
        config = self.config | {"task_specific_params": {"a": [1, None]}, "torch_dtype": "float16",
                                "attn_pdrop": 0.1, "n_ctx": 7}
        (self.source / "config.json").write_text(json.dumps(config))
        tokenizer = json.loads((self.source / "tokenizer_config.json").read_text())
        tokenizer |= {"model_max_length": int(1e30), "padding_side": "left", "chat_template": "x",
                      "pad_token": "<|endoftext|>"}
        kept = {"tokenizer_config.json": json.dumps(tokenizer).encode(),
                "special_tokens_map.json": b"{ }", "generation_config.json": b'{"top_k":  5}',
                "README.md": b"A card.\n", "LICENSE": b"\xff", "chat_template.jinja": b"{{ x }}",
                "additional_chat_templates/a.jinja": b"{{ y }}",
                "tokenizer.json": (self.source / "tokenizer.json").read_bytes()}
        left_out = ["pytorch_model.bin", "model.safetensors.index.json", ".gitattributes",
                    "optimizer.pt", "trainer_state.json", "runs/x"]
        for name, data in [*kept.items(), *((name, b"stale") for name in left_out)]:
            path = self.source / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        blobs = self.place / "blobs"  # as caches of the hub are made
        blobs.mkdir()
        shutil.move(self.source / "README.md", blobs / "1")
        os.symlink("../blobs/1", self.source / "README.md")
        os.symlink("../blobs/2", self.source / "added_tokens.json")  # was not downloaded
        deck = self.deck_file(self.fine_tuned(model={"dropout_attention": 0}))
        output = self.output("kept")
        for _ in range(2):  # the second time over the former model
            said = self.succeed(["train", deck, f"output.directory={output}"])
            self.assertFalse((output / "model.former").exists())
        self.assertIn("score.weight", said.err)
        self.assertIn("added_tokens.json is a link to ../blobs/2, which is missing", said.err)
        (self.source / "added_tokens.json").unlink()
        model = output / "model"
        for name, data in kept.items():
            self.assertEqual((model / name).read_bytes(), data, name)
            self.assertFalse((model / name).is_symlink())
        for name in left_out:
            self.assertFalse((model / name).exists(), name)
        self.assertEqual(json.loads((model / "config.json").read_text()),
                         config | {"torch_dtype": "float32"})

    def test_ids_without_a_token_give_no_text(self):
        """All 320 ids are as likely, so that 32 draws all but surely have one above 299."""
        deck = self.deck_file(self.fine_tuned())
        for seed in range(3):
            self.succeed(["generate", deck, f"generate.seed={seed}", "--prompt", "Ka lo"])

    def test_samples_of_one_token(self):
        run = self.train(self.fine_tuned(data={"sequence_length": 1}, pipeline={"stages": 2}),
                         "one", ranks=2)
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertEqual(run.steps["tokens"][0], 4)

    def test_lines_that_are_left_out_are_reported_once(self):
        lines = self.place / "lines.jsonl"
        lines.write_text('{"text": "Ka lo mi re.", "score": NaN}\n' * 60 + '{"text": 3}\n')
        deck = self.deck_file(self.fine_tuned(
            data={"train": [str(lines)], "bad_lines": "skip"}, pipeline={"stages": 2}))
        said = self.succeed(["train", deck, f"output.directory={self.output('lines')}"], 2)
        self.assertEqual(said.err.count("1 of 61 lines are skipped"), 1)
        for options in ([], ["--plan", "plan.flops=1e10"]):
            said = self.succeed(["check", deck, *options])
            self.assertEqual(said.err.count("1 of 61 lines are skipped"), 1)
        lines.write_text('{"text": 3}\n' * 2)
        self.assert_stops(support.run(["train", deck, "pipeline.stages=1"]),
                          "no documents; 2 of 2 lines are skipped, the first: ", "not a string")
        self.assert_stops(support.run(["train", deck, "data.bad_lines=error",
                                       "pipeline.stages=1"]), "lines.jsonl:1:", "not a string")


if __name__ == "__main__":
    support.main()
