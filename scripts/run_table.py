#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints the steps of a run as a table, its evaluations and a summary."""

import argparse
import math
import sys

from script_support import bytes_text, require, run_main

require("h5py", "numpy")

import numpy as np

from deltapipe_runs import DIRECTIONS, EVALUATION_MODES, TIME_PARTS, Run

COLUMNS = (("step", "step", "{:d}"), ("epoch", "epoch", "{:.3f}"), ("seconds", "s", "{:.2f}"),
           ("loss", "loss", "{:.4f}"), ("learning_rate", "lr", "{:.3g}"),
           ("gradient_norm", "|g|", "{:.3g}"), ("tokens", "tokens", "{:d}"))


def print_table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths)))


def step_rows(run, every):
    sent = run.step_bytes
    errors = [known_so_far(run.errors(direction)) for direction in DIRECTIONS]
    last = run.length - 1
    for i in range(run.length):
        if i % every == 0 or i == last:
            cells = [form.format(run.steps[name][i]) for name, _, form in COLUMNS
                     if name in run.steps]
            yield cells + [f"{error[i]:.3g}" for error in errors] + [bytes_text(sent[i])]


def known_so_far(values):
    """Each NaN replaced by the last number before it."""
    numbers = np.where(np.isfinite(values), np.arange(len(values)), -1)
    last = np.maximum.accumulate(numbers) if len(values) else numbers
    return np.where(last >= 0, values[np.maximum(last, 0)], np.nan)


def print_times(run):
    """What each stage's wall time went into, and what of the communication it did not wait for."""
    if not run.has_times:
        print("times        unknown: format version 1 counted bubbles as communication")
        return
    wall = run.rank_sum("wall_seconds")
    wire, hidden = run.rank_sum("wire_seconds"), run.rank_sum("wire_hidden_seconds")
    parts = [(word, run.rank_sum(name)) for name, word in TIME_PARTS]
    print()
    print_table([run.rank_word, "s", *(word for word, _ in parts), "on the wire", "hidden"],
                [[run.held_stages(stage), f"{wall[stage]:.2f}",
                  *(f"{percent(seconds[stage], wall[stage]):.1f} %" for _, seconds in parts),
                  f"{wire[stage]:.2f} s", f"{percent(hidden[stage], wire[stage]):.1f} %"]
                 for stage in range(len(wall))])


def percent(part, whole):
    return 100 * part / whole if whole > 0 else 0.0


def print_cache(run):
    first, hits, misses, late = (run.rank_sum("cache_" + name) for name in (
        "first_visits", "hits", "misses", "late_misses"))
    if (first + hits + misses).sum() == 0:
        return
    read, written = run.rank_sum("cache_bytes_read"), run.rank_sum("cache_bytes_written")
    stall = run.rank_sum("cache_stall_seconds")
    print()
    print_table([run.rank_word, "first visits", "hits", "misses", "late", "read", "written", "stalled"],
                [[run.held_stages(i), f"{first[i]:d}", f"{hits[i]:d}", f"{misses[i]:d}", f"{late[i]:d}",
                  bytes_text(read[i]), bytes_text(written[i]), f"{stall[i]:.2f} s"]
                 for i in range(len(first))])


def print_evaluations(run):
    """Losses, perplexities and exact match; through the codecs as well where they were measured."""
    columns = [("step", "step", "{:d}"), ("epoch", "epoch", "{:.3f}"), ("seconds", "s", "{:.2f}"),
               ("loss", "validation loss", "{:.4f}"),
               *((name, name.replace("_", " "), "{:.3f}") for name in run.metrics),
               ("exact_match", "exact match", "{:.2%}")]
    if run.evaluated("codec_"):
        columns += [("codec_loss", "loss, codec", "{:.4f}"),
                    *((f"codec_{name}", f"{name.replace('_', ' ')}, codec", "{:.3f}")
                      for name in run.metrics),
                    ("codec_exact_match", "exact match, codec", "{:.2%}")]
    columns = [column for column in columns if column[0] in run.evaluations]
    print_table([title for _, title, _ in columns],
                [[form.format(value) for (_, _, form), value in zip(columns, row)]
                 for row in zip(*(run.evaluations[name] for name, _, _ in columns))])


def print_summary(run):
    attributes = run.attributes
    partition = " ".join(str(blocks) for blocks in attributes.get("partition", []))
    print(f"run          {run.path}")
    print(f"status       {run.status}" + (f": {run.reason}" if run.reason else ""))
    print(f"started      {attributes.get('started', 'unknown')}")
    print(f"version      {attributes.get('deltapipe_version', 'unknown')} "
          f"({attributes.get('source_revision', 'unknown')})")
    each = f", {run.stages_per_rank} a rank," if run.stages_per_rank > 1 else ""
    print(f"layout       {attributes.get('stages', '?')} stages{each} x "
          f"{attributes.get('replicas', '?')} replicas, blocks {partition}")
    print(f"steps        {run.length}")
    if len(run.restarts):
        print(f"restarts     {len(run.restarts)}, after steps "
              f"{' '.join(str(step) for step in run.restarts)}")
    if run.length == 0:
        return
    print(f"final loss   {run.final_loss:.4f}")
    for name in run.metrics:
        words = []
        if run.evaluated("") or not run.evaluated("codec_"):
            words.append(f"{run.metric(name):.3f}")
        if run.evaluated("codec_"):
            words.append(f"{run.metric(name, 'codec_'):.3f} through the codec")
        print(f"{name.replace('_', ' '):12} {', '.join(words)}")
    for name, share in (("exact match", run.exact_match), ("  with codec", run.codec_exact_match)):
        if not math.isnan(share):
            print(f"{name:12} {share:.2%}")
    print(f"speed        {run.rate('tokens'):.1f} tokens/s, {run.rate('samples'):.3f} sequences/s")
    print(f"on the wire  {bytes_text(run.wire_bytes)} "
          f"({bytes_text(run.wire_bytes / run.length)} per step)")
    if run.evaluation_bytes > 0:
        parts = "".join(f", {bytes_text(run.evaluation_bytes_of(prefix))} of them with {mode}"
                        for mode, prefix in EVALUATION_MODES if run.evaluated("codec_"))
        print(f"evaluations  {bytes_text(run.evaluation_bytes)} more on the wire{parts}")
    print_times(run)
    print_cache(run)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="run.h5 or the directory that holds it")
    parser.add_argument("--every", type=int, default=0, metavar="N",
                        help="print every Nth step (default: about 20 lines)")
    parser.add_argument("--finished", action="store_true",
                        help="print nothing; exit 0 if the run finished, 1 if not")
    arguments = parser.parse_args()
    if arguments.every < 0:
        parser.error("--every must be at least 1")
    run = Run(arguments.run)
    if arguments.finished:
        return 0 if run.attributes.get("status") == "finished" else 1
    every = arguments.every or max(1, -(-run.length // 20))
    if run.length:
        header = [title for name, title, _ in COLUMNS if name in run.steps] + [
            "error forward", "backward", "wire"]
        print_table(header, list(step_rows(run, every)))
        print()
    if len(run.evaluations["step"]):
        print_evaluations(run)
        print()
    print_summary(run)


if __name__ == "__main__":
    sys.exit(run_main(main))
