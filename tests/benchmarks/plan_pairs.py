#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of `check --plan` beside measured steps over emulated links. Rates come from runs of
two stages without links, one for each codec. Needs Open MPI, NumPy and h5py, and an idle machine.

  tests/benchmarks/plan_pairs.py [--stages 2 4 8] [--replicas 1 2] [--bandwidths "30 Mbit/s" ...]
                                 [--steps 12] [--json FILE]

A measured step is the median of the second half of a run's steps. Prints a table and the largest
deviation.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile

import h5py
import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = SOURCE / "build/release/bin/deltapipe"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1")
MPIEXEC = "mpirun --oversubscribe --bind-to none"
CODECS = {
    "none": [],
    "directq 3/6": ["boundary.forward.codec=directq", "boundary.forward.bits=3",
                    "boundary.backward.codec=directq", "boundary.backward.bits=6"],
    "aqsgd 2/4": ["boundary.forward.codec=aqsgd", "boundary.forward.bits=2",
                  "boundary.backward.codec=directq", "boundary.backward.bits=4"],
    "topk 10 %": ["boundary.forward.codec=topk", "boundary.forward.topk=0.1",
                  "boundary.backward.codec=topk", "boundary.backward.topk=0.1"],
}
DECK = """
[model.new]
n_layer = 8
n_head = 4
n_embd = 128
n_positions = 128
[tokenizer]
train_vocabulary = 400
[data]
train = "{text}"
validation_fraction = 0
max_train_samples = 32
[training]
steps = {steps}
micro_batch_size = 2
micro_batches = 8
[output]
save_model = false
overwrite = true
"""


def step_seconds(run_file):
    with h5py.File(run_file) as run:
        seconds = np.diff(run["steps/seconds"][()])  # they count from the start
    return float(np.median(seconds[len(seconds) // 2:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bandwidths", nargs="+", default=["100 Mbit/s", "30 Mbit/s", "10 Mbit/s"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--mpiexec", default=MPIEXEC)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        generator = random.Random(1)
        words = "red orange blue teal ash slate sea hill navy lead".split()
        text = place / "text.txt"
        text.write_text("\n\n".join(" ".join(generator.choice(words) for _ in range(400))
                                    for _ in range(100)))
        deck = place / "deck.toml"
        deck.write_text(DECK.format(text=text, steps=options.steps))

        def train(directory, ranks, overrides):
            command = [*shlex.split(options.mpiexec), "-n", str(ranks), str(PROGRAM), "train",
                       str(deck), f"output.directory={directory}", *overrides]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{shlex.join(command)}\n{done.stderr}")
            return directory / "run.h5"

        def plan(overrides):
            done = subprocess.run([str(PROGRAM), "check", "--plan", "--json", str(deck), *overrides],
                                  env=ENVIRONMENT, capture_output=True, text=True, check=True)
            return json.loads(done.stdout)["step_seconds"]

        for codec, keys in CODECS.items():
            rates = train(place / "rates", 2, [*keys, "pipeline.stages=2"])
            for stages in options.stages:
                for replicas in options.replicas:
                    for bandwidth in options.bandwidths:
                        run = [*keys, f"pipeline.stages={stages}", f"pipeline.replicas={replicas}",
                               f"network.bandwidth={bandwidth}", "network.latency=1 ms",
                               f"network.replicas.bandwidth={bandwidth}",
                               f"training.micro_batches={8 // replicas}"]
                        predicted = plan([*run, f"plan.run={rates}"])
                        measured = step_seconds(train(place / "run", stages * replicas, run))
                        rows.append({"codec": codec, "stages": stages, "replicas": replicas,
                                     "bandwidth": bandwidth, "predicted": predicted,
                                     "measured": measured, "ratio": predicted / measured})
                        print("{codec:12} {stages} x {replicas} {bandwidth:10}  predicted "
                              "{predicted:.3f} s  measured {measured:.3f} s  {ratio:.3f}"
                              .format(**rows[-1]), flush=True)
    print(f"largest deviation: {max(abs(row['ratio'] - 1) for row in rows):.1%}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
