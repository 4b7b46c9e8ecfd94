#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Image classification from decks: IDX and CIFAR files and directories of PNG and JPEG files through a
ViT and a ResNet, augmentation, training, restart, evaluation and predictions."""

import csv
import gzip
import itertools
import json
import re
import shutil
import struct
import subprocess
import zlib

import h5py
import numpy as np

import support
from commands_test import python_with_transformers

LAYERS, SIDE, CLASSES = 4, 8, 3


def images_and_labels(count, seed=1):
    """Bright bars, which lie, stand, or fill a corner, on noise."""
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, CLASSES, count).astype(np.uint8)
    images = numbers.integers(0, 60, (count, SIDE, SIDE)).astype(np.uint8)
    for image, label in zip(images, labels):
        at = numbers.integers(1, SIDE - 2)
        if label == 0:
            image[at:at + 2] = 230
        elif label == 1:
            image[:, at:at + 2] = 230
        else:
            image[:4, :4] = 230
    return images, labels


def write_idx(directory, name, count, seed=1, compress=False):
    images, labels = images_and_labels(count, seed)
    paths = []
    for kind, magic, data in (("images-idx3", 0x803, images), ("labels-idx1", 0x801, labels)):
        header = struct.pack(f">{1 + data.ndim}I", magic, *data.shape)
        path = directory / f"{name}-{kind}-ubyte{'.gz' if compress else ''}"
        with (gzip.open if compress else open)(path, "wb") as file:
            file.write(header + data.tobytes())
        paths.append(path)
    return paths[0]


def write_png(path, image):
    """An image [H, W] or [H, W, 3] with 8 bits a value."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", *image.shape[1::-1], 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def json_of_transformers(test, program, *arguments):
    """What a program for a Python with transformers prints as its last line; without such a Python,
    the test is skipped."""
    python = python_with_transformers()
    if python is None:
        test.skipTest("no python3 here has transformers, PyTorch and h5py")
    made = subprocess.run([python, "-c", program, *arguments],
                          capture_output=True, text=True, check=False)
    test.assertEqual(made.returncode, 0, made.stderr)
    return json.loads(made.stdout.splitlines()[-1])


