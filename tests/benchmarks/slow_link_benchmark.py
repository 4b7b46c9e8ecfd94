#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What compression gains on a deck with an emulated slow link, and what bounds it.

usage: slow_link_benchmark.py [DECK] [--epochs N] [--rounds N] [section.key=value ...]

Runs DECK (inputs/slow_link.toml), which has two stages and an emulated link: a few rounds of three
epochs with codec none and no link, which is as fast as computing allows, and as the deck says, in
turn; then all epochs with codec none over the link, and as the deck says. All from the same weights
and over the same samples. Printed, from medians over steps and rounds:

  communication_to_compute  seconds that a step's uncompressed bytes take on the link, both
                            directions, to the busiest stage's seconds of computing
  fraction_of_bound         the slower of a round's step without link and of the compressed bytes'
                            time on the link, the slower direction, to the round's step as the deck
                            says; in epochs whose samples all have memories
  speedup                   all steps of the uncompressed run to all steps of the deck, first epoch
                            included

DELTAPIPE_PROGRAM names the program, else build/release/bin/deltapipe is taken.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile
import tomllib

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import support  # noqa: E402

TIME_LIMIT = 3600  # seconds
UNCOMPRESSED = ["boundary.forward.codec=none", "boundary.backward.codec=none"]
UNITS = {"kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "bit/s": 1.0}


class Run(support.Run):
    def __init__(self, place, name, deck, overrides):
        output = place / name
        print(name, file=sys.stderr, flush=True)
        result = support.finish(
            support.start(["train", deck, f"output.directory={output}", "output.overwrite=true",
                           *overrides], ranks=2),
            TIME_LIMIT)
        if result.status != 0:
            sys.exit(f"deltapipe train failed: {result}")
        super().__init__(output / "run.h5")
        perplexities = self.evaluations["perplexity"]
        self.perplexity = perplexities[-1] if len(perplexities) else float("nan")
        self.deck = tomllib.loads(self.attributes["deck"])
        self.seconds = np.diff(self.steps["seconds"], prepend=0.0)

    def wire_seconds(self, bytes_a_second):
        """Of each step: forward and backward."""
        forward = self.steps["forward_bytes"][:, 0] + self.steps["tied_gradient_bytes"]
        backward = self.steps["backward_bytes"][:, 0] + self.steps["tied_row_bytes"]
        return forward / bytes_a_second, backward / bytes_a_second

    def later(self, values):
        """Median over steps of samples that were seen before."""
        return float(np.median(values[self.steps["epoch"] > 1 + 1e-9]))


def link_bytes_a_second(run):
    network = run.deck["network"]
    value = network["forward"]["bandwidth"] or network["bandwidth"]
    value = value[0] if isinstance(value, list) else value
    if isinstance(value, (int, float)):
        return value / 8
    number, unit = re.fullmatch(r"([\d.e+]+) *(\S+)", value).groups()
    return float(number) * UNITS[unit] / 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deck", nargs="?", default="inputs/slow_link.toml")
    parser.add_argument("--epochs", type=int, default=10, help="of the two long runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2: the first has no changes to send")
    common = arguments.overrides + ["output.save_model=false"]
    short = common + ["training.epochs=3"]
    full = common + [f"training.epochs={arguments.epochs}"]
    without_link = UNCOMPRESSED + ["network.bandwidth=0", "network.latency=0"]
    with tempfile.TemporaryDirectory(prefix="deltapipe-benchmark-") as directory:
        place = pathlib.Path(directory)
        rounds = [(Run(place, "without link", arguments.deck, short + without_link),
                   Run(place, "compressed", arguments.deck, short))
                  for _ in range(arguments.rounds)]
        none = Run(place, "uncompressed, all epochs", arguments.deck, full + UNCOMPRESSED)
        deck = Run(place, "compressed, all epochs", arguments.deck, full)
    rate = link_bytes_a_second(deck)
    compute = [unlinked.later(unlinked.steps["compute_seconds"].max(axis=1))
               for unlinked, _ in rounds]
    communication = none.later(sum(none.wire_seconds(rate)))
    compute_bounds = [unlinked.later(unlinked.seconds) for unlinked, _ in rounds]
    wire_bound = deck.later(np.maximum(*deck.wire_seconds(rate)))
    steps = [compressed.later(compressed.seconds) for _, compressed in rounds]
    fractions = [max(bound, wire_bound) / step for bound, step in zip(compute_bounds, steps)]
    print(json.dumps({
        "compute_seconds": statistics.median(compute),
        "uncompressed_communication_seconds": communication,
        "communication_to_compute": communication / statistics.median(compute),
        "compute_bound_seconds": statistics.median(compute_bounds),
        "wire_bound_seconds": wire_bound,
        "compressed_step_seconds": statistics.median(steps),
        "uncompressed_step_seconds": none.later(none.seconds),
        "first_epoch_step_seconds": float(np.median(deck.seconds[deck.steps["epoch"] <= 1 + 1e-9])),
        "fraction_of_bound_of_each_round": [round(fraction, 3) for fraction in fractions],
        "fraction_of_bound": statistics.median(fractions),
        "speedup": none.steps["seconds"][-1] / deck.steps["seconds"][-1],
        "perplexity": {"uncompressed": none.perplexity, "compressed": deck.perplexity},
        "wire_bytes": {"uncompressed": int(sum(none.wire_seconds(rate)).sum() * rate),
                       "compressed": int(sum(deck.wire_seconds(rate)).sum() * rate)}}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
