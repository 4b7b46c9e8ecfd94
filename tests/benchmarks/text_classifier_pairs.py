#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the steps of `deltapipe train` on labelled texts with those of PyTorch
(pytorch_text_classifier.py): BERT and DeBERTa with 6 layers of 384 channels, 16 samples that fill
128 tokens, one core, in pairs whose runs follow each other. Needs NumPy and h5py, and an idle
machine; --python is a Python with PyTorch and transformers.

  tests/benchmarks/text_classifier_pairs.py --pairs 3

A run's step time is the median of its steps. Prints JSON: for each model both medians, the ratio
PyTorch / deltapipe of each pair with its median, and the peak memory of both processes.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import h5py
import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = SOURCE / "build/release/bin/deltapipe"
SHAPE = {"layers": 6, "channels": 384, "heads": 6, "positions": 512, "tokens": 128, "batch": 16}
WORDS = "red orange blue teal ash slate sea hill navy lead".split()
DECK = """
[model.new]
type = "{type}"
n_layer = {layers}
n_embd = {channels}
n_head = {heads}
n_positions = {positions}
[tokenizer]
train_vocabulary = 400
[data]
kind = "labelled_text"
train = ["{texts}"]
sequence_length = {tokens}
[data.labelled]
texts = ["text"]
label = "label"
[training]
steps = {steps}
micro_batch_size = {batch}
micro_batches = 1
[training.optimizer]
learning_rate = 1e-4
clip_norm = 1.0
[output]
directory = "{output}"
overwrite = true
"""


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")


def write_texts(path):
    generator = random.Random(1)
    with open(path, "w") as out:
        for _ in range(400):
            text = " ".join(generator.choice(WORDS) for _ in range(2 * SHAPE["tokens"]))
            print(json.dumps({"text": text, "label": generator.choice("abcd")}), file=out)


def peak_of(command):
    """Runs the command and returns its peak resident memory in bytes."""
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"exit status {child.returncode}: {' '.join(command)}")
    return usage.ru_maxrss * 1024


def ours(kind, steps, directory):
    texts, deck, output = directory / "texts.jsonl", directory / "deck.toml", directory / "run"
    if not texts.exists():
        write_texts(texts)
    deck.write_text(DECK.format(type=kind, texts=texts, output=output, steps=steps, **SHAPE))
    peak = peak_of([str(PROGRAM), "train", str(deck)])
    with h5py.File(output / "run.h5") as run:  # seconds since the start
        return float(np.median(np.diff(run["steps/seconds"]))), peak


def theirs(kind, steps, python):
    command = [python, str(SOURCE / "tests/benchmarks/pytorch_text_classifier.py"), "--type", kind,
               "--vocabulary", "400", "--steps", str(steps)]
    for name, value in SHAPE.items():
        command += [f"--{name}", str(value)]
    printed = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    return json.loads(printed.stdout.splitlines()[-1])


def compare(kind, arguments, directory):
    seconds, peaks = ([], []), ([], [])
    for pair in range(arguments.pairs):
        for side in ((0, 1), (1, 0))[pair % 2]:
            if side == 0:
                second, peak = ours(kind, arguments.steps, directory)
            else:
                result = theirs(kind, arguments.steps, arguments.python)
                second, peak = result["step_seconds"], result["peak_bytes"]
            seconds[side].append(second)
            peaks[side].append(peak)
    ratios = [their / our for our, their in zip(*seconds)]
    return {"deltapipe_seconds": statistics.median(seconds[0]),
            "pytorch_seconds": statistics.median(seconds[1]), "ratios": ratios,
            "ratio": statistics.median(ratios), "deltapipe_peak_bytes": max(peaks[0]),
            "pytorch_peak_bytes": max(peaks[1]), "versions": result["versions"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", choices=("bert", "deberta-v2"), action="append")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--python", default=str(SOURCE / "build/venv-newest/bin/python"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = {kind: compare(kind, arguments, pathlib.Path(directory))
                   for kind in arguments.type or ("bert", "deberta-v2")}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
