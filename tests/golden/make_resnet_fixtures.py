#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/fixtures/tiny_resnet: small residual networks and what transformers computes with
them.

usage: make_resnet_fixtures.py [DIRECTORY]     with transformers 4

  model/      ResNetForImageClassification: basic blocks 1-2 of 8-12 channels, images of
              13 x 17 x 3, 5 classes
  bottleneck/ bottlenecks 2-1 of 16-24 channels, whose first convolution has the stride, which the
              first group has as well; images of 22 x 19 x 2, 3 classes
  cifar/      basic blocks 2-1-1 of 8-12-16 channels behind a convolution of 3 x 3 that keeps the
              size; images of 9 x 7 x 1, 2 classes. transformers does not load it: the keys of
              config.json that begin with "stem" are deltapipe's
  golden.h5   the reference values, computed in float64 from the stored weights, a group for each:

  images [S, B, H, W, C], labels [S, B]   S batches
  logits                                  with running statistics
  loss, gradients, training, sgd          as in make_vit_fixtures.py, with the batch's statistics;
                                          the running ones are among the values after training
"""

import functools
import json
import pathlib
import shutil
import sys

import h5py
import torch
import transformers
from safetensors.torch import load_file

from make_vit_fixtures import random_batches, write_reference

SHAPES = {"model": (13, 17), "bottleneck": (22, 19), "cifar": (9, 7)}
CIFAR_STEM = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pooling": False}


def network(config, is_cifar):
    model = transformers.ResNetForImageClassification(config)
    if is_cifar:
        embedder = model.resnet.embedder
        embedder.embedder.convolution = torch.nn.Conv2d(
            config.num_channels, config.embedding_size, 3, padding=1, bias=False)
        embedder.pooler = torch.nn.Identity()
    return model


def save_random(directory, seed, is_cifar, **shape):
    """A network whose norms and running statistics are as random as its weights."""
    torch.manual_seed(seed)
    model = network(transformers.ResNetConfig(**shape), is_cifar)
    state = model.state_dict()
    for name, value in state.items():
        if not value.is_floating_point():
            continue
        noise = torch.randn_like(value)
        if name.endswith("running_var"):
            value.copy_(0.5 + torch.rand_like(value))
        elif value.dim() == 1:
            value.copy_((1.0 if name.endswith("normalization.weight") else 0.0) + 0.3 * noise)
        else:
            value.copy_(noise / value[0].numel() ** 0.5)
    model.save_pretrained(directory)
    if is_cifar:
        path = directory / "config.json"
        config = json.loads(path.read_text()) | CIFAR_STEM
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(directory):
    config = transformers.ResNetConfig.from_pretrained(directory)
    model = network(config, directory.name == "cifar")
    model.load_state_dict(load_file(directory / "model.safetensors"))
    return model.double().train()


def run(model, batch):
    images, labels = batch
    pixels = images.double().permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = model.eval()(pixels).logits
    loss = torch.nn.functional.cross_entropy(model.train()(pixels).logits, labels)
    return logits, loss


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    default = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny_resnet"
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    names = {i: name for i, name in enumerate(("cat", "dog", "fox", "owl", "yak"))}
    save_random(directory / "model", 1, False, embedding_size=8, hidden_sizes=[8, 12],
                depths=[1, 2], layer_type="basic", id2label=names,
                label2id={name: i for i, name in names.items()})
    save_random(directory / "bottleneck", 2, False, num_channels=2, embedding_size=6,
                hidden_sizes=[16, 24], depths=[2, 1], layer_type="bottleneck", num_labels=3,
                downsample_in_first_stage=True, downsample_in_bottleneck=True)
    save_random(directory / "cifar", 3, True, num_channels=1, embedding_size=8,
                hidden_sizes=[8, 12, 16], depths=[2, 1, 1], layer_type="basic")
    generator = torch.Generator().manual_seed(29)
    with h5py.File(directory / "golden.h5", "w", libver=("v110", "v110")) as file:
        for name, size in SHAPES.items():
            model = load(directory / name)
            batches = random_batches(generator, model.config, size)
            write_reference(file.create_group(name), functools.partial(load, directory / name),
                            batches, run)


if __name__ == "__main__":
    main()
