#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The same job over emulated and over really shaped links (scripts/shaped_links.sh), in pairs: how
far is emulation from the real thing? Needs root, iproute2, Open MPI and h5py, and an idle machine:
both kinds of links are slower beside other work, and not alike.

  tests/benchmarks/links_pairs.py              a job like the quick start's at 30 and 100 Mbit/s
  tests/benchmarks/links_pairs.py --deck DECK --rate "30 Mbit/s" --pairs 7 section.key=value

A step's time is the median over a run's steps after the first epoch. A pair's runs follow each
other, in turn the one first and the other. Prints JSON: of each rate and codec the ratio of shaped
to emulated in every pair and its median.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

import h5py
import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OPENBLAS_NUM_THREADS="1")
# Emulation leaves out what a processor spends on TCP: over loopback it is spent.
MPIEXEC = ("mpirun --oversubscribe --bind-to none --mca pml ob1 --mca btl tcp,self "
           "--mca btl_tcp_flags 1 --mca btl_tcp_if_include lo")
CODECS = {
    "none": ["boundary.forward.codec=none", "boundary.backward.codec=none"],
    "quantize": ["boundary.forward.codec=directq", "boundary.backward.codec=directq"],
    "delta": ["boundary.forward.codec=aqsgd", "boundary.backward.codec=directq"],
}
DECK = """
[model.new]
n_layer = 4
n_head = 4
n_embd = 128
n_positions = 128
[tokenizer]
train_vocabulary = 512
[data]
train = "train.txt"
validation_fraction = 0
max_train_samples = 96
[training]
steps = 15
micro_batch_size = 2
micro_batches = 16
[pipeline]
stages = 2
schedule = "gpipe"
[boundary.forward]
bits = 3
[boundary.backward]
bits = 6
[output]
log_every = 1000
"""


class Job:
    def __init__(self, arguments, place):
        self.place = place
        self.program = str(pathlib.Path(arguments.program).resolve())
        self.mpiexec = shlex.split(arguments.mpiexec)
        self.stages = arguments.stages
        self.deck = arguments.deck and str(pathlib.Path(arguments.deck).resolve())
        self.overrides = arguments.overrides + [
            "output.save_model=false", "network.wire=rank", "network.latency=0",
            f"pipeline.stages={arguments.stages}"]
        if self.deck is None:
            numbers = random.Random(1)
            text = " ".join("".join(numbers.choices("abcdefgh", k=numbers.randint(2, 6)))
                            for _ in range(20000))
            (place / "train.txt").write_text(text, encoding="utf-8")
            (place / "deck.toml").write_text(DECK, encoding="utf-8")
            self.deck, self.directory = "deck.toml", place
        else:
            self.directory = pathlib.Path.cwd()

    def step_seconds(self, shaped, codec, rate):
        output = self.place / "run"
        arguments = [self.deck, *self.overrides, *CODECS[codec], f"network.bandwidth={rate}",
                     f"output.directory={output}", "output.overwrite=true"]
        command = ([str(SOURCE / "scripts/shaped_links.sh"), "--program", self.program] if shaped
                   else [*self.mpiexec, "-n", str(self.stages), self.program, "train"])
        result = subprocess.run(command + arguments, cwd=self.directory, env=ENVIRONMENT,
                                capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{shlex.join(command + arguments)}:\n{result.stdout}{result.stderr}")
        with h5py.File(output / "run.h5") as run:
            seconds, epoch = run["steps/seconds"][()], run["steps/epoch"][()]
        steps = np.diff(seconds)[epoch[1:] > 1 + 1e-9]
        if len(steps) == 0:
            sys.exit("no step comes after the first epoch: more training.steps, fewer samples")
        return float(np.median(steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deck", help="default: a job like the quick start's, with its own text")
    parser.add_argument("--rate", action="append", help='as decks have it; may be repeated')
    parser.add_argument("--codec", action="append", choices=CODECS, help="default: all")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--program", default=SOURCE / "build/release/bin/deltapipe")
    parser.add_argument("--mpiexec", default=MPIEXEC,
                        help="of the emulated runs (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("links_pairs: network namespaces need root")
    results = []
    with tempfile.TemporaryDirectory(prefix="deltapipe-links-") as directory:
        job = Job(arguments, pathlib.Path(directory))
        for rate in arguments.rate or ["30 Mbit/s", "100 Mbit/s"]:
            times = {codec: [] for codec in arguments.codec or CODECS}
            for pair in range(arguments.pairs):
                for codec, pairs in times.items():
                    order = (False, True) if pair % 2 == 0 else (True, False)
                    measured = {shaped: job.step_seconds(shaped, codec, rate) for shaped in order}
                    pairs.append((measured[False], measured[True]))
                    print(f"{rate} {codec} pair {pair + 1}: emulated {measured[False]:.4f} s, "
                          f"shaped {measured[True]:.4f} s", file=sys.stderr, flush=True)
            for codec, pairs in times.items():
                ratios = [shaped / emulated for emulated, shaped in pairs]
                results.append({
                    "rate": rate, "codec": codec,
                    "emulated_step_seconds": statistics.median(e for e, _ in pairs),
                    "shaped_step_seconds": statistics.median(s for _, s in pairs),
                    "shaped_to_emulated_of_each_pair": [round(ratio, 3) for ratio in ratios],
                    "shaped_to_emulated": round(statistics.median(ratios), 3)})
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
