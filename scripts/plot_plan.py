#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Plots `deltapipe check --plan --json`: seconds of a step by bandwidth for each codec, and below
what ranks wait for at each bandwidth.

    deltapipe check --plan DECK --bandwidth "10Gbit/s,1Gbit/s,100Mbit/s" --json > plan.json
    plot_plan.py plan.json plan.png
"""

import argparse
import json
import sys

from script_support import require, run_main

require("matplotlib")

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

PARTS = {"compute_seconds": "compute", "codec_seconds": "codec",
         "wire_exposed_seconds": "wire", "bubble_seconds": "bubble",
         "replica_wait_seconds": "replicas"}
UNITS = (1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")


def bandwidth_text(bandwidth):
    if bandwidth == 0:
        return "no limit"
    scale, unit = next((scale, unit) for scale, unit in UNITS if bandwidth >= scale or scale == 1)
    return f"{bandwidth / scale:g} {unit}"


def read_plan(path):
    try:
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        plan["sweep"][0]["step_seconds"]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        sys.exit(f"error: {path}: no plan ({error}); write one with check --plan --json")
    return plan


def draw(plan, path):
    codecs = [codec["codec"] for codec in plan["codecs"]]
    bandwidths = list(dict.fromkeys(entry["bandwidth"] for entry in plan["sweep"]))
    at = {(entry["bandwidth"], entry["codec"]): entry for entry in plan["sweep"]}
    figure, (lines, bars) = plt.subplots(2, 1, figsize=(8, 8), constrained_layout=True)
    places = range(len(bandwidths))
    for codec in codecs:
        lines.plot(places, [at[b, codec]["step_seconds"] for b in bandwidths], "o-", label=codec)
    lines.set_yscale("log")
    for axis_ticks in lines.yaxis.set_major_formatter, lines.yaxis.set_minor_formatter:
        axis_ticks("{x:g}")
    lines.set_ylabel("step [s]")
    lines.set_title(f"{plan['model']}, {plan['stages']} stages x {plan['replicas']} replicas",
                    fontsize=10)
    lines.legend(title="codec")
    colors = plt.get_cmap("tab10").colors
    width = 0.8 / len(codecs)
    for c, codec in enumerate(codecs):
        shift = (c - (len(codecs) - 1) / 2) * width
        below = [0.0] * len(bandwidths)
        for color, (part, name) in zip(colors, PARTS.items()):
            values = [at[b, codec][part] / at[b, codec]["step_seconds"] for b in bandwidths]
            bars.bar([place + shift for place in places], values, 0.92 * width, below, color=color,
                     label=name if c == 0 else None)
            below = [a + b for a, b in zip(below, values)]
    bars.set_ylabel("part of the step")
    bars.set_xlabel(f"bars from left to right: {', '.join(codecs)}")
    bars.set_ylim(0, 1)
    bars.legend(ncols=len(PARTS), loc="lower center", fontsize=8)
    for axes in lines, bars:
        axes.set_xticks(places, [bandwidth_text(b) for b in bandwidths])
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", metavar="PLAN.json")
    parser.add_argument("picture", metavar="PICTURE.png")
    options = parser.parse_args()
    draw(read_plan(options.plan), options.picture)
    print(f"{options.picture} written")


if __name__ == "__main__":
    sys.exit(run_main(main))
