#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Text classification from decks: labelled texts through a BERT and a DeBERTa, training, restart,
evaluation and predictions."""

import csv
import json
import random
import re
import shutil
import subprocess

import h5py
import numpy as np

import sentencepiece_files
import support
from commands_test import python_with_transformers

COLOURS = {"warm": ["red", "orange", "amber", "rust"], "cold": ["blue", "teal", "navy", "ice"],
           "grey, \"dull\"": ["ash", "slate", "lead", "fog"]}
LAYERS, TOKENS, SAMPLES = 4, 12, 240


def rows(count, seed=1):
    """(text, text, label): the words of the first text tell the label."""
    numbers = random.Random(seed)
    made = []
    for _ in range(count):
        label = numbers.choice(list(COLOURS))
        words = [numbers.choice(COLOURS[label]) for _ in range(numbers.randint(1, 4))]
        made.append((" ".join(words), numbers.choice(["sea", "hill", "a, b"]), label))
    return made


def write_csv(path, table, header=("first", "second", "kind")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([header, *table] if header else table)
    return path


class Texts:
    """Data, deck and tests of all models of texts."""

    TYPE = "bert"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.table = rows(SAMPLES)
        cls.data = write_csv(cls.place / "colours.csv", cls.table)
        cls.validation = write_csv(cls.place / "validation.csv", rows(21, seed=2))

    @classmethod
    def deck(cls, **sections):
        deck = {
            "model.new": {"type": cls.TYPE, "n_layer": LAYERS, "n_embd": 32, "n_head": 2,
                          "n_positions": TOKENS},
            "tokenizer": {"train_vocabulary": 300},
            "data": {"kind": "labelled_text", "train": [str(cls.data)],
                     "validation": [str(cls.validation)]},
            "data.labelled": {"texts": ["first", "second"], "label": "kind"},
            "training": {"steps": 8, "micro_batch_size": 3, "micro_batches": 2, "seed": 1},
            "training.optimizer": {"learning_rate": 1e-3, "schedule": "constant"},
            "output": {"overwrite": True},
        }
        return support.merged(
            deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    def test_stages_change_nothing(self):
        self.check_stages(lambda keys: self.deck(pipeline=keys))

    def test_stages_change_nothing_where_lengths_differ(self):
        """Micro-batches are as long as their longest sample, on all stages."""
        numbers = random.Random(4)
        table = [(" ".join(numbers.choices(["ab", "c"], k=numbers.choice([1, 4, 9, 40]))), "sea",
                  numbers.choice(list(COLOURS))) for _ in range(SAMPLES)]
        data = write_csv(self.place / "lengths.csv", table)
        self.check_stages(lambda keys: self.deck(
            pipeline=keys, data={"train": [str(data)]}, training={"micro_batches": 4},
            **{"model.new": {"n_positions": 40}}))

    def test_a_restart_goes_on_with_the_same_bits(self):
        deck = self.deck(pipeline={"stages": 2}, training={"steps": 20},
                         boundary__forward={"codec": "aqsgd", "bits": 3},
                         boundary__backward={"codec": "directq", "bits": 6},
                         checkpoint={"every_steps": 7}, output={"overwrite": False})
        self.check_restart(deck)

    def predictions(self, output):
        with h5py.File(output / "predictions.h5", "r") as file:
            classes = [str(name) for name in file.attrs["classes"]]
            return classes, {name: data[()] for name, data in file.items()}

    def test_transformers_give_the_same_probabilities(self):
        python = python_with_transformers()
        if python is None:
            self.skipTest("no python3 here has transformers, PyTorch and h5py")
        self.train(self.deck(training={"steps": 25}), "saved", 1)
        model = self.output("saved") / "model"
        deck = self.deck_file(self.deck(model={"path": str(model)}, tokenizer={"train_vocabulary": 0}))
        output = self.output("saved-predictions")
        self.succeed(["predict", deck, f"output.directory={output}"])
        program = """
import csv, json, sys, torch, transformers
directory, table, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = transformers.GPT2TokenizerFast.from_pretrained(directory)
model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
    directory, output_loading_info=True)
assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
model = model.double().eval()
end = tokenizer.eos_token_id
result = []
for first, second, _ in list(csv.reader(open(table, newline="")))[1:]:
    both = tokenizer(first, second, truncation="longest_first", max_length=length - 3,
                     return_token_type_ids=True)
    a = tokenizer(first)["input_ids"]
    ids, count = both["input_ids"], len(both["input_ids"])
    kept = next(n for n in range(count, -1, -1) if ids[:n] == a[:n])
    while kept > len(a): kept -= 1
    first_ids, second_ids = ids[:kept], ids[kept:]
    tokens = [end, *first_ids, end, *second_ids, end]
    segments = [0] * (len(first_ids) + 2) + [1] * (len(second_ids) + 1)
    more = {"token_type_ids": torch.tensor([segments])}
    if model.config.model_type == "gpt2": more = {}  # which would add rows of the token table
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), **more).logits
    result.append(logits.softmax(-1)[0].tolist())
print(json.dumps([result, model.config.id2label]))
"""
        made = subprocess.run([python, "-c", program, model, self.validation, str(TOKENS)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        probabilities, names = json.loads(made.stdout.splitlines()[-1])
        classes, tables = self.predictions(output)
        self.assertEqual(list(names.values()), classes)
        np.testing.assert_allclose(tables["probabilities"], probabilities, rtol=1e-5, atol=1e-6)


class LabelledTexts(Texts, support.TestCase):
    def test_bf16_predicts_its_memory(self):
        """Products of every length of a micro-batch are prepared once."""
        deck = self.deck(pipeline={"stages": 2}, training={"steps": 40, "precision": "bf16"})
        run = self.train(deck, "bf16", 2)
        self.assertTrue(np.isfinite(run.losses).all())
        with h5py.File(self.output("bf16") / "run.h5") as file:
            self.assertTrue((file["memory/peak"][:] <= 1.1 * file["memory/predicted"][:]).all())

    def test_codecs_learn_and_send_no_padding(self):
        deck = self.deck(pipeline={"stages": 2}, training={"steps": 200},
                         boundary__forward={"codec": "aqsgd", "bits": 4},
                         boundary__backward={"codec": "directq", "bits": 8})
        run = self.train(deck, "codec", 2)
        self.assertGreater(run.evaluations["accuracy"][-1], 0.9)
        self.assertLess(run.losses[-5:].mean(), run.losses[:5].mean() / 2)
        # A row of 32 channels in fp32 for each token, of fewer tokens than the samples have places.
        plain = self.train(self.deck(pipeline={"stages": 2}), "plain", 2)
        payload = plain.steps["forward_bytes"][:, 0] - 2 * support.HEADER_BYTES
        self.assertTrue((payload % (4 * 32) == 0).all())
        self.assertLess(payload.max(), 6 * TOKENS * 4 * 32)

    def test_replicas(self):
        deck = self.deck(pipeline={"stages": 2, "replicas": 2}, training={"steps": 120})
        run = self.train(deck, "replicas", 4)
        self.assertLess(run.losses[-10:].mean(), 0.8 * run.losses[:10].mean())

    def test_predictions(self):
        self.train(self.deck(training={"steps": 40}), "model", 1)
        model = self.output("model") / "model"
        deck = self.deck_file(self.deck(model={"path": str(model)}, tokenizer={"train_vocabulary": 0}))
        said = self.succeed(["evaluate", deck])
        accuracy = float(said.out.split("accuracy ")[1].split(",")[0])
        expected = None
        for ranks, overrides in ((1, []), (2, ["pipeline.stages=2"]),
                                 (4, ["pipeline.stages=2", "pipeline.replicas=2"])):
            output = self.output(f"predictions{ranks}")
            self.succeed(["predict", deck, f"output.directory={output}", *overrides], ranks)
            classes, tables = self.predictions(output)
            self.assertEqual(classes, sorted(COLOURS))
            labels = [label for _, _, label in rows(21, seed=2)]
            self.assertEqual([classes[i] for i in tables["label"]], labels)
            np.testing.assert_allclose(tables["probabilities"].sum(1), 1, rtol=1e-5)
            np.testing.assert_array_equal(tables["probabilities"].argmax(1), tables["prediction"])
            self.assertAlmostEqual((tables["label"] == tables["prediction"]).mean(), accuracy, 4)
            if expected is None:
                expected = tables["probabilities"]
            np.testing.assert_allclose(tables["probabilities"], expected, rtol=1e-4, atol=1e-6)
            with open(output / "predictions.csv", newline="", encoding="utf-8") as file:
                lines = list(csv.reader(file))
            self.assertEqual(lines[0][3:], [f"p({name})" for name in classes])
            self.assertEqual([line[1] for line in lines[1:]], labels)
            self.assertEqual([line[2] for line in lines[1:]],
                             [classes[i] for i in tables["prediction"]])

    def test_predictions_without_labels(self):
        self.train(self.deck(training={"steps": 40}), "for-unlabelled", 1)
        model = self.output("for-unlabelled") / "model"
        table = rows(21, seed=2)
        bare = write_csv(self.place / "bare.csv", [(second, first) for first, second, _ in table],
                         header=("second", "first"))
        lines = self.place / "lines.jsonl"
        lines.write_text("".join(
            json.dumps({"first": first, "second": second}
                       | ({"kind": label} if i % 3 == 0 else {})) + "\n"
            for i, (first, second, label) in enumerate(table)))
        deck = self.deck_file(self.deck(
            model={"path": str(model)}, tokenizer={"train_vocabulary": 0},
            data={"train": ["lost.csv"], "validation": [str(self.validation)],
                  "max_validation_samples": 2}))
        result = {}
        for name, files, ranks in (("known", [self.validation], 1), ("bare", [bare], 3),
                                   ("lines", [lines], 1)):
            output = self.output(name)
            made = self.succeed(
                ["predict", deck, f"output.directory={output}", f"pipeline.stages={ranks}",
                 f"data.predict={json.dumps([str(file) for file in files])}"], ranks)
            _, result[name] = self.predictions(output)
            self.assertEqual("accuracy" in made.out, name != "bare")
        for name in ("bare", "lines"):
            np.testing.assert_allclose(result[name]["probabilities"],
                                       result["known"]["probabilities"], rtol=1e-4, atol=1e-6)
        self.assertTrue((result["bare"]["label"] == -1).all())
        known = result["known"]["label"]
        self.assertEqual(list(result["lines"]["label"]),
                         [known[i] if i % 3 == 0 else -1 for i in range(21)])
        with open(self.output("bare") / "predictions.csv", newline="", encoding="utf-8") as file:
            self.assertEqual({line["label"] for line in csv.DictReader(file)}, {""})

    def test_unigram_tokenizers(self):
        losses = []
        for name, write, files in (
                ("model", sentencepiece_files.write_model, {"spm.model", "tokenizer_config.json"}),
                ("json", sentencepiece_files.write_json,
                 {"tokenizer.json", "tokenizer_config.json"})):
            tokenizer = write(self.place / f"unigram_{name}")
            deck = self.deck(tokenizer={"train_vocabulary": 0, "path": str(tokenizer)},
                             training={"steps": 200}, pipeline={"stages": 2})
            run = self.train(deck, f"unigram_{name}_run", 2)
            losses.append(list(run.losses))
            model = self.output(f"unigram_{name}_run") / "model"
            for file in files:
                self.assertEqual((model / file).read_bytes(), (tokenizer / file).read_bytes())
            self.assertEqual(files, {file.name for file in model.iterdir()}
                             - {"config.json", "model.safetensors"})
            saved = self.deck_file(self.deck(model={"path": str(model)},
                                             tokenizer={"train_vocabulary": 0}))
            said = self.succeed(["evaluate", saved])
            loss = float(re.search(r"loss ([0-9.]+)", said.out)[1])
            self.assertAlmostEqual(loss, run.evaluations["loss"][-1], 4)
            if name == "model":
                (model / "spm.model").write_bytes((tokenizer / "spm.model").read_bytes()[:5000])
                self.assert_stops(support.run(["evaluate", saved]), model / "spm.model",
                                  "it is cut off", "download the file again")
        self.assertLess(np.mean(losses[0][-5:]), np.mean(losses[0][:5]) / 2)
        self.assertEqual(*losses)  # these texts have the same ids

    def test_a_body_without_a_head_gets_a_new_one(self):
        """As sentence encoders are published: no classifier, no prefix, no pooler."""
        self.train(self.deck(training={"steps": 1}), "source", 1)
        source = self.output("source") / "model"
        header, data = support.read_safetensors(source / "model.safetensors")
        body = {name.removeprefix("bert."): about for name, about in header.items()
                if "pooler" not in name and "classifier" not in name}
        headless = self.output("headless")
        headless.mkdir()
        for name in ("vocab.json", "merges.txt"):
            (headless / name).write_bytes((source / name).read_bytes())
        config = json.loads((source / "config.json").read_text())
        for key in ("id2label", "label2id"):
            del config[key]
        (headless / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
        offset, packed = 0, b""
        for name, about in body.items():
            if name != "__metadata__":
                piece = data[slice(*about["data_offsets"])]
                about["data_offsets"] = [offset, offset + len(piece)]
                offset += len(piece)
                packed += piece
        support.write_safetensors(headless / "model.safetensors", body, packed)
        deck = self.deck(model={"path": str(headless)}, tokenizer={"train_vocabulary": 0},
                         training={"steps": 2}, pipeline={"stages": 2})
        output = self.output("new-head")
        for overrides in ([], [f"data.predict={json.dumps([str(self.validation)])}"]):
            wrong = ["predict", self.deck_file(deck), f"output.directory={output}", *overrides]
            self.assert_stops(support.run(wrong, 2), "classifier", "train it")
        made = self.succeed(["train", self.deck_file(deck), f"output.directory={output}"], 2)
        for part in ("no pooler", "no classifier"):
            self.assertIn(f"{part}: a new one is trained", made.err)
        saved = json.loads((output / "model/config.json").read_text())
        self.assertEqual(list(saved["id2label"].values()), sorted(COLOURS))
        header, _ = support.read_safetensors(output / "model/model.safetensors")
        self.assertEqual(header["classifier.weight"]["shape"], [3, 32])
        self.assertEqual(header["bert.encoder.layer.3.attention.self.value.weight"]["shape"],
                         [32, 32])

    def test_a_model_with_one_segment_takes_no_pairs(self):
        self.train(self.deck(training={"steps": 1}), "two", 1)
        one = self.output("one")
        shutil.copytree(self.output("two") / "model", one)
        config = json.loads((one / "config.json").read_text())
        (one / "config.json").write_text(json.dumps(config | {"type_vocab_size": 1}))
        header, data = support.read_safetensors(one / "model.safetensors")
        name = "bert.embeddings.token_type_embeddings.weight"
        begin, end = header[name]["data_offsets"]
        cut = end - (end - begin) // 2
        header[name] |= {"shape": [1, 32], "data_offsets": [begin, cut]}
        for other, about in header.items():
            if other != "__metadata__" and about["data_offsets"][0] >= end:
                about["data_offsets"] = [place - (end - cut) for place in about["data_offsets"]]
        support.write_safetensors(one / "model.safetensors", header, data[:cut] + data[end:])
        deck = self.deck_file(self.deck(model={"path": str(one)}, tokenizer={"train_vocabulary": 0},
                                        training={"steps": 1},
                                        output={"directory": str(self.output("one-run"))}))
        self.assert_stops(support.run(["train", deck]), "does not tell a second text",
                          "type_vocab_size = 1")
        self.succeed(["train", deck, "data.labelled.texts=[\"first\"]"])

    def test_check(self):
        out = self.succeed(["check", self.deck_file(self.deck(pipeline={"stages": 2}))]).out
        self.assertIn("BERT of 4 blocks x 32 channels, 3 classes", out)
        self.assertIn("training samples by class: cold ", out)

    def test_mistakes(self):
        empty = write_csv(self.place / "empty.csv", [("a", "b", "x"), ("c", "d", "")])
        stars = write_csv(self.place / "stars.csv", [(first, second, "123"[i % 3]) for i, (
            first, second, _) in enumerate(self.table)])
        no_star = write_csv(self.place / "no_star.csv", [("a", "b", "0")])
        blank = write_csv(self.place / "blank.csv", [("a", "b", "x"), ("c", "d", " ")])
        no_label = write_csv(self.place / "no_label.csv", self.table, ("first", "second", "x"))
        for overrides, parts in (
                (["data.kind=text"], ["a table is not a text", "labelled_text"]),
                ([f"data.train=[\"{no_label}\"]"], ["the header has no column 'kind'"]),
                (["data.labelled.texts=[\"a\",\"b\",\"c\"]"], ["one text or two"]),
                (["data.labelled.label=first"], ["is also a text"]),
                (["evaluation.prompts=[\"p.jsonl\"]"], ["requires a language model"]),
                ([f"data.train=[\"{empty}\"]"], ["empty.csv:3: the label is empty"]),
                ([f"data.train=[\"{blank}\"]"], ["blank.csv:3: the label is empty"]),
                ([f"data.train=[\"{stars}\"]", f"data.validation=[\"{no_star}\"]"],
                 ["no_star.csv:2", "not one of the model's 3 classes"]),
                (["data.sequence_length=3"], ["at least 4"]),
                ([f"data.train=[\"{self.text}\"]"], ["JSON lines, CSV and TSV"])):
            with self.subTest(overrides):
                deck = self.deck_file(self.deck(output={"directory": str(self.output("wrong"))}))
                self.assert_stops(support.run(["train", deck, *overrides]), *parts)
        deck = self.deck_file(self.deck(output={"directory": str(self.output("wrong"))}))
        self.assert_stops(support.run(["generate", deck, "-p", "red"]), "use predict")
        self.assert_stops(support.run(["tokenize", deck]), "language model")
        small = self.deck_file(self.small(output={"directory": str(self.output("wrong"))}))
        self.assert_stops(support.run(["predict", small]), "requires a model that classifies")

    def test_a_full_disk_leaves_no_predictions(self):
        self.train(self.deck(training={"steps": 1}), "full", 1)
        deck = self.deck_file(self.deck(model={"path": str(self.output("full") / "model")},
                                        tokenizer={"train_vocabulary": 0}))
        target = self.place / "file"
        target.write_text("")
        self.assert_stops(support.run(["predict", deck, f"output.directory={target}"]), target)


class DebertaTexts(Texts, support.TestCase):
    """A model whose relative embeddings are frozen, with a copy on every stage."""

    TYPE = "deberta-v2"

    def test_replicas_learn(self):
        deck = self.deck(pipeline={"stages": 2, "replicas": 2}, training={"steps": 120},
                         **{"training.optimizer": {"learning_rate": 3e-3}})
        run = self.train(deck, "replicas", 4)
        self.assertLess(run.losses[-10:].mean(), 0.8 * run.losses[:10].mean())

    def test_relative_embeddings_are_saved_once_and_unchanged(self):
        saved = []
        for steps in (1, 12):
            self.train(self.deck(pipeline={"stages": 4}, training={"steps": steps}), f"frozen{steps}", 4)
            header, data = support.read_safetensors(
                self.output(f"frozen{steps}") / "model/model.safetensors")
            saved.append({name: data[slice(*about["data_offsets"])] for name, about in header.items()
                          if name.startswith(("deberta.encoder.rel", "deberta.encoder.LayerNorm"))})
        self.assertEqual(len(saved[0]), 3)
        self.assertEqual(*saved)
        self.assertTrue(any(saved[0]["deberta.encoder.rel_embeddings.weight"]))

    def trained(self, **sections):
        """A deck that trains relative embeddings."""
        optimizer = {"learning_rate": 1e-3, "schedule": "constant", "relative_embeddings": True}
        return self.deck(**sections, **{"training.optimizer": optimizer})

    def test_stages_change_nothing_of_trained_relative_embeddings(self):
        dropout = {"dropout_residual": 0.2}
        self.check_stages(lambda keys: self.trained(pipeline=keys, model=dropout))
        interleaved = self.train(
            self.trained(model=dropout, pipeline={"stages": 4, "stages_per_rank": 2,
                                                  "schedule": "interleaved"}), "interleaved", 2)
        self.assertEqual(self.model_bytes("interleaved"), self.model_bytes("k1"))
        self.assertEqual(interleaved.steps["tied_gradient_bytes"].shape, (8,))
        # Frozen ones give another model.
        self.train(self.deck(model=dropout), "frozen")
        self.assertNotEqual(self.model_bytes("frozen"), self.model_bytes("k1"))

    def test_stages_of_a_rank_share_a_checkpoint(self):
        """Each of them has a copy of the relative embeddings."""
        pipeline = {"stages": 4, "stages_per_rank": 2, "schedule": "interleaved"}
        for trained in (False, True):
            deck = self.deck(pipeline=pipeline, checkpoint={"every_steps": 3},
                             **{"training.optimizer": {"relative_embeddings": trained}})
            place = self.place / f"stopped{trained}"
            stopped = support.run(["train", self.deck_file(deck), f"output.directory={place}",
                                   "training.steps=60", "network.latency=0.1",
                                   "checkpoint.time_limit=3"], 2)
            self.assertEqual(stopped.status, 75, stopped)
            resumed = self.train(deck, place.name, 2,
                                 ["output.overwrite=false", "training.steps=60"])
            again = self.train(deck, f"all{trained}", 2, ["training.steps=60"])
            self.assertEqual(resumed.losses.tobytes(), again.losses.tobytes())
            self.assertEqual(self.model_bytes(place.name), self.model_bytes(f"all{trained}"))

    def test_trained_relative_embeddings_go_on_after_a_restart(self):
        place = self.place / "relative"
        deck = self.trained(pipeline={"stages": 2}, training={"steps": 20},
                            checkpoint={"every_steps": 7, "change_optimizer": True})
        stopped = ["train", self.deck_file(deck), f"output.directory={place}", "network.latency=0.1",
                   "checkpoint.time_limit=3"]
        whole = self.train(deck, "relative-whole", 2)
        self.assertEqual(support.run(stopped, 2).status, 75)
        frozen = [*stopped[:3], "output.overwrite=false",
                  "training.optimizer.relative_embeddings=false"]
        self.assert_stops(support.run(frozen, 2), "training.optimizer.relative_embeddings")
        resumed = self.train(deck, "relative", 2, ["output.overwrite=false"])
        self.assertEqual(resumed.losses.tobytes(), whole.losses.tobytes())
        self.assertEqual(self.model_bytes("relative"), self.model_bytes("relative-whole"))

    def test_replicas_train_relative_embeddings(self):
        """Two replicas do what one does where each step has all samples; check predicts the bytes."""
        steps = {"steps": 3, "micro_batch_size": 12}
        one = self.train(self.trained(training={**steps, "micro_batches": SAMPLES // 12}), "one", 1)
        keys = {"training": {**steps, "micro_batches": SAMPLES // 24},
                "pipeline": {"stages": 3, "replicas": 2}}
        two = self.train(self.trained(**keys), "two", 6)
        for column in ("loss", "gradient_norm"):
            np.testing.assert_allclose(two.steps[column], one.steps[column], rtol=1e-5)
        said = self.succeed(["check", self.deck_file(self.trained(**keys))]).out
        for name, column in (("relative embeddings", "tied_row_bytes"),
                             ("their gradients", "tied_gradient_bytes")):
            self.assertRegex(said, rf"# {name} .* = {two.steps[column].sum():,.0f}; ")

    def test_replicas_train_relative_embeddings_through_their_codecs(self):
        """All sums over replicas, with a replica that has no samples in the epoch's last step."""
        for codec in ({"codec": "bf16"}, {"codec": "quantized", "bits": 4},
                      {"codec": "adam_moment", "warmup_epochs": 0.5}):
            deck = self.trained(pipeline={"stages": 2, "replicas": 2, "verify_replicas": 1},
                                data={"max_train_samples": 14}, training={"steps": 6},
                                replicas=codec)
            self.assertTrue(np.isfinite(self.train(deck, "codec", 4).losses).all())

    def test_parts_of_relative_embeddings_are_frozen(self):
        for frozen in (["encoder.rel_embeddings"], ["encoder.LayerNorm"], ["encoder.layer"],
                       ["embeddings", "encoder.layer.0"]):
            models = []
            for stages in (1, 3):
                deck = self.trained(pipeline={"stages": stages})
                self.train(deck, f"parts{stages}", stages,
                           [f"training.optimizer.frozen={json.dumps(frozen)}"])
                models.append(self.model_bytes(f"parts{stages}"))
            self.assertEqual(*models, frozen)

    def test_a_schedule_with_all_relative_embeddings_frozen(self):
        """Gradients then end at the first stage that trains something."""
        frozen = ["embeddings", "encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv",
                  "encoder.layer.0", "encoder.layer.1"]
        deck = self.deck_file(self.trained(pipeline={"stages": 2}))
        present = [name for name in frozen if support.run(
            ["check", deck, f"training.optimizer.frozen={json.dumps([name])}"]).status == 0]
        self.assertIn("encoder.rel_embeddings", present)
        out = self.succeed(["check", "--schedule", deck,
                            f"training.optimizer.frozen={json.dumps(present)}"]).out
        self.assertIn("backward passes end at stage 1", out)
        self.assertIn("stage 1 | .  F0 B0", out)

    def test_other_models_have_no_relative_embeddings(self):
        new = {"type": "bert", "n_layer": LAYERS, "n_embd": 32, "n_head": 2, "n_positions": TOKENS}
        deck = self.deck_file(self.trained(**{"model.new": new}))
        self.assert_stops(support.run(["train", deck]), "no relative embeddings", status=2)

    def test_weights_that_the_configuration_does_not_use_are_named(self):
        self.train(self.deck(training={"steps": 1}), "whole-model", 1)
        model = self.output("whole-model") / "model"
        deck = self.deck_file(self.deck(model={"path": str(model)}, tokenizer={"train_vocabulary": 0},
                                        output={"directory": str(self.output("unused"))},
                                        training={"steps": 1}))
        self.assertNotIn("does not use", self.succeed(["train", deck]).err)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"norm_rel_ebd": "none"}))
        said = self.succeed(["train", deck]).err
        self.assertIn("encoder.LayerNorm.", said)
        self.assertIn("which config.json does not use; check its 'norm_rel_ebd'", said)

    def test_check(self):
        out = self.succeed(["check", self.deck_file(self.deck(pipeline={"stages": 2}))]).out
        self.assertIn("DeBERTa-v2 of 4 blocks x 32 channels, 3 classes", out)


