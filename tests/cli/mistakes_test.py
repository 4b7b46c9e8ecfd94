#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A user's mistake is one line that says where it is and what to do; it stops all ranks."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import h5py
import numpy as np

import support

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"


class Mistakes(support.TestCase):
    """Each on one rank; where another rank or phase may find it, on more as well."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.trained_model()

    def stops(self, deck, *parts, overrides=(), command="train", ranks=(1,), status=None):
        """`deck`: a dictionary or a path."""
        path = self.deck_file(deck) if isinstance(deck, dict) else deck
        for count in ranks:
            stages = [f"pipeline.stages={count}"] if count > 1 else []
            result = support.run([command, path, *stages, *overrides], count)
            with self.subTest(command, ranks=count, overrides=overrides):
                self.assert_stops(result, *parts, status=status)

    def fine_tuned(self, model, **sections):
        """A deck that starts from a model directory."""
        return self.small(model={"path": str(model)}, tokenizer={"train_vocabulary": 0}, **sections)


class Decks(Mistakes):
    def test_unknown_key(self):
        deck = self.deck_file(self.small(training={"micro_bathces": 2}))
        line = 1 + deck.read_text().splitlines().index("micro_bathces = 2")
        self.stops(deck, f"{deck.name}:{line}", "micro_bathces", "micro_batches", ranks=(1, 2),
                   status=2)

    def test_unknown_section(self):
        self.stops(self.small(trainings={"steps": 2}), "trainings", "training", status=2)

    def test_wrong_type(self):
        deck = self.deck_file(self.small(training={"seed": "many"}))
        self.stops(deck, deck.name, "seed", "many", status=2)

    def test_out_of_range(self):
        deck = self.deck_file(self.small(training={"micro_batch_size": 0}))
        line = 1 + deck.read_text().splitlines().index("micro_batch_size = 0")
        self.stops(deck, f"{deck.name}:{line}", "micro_batch_size", "0", status=2)

    def test_links_out_of_range(self):
        for key, value in (("latency", "1e300"), ("bandwidth", "1e-300"), ("bandwidth", "1e300")):
            deck = self.deck_file(self.small(network={key: float(value)}))
            line = 2 + deck.read_text().splitlines().index("[network]")
            self.stops(deck, f"{deck.name}:{line}", "network." + key, status=2)

    def test_products_that_the_machine_has_not(self):
        deck = self.deck_file(self.small(training={"precision": "tf32"}))
        line = 1 + deck.read_text().splitlines().index('precision = "tf32"')
        for command, ranks in (("check", (1,)), ("train", (1, 2)), ("evaluate", (1,))):
            self.stops(deck, f"{deck.name}:{line}", "training.precision", "tf32", "NVIDIA", "fp32",
                       command=command, ranks=ranks, status=2)

    def test_not_toml(self):
        deck = self.place / "not.toml"
        deck.write_text("[training\nsteps = 1\n")
        self.stops(deck, f"{deck.name}:1", status=2)

    def test_texts_without_quotes(self):
        for value in ("delta", "delta  # a comment", "~/gpt2", "100 Mbit/s"):
            deck = self.place / "bare.toml"
            deck.write_text(f"[boundary.forward]\ncodec = {value}\n")
            word = value.split("  #")[0]
            self.stops(deck, f"{deck.name}:2", f'put it in quotes: "{word}"', status=2)

    def test_missing_deck(self):
        self.stops(self.place / "nowhere.toml", "nowhere.toml", ranks=(1, 2), status=2)

    def test_directory_as_deck(self):
        self.stops(self.place, self.place.name, status=2)

    def test_wrong_overrides(self):
        deck = self.deck_file(self.small())
        for override, part in (("training.stepz=3", "steps"), ("training.steps=many", "many"),
                               ("nothing", "nothing"), ("boundary.forward.codec=zip", "zip"),
                               ("data.train=[\"a\",", "data.train")):
            self.stops(deck, part, overrides=[override], status=2)

    def test_delta_of_gradients(self):
        self.stops(self.small(boundary__backward={"codec": "aqsgd"}), "aqsgd", status=2)

    def test_unknown_command(self):
        for ranks in (1, 2):
            result = support.run(["trian", "deck.toml"], ranks)
            self.assert_stops(result, "trian", "train", status=2)

    def test_missing_and_surplus_arguments(self):
        for arguments in (["train"], [], ["train", "deck.toml", "--fast"]):
            result = support.run(arguments)
            self.assert_stops(result, status=2)


class LateMistakes(Mistakes):
    """What the deck alone does not show is still told where it stands in the deck."""

    def told(self, deck, line, *parts, overrides=(), command="train", ranks=(1,), at=None):
        """`line`: the deck's line at fault, or None for the deck as a whole; `at`: another place."""
        path = self.deck_file(deck)
        lines = path.read_text(encoding="utf-8").splitlines()
        place = str(path) if line is None else f"{path}:{1 + lines.index(line)}:1"
        for count in ranks:
            with self.subTest(command, line=line, ranks=count):
                result = support.run([command, path, *overrides], count)
                self.assert_stops(result, *parts, status=2)
                self.assertTrue(
                    result.errors[0].startswith(f"deltapipe: error: {at or place}: "),
                    result.errors[0])

    def test_of_the_loaded_model(self):
        self.told(self.fine_tuned(self.model, data={"sequence_length": 33}),
                  "sequence_length = 33", "(got 33)", "at most 32")
        self.told(self.fine_tuned(self.model), None, "(got 33)", "at most 32",
                  overrides=["data.sequence_length=33"],
                  at="argument 'data.sequence_length=33'")
        self.told(self.fine_tuned(self.model, data={"sequence_length": 33},
                                  pipeline={"stages": 2}), "sequence_length = 33", ranks=(2,))
        self.told(self.fine_tuned(self.model, training={"micro_batches": 65536,
                                                        "micro_batch_size": 1024}),
                  "micro_batches = 65536", "1024 x 65536 x 32")
        self.told(self.fine_tuned(self.model, pipeline={"stages": 2, "partition": [1, 1]}),
                  "partition = [1, 1]", "4 blocks", ranks=(2,))
        for command, ranks in (("check", 1), ("train", 5)):
            self.told(self.fine_tuned(self.model, pipeline={"stages": 5}), "stages = 5", "4 blocks",
                      command=command, ranks=(ranks,))

    def test_of_missing_files(self):
        gone = str(self.place / "nowhere")
        for command in ("train", "check", "evaluate", "generate"):
            self.told(self.fine_tuned(gone), f'path = "{gone}"', gone + "/config.json is missing",
                      "hf download", command=command)
        for command in ("train", "check", "evaluate", "tokenize"):
            self.told(self.small(data={"train": ["nowhere.txt"]}), 'train = ["nowhere.txt"]',
                      "nowhere.txt is missing", command=command)
        self.told(self.small(data={"validation": ["nowhere.txt"]}, pipeline={"stages": 2}),
                  'validation = ["nowhere.txt"]', "nowhere.txt is missing", ranks=(2,))
        self.told(self.small(data={"train": []}), "train = []", "data.train")
        self.told(self.small(tokenizer={"train_vocabulary": 0, "path": gone}), f'path = "{gone}"',
                  gone, "missing")
        bare = str(FIXTURES / "tiny_gpt2" / "model")
        for command in ("train", "check", "generate"):
            self.told(self.fine_tuned(bare), f'path = "{bare}"', "a tokenizer in " + bare,
                      command=command)

    def test_of_things_that_are_no_files(self):
        fifo = self.place / "a_pipe"
        os.mkfifo(fifo)
        for path, part in (("/dev/zero", "a device"), (fifo, "a named pipe"),
                           (self.place, "directory")):
            for command in ("train", "check"):
                self.told(self.small(data={"train": [str(path)]}), f'train = ["{path}"]', path,
                          part, command=command)

    def test_of_the_machines(self):
        spilling = {"boundary__forward": {"codec": "aqsgd"}, "pipeline": {"stages": 2},
                    "cache": {"budget": "1 kB"}}
        for command, ranks in (("check", 1), ("check", 2), ("train", 2)):
            self.told(self.small(**spilling), 'budget = "1 kB"', "cache.budget", command=command,
                      ranks=(ranks,))
        self.told(self.small(pipeline={"stages": 2},
                             **{"model.new": {"n_layer": 10000, "n_embd": 65536}}),
                  "stages = 2", "more memory than the machine", ranks=(2,))
        self.told(self.small(pipeline={"stages": 3}), "stages = 3", "1 was started")

    def test_of_outputs_and_uses(self):
        self.told(self.small(output={"overwrite": False, "directory": str(self.place / "base")}),
                  "steps = 3", "has another deck: training.steps = 1", "output.overwrite = true")
        self.told(self.small(data={"validation_fraction": 0}), "validation_fraction = 0",
                  command="evaluate")
        long = "to be " * 40
        self.told(self.fine_tuned(self.model, generate={"prompts": [long]}),
                  f'prompts = ["{long}"]', "prompt 1", command="generate")
        self.told(self.fine_tuned(self.model), None, "prompt 1", command="generate",
                  overrides=["--prompt", long], at="argument '--prompt'")

    def test_weights_that_do_not_fit(self):
        """check reads their headers as train does."""
        model = self.place / "cut"
        shutil.copytree(self.model, model)
        config = json.loads((model / "config.json").read_text())
        for key, value, part in (("n_layer", 3, "more blocks"), ("n_layer", 5, "has no tensor"),
                                 ("n_inner", 64, "must have the shape")):
            (model / "config.json").write_text(json.dumps(dict(config, **{key: value})))
            deck = self.deck_file(self.fine_tuned(model))
            said = []
            for command in ("check", "train"):
                result = support.run([command, deck])
                self.assert_stops(result, part, status=1)
                said.append(result.errors[0])
                if command == "check":
                    self.assertIn("# peak", result.out)
            self.assertEqual(*said)


