#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Plots runs: loss over steps (or epochs) and over time, bytes on the wire, errors of the codecs,
and where the time went."""

import argparse
import sys

from script_support import distinct_names, require, run_main

require("h5py", "matplotlib")

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from deltapipe_runs import DIRECTIONS, TIME_PARTS, Run, RunError

# A run's line and marker, so that runs whose curves coincide are seen beside each other: the first
# one is wide and pale, and lies under the others.
LINES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TICK_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def smooth(values, window):
    """Running mean over the last `window` values; NaN are left out."""
    valid = np.isfinite(values)
    sums = np.cumsum(np.where(valid, values, 0.0))
    counts = np.cumsum(valid)
    sums[window:] -= sums[:-window].copy()
    counts[window:] -= counts[:-window].copy()
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)


def style(index):
    """Of a run's curves."""
    if index == 0:
        return {"linewidth": 4.0, "alpha": 0.45}
    return {"linewidth": 1.6, "linestyle": LINES[index % len(LINES)]}


def draw_loss(axes, run, index, x, color, label):
    steps, evaluations = run.steps, run.evaluations
    window = max(1, run.length // 50)
    axes.plot(steps[x], smooth(steps["loss"], window), color=color, label=label,
              **style(index))
    axes.plot(evaluations[x], evaluations["loss"], MARKERS[index % len(MARKERS)], color=color,
              markersize=9 if index == 0 else 5, markeredgecolor="white", zorder=3 + index)
    if run.evaluated("codec_"):
        axes.plot(evaluations[x], evaluations["codec_loss"], MARKERS[index % len(MARKERS)],
                  color="white", markersize=5, markeredgecolor=color, zorder=3 + index)


def draw_exact_match(axes, runs, colors, x):
    """Exact match of runs with prompts and answers, dotted, on an axis of its own."""
    compared = [(run, color) for run, color in zip(runs, colors) if "exact_match" in run.evaluations]
    if not compared:
        return
    right = axes.twinx()
    for run, color in compared:
        for name, face in (("exact_match", color), ("codec_exact_match", "white")):
            if name in run.evaluations:
                right.plot(run.evaluations[x], 100 * run.evaluations[name], ":", color=color,
                           marker="s", markersize=4, markerfacecolor=face)
    right.set_ylim(0, 100)
    right.set_ylabel("exact match [%]")
    right.grid(False)
    right.spines["right"].set_visible(True)


def draw_restarts(axes, run, x, color):
    """A thin line where the run resumed from a checkpoint; nothing for one before the first step."""
    for step in run.restarts:
        row = np.searchsorted(run.steps["step"], step, side="right") - 1
        if row >= 0:
            axes.axvline(run.steps[x][row], color=color, linewidth=0.6, alpha=0.6, zorder=0)


def draw_difference(axes, runs, colors, names, x):
    """Perplexity relative to the first run's, at its evaluations; of one run the learning rate."""
    if len(runs) == 1:
        axes.plot(runs[0].steps[x], runs[0].steps["learning_rate"], color=colors[0])
        axes.set_ylabel("learning rate")
        axes.set_title("Learning rate")
        return
    axes.set_title(f"Perplexity against {names[0]}")
    axes.set_ylabel(f"difference to {names[0]} [%]")
    axes.axhline(0, color=colors[0], **style(0))
    first_x, first = runs[0].evaluations[x], runs[0].validation_loss
    known = np.isfinite(first)
    if not known.any():
        return
    for i, (run, color, name) in enumerate(zip(runs, colors, names)):
        at, loss = run.evaluations[x], run.validation_loss
        shared = np.isfinite(loss) & (at >= first_x[known].min()) & (at <= first_x[known].max())
        if i == 0 or not shared.any():
            continue
        change = 100 * np.expm1(loss[shared] - np.interp(at[shared], first_x[known], first[known]))
        axes.plot(at[shared], change, color=color, marker=MARKERS[i % len(MARKERS)], markersize=5,
                  label=f"{name}: {change[-1]:+.2f} % at the end", **style(i))
    if len(axes.lines) > 1:
        axes.legend(frameon=False, fontsize=8)


def draw_accuracy(axes, runs, colors, names, x):
    """Validation accuracy; hollow points are through the codec."""
    axes.set_title("Validation accuracy")
    axes.set_ylabel("accuracy [%]")
    for i, (run, color, name) in enumerate(zip(runs, colors, names)):
        for column, face in (("accuracy", color), ("codec_accuracy", "white")):
            values = 100 * run.evaluations[column] if column in run.evaluations else np.array([])
            if not np.isfinite(values).any():
                continue
            last = values[np.isfinite(values)][-1]
            kind = " through the codec" if column != "accuracy" else ""
            axes.plot(run.evaluations[x], values, color=color, marker=MARKERS[i % len(MARKERS)],
                      markersize=5, markerfacecolor=face, label=f"{name}{kind}: {last:.1f} %",
                      **style(i))
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)


def subject(runs):
    """Model, layout, link and data of the first run, for the title; its deck has them."""
    try:
        deck = runs[0].deck
    except (ImportError, ValueError):  # Python before 3.11, a damaged deck
        return ""
    attributes, network = runs[0].attributes, deck.get("network", {})

    def one(value):
        values = value if isinstance(value, list) else [value]
        return ", ".join(dict.fromkeys(map(str, values)))

    words = [one(deck.get("model", {}).get("path") or "new model")]
    if "parameters" in attributes:
        words[0] += f" ({int(attributes['parameters']) / 1e6:.3g} M parameters)"
    words.append(f"{attributes.get('stages', '?')} stages")
    if network.get("bandwidth"):
        words.append(f"emulated link {one(network['bandwidth'])}, {one(network.get('latency', 0))}")
    if deck.get("data", {}).get("train"):
        words.append(one(deck["data"]["train"]))
    if deck.get("output", {}).get("directory"):
        words.append("deck of " + one(deck["output"]["directory"]))
    return "  |  ".join(words)


