#!/usr/bin/env python3
"""Compares runs: quality, bytes on the wire, speed, and the speed-up to the first run."""

import argparse
import csv
import sys

from run_reader import Run, bytes_text, distinct_names, run_main

CSV_COLUMNS = ("run", "perplexity", "wire_bytes", "sequences_per_second", "speedup")


def compare(runs):
    first_rate = runs[0].rate("samples")
    for name, run in zip(distinct_names(runs), runs):
        rate = run.rate("samples")
        yield {
            "run": name,
            "steps": run.length,
            "loss": run.final_loss,
            "perplexity": run.perplexity,
            "wire_bytes": run.wire_bytes,
            "sequences_per_second": rate,
            "tokens_per_second": run.rate("tokens"),
            "speedup": rate / first_rate if first_rate else float("nan"),
        }


def print_comparison(rows):
    header = ["run", "steps", "loss", "perplexity", "wire", "sequences/s", "tokens/s", "speed-up"]
    cells = [[row["run"], str(row["steps"]), f"{row['loss']:.4f}", f"{row['perplexity']:.3f}",
              bytes_text(row["wire_bytes"]), f"{row['sequences_per_second']:.4g}",
              f"{row['tokens_per_second']:.4g}", f"{row['speedup']:.2f}"] for row in rows]
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    for row in [header, *cells]:
        print("  ".join([row[0].ljust(widths[0])]
                        + [text.rjust(width) for text, width in zip(row[1:], widths[1:])]))


def write_csv(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            row = dict(row, wire_bytes=int(row["wire_bytes"]))
            writer.writerow(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run.h5 files or their directories")
    parser.add_argument("--csv", metavar="FILE", help="write " + ",".join(CSV_COLUMNS))
    arguments = parser.parse_args()
    rows = list(compare([Run(path) for path in arguments.runs]))
    print_comparison(rows)
    if arguments.csv:
        write_csv(arguments.csv, rows)


if __name__ == "__main__":
    sys.exit(run_main(main))