class Layouts(Mistakes):
    def test_more_stages_than_blocks(self):
        self.stops(self.small(pipeline={"stages": 5}), "5", "4", ranks=(5,))

    def test_ranks_do_not_match(self):
        self.stops(self.small(pipeline={"stages": 3}), "3", "1", ranks=(1,))
        deck = self.deck_file(self.small(pipeline={"stages": 3}))
        self.assert_stops(support.run(["train", deck], 2), "3", "2")
        deck = self.deck_file(self.small(pipeline={"stages": 1, "replicas": 2}))
        self.assert_stops(support.run(["train", deck], 3), "3", "2")

    def test_partition_does_not_match(self):
        self.stops(self.small(pipeline={"partition": [1, 1]}), "partition", ranks=(2,))
        self.stops(self.small(pipeline={"partition": [1, 1, 2]}), "partition", ranks=(2,))

    def test_heads_do_not_divide_channels(self):
        self.stops(self.small(**{"model.new": {"n_head": 5}}), "n_head", "5")

    def test_sequence_too_long(self):
        self.stops(self.small(data={"sequence_length": 33}), "sequence_length", "33", "32")
        self.stops(self.fine_tuned(self.model, data={"sequence_length": 33}), "sequence_length",
                   "33", "32")

    def test_too_large_for_any_machine(self):
        self.stops(self.small(**{"model.new": {"n_layer": 10000, "n_embd": 65536}}), "memory",
                   "deltapipe check", ranks=(1, 2), status=2)
        self.stops(self.small(training={"micro_batches": 65536, "micro_batch_size": 65536}),
                   "micro_batches", "65536 x 65536 x 32", ".toml:", status=2)

    def test_recomputing_stage_that_is_not(self):
        self.stops(self.small(training={"recompute_stages": [2]}), "recompute_stages", "2")

    def test_links_do_not_match_boundaries(self):
        self.stops(self.small(network={"latency": [0.001, 0.002]}), "latency", ranks=(2,))


