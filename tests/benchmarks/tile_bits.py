#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Whether tiles of bits of their own pay: errors of coding real changes in equally many bits.

usage: tile_bits.py MODEL TEXT [--results FILE --machine NAME]

Fine-tunes MODEL, the pretrained one of scripts/study.py quality --small, on 640 samples of TEXT over
two stages in fp32, once for two epochs and once for three, which begin with the same two. What the
boundary's ends keep of a sample is then its activation at its second and at its third visit, and
the difference is what a codec would have to send at the third one. The first 160 samples' are coded
in numpy in the ways below; each is fitted to the same number of bits. Rows count alike:
all is relative to the row's RMS in the memory, which both ends know.

FILE, docs/results/tile_bits.toml, gets the table as data; NAME is one of machines.toml. Needs numpy
and h5py. DELTAPIPE_PROGRAM names the program, else build/release/bin/deltapipe is taken.
"""

import argparse
import datetime
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import support  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES, TILE = 160, 64
SCALE = 16 / TILE   # bits per value that a tile's scale takes
HEADER = 3 / TILE   # and the choice of one of eight widths or classes
WIDTHS = range(1, 9)
OVERRIDES = ["pipeline.stages=2", "data.max_train_samples=640", "data.max_validation_samples=1",
             "training.seed=42", "training.optimizer.learning_rate=5e-4",
             "training.optimizer.schedule=constant", "training.optimizer.warmup_steps=0",
             "boundary.forward.codec=aqsgd", "boundary.forward.warmup_epochs=100",
             "cache.storage=fp32", "cache.budget=10 MB", "cache.keep=true"]


def memories(model, text, epochs, output):
    """Of the boundary after so many epochs. [samples, T, C]"""
    result = support.finish(support.start(
        ["train", ROOT / "inputs/studies/decks/finetune.toml", f"model.path={model}",
         f"data.train={text}", f"training.epochs={epochs}", f"output.directory={output}", "output.overwrite=true",
         f"cache.directory={output}", *OVERRIDES], ranks=2), 3600)
    if result.status != 0:
        sys.exit(f"deltapipe train failed: {result}")
    with h5py.File(output / "cache-replica0-boundary0-forward-receiver.h5") as file:
        if not (file["visits"][:SAMPLES] == epochs).all():
            sys.exit(f"{output}: not all samples were visited {epochs} times")
        T, C = int(file.attrs["tokens"]), int(file.attrs["channels"])
        slots = file["slots"][:SAMPLES]
        records = file["records"][()][slots, : 4 * T * C]
    return records.view(np.float32).reshape(SAMPLES, T, C)


def as_scale(step):
    """The smallest scale of 8 fraction bits that is at least as large."""
    fraction, exponent = np.frexp(step)
    return np.ldexp(np.ceil(fraction * 512) / 512, exponent)


def squares(x):
    return (x * x).sum(axis=1)


def coded(tiles, bits, factors):
    """Least squared error of each tile by symmetric codes with a scale of these factors of max|y|;
    one bit: its sign with the mean magnitude."""
    if bits == 1:
        step = as_scale(np.abs(tiles).mean(axis=1, keepdims=True))
        return squares(tiles - np.copysign(step, tiles))
    top = 2 ** (bits - 1) - 1
    largest = np.abs(tiles).max(axis=1, keepdims=True) / top
    errors = []
    for factor in factors:
        step = np.maximum(as_scale(factor * largest), np.finfo(np.float32).tiny)
        errors.append(squares(tiles - step * np.clip(np.rint(tiles / step), -top, top)))
    return np.min(errors, axis=0)


def bisect(value_of, target, low, high):
    """Where a falling function of a positive number has the value."""
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if value_of(middle) > target else (low, middle)
    return high


def cheapest(errors, price):
    """The width of each tile with the least error + price x bits."""
    return np.argmin(errors + price * np.array(WIDTHS)[:, None], axis=0)


def widths_by_rms(tiles, mean):
    """Reverse water-filling: a bit more for twice the RMS, within 1 ... 8."""
    rms = np.maximum(np.sqrt(squares(tiles) / TILE), 1e-30)

    def widths(level):
        return np.clip(np.rint(np.log2(rms / level)), WIDTHS[0], WIDTHS[-1]).astype(int)
    return widths(bisect(lambda level: widths(level).mean(), mean, 1e-9 * rms.max(),
                         rms.max())) - WIDTHS[0]


def entropy(codes):
    """Bits per code."""
    counts = np.unique(codes, return_counts=True)[1]
    return np.log2(codes.size) - (counts * np.log2(counts)).sum() / codes.size


def entropy_of_classes(codes, classes):
    """With a table for each class of tiles."""
    return sum(entropy(codes[classes == c]) * (classes == c).mean() for c in np.unique(classes))


def entropy_coded(tiles, steps, bits, side, classes=None):
    """Error in steps of a multiple of `steps`, so that codes and `side` take the bits."""
    def codes(factor):
        return np.rint(tiles / (factor * steps)).astype(np.int32)

    def rate(factor):
        if classes is None:
            return side + entropy(codes(factor))
        return side + entropy_of_classes(codes(factor), classes)
    factor = bisect(rate, bits, 1e-3, 1e2)
    return squares(tiles - factor * steps * codes(factor)).sum()


def compare(rows_NC):
    """Rows of the table: name and errors, relative to the squared changes, by bits of a value."""
    C = rows_NC.shape[1]
    tiles = rows_NC.reshape(-1, TILE)
    total = squares(tiles).sum()
    max_rule, mse_rule = (1.0,), (1.0, 0.85, 0.7, 0.6, 0.5)
    by_width = {name: np.array([coded(tiles, b, rule) for b in WIDTHS])
                for name, rule in (("max", max_rule), ("mse", mse_rule))}
    rms = np.maximum(np.sqrt(squares(tiles) / TILE), 1e-30)
    classes = np.digitize(rms, np.quantile(rms, np.arange(1, 8) / 8))
    tile_steps = as_scale(rms)[:, None]
    token_steps = as_scale(np.sqrt((rms * rms).reshape(-1, C // TILE).mean(axis=1)))
    token_steps = np.repeat(token_steps, C // TILE)[:, None]
    every = np.arange(tiles.shape[0])
    rows = {}

    def add(name, bits, error):
        rows.setdefault(name, {})[bits] = error / total
        print(f"{name:60} {bits:5.2f} bits  {error / total:.4f}", flush=True)

    for width in (2, 3, 4):
        bits = width + SCALE
        for rule, errors in by_width.items():
            add(f"{rule}: the same bits in every tile", bits, errors[width - 1].sum())
            mean = width - HEADER
            chosen = widths_by_rms(tiles, mean)
            add(f"{rule}: bits by the tile's RMS", bits, errors[chosen, every].sum())
            price = bisect(lambda p: 1 + cheapest(errors, p).mean(), mean, 1e-12, 1e6)
            add(f"{rule}: bits of least error", bits, errors[cheapest(errors, price), every].sum())
        add("entropy coded: steps of the tile's RMS", bits,
            entropy_coded(tiles, tile_steps, bits, SCALE))
        add("entropy coded: steps of the token's RMS, as `auto`", bits,
            entropy_coded(tiles, token_steps, bits, 16 / C))
        add("entropy coded: one step, a table for each of 8 classes of tiles", bits,
            entropy_coded(tiles, 1.0, bits, HEADER, classes))
    return rows


def write_results(path, machine, rows):
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.strip()
    bits = sorted(next(iter(rows.values())))
    columns = "".join(f'  {{ heading = "{b:.2f} bits", cell = "{{error{i}:.4f}}" }},\n'
                      for i, b in enumerate(bits))
    text = f"""# SPDX-License-Identifier: BSD-3-Clause
