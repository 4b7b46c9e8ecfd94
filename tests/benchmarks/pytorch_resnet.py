#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains the ResNet-18 of inputs/quickstart_images.toml in PyTorch, with the same schedule, and prints
accuracy and speed as JSON: the other side of `deltapipe train`. Without --images, random images
measure the speed alone. Exit status 77: no PyTorch.

usage: pytorch_resnet.py [--images DIRECTORY] [options]
"""

import argparse
import gzip
import json
import math
import pathlib
import time

from pytorch_training import peak_bytes, torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(width, channels, classes):
    layers = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for group in range(4):
        for index in range(2):
            outputs = width << group
            layers.append(Block(inputs, outputs, 2 if group > 0 and index == 0 else 1))
            inputs = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    for module in model.modules():  # as transformers and deltapipe do
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model.to(memory_format=torch.channels_last)


def read_idx(path):
    with gzip.open(path) as file:
        data = bytearray(file.read())
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def load(directory, part, count):
    pixels = read_idx(directory / f"{part}-images-idx3-ubyte.gz")[:count]
    images = (pixels[:, None].float() / 255 - 0.286) / 0.353
    labels = read_idx(directory / f"{part}-labels-idx1-ubyte.gz")[:count].long()
    return images.contiguous(memory_format=torch.channels_last), labels


def rate_at(step, steps, arguments):
    if step < arguments.warmup:
        return arguments.rate * step / arguments.warmup
    done = (step - arguments.warmup) / max(1, steps - arguments.warmup)
    return arguments.rate * 0.5 * (1 + math.cos(math.pi * done))


def train(model, images, labels, arguments):
    """Returns the seconds of each step. A step has micro-batches, each with its statistics."""
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9,
                                weight_decay=arguments.decay)
    batch = arguments.micro_batch * arguments.micro_batches
    per_epoch = math.ceil(len(images) / batch)
    seconds = []
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images))
        for index in range(per_epoch):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = rate_at(epoch * per_epoch + index, arguments.epochs * per_epoch,
                                      arguments)
            chosen = order[index * batch:(index + 1) * batch]
            for part in chosen.split(arguments.micro_batch):
                with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
                    loss = functional.cross_entropy(model(images[part]), labels[part],
                                                    reduction="sum") / len(chosen)
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(time.perf_counter() - started)
    return seconds


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        right = sum((model(images[i:i + 500]).argmax(1) == labels[i:i + 500]).sum().item()
                    for i in range(0, len(images), 500))
    return right / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=pathlib.Path, help="directory of Fashion-MNIST's files")
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--validation", type=int, default=10000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--side", type=int, default=32, help="of random images")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="torch.autocast")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)
    if arguments.images:
        images, labels = load(arguments.images, "train", arguments.samples)
    else:
        images = torch.randn(arguments.samples, 3, arguments.side, arguments.side)
        labels = torch.randint(10, (arguments.samples,))
        images = images.contiguous(memory_format=torch.channels_last)
    model = resnet18(arguments.width, images.shape[1], 10).train()
    seconds = train(model, images, labels, arguments)
    median = sorted(seconds)[len(seconds) // 2]
    result = {"step_seconds": median, "version": torch.__version__, "peak_bytes": peak_bytes(),
              "images_per_second": arguments.micro_batch * arguments.micro_batches / median}
    if arguments.images:
        result["accuracy"] = accuracy(
            model, *load(arguments.images, "t10k", arguments.validation))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