class Data(Mistakes):
    def test_missing(self):
        self.stops(self.small(data={"train": ["nowhere.txt"]}), "nowhere.txt", ranks=(1, 2))
        self.stops(self.small(data={"validation": ["nowhere.txt"]}), "nowhere.txt")
        self.stops(self.small(data={"train": []}), "data.train")

    def test_empty(self):
        empty = self.place / "empty.txt"
        empty.write_text("")
        self.stops(self.small(data={"train": [str(empty)]}), "empty.txt", "empty")
        self.stops(self.small(data={"validation": [str(empty)]}), "empty.txt", "empty")

    def test_too_short_for_validation(self):
        short = self.place / "short.txt"
        short.write_text("ab cd\n")
        self.stops(self.fine_tuned(self.model, data={"train": [str(short)]}), "validation")

    def test_not_utf8(self):
        bad = self.place / "latin1.txt"
        bad.write_bytes(b"good\n" + "caf\xe9\n".encode("latin-1"))
        self.stops(self.fine_tuned(self.model, data={"train": [str(bad)]}), "latin1.txt:2:4",
                   "UTF-8", "0xE9 at offset 8", "iconv")

    def test_nul(self):
        bad = self.place / "wide.txt"
        bad.write_bytes("wide".encode("utf-16-le"))
        self.stops(self.fine_tuned(self.model, data={"train": [str(bad)]}), "wide.txt:1:2",
                   "contains a NUL", "offset 1", "UTF-16")

    def test_bad_json_line(self):
        bad = self.place / "bad.jsonl"
        bad.write_text('{"text": "one"}\n\n{"text": "two"\n')
        self.stops(self.small(data={"train": [str(bad)]}), "bad.jsonl:3", ranks=(1, 2))
        bad.write_text('{"text": "one"}\n{"body": "two"}\n')
        self.stops(self.small(data={"train": [str(bad)]}), "bad.jsonl:2", "text")

    def test_unknown_suffix(self):
        other = self.place / "data.csv"
        other.write_text("a,b\n")
        self.stops(self.small(data={"train": [str(other)]}), "data.csv")

    def test_broken_hdf5(self):
        broken = self.place / "broken.h5"
        broken.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        self.stops(self.fine_tuned(self.model, data={"train": [str(broken)]}), "broken.h5")
        whole = self.place / "whole.h5"
        with h5py.File(whole, "w") as file:
            file["tokens"] = np.arange(40000, dtype=np.int32) % 250
        data = whole.read_bytes()
        broken.write_bytes(data[:len(data) // 2])
        self.stops(self.fine_tuned(self.model, data={"train": [str(broken)]}), "broken.h5",
                   ranks=(1, 2))

    def test_foreign_hdf5(self):
        foreign = self.place / "foreign.h5"
        with h5py.File(foreign, "w") as file:
            file["x"] = np.zeros(3)
        self.stops(self.fine_tuned(self.model, data={"train": [str(foreign)]}), "foreign.h5",
                   "tokens")
        with h5py.File(foreign, "w") as file:
            file["tokens"] = np.array([1, 2, 3, 300], dtype=np.int64)
        self.stops(self.fine_tuned(self.model, data={"train": [str(foreign)]}), "foreign.h5",
                   "tokens[3]", "300")


class Models(Mistakes):
    def copy(self):
        target = self.place / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.model, target)
        return target

    def test_missing(self):
        self.stops(self.fine_tuned(self.place / "nowhere"), "nowhere")
        for file in ("config.json", "model.safetensors"):
            model = self.copy()
            (model / file).unlink()
            self.stops(self.fine_tuned(model), file, ranks=(1, 2))
        self.stops(self.small(tokenizer={"train_vocabulary": 0, "path": "nowhere"}), "nowhere")
        self.stops(self.small(tokenizer={"train_vocabulary": 0}), "tokenizer")
        # The fixture has no tokenizer.
        self.stops(self.fine_tuned(FIXTURES / "tiny_gpt2" / "model"), "tokenizer")

    def test_truncated(self):
        model = self.copy()
        file = model / "model.safetensors"
        data = file.read_bytes()
        for size in (0, 7, 100, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:size])
            self.stops(self.fine_tuned(model), "model.safetensors",
                       ranks=(1, 3) if size == 100 else (1,))

    def test_lying_headers(self):
        model = self.copy()
        file = model / "model.safetensors"
        header, data = support.read_safetensors(file)
        tensors = [name for name in header if name != "__metadata__"]
        last = next(name for name in tensors if "h.3.mlp.c_fc.weight" in name)

        def lie(**changes):
            return {name: dict(about, **changes) if name == last else about
                    for name, about in header.items()}

        begin, end = header[last]["data_offsets"]
        size = end - begin
        lies = {
            "offset behind the end": lie(data_offsets=[len(data), len(data) + size]),
            "end before begin": lie(data_offsets=[end, begin]),
            "negative offset": lie(data_offsets=[-1, end]),
            "huge offset": lie(data_offsets=[begin, 2**63]),
            "overlap": lie(data_offsets=[0, size]),
            "type that does not fit": lie(dtype="F64"),
            "unknown type": lie(dtype="X9"),
            "integers": lie(dtype="I32"),
            "shape that does not fit": lie(shape=[1, 1]),
            "huge shape": lie(shape=[2**32, 2**32]),
            "negative shape": lie(shape=[-32, -128]),
            "other shape": lie(shape=list(reversed(header[last]["shape"]))),
            "no shape": {name: {"dtype": "F32", "data_offsets": about["data_offsets"]}
                         if name == last else about for name, about in header.items()},
            "missing tensor": {name: about for name, about in header.items() if name != last},
        }
        for what, false_header in lies.items():
            with self.subTest(what):
                support.write_safetensors(file, false_header, data)
                # The last stage alone reads this tensor.
                ranks = (1, 2) if what in ("other shape", "missing tensor") else (1,)
                self.stops(self.fine_tuned(model), "model.safetensors", ranks=ranks)
        for what, content in {
                "header size": (2**62).to_bytes(8, "little") + b"{}",
                "header as large as the file": (1000).to_bytes(8, "little") + b" " * 900,
                "no JSON": (4).to_bytes(8, "little") + b"[[[[",
                "no object": (2).to_bytes(8, "little") + b"[]"}.items():
            with self.subTest(what):
                file.write_bytes(content)
                self.stops(self.fine_tuned(model), "model.safetensors")

    def with_values(self, part_of_name, values, model=None):
        """A copy of the model, or `model`, with other first values of a tensor."""
        model = model or self.copy()
        header, data = support.read_safetensors(model / "model.safetensors")
        name = next(name for name in header if part_of_name in name)
        begin, end = header[name]["data_offsets"]
        new = np.frombuffer(data[begin:end], "<f4").copy()
        new[:len(values)] = values
        support.write_safetensors(model / "model.safetensors", header,
                                  data[:begin] + new.tobytes() + data[end:])
        return model

    def test_weights_that_are_not_finite(self):
        for value in ("nan", "inf"):
            model = self.with_values("h.3.mlp.c_fc.weight", [0, float(value)])
            for command in ("train", "evaluate", "generate"):
                # The last stage alone reads this tensor.
                self.stops(self.fine_tuned(model), "copy", "h.3.mlp.c_fc.weight", "element 1",
                           value, command=command, ranks=(1, 2), status=1)

    def test_outputs_that_are_not_finite(self):
        model = self.with_values("ln_f.weight", [3e38] * 32)
        self.stops(self.fine_tuned(model), "loss of the evaluation is not finite",
                   command="evaluate", ranks=(1, 2), status=1)
        self.stops(self.fine_tuned(model), "output for prompt 1 is not finite",
                   command="generate", ranks=(1, 2), status=1)

    def test_activations_that_no_codec_can_carry(self):
        bias = "mlp.c_proj.bias"
        infinite = self.with_values(f"h.1.{bias}", [3e38], self.with_values(f"h.0.{bias}", [3e38]))
        place = ("stage 0 sends activations that are no longer finite over boundary 0 forward",
                 "micro-batch 0: sample 0, token 0, channel 0")
        for codec in ("aqsgd", "topk", "auto", "bf16"):
            self.stops(self.fine_tuned(infinite, boundary__forward={"codec": codec},
                                       data={"shuffle": False}), *place, "learning_rate",
                       ranks=(2,), status=1)
        for command in ("evaluate", "generate"):
            self.stops(self.fine_tuned(infinite, boundary__forward={"codec": "directq"},
                                       evaluation={"boundary": "codec"}), *place,
                       "use weights from before that", command=command, ranks=(2,), status=1)
        self.stops(self.fine_tuned(self.with_values("ln_f.weight", [3e38] * 32),
                                   boundary__backward={"codec": "directq"}),
                   "stage 1 sends gradients that are no longer finite over boundary 0 backward",
                   ranks=(2,), status=1)
        self.stops(self.fine_tuned(self.with_values(f"h.0.{bias}", [1e5]),
                                   boundary__forward={"codec": "aqsgd"}),
                   "too large for fp16 memories", "cache.storage", ranks=(2,), status=2)

    def test_config(self):
        model = self.copy()
        config = json.loads((model / "config.json").read_text())
        for key, value in (("n_head", 5), ("n_layer", 3), ("n_layer", 5), ("n_layer", 0), ("n_embd", 31),
                           ("n_embd", 2**40), ("n_layer", 2**30), ("vocab_size", -1),
                           ("n_positions", "many"), ("activation_function", "gelu9"),
                           ("model_type", "t5"), ("layer_norm_epsilon", -1)):
            with self.subTest(key, value=value):
                (model / "config.json").write_text(json.dumps(dict(config, **{key: value})))
                self.stops(self.fine_tuned(model))
        (model / "config.json").write_text("{")
        self.stops(self.fine_tuned(model), "config.json")

    def test_tokenizer_too_large(self):
        model = self.copy()
        other = self.deck_file(self.small(tokenizer={"train_vocabulary": 320},
                                          training={"steps": 1}))
        self.succeed(["train", other, f"output.directory={self.place}/larger"])
        self.stops(self.fine_tuned(model) | {"tokenizer": {
            "path": str(self.place / "larger" / "model")}}, "tokenizer", "320", "300")

    def test_broken_tokenizer(self):
        model = self.copy()
        for file in model.glob("tokenizer.json"), model.glob("vocab.json"):
            for path in file:
                path.write_text("{")
        self.stops(self.fine_tuned(model), "json")

    def test_prompts(self):
        self.stops(self.fine_tuned(self.model), "prompt", "32", command="generate", ranks=(1, 2),
                   overrides=["generate.prompts=" + json.dumps("to be " * 40)])


