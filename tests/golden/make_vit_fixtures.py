#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_vit: small vision transformers and what transformers computes with them.

usage: make_vit_fixtures.py [DIRECTORY]     with transformers 4, whose parameters have the names
                                            of the files

  model/      ViTForImageClassification: 3 layers, 3 heads, 24 channels, 40 hidden, images of
              12 x 12 x 3 in patches of 4 x 4, 5 classes, GELU by erf
  wide/       2 layers, images of 6 x 9 x 1 in patches of 3 x 3, ReLU, another epsilon, 2 classes
  golden.h5   the reference values, computed in float64 from the stored weights, a group for each:

  images [S, B, H, W, C], labels [S, B]   S batches
  logits, loss, gradients, training       as in make_bert_fixtures.py
  sgd/...                                 as training, with SGD; all parameters decay
"""

import functools
import pathlib
import shutil
import sys

import h5py
import torch
import transformers

from make_bert_fixtures import STEPS, WEIGHT_DECAY, write_adamw, write_gradients, write_training
from make_gpt2_fixtures import write

BATCH = 4
SGD_RATE, MOMENTUM = 0.05, 0.9


def random_model(seed, **shape):
    """A ViT whose biases, norms and positions are as random as its matrices."""
    config = transformers.ViTConfig(
        hidden_size=24, intermediate_size=40, num_attention_heads=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="eager", **shape)
    torch.manual_seed(seed)
    model = transformers.ViTForImageClassification(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "layernorm" in name:
            parameter.data = (1.0 if name.endswith("weight") else 0.0) + 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.2 * noise
        elif name.endswith(("cls_token", "position_embeddings")):
            parameter.data = 0.5 * noise
        else:
            parameter.data = noise / parameter[0].numel() ** 0.5
    return model


def load(directory):
    model = transformers.ViTForImageClassification.from_pretrained(
        directory, attn_implementation="eager", local_files_only=True)
    return model.double().train()


def random_batches(generator, config, size):
    """Labels depend on the pixels. Images are [B, H, W, C] of float32 values."""
    batches = []
    for _ in range(STEPS):
        shape = (BATCH, *size, config.num_channels)
        images = (64 * torch.randn(shape, generator=generator)).round() / 64  # write() keeps them
        labels = (images.sum((1, 2, 3)) * 3).long() % config.num_labels
        batches.append((images, labels))
    return batches


def run(model, batch):
    images, labels = batch
    logits = model(images.double().permute(0, 3, 1, 2)).logits
    return logits, torch.nn.functional.cross_entropy(logits, labels)


def write_reference(group, load_model, batches, compute):
    """The batches, and what a new model of load_model() computes with them."""
    write(group, "images", torch.stack([images for images, _ in batches]).numpy())
    write(group, "labels", torch.stack([labels for _, labels in batches]).numpy())
    write_gradients(group, load_model(), batches[0], compute)
    write_adamw(group, load_model(), batches, compute)
    trained = load_model()
    sgd = torch.optim.SGD(trained.parameters(), lr=SGD_RATE, momentum=MOMENTUM,
                          weight_decay=WEIGHT_DECAY)
    write_training(group, "sgd", trained, batches, compute, sgd, learning_rate=SGD_RATE,
                   momentum=MOMENTUM)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_vit"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    names = {i: name for i, name in enumerate(("cat", "dog", "fox", "owl", "yak"))}
    models = {
        "model": random_model(1, num_hidden_layers=3, image_size=12, patch_size=4, id2label=names,
                              label2id={name: i for i, name in names.items()}),
        "wide": random_model(2, num_hidden_layers=2, image_size=[6, 9], patch_size=3,
                             num_channels=1, hidden_act="relu", layer_norm_eps=1e-6),
    }
    generator = torch.Generator().manual_seed(23)
    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        for name, model in models.items():
            model.save_pretrained(directory / name)
            size = model.config.image_size
            batches = random_batches(generator, model.config,
                                     (size, size) if isinstance(size, int) else size)
            write_reference(file.create_group(name), functools.partial(load, directory / name),
                            batches, run)


if __name__ == "__main__":
    main()