def draw_bytes(axes, runs, colors, names, x):
    totals = [np.cumsum(run.step_bytes) for run in runs]
    largest = max((total[-1] for total in totals if len(total)), default=0)
    scale, unit = next(((s, u) for s, u in TICK_UNITS if largest >= s), (1, "B"))
    for i, (run, total, color) in enumerate(zip(runs, totals, colors)):
        axes.plot(run.steps[x], total / scale, color=color, **style(i))
    axes.set_ylabel(f"sent on the wire [{unit}]")
    axes.set_ylim(bottom=0)


def draw_errors(axes, runs, colors, names, x):
    """The largest error over the boundaries, where measured: forward whole, backward dashed."""
    for run, color, name in zip(runs, colors, names):
        for direction, line in zip(DIRECTIONS, ("-", "--")):
            errors = run.errors(direction)
            shown = errors > 0
            if shown.any():
                axes.plot(run.steps[x][shown], errors[shown], line, color=color, linewidth=1.3,
                          label=f"{name} {direction}")
    axes.set_ylabel("relative RMS error of the codecs")
    if axes.lines:
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=7, ncol=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_times(axes, runs, names):
    """A bar for each rank of each run's pipeline: the parts of its wall time."""
    colors = plt.get_cmap("Set2")(np.arange(len(TIME_PARTS)))
    timed = [(run, name) for run, name in zip(runs, names) if run.has_times]
    places, labels = [], []
    for run, name in timed:  # a gap before each run's bars, its name below them
        ranks = len(run.rank_sum("wall_seconds"))
        first = places[-1] + 2 if places else 0
        places += range(first, first + ranks)
        labels += [run.held_stages(r) for r in range(ranks)]
        axes.annotate(name, (first + (ranks - 1) / 2, 0), xycoords=("data", "axes fraction"),
                      xytext=(0, -20), textcoords="offset points", ha="center", va="top",
                      fontsize=7, rotation=0 if len(timed) <= 3 else 12)
    bottom = np.zeros(len(labels))
    for (column, word), color in zip(TIME_PARTS, colors):
        seconds = np.concatenate([run.rank_sum(column) for run, _ in timed] or [[]])
        axes.bar(places, seconds, bottom=bottom, color=color, label=word)
        bottom += seconds
    axes.set_xticks(places)
    axes.set_xticklabels(labels, fontsize=7)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("stages of each rank, by run", labelpad=30)
    axes.set_ylabel("time [s]")
    if labels:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plot(runs, output, x):
    names = distinct_names(runs)
    colors = plt.get_cmap("tab10")(np.arange(len(runs)) % 10)
    plt.rcParams.update({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3,
                         "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(16, 9.2), constrained_layout=True)
    grid = figure.add_gridspec(2, 3)
    by_step, difference, by_time, wire, errors, times = (
        figure.add_subplot(grid[row, column]) for row in range(2) for column in range(3))
    for i, (run, color, name) in enumerate(zip(runs, colors, names)):
        draw_loss(by_step, run, i, x, color, name)
        draw_loss(by_time, run, i, "seconds", color, name)
        draw_restarts(by_step, run, x, color)
        draw_restarts(by_time, run, "seconds", color)
    draw_exact_match(by_step, runs, colors, x)
    classifies = all("accuracy" in run.metrics for run in runs)
    (draw_accuracy if classifies else draw_difference)(difference, runs, colors, names, x)
    difference.set_xlabel(x)
    draw_bytes(wire, runs, colors, names, x)
    draw_errors(errors, runs, colors, names, x)
    draw_times(times, runs, names)
    times.set_title("Where the time went")
    # Grey points explain the markers of all runs.
    if any(len(run.evaluations["step"]) for run in runs):
        by_step.plot([], [], "o", color="grey", markersize=6, label="validation")
    if any("exact_match" in run.evaluations for run in runs):
        by_step.plot([], [], ":", color="grey", label="exact match (right axis)")
    if any(run.evaluated("codec_") for run in runs):
        by_step.plot([], [], "o", color="white", markeredgecolor="grey", markersize=5,
                     label="validation through the codec")
    for axes, label, title in ((by_step, x, "Loss by " + x), (by_time, "time [s]", "Loss by time"),
                               (wire, x, "Bytes on the wire in training"), (errors, x, "")):
        axes.set_xlabel(label)
        if title:
            axes.set_title(title)
    if any(len(run.restarts) for run in runs):
        by_step.plot([], [], color="grey", linewidth=0.6, label="restart")
    by_step.set_ylabel(f"loss [nat per {'label' if classifies else 'token'}]")
    by_step.legend(frameon=False)
    figure.suptitle(subject(runs), fontsize=10)
    figure.savefig(output, dpi=130)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run.h5 files or their directories")
    parser.add_argument("-o", "--output", required=True, help="picture: .png, .pdf or .svg")
    parser.add_argument("-x", choices=("step", "epoch"), default="step")
    arguments = parser.parse_args()
    runs = [Run(path) for path in arguments.runs]
    for run in runs:
        if run.length == 0:
            raise RunError(f"{run.path}: has no steps yet")
    try:
        plot(runs, arguments.output, arguments.x)
    except ValueError as error:  # matplotlib: unknown suffix
        raise RunError(f"{arguments.output}: {error}") from error


if __name__ == "__main__":
    sys.exit(run_main(main))
