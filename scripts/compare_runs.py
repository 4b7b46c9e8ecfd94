#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares runs, one line each.

status       how the run ended
steps, loss  steps; mean training loss of the last 5 % of them
perplexity   of the last evaluation (or the first metric of another task); 'through codec': with
             compressed activations
wire         bytes that training sent
evaluations  bytes that evaluations sent
total        both, in percent of the first run's
sequences/s, tokens/s, speed-up   of training, without evaluations; relative to the first run
s to L, wire to L   seconds and bytes of training until an evaluation reached the loss L
"""

import argparse
import csv
import math
import sys

from script_support import bytes_text, distinct_names, require, run_main

require("h5py")

import h5py

from deltapipe_runs import Run, RunError


def csv_columns(metric):
    return ("run", "status", metric, "wire_bytes", "sequences_per_second", "speedup",
            "target_loss", "seconds_to_loss", "bytes_to_loss", "evaluation_bytes",
            f"codec_{metric}", "total_bytes", "total_percent", "exact_match", "codec_exact_match", "seconds")


def common_loss(runs):
    """The lowest validation loss that all runs with evaluations reach; NaN: none has any."""
    best = [run.validation_loss.min() for run in runs if len(run.validation_loss)]
    return float(max(best, default=float("nan")))


def percent_text(value):
    return "-" if math.isnan(value) else f"{value:.1f} %"


def compare(runs, loss, metric):
    first_rate, first_total = runs[0].rate("samples"), runs[0].total_bytes
    for name, run in zip(distinct_names(runs), runs):
        rate = run.rate("samples")
        seconds, wire_bytes = run.reach(loss)
        yield {
            "run": name,
            "status": run.status,
            "steps": run.length,
            "loss": run.final_loss,
            metric: run.metric(metric),
            "wire_bytes": run.wire_bytes,
            "sequences_per_second": rate,
            "tokens_per_second": run.rate("tokens"),
            "speedup": rate / first_rate if first_rate else float("nan"),
            "target_loss": loss,
            "seconds_to_loss": seconds,
            "bytes_to_loss": wire_bytes,
            "evaluation_bytes": run.evaluation_bytes,
            f"codec_{metric}": run.metric(metric, "codec_"),
            "exact_match": run.exact_match,
            "codec_exact_match": run.codec_exact_match,
            "seconds": run.seconds,
            "total_bytes": run.total_bytes,
            "total_percent": 100 * run.total_bytes / first_total if first_total else math.nan,
        }


def print_comparison(rows, metric):
    loss = rows[0]["target_loss"]
    header = ["run", "status", "steps", "loss", metric, "wire", "evaluations", "total",
              "sequences/s", "tokens/s",
              "speed-up", f"s to {loss:.4g}", f"wire to {loss:.4g}"]
    cells = [[row["run"], row["status"], str(row["steps"]), f"{row['loss']:.4f}",
              f"{row[metric]:.3f}", bytes_text(row["wire_bytes"]),
              bytes_text(row["evaluation_bytes"]), percent_text(row["total_percent"]),
              f"{row['sequences_per_second']:.4g}",
              f"{row['tokens_per_second']:.4g}", f"{row['speedup']:.2f}",
              f"{row['seconds_to_loss']:.2f}", bytes_text(row["bytes_to_loss"])] for row in rows]
    # Columns that only some runs have, in reverse order.
    for column, title, text in (
            ("codec_exact_match", "exact, codec", lambda share: percent_text(100 * share)),
            ("exact_match", "exact match", lambda share: percent_text(100 * share)),
            (f"codec_{metric}", "through codec", lambda value: f"{value:.3f}")):
        if not all(math.isnan(row[column]) for row in rows):
            for line, cell in zip([header, *cells], [title, *(text(row[column]) for row in rows)]):
                line.insert(5, cell)
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    for row in [header, *cells]:
        print("  ".join([row[0].ljust(widths[0])]
                        + [text.rjust(width) for text, width in zip(row[1:], widths[1:])]))


def write_csv(path, rows, metric):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, csv_columns(metric), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            row = dict(row, wire_bytes=int(row["wire_bytes"]), total_bytes=int(row["total_bytes"]),
                       evaluation_bytes=f"{row['evaluation_bytes']:.0f}")
            writer.writerow(row)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run.h5 files or their directories")
    parser.add_argument("--csv", metavar="FILE", help="write " + ",".join(csv_columns("perplexity")))
    parser.add_argument("--loss", type=float, metavar="LOSS",
                        help="validation loss to reach (default: the lowest that all runs reach)")
    arguments = parser.parse_args()
    runs = [Run(path) for path in arguments.runs]
    loss = common_loss(runs) if arguments.loss is None else arguments.loss
    metric = runs[0].metrics[0]
    rows = list(compare(runs, loss, metric))
    print_comparison(rows, metric)
    if arguments.csv:
        if h5py.is_hdf5(arguments.csv):
            raise RunError(f"{arguments.csv} is an HDF5 file and is not replaced")
        write_csv(arguments.csv, rows, metric)


if __name__ == "__main__":
    sys.exit(run_main(main))