# Bits of each tile, written by tests/benchmarks/tile_bits.py: table of docs/codec_measurements.md.
commit = "{commit}"
commit_is = "measured"
date = {datetime.date.today()}
machine = "{machine}"
command = "tests/benchmarks/tile_bits.py MODEL TEXT"
note = "squared error relative to the squared changes between the second and the third visit of \
{SAMPLES} samples of 128 tokens, rows weighted alike, tiles of {TILE}; bits per value with scales and \
what says a tile's width or class; a GPT-2 of 4 blocks × 256 channels in two stages, learning rate \
5e-4; entropies instead of a coder's bytes"
columns = [
  {{ heading = "codes", cell = "{{codes}}" }},
{columns}]
"""
    for name, errors in rows.items():
        text += f'\n[[row]]\ncodes = "{name}"\n'
        text += "".join(f"error{i} = {errors[b]:.4f}\n" for i, b in enumerate(bits))
    pathlib.Path(path).write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--results", metavar="FILE")
    parser.add_argument("--machine", metavar="NAME")
    arguments = parser.parse_args()
    if bool(arguments.results) != bool(arguments.machine):
        parser.error("--results and --machine go together")
    with tempfile.TemporaryDirectory() as place:
        second, third = (memories(pathlib.Path(arguments.model).resolve(),
                                  pathlib.Path(arguments.text).resolve(), epochs,
                                  pathlib.Path(place) / f"epochs{epochs}") for epochs in (2, 3))
    size = np.sqrt((second * second).mean(axis=2, keepdims=True))
    changes = ((third - second) / size).astype(np.float64)
    rows = compare(changes.reshape(-1, changes.shape[2]))
    if arguments.results:
        write_results(arguments.results, arguments.machine, rows)


if __name__ == "__main__":
    main()
