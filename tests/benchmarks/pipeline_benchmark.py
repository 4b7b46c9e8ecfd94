#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares a 2-stage pipeline on two cores with one stage on one core.

usage: pipeline_benchmark.py [--preset gpt2-124m|small] [--schedule NAME] [--rounds N] [--steps N]
                             [--micro-batches M]

Both train the same model on the same random tokens with codec none, in turn. Two stages can be
2 M / (M + 1) times as fast as one: each waits one micro-batch of M while the pipeline fills or
drains; with zb-h1, of whose micro-batches only a third is waited, 6 M / (3 M + 1). Efficiency is the measured ratio to that bound; a partition that does not divide the work
evenly counts against it. Medians over all steps but each run's first two, and over rounds.
DELTAPIPE_PROGRAM names the program, else build/release/bin/deltapipe is taken.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import support  # noqa: E402

# layers, heads, channels, vocabulary, positions, samples, tokens
PRESETS = {
    "gpt2-124m": (12, 12, 768, 50257, 1024, 4, 64),
    "small": (6, 6, 384, 257, 256, 4, 256),
}
WARM_UP = 2
TIME_LIMIT = 1800  # seconds


def write_tokenizer(directory, vocabulary):
    """Bytes, then as many made-up merges of two bytes as the vocabulary requires."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1),
                 *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    merges = [(a, b) for a in letters for b in letters][:vocabulary - len(letters) - 1]
    tokens = [*letters, *("".join(merge) for merge in merges), "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}),
                                          encoding="utf-8")
    (directory / "merges.txt").write_text(
        "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")


def make_deck(place, shape, micro_batches, steps):
    layers, heads, channels, vocabulary, positions, samples, tokens = shape
    write_tokenizer(place, vocabulary)
    count = samples * micro_batches * tokens * steps + 1
    with h5py.File(place / "tokens.h5", "w") as file:
        file["tokens"] = np.random.default_rng(1).integers(vocabulary, size=count, dtype=np.int32)
    return support.write_deck(place / "deck.toml", {
        "model.new": {"n_layer": layers, "n_head": heads, "n_embd": channels,
                      "n_positions": positions},
        "tokenizer": {"path": str(place)},
        "data": {"train": [str(place / "tokens.h5")], "sequence_length": tokens,
                 "validation_fraction": 0.0},
        "training": {"steps": steps, "micro_batch_size": samples, "micro_batches": micro_batches},
        "output": {"save_model": False, "log_every": 1000, "overwrite": True}})


def step_seconds(place, deck, stages, overrides=(), warm_up=WARM_UP):
    output = place / f"stages{stages}"
    result = support.finish(
        support.start(["train", deck, f"pipeline.stages={stages}", f"output.directory={output}",
                       *overrides], ranks=stages), TIME_LIMIT)
    if result.status != 0:
        sys.exit(f"deltapipe train failed: {result}")
    return np.diff(support.Run(output / "run.h5").steps["seconds"], prepend=0.0)[warm_up:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro-batches", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}, which warm up")
    shape = PRESETS[arguments.preset]
    m = arguments.micro_batches
    bound = 2 * m / (m + 1)
    if arguments.schedule == "zb-h1" and m > 1:
        bound = 6 * m / (3 * m + 1)
    seconds = {1: [], 2: []}
    ratios = []
    with tempfile.TemporaryDirectory(prefix="deltapipe-benchmark-") as directory:
        place = pathlib.Path(directory)
        deck = make_deck(place, shape, m, arguments.steps)
        for _ in range(arguments.rounds):
            medians = {}
            for stages in seconds:
                made = step_seconds(place, deck, stages,
                                    [f"pipeline.schedule={arguments.schedule}"] * (stages > 1))
                seconds[stages].extend(made)
                medians[stages] = statistics.median(made)
            ratios.append(medians[1] / medians[2])
    tokens = shape[5] * shape[6] * m
    print(json.dumps({
        "preset": arguments.preset, "schedule": arguments.schedule, "micro_batches": m,
        "one_stage_tokens_per_second": tokens / statistics.median(seconds[1]),
        "two_stages_tokens_per_second": tokens / statistics.median(seconds[2]),
        "ratio_of_each_round": [round(ratio, 3) for ratio in ratios],
        "bound": bound, "efficiency": statistics.median(ratios) / bound}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