class Images(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = write_idx(cls.place, "train", 240)
        cls.validation = write_idx(cls.place, "validation", 33, seed=2, compress=True)

    @classmethod
    def deck(cls, **sections):
        deck = {
            "model.new": {"type": "vit", "n_layer": LAYERS, "n_embd": 32, "n_head": 2,
                          "patch_size": 2},
            "data": {"kind": "images", "train": [str(cls.data)],
                     "validation": [str(cls.validation)]},
            "data.images": {"padding": 1, "flip": True},
            "training": {"steps": 8, "micro_batch_size": 3, "micro_batches": 2, "seed": 1},
            "training.optimizer": {"learning_rate": 1e-3, "schedule": "constant"},
            "output": {"overwrite": True},
        }
        return support.merged(
            deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    def check_probabilities(self, architecture, model, images, probabilities, rtol, atol):
        """Those that transformers computes from the saved model, which it loads without remarks."""
        program = """
import json, sys, numpy, torch, transformers
model, info = getattr(transformers, sys.argv[1]).from_pretrained(
    sys.argv[2], output_loading_info=True)
assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
pixels = (torch.tensor(numpy.load(sys.argv[3])) / 255 - 0.5) / 0.5
with torch.no_grad():
    logits = model.double().eval()(pixels.double()[:, None]).logits
print(json.dumps(logits.softmax(-1).tolist()))
"""
        np.save(self.place / "images.npy", images)
        expected = json_of_transformers(self, program, architecture, model,
                                        self.place / "images.npy")
        np.testing.assert_allclose(probabilities, expected, rtol=rtol, atol=atol)

    def test_preprocessor(self):
        def written(name, *overrides):
            self.train(self.deck(training={"steps": 1}), name, 1, overrides)
            return json.loads(
                (self.output(name) / "model/preprocessor_config.json").read_text())

        cropped = written("cropped", "data.images.mean=0.25", "data.images.deviation=0.125")
        self.assertEqual((cropped["size"], cropped["crop_size"]),
                         ({"shortest_edge": SIDE}, {"height": SIDE, "width": SIDE}))
        self.assertEqual((cropped["image_mean"], cropped["image_std"]), ([0.25], [0.125]))
        self.assertAlmostEqual(cropped["rescale_factor"], 1 / 255)
        self.assertFalse(cropped["do_convert_rgb"])  # images have one channel
        written("cropped")
        self.assertFalse((self.output("cropped") / "model.former").exists())
        written("cropped", "data.images.mean=0.25", "data.images.deviation=0.125")
        path = f"model.path={self.output('cropped') / 'model'}"
        said = self.succeed(["check", self.deck_file(self.deck()), path]).err
        self.assertIn("data.images.mean = [0.25] and data.images.deviation = [0.125]", said)
        same = ["data.images.mean=0.25", "data.images.deviation=0.125"]
        said = self.succeed(["check", self.deck_file(self.deck()), path, *same]).err
        self.assertNotIn("other values", said)
        stretched = written("stretched", path, "data.images.fit=stretch", "data.images.mean=0.5")
        self.assertEqual(stretched["size"], {"height": SIDE, "width": SIDE})
        self.assertEqual((stretched["image_mean"], stretched["image_std"]), ([0.5], [0.5]))
        (self.output("cropped") / "model/preprocessor_config.json").write_text("{")
        scalar = json.dumps({"image_mean": 0.5, "image_std": 0.5})
        for text, parts in (("{", ["not compared", "preprocessor_config.json:1"]),
                            ("[]", ["not compared", "not a JSON object"]),
                            ('{"image_mean": "0.5"}', ["'image_mean' is not a number"]),
                            (scalar, [])):
            (self.output("cropped") / "model/preprocessor_config.json").write_text(text)
            said = self.succeed(["check", self.deck_file(self.deck()), path]).err
            for part in parts or [""]:
                self.assertIn(part, said)
            self.assertEqual("mean" in said, bool(parts), said)

    def test_stages_change_nothing(self):
        self.check_stages(lambda keys: self.deck(pipeline=keys))

    def test_recomputation_precision_and_frozen_parameters(self):
        deck = self.deck(pipeline={"stages": 2})
        plain = self.train(deck, "fp32", 2)
        again = self.train(deck, "recomputed", 2, ["training.recompute=true"])
        self.assertEqual(plain.losses.tobytes(), again.losses.tobytes())
        halves = self.train(deck, "bf16", 2, ["training.precision=bf16"])
        np.testing.assert_allclose(halves.losses, plain.losses, rtol=0.02)
        frozen = ["embeddings.cls_token", "embeddings.patch_embeddings.projection.bias"]
        self.train(deck, "frozen", 2, [f"training.optimizer.frozen={json.dumps(frozen)}"])
        header, data = support.read_safetensors(self.output("frozen") / "model/model.safetensors")
        trained, other = support.read_safetensors(self.output("fp32") / "model/model.safetensors")
        for name, about in header.items():
            if name != "__metadata__":
                same = (data[slice(*about["data_offsets"])]
                        == other[slice(*trained[name]["data_offsets"])])
                self.assertFalse(same, name)
        bias = header["vit.embeddings.patch_embeddings.projection.bias"]["data_offsets"]
        self.assertFalse(any(data[slice(*bias)]))

    def test_codecs_learn(self):
        # The rate falls to 0: at a constant one the last accuracy depends on rounding.
        deck = self.deck(pipeline={"stages": 2}, training={"steps": 600},
                         training__optimizer={"schedule": "linear"},
                         boundary__forward={"codec": "aqsgd", "bits": 4},
                         boundary__backward={"codec": "directq", "bits": 8})
        run = self.train(deck, "codec", 2)
        self.assertGreater(run.evaluations["accuracy"][-1], 0.9)

    def test_augmentation_changes_training_only(self):
        plain = self.train(self.deck(data__images={"padding": 0, "flip": False}), "plain", 1)
        views = self.train(self.deck(), "views", 1)
        self.assertFalse((plain.losses == views.losses).any())
        model = self.output("views") / "model"
        said = [self.succeed(["evaluate", self.deck_file(
            self.deck(model={"path": str(model)}, data__images=keys))]).out.split("accuracy")[1]
            for keys in ({"padding": 0, "flip": False}, {"padding": 3, "flip": True})]
        self.assertEqual(said[0].splitlines()[0], said[1].splitlines()[0])

    def test_a_restart_with_sgd_goes_on_with_the_same_bits(self):
        deck = self.deck(pipeline={"stages": 2}, training={"steps": 60},
                         training__optimizer={"name": "sgd", "learning_rate": 0.05,
                                              "momentum": 0.9, "weight_decay": 5e-4,
                                              "decay_all": True, "schedule": "cosine",
                                              "decay_steps": 120},
                         boundary__forward={"codec": "aqsgd", "bits": 3},
                         boundary__backward={"codec": "directq", "bits": 6},
                         checkpoint={"every_steps": 25}, output={"overwrite": False})

        def change(output):
            self.assert_stops(
                support.run(["train", self.deck_file(deck), f"output.directory={output}",
                             "training.optimizer.name=adamw", "checkpoint.change_optimizer=true"],
                            2),
                "training.optimizer.name must not change at a restart")
        self.check_restart(deck, change)

    @classmethod
    def moving(cls, **sections):
        """A deck whose memories in both directions move, and are compared at each visit."""
        deck = support.merged(cls.deck(
            boundary={"move_memories": True},
            boundary__forward={"codec": "aqsgd_topk", "topk": 0.1},
            boundary__backward={"codec": "topk", "topk": 0.3},
            boundary__backward__feedback={"kind": "ef21"}, cache={"verify_every": 1},
            data__images={"padding": 2}, output={"log_every": 5}))
        return support.merged(
            deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    def test_memories_move_with_images(self):
        deck = self.moving(pipeline={"stages": 2}, training={"steps": 120})
        moved = self.train(deck, "moved", 2)
        spilled = self.train(deck, "spilled", 2, ["cache.budget=\"1 MiB\"", "cache.prefetch=1"])
        self.assertEqual(moved.losses.tobytes(), spilled.losses.tobytes())
        self.assertEqual(self.model_bytes("moved"), self.model_bytes("spilled"))
        kept = self.train(deck, "kept", 2, ["boundary.move_memories=false"])
        np.testing.assert_array_equal(moved.losses[:40], kept.losses[:40])  # first visits
        self.assertFalse((moved.losses[41:] == kept.losses[41:]).any())

    def test_memories_move_over_more_stages(self):
        for stages, schedule in ((3, "zb-h1"), (4, "gpipe")):
            run = self.train(self.moving(pipeline={"stages": stages, "schedule": schedule},
                                         training={"steps": 50}), f"moved{stages}", stages)
            self.assertTrue(np.isfinite(run.losses).all())
        for kind in ("ef", "mixed"):
            self.train(self.moving(pipeline={"stages": 2}, training={"steps": 50},
                                   boundary__forward={"codec": "aqsgd", "warmup_epochs": 1},
                                   boundary__backward__feedback={"kind": kind}), kind, 2)

    def test_a_restart_with_moved_memories_goes_on_with_the_same_bits(self):
        deck = self.moving(pipeline={"stages": 2}, training={"steps": 100},
                           checkpoint={"every_steps": 45}, output={"overwrite": False})

        def change(output):
            self.assert_stops(
                support.run(["train", self.deck_file(deck), f"output.directory={output}",
                             "boundary.move_memories=false"], 2),
                "boundary.move_memories must not change at a restart")
        self.check_restart(deck, change)

    def test_replicas(self):
        deck = self.deck(pipeline={"stages": 2, "replicas": 2}, training={"steps": 120})
        run = self.train(deck, "replicas", 4)
        self.assertLess(run.losses[-10:].mean(), 0.8 * run.losses[:10].mean())

    def test_predictions_are_those_of_transformers(self):
        self.train(self.deck(training={"steps": 25}), "saved", 1)
        model = self.output("saved") / "model"
        deck = self.deck_file(self.deck(model={"path": str(model)}, pipeline={"stages": 2}))
        output = self.output("predictions")
        self.succeed(["predict", deck, f"output.directory={output}"], 2)
        with h5py.File(output / "predictions.h5", "r") as file:
            classes, labels = list(file.attrs["classes"]), file["label"][()]
            probabilities = file["probabilities"][()]
            confusion = file["confusion"][()]
        self.assertEqual([str(name) for name in classes], ["0", "1", "2"])
        truth = np.zeros((CLASSES, CLASSES), int)
        np.add.at(truth, (labels, probabilities.argmax(1)), 1)
        np.testing.assert_array_equal(confusion, truth)
        images, truth = images_and_labels(33, seed=2)
        np.testing.assert_array_equal(labels, truth)
        bare = write_idx(self.place, "bare", 33, seed=2)
        (self.place / "bare-labels-idx1-ubyte").unlink()
        again = self.output("unlabelled")
        self.succeed(["predict", deck, f"output.directory={again}", f"data.predict={bare}"], 2)
        with h5py.File(again / "predictions.h5", "r") as file:
            self.assertTrue((file["label"][()] == -1).all())
            self.assertNotIn("confusion", file)
            np.testing.assert_array_equal(file["probabilities"][()], probabilities)
        both, names = self.output("both"), json.dumps([str(bare), str(self.validation)])
        self.succeed(["predict", deck, f"output.directory={both}", f"data.predict={names}"], 2)
        with h5py.File(both / "predictions.h5", "r") as file:
            np.testing.assert_array_equal(file["label"][()], [*[-1] * 33, *labels])
            np.testing.assert_array_equal(file["confusion"][()], confusion)
        self.check_probabilities("ViTForImageClassification", model, images, probabilities,
                                 rtol=1e-5, atol=1e-6)

    def test_cifar(self):
        numbers = np.random.default_rng(3)
        path = self.place / "data_batch_1.bin"
        path.write_bytes(b"".join(bytes([int(numbers.integers(10))]) + numbers.bytes(3072)
                                  for _ in range(20)))
        deck = self.deck(data={"train": [str(path)], "validation": []},
                         model__new={"patch_size": 8}, training={"steps": 2})
        self.train(deck, "cifar", 1)
        config = json.loads((self.output("cifar") / "model/config.json").read_text())
        self.assertEqual(config["id2label"]["0"], "airplane")
        self.assertEqual((config["image_size"], config["num_channels"]), (32, 3))

    def test_check(self):
        out = self.succeed(["check", self.deck_file(self.deck(pipeline={"stages": 2}))]).out
        self.assertIn("ViT of 4 blocks x 32 channels, images of 8 x 8 x 1", out)
        self.assertIn("3 classes with", out)
        made = support.run(["check", self.deck_file(self.deck()), "model.new.patch_size=7",
                            "data.train=[\"lost-images-idx3-ubyte\"]"])
        self.assertIn("lost-images-idx3-ubyte is missing", made.out + made.err)
        self.assertIn("28 x 28 x 3 is assumed", made.out)

    def test_mistakes(self):
        lost = self.place / "lost-images-idx3-ubyte"
        lost.write_bytes(self.data.read_bytes())
        cut = self.place / "cut-images-idx3-ubyte"
        cut.write_bytes(self.data.read_bytes()[:-1])
        (self.place / "cut-labels-idx1-ubyte").write_bytes(
            (self.place / "train-labels-idx1-ubyte").read_bytes())
        self.train(self.deck(training={"steps": 1}), "small", 1)
        model = self.output("small") / "model"
        other = write_idx(self.place, "other", 10)
        numbers = np.random.default_rng(4)
        ten, hundred = self.place / "ten.bin", self.place / "hundred.bin"
        ten.write_bytes(b"".join(b"\3" + numbers.bytes(3072) for _ in range(4)))
        hundred.write_bytes(b"".join(b"\1\3" + numbers.bytes(3072) for _ in range(4)))
        (self.place / "texts.csv").write_text("text,label\na,x\nb,y\n")
        for overrides, parts in (
                ([f"data.train=[\"{lost}\"]"], ["labels is missing"]),
                ([f"data.train=[\"{cut}\"]"], ["ends before"]),
                (["data.kind=text", "tokenizer.train_vocabulary=300"], ["identify its format"]),
                (["model.new.type=gpt2"],
                 ["do not have what the model requires", "\"labelled_text\""]),
                (["model.new.patch_size=3"], ["model.new.patch_size does not divide"]),
                (["data.kind=labelled_text", "tokenizer.train_vocabulary=300",
                  f"data.train=[\"{self.place}/texts.csv\"]", "data.validation=[]"],
                 ["do not have what the model requires", "\"images\""]),
                (["data.images.deviation=0"], ["must be above 0"]),
                (["data.images.mean=[0.1,0.2]"], ["2 values, 1 channels"]),
                (["data.sequence_length=8"], ["is for texts"]),
                (["data.format=jsonl"], ["is not one of images"]),
                (["training.optimizer.decay_steps=3", "training.optimizer.warmup_steps=4"],
                 ["decay ends before its warm-up"]),
                ([f"data.train=[\"{ten}\", \"{hundred}\"]", "data.validation=[]",
                  "model.new.patch_size=8"], ["another format than"]),
                ([f"data.train=[\"{hundred}\"]", f"data.validation=[\"{ten}\"]",
                  "model.new.patch_size=8"], ["has other classes than the images"]),
                (["training.optimizer.name=sgd", "training.optimizer.learning_rate=1000",
                  "training.optimizer.weight_decay=1000", "training.optimizer.decay_all=true",
                  "training.optimizer.momentum=0", "training.optimizer.clip_norm=0",
                  "training.optimizer.frozen=[\"embeddings.*\", \"encoder.*\", \"layernorm.*\"]",
                  "training.steps=7", "data.validation=[]", "data.validation_fraction=0"],
                 ["the trained weights are not finite"]),
                (["tokenizer.train_vocabulary=300"], ["images have no tokenizer"]),
                (["evaluation.prompts=[\"p.jsonl\"]"], ["requires a language model"]),
                ([f"model.path={model}", f"data.train=[\"{other}\"]",
                  f"data.validation=[\"{self.place}/data.bin\"]", "data.format=cifar10"],
                 ["data.bin"])):
            made = support.run(["train", self.deck_file(self.deck()), *overrides,
                                f"output.directory={self.output('mistakes')}"])
            self.assert_stops(made, *parts)


class Directories(support.TestCase):
    """The same images, enlarged and in colours, as PNG files of several sizes."""

    NAMES = ["lying", "standing", "tucked in"]

    @classmethod
    def write_classes(cls, name, count, seed=1):
        images, labels = images_and_labels(count, seed)
        for i, (image, label) in enumerate(zip(images, labels)):
            scaled = image.repeat(2 + i % 3, 0).repeat(2 + i % 2, 1)
            colours = np.stack([scaled, scaled // 2, 255 - scaled], -1)
            write_png(cls.place / name / cls.NAMES[label] / f"{i:03}.png", colours)
        return cls.place / name, labels

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, _ = cls.write_classes("train", 240)
        cls.validation, cls.labels = cls.write_classes("validation", 33, seed=2)
        (cls.data / "README.txt").write_text("not an image")

    @classmethod
    def deck(cls, **sections):
        deck = support.merged(Images.deck.__func__(cls), {"data.images": {"size": SIDE}})
        return support.merged(
            deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    def test_stages_change_nothing(self):
        self.check_stages(lambda keys: self.deck(pipeline=keys))

    def test_an_export_has_the_size_of_the_run(self):
        """The parameters of a residual network fit images of any size."""
        new = {"type": "resnet", "depths": [1, 1], "n_embd": 4, "stem": "cifar"}
        deck = self.deck_file(self.deck(
            model__new=new, checkpoint={"every_steps": 1, "milestone_every": 2},
            training={"steps": 2}, data__images={"size": 2 * SIDE}))
        output, to = self.output("sized"), self.place / "sized-model"
        self.succeed(["train", deck, f"output.directory={output}"])
        self.succeed(["export", deck, f"output.directory={output}", f"data.images.size={SIDE}",
                      "output.overwrite=false", "--to", str(to)])
        self.assertEqual(json.loads((to / "config.json").read_text())["image_size"], 2 * SIDE)
        crop = json.loads((to / "preprocessor_config.json").read_text())["crop_size"]
        self.assertEqual(crop["height"], 2 * SIDE)

    def test_predictions_are_those_of_idx_files(self):
        grey, labels = images_and_labels(33, seed=2)
        idx = write_idx(self.place, "same", 33, seed=2)
        deck = self.deck(data={"train": [str(idx)], "validation": [str(idx)]},
                         data__images={"size": []}, training={"steps": 25})
        self.train(deck, "grey", 1)
        for i, (image, label) in enumerate(zip(grey, labels)):
            write_png(self.place / "grey files" / str(label) / f"{i:03}.png", image)
        results = []
        for data in (str(idx), str(self.place / "grey files")):
            output = self.output(f"predicted {len(results)}")
            self.succeed(["predict", self.deck_file(deck),
                          f"model.path={self.output('grey') / 'model'}", f"data.predict={data}",
                          f"output.directory={output}"])
            with h5py.File(output / "predictions.h5", "r") as file:
                results.append((file["label"][()], file["probabilities"][()]))
        order = np.argsort(labels, kind="stable")
        np.testing.assert_array_equal(results[0][0][order], results[1][0])
        np.testing.assert_array_equal(results[0][1][order], results[1][1])

    def test_image_processors_of_transformers_prepare_the_same_pixels(self):
        # Even numbers of rows and columns are cut: for odd ones, their centre is another pixel.
        sizes = {"crop": [(2 * SIDE, 2 * SIDE + 4), (2 * SIDE + 8, 2 * SIDE)],
                 "stretch": [(2 * SIDE + 3, SIDE + 1), (SIDE, 3 * SIDE), (SIDE - 3, SIDE - 2)]}
        numbers = np.random.default_rng(5)
        for fit, shapes in sizes.items():
            photos = self.place / f"photos-{fit}"
            for count, (shape, label) in enumerate(itertools.product(shapes, ("cat", "dog"))):
                write_png(photos / label / f"{count}.png",
                          numbers.integers(0, 256, (*shape, 3)).astype(np.uint8))
            deck = self.deck(data={"train": [str(photos)], "validation": [str(photos)]},
                             data__images={"fit": fit, "mean": [0.4, 0.5, 0.6], "deviation": 0.2})
            self.train(deck, f"processor-{fit}", 1)
            model, output = (self.output(f"processor-{fit}{end}") for end in ("/model", "-predicted"))
            self.succeed(["predict", self.deck_file(deck), f"model.path={model}",
                          f"output.directory={output}", f"data.predict={photos}"])
            with open(output / "predictions.csv", newline="") as file:
                names = [row["file"] for row in csv.DictReader(file)]
            with h5py.File(output / "predictions.h5") as file:
                probabilities = file["probabilities"][:]
            program = """
import json, sys, torch, transformers
from PIL import Image
processor = transformers.AutoImageProcessor.from_pretrained(sys.argv[1])
model = transformers.ViTForImageClassification.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    print(json.dumps([model(**processor(images=Image.open(path), return_tensors="pt"))
                      .logits.softmax(-1)[0].tolist() for path in sys.argv[2:]]))
"""
            expected = json_of_transformers(self, program, model,
                                            *(photos / name for name in names))
            np.testing.assert_allclose(probabilities, expected, rtol=0, atol=2e-6)

    def test_classes_and_files_have_names(self):
        self.train(self.deck(training={"steps": 300}, pipeline={"stages": 3},
                             training__optimizer={"schedule": "linear"}), "named", 3)
        model = self.output("named") / "model"
        config = json.loads((model / "config.json").read_text())
        self.assertEqual(list(config["id2label"].values()), self.NAMES)
        self.assertEqual((config["image_size"], config["num_channels"]), (SIDE, 3))
        # The model has a size; the deck needs none.
        deck = self.deck_file(self.deck(model={"path": str(model)}, data__images={"size": []},
                                        pipeline={"stages": 2}))
        labelled = self.output("labelled")
        out = self.succeed(["predict", deck, f"output.directory={labelled}"], 2).out
        self.assertIn("label (rows) and prediction", out)
        flat = self.place / "flat"
        flat.mkdir()
        files = sorted(self.validation.glob("*/*.png"))
        for i, file in enumerate(files):
            shutil.copy(file, flat / f"{i:02}, {file.parent.name}.png")
        (flat / "notes.txt").write_text("not an image")
        unlabelled = self.output("unlabelled")
        self.succeed(["predict", deck, f"data.predict={flat}", f"output.directory={unlabelled}"], 2)
        with h5py.File(labelled / "predictions.h5", "r") as one, \
                h5py.File(unlabelled / "predictions.h5", "r") as two:
            np.testing.assert_array_equal(one["probabilities"][()], two["probabilities"][()])
            np.testing.assert_array_equal(one["label"][()], np.sort(self.labels))
            self.assertGreater((one["label"][()] == one["prediction"][()]).mean(), 0.8)
            self.assertTrue((two["label"][()] == -1).all())
        with open(unlabelled / "predictions.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["file"] for row in rows], sorted(p.name for p in flat.glob("*.png")))
        self.assertEqual({row["label"] for row in rows}, {""})
        with open(labelled / "predictions.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["file"] for row in rows],
                         [str(file.relative_to(self.validation)) for file in files])
        self.assertEqual([row["label"] for row in rows], [file.parent.name for file in files])

    def test_a_part_is_held_out(self):
        run = self.train(self.deck(data={"validation": [], "validation_fraction": 0.25},
                                   pipeline={"stages": 2}), "part", 2)
        self.assertEqual(len(run.losses), 8)
        out = self.succeed(["check", self.deck_file(self.deck(
            data={"validation": [], "validation_fraction": 0.25}))]).out
        self.assertIn("180 training samples (180 labels), 60 validation samples", out)

    def test_fits_differ(self):
        crop = self.train(self.deck(), "crop", 1)
        stretch = self.train(self.deck(data__images={"fit": "stretch"}), "stretch", 1)
        self.assertFalse((crop.losses == stretch.losses).any())

    def test_check(self):
        made = self.succeed(["check", self.deck_file(self.deck(pipeline={"stages": 2}))])
        self.assertIn("images of 8 x 8 x 3", made.out)
        self.assertIn("3 classes with", made.out)
        self.assertIn("among the images that are ignored: 1, the first is", made.out)
        lost = support.run(["check", self.deck_file(self.deck()), "data.train=[\"lost\"]"])
        self.assertIn("lost is missing", lost.out + lost.err)

    def test_mistakes(self):
        cut = self.place / "cut"
        shutil.copytree(self.data, cut)
        damaged = sorted(cut.glob("*/*.png"))[100]
        damaged.write_bytes(damaged.read_bytes()[:-20])
        other = self.place / "other"
        shutil.copytree(self.validation, other)
        (other / "lying").rename(other / "hanging")
        animated = self.place / "animated"
        shutil.copytree(self.validation, animated)
        (animated / "lying" / "a.gif").write_bytes(b"GIF89a")
        flat = self.data / self.NAMES[0]
        idx = write_idx(self.place, "other", 10)
        self.train(self.deck(training={"steps": 1}), "small", 1)
        model = self.output("small") / "model"
        for overrides, parts in (
                ([f"data.train=[\"{cut}\"]"], [str(damaged), "the image is damaged"]),
                ([f"data.validation=[\"{other}\"]"], ["not one of the model's 3 classes", "hanging"]),
                ([f"data.train=[\"{animated}\"]"], ["a.gif: images of this kind are not read"]),
                ([f"data.train=[\"{flat}\"]"], ["the directory has no classes"]),
                ([f"data.train=[\"{self.data}\", \"{idx}\"]"], ["another format than"]),
                ([f"data.train=[\"{idx}\"]"], ["data.images.size is for directories"]),
                (["data.images.size=[]"], ["differ in size from", "set data.images.size"]),
                (["data.images.size=[1,2,3]"], ["neither a side nor height and width"]),
                (["data.images.size=0"], ["data.images.size"]),
                (["data.images.size=9"], ["model.new.patch_size does not divide"]),
                ([f"model.path={model}", "data.images.size=10"],
                 ["is not the size of the model's images"]),
                (["data.kind=text", "tokenizer.train_vocabulary=300"], ["Is a directory"]),
                (["data.format=jsonl"], ["is not one of images"])):
            for ranks in (1, 2):
                made = support.run(["train", self.deck_file(self.deck()), *overrides,
                                    f"pipeline.stages={ranks}",
                                    f"output.directory={self.output('mistakes')}"], ranks)
                self.assert_stops(made, *parts)


class Resnet(Images):
    """The same of a ResNet, and what batch normalisation adds. Samples have other shapes at each
    boundary."""

    @classmethod
    def deck(cls, **sections):
        new = {"type": "resnet", "depths": [1, 1, 1, 1], "n_embd": 4, "stem": "cifar"}
        deck = support.merged(super().deck(), {"model.new": new})
        return support.merged(
            deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    def test_recomputation_precision_and_frozen_parameters(self):
        deck = self.deck(pipeline={"stages": 2})
        plain = self.train(deck, "fp32", 2)
        again = self.train(deck, "recomputed", 2, ["training.recompute=true"])
        self.assertEqual(plain.losses.tobytes(), again.losses.tobytes())
        self.assertEqual((self.output("fp32") / "model/model.safetensors").read_bytes(),
                         (self.output("recomputed") / "model/model.safetensors").read_bytes())
        halves = self.train(deck, "bf16", 2, ["training.precision=bf16"])
        one = self.train(self.deck(), "bf16-one", 1, ["training.precision=bf16"])
        self.assertEqual(halves.losses.tobytes(), one.losses.tobytes())
        np.testing.assert_allclose(halves.losses[:20], plain.losses[:20], rtol=0.02)
        self.assertFalse((halves.losses == plain.losses).any())
        self.train(deck, "frozen", 2, ['training.optimizer.frozen=["embedder"]'])
        frozen = support.read_safetensors(self.output("frozen") / "model/model.safetensors")
        other = support.read_safetensors(self.output("fp32") / "model/model.safetensors")
        norm = "resnet.embedder.embedder.normalization."

        def values(model, name):
            return np.frombuffer(model[1][slice(*model[0][norm + name]["data_offsets"])], "<f4")
        np.testing.assert_array_equal(values(frozen, "weight"), 1)
        self.assertFalse((values(other, "weight") == 1).any())
        self.assertFalse((values(frozen, "running_mean") == 0).any())

    def test_moved_memories_are_nearer(self):
        """Changes of a network that hardly learns are those of the views."""
        deck = self.moving(pipeline={"stages": 2, "partition": [1, 3]}, training={"steps": 80},
                           training__optimizer={"learning_rate": 1e-6},
                           data__images={"padding": 1, "flip": False})
        errors = [np.nanmean(self.train(deck, moves, 2, [f"boundary.move_memories={moves}"])
                             .steps["forward_error"][40:]) for moves in ("true", "false")]
        self.assertLess(errors[0], 0.8 * errors[1])

    def statistics(self, name):
        header, data = support.read_safetensors(self.output(name) / "model/model.safetensors")
        return {key: np.frombuffer(data[slice(*about["data_offsets"])], "<f4")
                for key, about in header.items() if ".running_" in key}

    def test_replicas_average_statistics(self):
        """Without learning, statistics depend on the images alone: those of replicas, which see the
        even and the odd images, are averaged."""
        images, labels = images_and_labels(48, seed=3)
        for name, part in (("all", slice(None)), ("even", slice(0, None, 2)),
                           ("odd", slice(1, None, 2))):
            for kind, magic, data in (("images-idx3", 0x803, images[part]),
                                      ("labels-idx1", 0x801, labels[part])):
                header = struct.pack(f">{1 + data.ndim}I", magic, *data.shape)
                (self.place / f"{name}-{kind}-ubyte").write_bytes(header + data.tobytes())

        def deck(images):
            return self.deck(data={"train": [str(self.place / f"{images}-images-idx3-ubyte")],
                                   "shuffle": False},
                             data__images={"padding": 0, "flip": False},
                             training={"steps": 4}, training__optimizer={"learning_rate": 1e-30})

        for half in ("even", "odd"):
            self.train(deck(half), half, 1)
        even, odd = self.statistics("even"), self.statistics("odd")
        self.assertGreater(len(even), 10)
        two = ["pipeline.stages=2"]
        quantized = ["replicas.codec=quantized", "replicas.bits=2"]
        for name, ranks, keys in (
                ("plain", 2, []), ("stages", 4, two), ("coded", 2, quantized),
                ("frozen", 4, [*two, 'training.optimizer.frozen=["embedder"]']),
                ("local", 2, ["replicas.local_steps=2", *quantized]),
                ("moments", 2, ["replicas.codec=adam_moment", "replicas.warmup_epochs=0.2"])):
            with self.subTest(name):
                keys = ["pipeline.replicas=2", "pipeline.verify_replicas=1", *keys]
                run = self.train(deck("all"), name, ranks, keys)
                for key, values in self.statistics(name).items():
                    np.testing.assert_allclose(values, (even[key] + odd[key]) / 2, rtol=1e-5,
                                               atol=1e-7, err_msg=f"{name}: {key}")
                said = self.succeed(["check", self.deck_file(deck("all")), *keys]).out
                planned = [int(number.replace(",", "")) for number in re.findall(
                    r"(?m)^# sums over replicas, rank \d+ +([\d,]+);", said)]
                self.assertEqual(planned, run.steps["replica_bytes"].sum(axis=0).tolist())

    def test_a_plan_leaves_micro_batches_as_they_are(self):
        said = self.succeed(["check", "--plan", self.deck_file(self.deck(
            pipeline={"replicas": 2}, network={"bandwidth": "10 Mbit/s"})), "plan.flops=1 Gflop/s",
            "--bandwidth", "1 Mbit/s"])
        self.assertIn("training.micro_batches=2 training.micro_batch_size=3", said.out)
        self.assertIn("[network] has no effect", said.err)

    def test_a_replica_without_images_takes_part(self):
        """The last step of an epoch has images for one of two replicas."""
        data = write_idx(self.place, "few", 9)
        deck = self.deck(data={"train": [str(data)], "validation": []},
                         training={"steps": 6, "micro_batches": 1}, pipeline={"replicas": 2})
        run = self.train(deck, "few", 2, ["pipeline.verify_replicas=1"])
        self.assertTrue(np.isfinite(run.losses).all())

    def test_replicas_that_diverge(self):
        deck = self.deck(pipeline={"replicas": 2}, replicas={"codec": "quantized", "bits": 4},
                         training={"steps": 60}, training__optimizer={
                             "name": "sgd", "learning_rate": 1000, "clip_norm": 0})
        stopped = support.run(["train", self.deck_file(deck),
                               f"output.directory={self.output('diverged')}"], 2)
        self.assert_stops(stopped, "no longer finite", "or a larger replicas.bits")
        self.assertNotIn("boundaries", stopped.err)

    def test_an_export_has_the_normalisation_of_the_run(self):
        deck = self.deck_file(self.deck(checkpoint={"every_steps": 1, "milestone_every": 2},
                                        training={"steps": 2}))
        output = self.output("exported")
        self.succeed(["train", deck, f"output.directory={output}"])
        to = self.place / "exported-model"
        self.succeed(["export", deck, f"output.directory={output}", "data.images.mean=0.9",
                      "output.overwrite=false", "--to", str(to)])
        written = json.loads((to / "preprocessor_config.json").read_text())
        self.assertEqual(written["image_mean"], [0.5])

    def test_replicas_restart_with_the_same_bits(self):
        self.check_restart(self.deck(
            pipeline={"replicas": 2}, training={"steps": 40}, network={"wire": "rank"},
            replicas={"codec": "quantized", "bits": 4, "local_steps": 4},
            training__optimizer={"name": "sgd", "learning_rate": 0.02, "momentum": 0.9},
            output={"overwrite": False}))

    def test_predictions_are_those_of_transformers(self):
        # The last boundary has 2 x 2 pixels, whose mean is classified.
        self.train(self.deck(model__new={"stem": "imagenet", "depths": [2]},
                             training={"steps": 25}), "saved", 1)
        model = self.output("saved") / "model"
        deck = self.deck_file(self.deck(model={"path": str(model)}, pipeline={"stages": 2}))
        output = self.output("predictions")
        bare = write_idx(self.place, "bare", 33, seed=2)
        (self.place / "bare-labels-idx1-ubyte").unlink()
        self.succeed(["predict", deck, f"output.directory={output}", f"data.predict={bare}"], 2)
        with h5py.File(output / "predictions.h5", "r") as file:
            probabilities = file["probabilities"][()]
        images, _ = images_and_labels(33, seed=2)
        self.assertEqual(len(probabilities), len(images))
        self.check_probabilities("ResNetForImageClassification", model, images, probabilities,
                                 rtol=1e-4, atol=1e-5)

    def test_any_size_of_images(self):
        """A directory of transformers does not name the size of the images."""
        self.train(self.deck(training={"steps": 1}), "sized", 1)
        model = self.output("sized") / "model"
        config = json.loads((model / "config.json").read_text())
        del config["image_size"]
        (model / "config.json").write_text(json.dumps(config))
        run = self.train(self.deck(model={"path": str(model)}, pipeline={"stages": 2}), "any", 2)
        self.assertEqual(len(run.losses), 8)

    def test_cifar(self):
        numbers = np.random.default_rng(3)
        path = self.place / "data_batch_1.bin"
        path.write_bytes(b"".join(bytes([int(numbers.integers(10))]) + numbers.bytes(3072)
                                  for _ in range(20)))
        deck = self.deck(data={"train": [str(path)], "validation": []}, training={"steps": 2},
                         pipeline={"stages": 4, "partition": [1, 1, 1, 1]})
        self.train(deck, "cifar", 4)
        config = json.loads((self.output("cifar") / "model/config.json").read_text())
        self.assertEqual((config["image_size"], config["num_channels"]), (32, 3))
        self.assertEqual((config["hidden_sizes"], config["depths"]), ([4, 8, 16, 32], [1] * 4))

    def test_check(self):
        out = self.succeed(["check", self.deck_file(self.deck(pipeline={"stages": 4}))]).out
        self.assertIn("ResNet of 4 basic blocks, 4-8-16-32 channels, images of 8 x 8 x 1", out)
        alone = self.succeed(["check", self.deck_file(self.deck(
            model__new={"n_embd": 6}, training={"micro_batch_size": 1}))]).err
        self.assertIn("set training.micro_batch_size to 2 or more", alone)
        for boundary, values in enumerate((4 * 64, 8 * 16, 16 * 4)):
            payload = 8 * 2 * 3 * 4 * values  # steps, micro-batches, samples, bytes
            for direction in ("forward", "backward"):
                self.assertRegex(out, rf"# boundary {boundary} {direction} +{payload:,} \+")

    def test_mistakes(self):
        for overrides, parts in (
                (["model.new.depths=[1,1]", "pipeline.stages=3"],
                 ["pipeline.stages is larger than the new model's depths", "2 blocks"]),
                (["pipeline.stages=2", "pipeline.partition=[1,1]"],
                 ["pipeline.partition does not add up to the new model's depths"]),
                (["model.dropout_residual=0.1"], ["a residual network has no dropout"]),
                (['training.optimizer.frozen=["*"]'], ["there is nothing to train"]),
                (['training.optimizer.frozen=["*.running_mean"]'], ["names no parameter"]),
                (["model.new.depths=[]"], ["model.new.depths has no entries"]),
                (["model.new.depths=" + json.dumps([1] * 17)], ["or more than 16"]),
                (["model.new.n_embd=16384"], ["too many channels", "131072 of at most 65536"]),
                (["model.new.stem=small"], ["cifar", "imagenet"])):
            made = support.run(["train", self.deck_file(self.deck()), *overrides,
                                f"output.directory={self.output('mistakes')}"])
            self.assert_stops(made, *parts)


if __name__ == "__main__":
    support.main()