class Outputs(Mistakes):
    def test_unwritable_directory(self):
        file = self.place / "a_file"
        file.write_text("")
        for directory in (file, file / "run", "/proc/deltapipe"):
            self.stops(self.small(), str(directory), ranks=(1, 2),
                       overrides=[f"output.directory={directory}"])

    def test_existing_run(self):
        base = self.place / "base"
        before = (base / "run.h5").read_bytes()
        self.stops(self.small(output={"overwrite": False, "directory": str(base)}), str(base),
                   "overwrite")
        self.assertEqual((base / "run.h5").read_bytes(), before)

    def test_spill_directory(self):
        file = self.place / "another_file"
        file.write_text("")
        self.stops(self.small(boundary__forward={"codec": "aqsgd"},
                              cache={"budget": "20 kB", "directory": str(file)}), str(file),
                   ranks=(2,))

    def test_losses_that_are_not_finite(self):
        # The last stage alone sees the loss.
        self.stops(self.small(training={"steps": 30}, **{"training.optimizer": {
            "learning_rate": 1000, "clip_norm": 0}}), "finite", "learning_rate", ranks=(1, 2),
            status=1)
        attributes = support.Run(self.output("run") / "run.h5").attributes
        self.assertEqual(attributes["status"], "failed")
        self.assertIn("no longer finite", attributes["reason"])
        self.assertNotIn("-nan", attributes["reason"])

    def full(self, name, limit_bytes, deck, *parts):
        """Trains with a limit to the size of the program's files, as a full disk has."""
        output = self.output(name)
        limited = ["sh", "-c", f"trap '' XFSZ; ulimit -f {limit_bytes // 512}; exec \"$0\" \"$@\""]
        for ranks in (1, 2):
            with self.subTest(name, ranks=ranks):
                command = [*support.MPIEXEC, support.NUMPROC_FLAG, str(ranks), *limited,
                           support.PROGRAM, "train", str(self.deck_file(deck)),
                           f"pipeline.stages={ranks}", f"output.directory={output}"]
                # Open MPI's shared memory between ranks would be limited as well.
                result = support.run_command(command, OMPI_MCA_btl="self,tcp")
                self.assert_stops(result, *parts, status=1)
        return output

    def test_full_disk_at_saving(self):
        # The run file fits where this model of 5 MB does not.
        deck = self.small(model__new={"n_positions": 40000}, data={"sequence_length": 32},
                          training={"steps": 1})
        output = self.full("full-model", 3 << 20, deck, "model.safetensors")
        self.assertFalse((output / "model" / "model.safetensors").exists())
        run = support.Run(output / "run.h5")
        self.assertEqual(len(run.losses), 1)
        self.assertEqual(run.attributes["status"], "failed")

    def test_full_disk_at_a_flush(self):
        self.full("full-run", 4096, self.small(training={"steps": 1}), "run.h5")

    def test_full_disk_keeps_the_former_model(self):
        target = self.place / "former"
        shutil.copytree(self.place / "base", target)
        before = (target / "model" / "model.safetensors").read_bytes()
        # Room for run.h5, and not for a wider model.
        deck = support.merged(self.small(training={"steps": 1}), {"model.new": {"n_embd": 256}})
        self.full("former", 3 << 20, deck, "model.safetensors")
        self.assertEqual((target / "model" / "model.safetensors").read_bytes(), before)

    def small_disk(self, size):
        """A file system of so many bytes, where this user may mount one."""
        mounted = self.place / "small_disk"
        mounted.mkdir(exist_ok=True)
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mounted],
                           check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            raise unittest.SkipTest("no file system can be mounted here") from error
        self.addCleanup(subprocess.run, ["umount", "-q", mounted], check=False, timeout=20)
        return mounted

    def test_full_disk_of_a_small_file_system(self):
        disk = self.small_disk((self.model / "model.safetensors").stat().st_size // 2)
        self.stops(self.small(training={"steps": 1}), disk, "space",
                   overrides=[f"output.directory={disk}/run"], status=1)

    def test_too_small_disk_for_the_cache(self):
        # 30 samples of 2 kB each at either end: one file would fit, nothing is trained before.
        for size in (16384, 98304):
            disk = self.small_disk(size)
            deck = self.deck_file(self.small(
                boundary__forward={"codec": "aqsgd"}, pipeline={"stages": 2},
                cache={"budget": "8 kB", "directory": str(disk / "cache")}))
            line = 1 + deck.read_text().splitlines().index(f'directory = "{disk}/cache"')
            said = set()
            for command, ranks in (("train", 2), ("check", 2), ("check", 1)):
                with self.subTest(command, ranks=ranks, size=size):
                    result = support.run([command, deck], ranks)
                    self.assert_stops(result, f"{deck}:{line}:1: too little disk space", disk,
                                      status=2)
                    # A lock file was made before training looked.
                    said.add(re.sub(r"[\d.]+ ?k?B are free", "FREE", result.errors[0]))
                    if command == "check":
                        self.assertIn("# disk:", result.out)
            self.assertEqual(len(said), 1, said)
            self.assertFalse(list(disk.glob("cache/*.h5")))
            subprocess.run(["umount", disk], check=True, timeout=20)


if __name__ == "__main__":
    support.main()