class Gpt2Texts(Texts, support.TestCase):
    """A causal model that classifies by the last token."""

    TYPE = "gpt2"

    def test_a_language_model_gets_a_classifier(self):
        self.train(self.small(), "language", 1)
        source = self.output("language") / "model"
        config = json.loads((source / "config.json").read_text())
        config["pad_token_id"] = config["eos_token_id"]  # at which transformers would not pool
        (source / "config.json").write_text(json.dumps(config))
        deck = self.deck(model={"path": str(source)}, tokenizer={"train_vocabulary": 0},
                         data={"sequence_length": 10}, training={"steps": 60},
                         pipeline={"stages": 2})
        checked = self.succeed(["check", self.deck_file(deck)])
        self.assertIn("no classifier: a new one is trained", checked.out + checked.err)
        run = self.train(deck, "classifier", 2)
        self.assertLess(run.losses[-10:].mean(), 0.8 * run.losses[:10].mean())
        output = self.output("classifier") / "model"
        config = json.loads((output / "config.json").read_text())
        self.assertEqual(config["architectures"], ["GPT2ForSequenceClassification"])
        self.assertIsNone(config["pad_token_id"])
        self.assertEqual(list(config["id2label"].values()), sorted(COLOURS))
        header, _ = support.read_safetensors(output / "model.safetensors")
        self.assertEqual(header["score.weight"]["shape"][0], 3)
        self.assertNotIn("lm_head.weight", header)
        # A language model's data do not fit it any more.
        deck = self.deck_file(self.small(model={"path": str(output)}, tokenizer={"train_vocabulary": 0}))
        self.assert_stops(support.run(["evaluate", deck]), "labelled_text")


if __name__ == "__main__":
    support.main()
