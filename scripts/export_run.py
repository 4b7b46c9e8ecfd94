#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exports runs for other tools: one CSV row per step, or an event file for TensorBoard.

    export_run.py csv RUN > steps.csv
    export_run.py tensorboard RUN [RUN ...] --to DIRECTORY
    tensorboard --logdir DIRECTORY

RUN is a run.h5, or the directory that holds it; a run that still trains can be exported. The CSV has
the columns of /steps; a column with a value per boundary or rank becomes several, NAME_0, NAME_1 ...
Rows of evaluations follow with --evaluations instead of rows of steps. TensorBoard gets the loss,
learning rate, gradient norm, bytes on the wire and evaluations of each run.
"""

import argparse
import csv
import pathlib
import struct
import sys

from script_support import distinct_names, require, run_main

require("h5py")

from deltapipe_runs import STEP_BYTES, Run, row_sums


FIRST_COLUMNS = ("step", "epoch", "seconds", "loss")


def columns_of(table):
    """Names and values of a table's columns, each with one value per row."""
    for name in [*FIRST_COLUMNS, *(name for name in table if name not in FIRST_COLUMNS)]:
        values = table[name]
        if values.ndim == 1:
            yield name, values
        else:
            for i in range(values.shape[1]):
                yield f"{name}_{i}", values[:, i]


def write_csv(table, file):
    columns = list(columns_of(table))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(name for name, _ in columns)
    writer.writerows(zip(*(values.tolist() for _, values in columns)))


# TensorBoard's event files are TFRecords of Event messages: a length, its checksum, the message and
# its checksum. https://www.tensorflow.org/tutorials/load_data/tfrecord
def crc32c_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC32C = tuple(crc32c_table())


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(message):
    length = struct.pack("<Q", len(message))
    return (length + struct.pack("<I", masked_crc32c(length)) + message +
            struct.pack("<I", masked_crc32c(message)))


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, data):
    """A field of bytes of a protocol buffer."""
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def event(time, step=None, scalar=None):
    """An Event: wall_time = 1, step = 2, file_version = 3, summary = 5. A Summary's value = 1 has
    tag = 1 and simple_value = 2."""
    message = b"\x09" + struct.pack("<d", time)
    if scalar is None:
        return message + field(3, b"brain.Event:2")
    tag, value = scalar
    summary = field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return message + b"\x10" + varint(step) + field(5, summary)


def scalars_of(run):
    """Tag, steps, seconds and values of what TensorBoard shows of a run."""
    steps, seconds = run.steps["step"], run.steps["seconds"]
    for tag, name in (("training/loss", "loss"), ("training/learning_rate", "learning_rate"),
                      ("training/gradient_norm", "gradient_norm")):
        yield tag, steps, seconds, run.steps[name]
    sent = row_sums([run.steps[name] for name in STEP_BYTES if name in run.steps])
    yield "training/wire_bytes", steps, seconds, sent
    names = ("loss", *run.metrics, "exact_match")
    for name in (*names, *(f"codec_{name}" for name in names)):
        if name in run.evaluations:
            yield (f"evaluation/{name}", run.evaluations["step"], run.evaluations["seconds"],
                   run.evaluations[name])


def write_events(run, path):
    """Times are seconds of training since 1970: TensorBoard's relative axis shows them."""
    with open(path, "wb") as file:
        file.write(record(event(0.0)))
        for tag, steps, seconds, values in scalars_of(run):
            for step, second, value in zip(steps.tolist(), seconds.tolist(), values.tolist()):
                file.write(record(event(second, step, (tag, value))))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    table = kinds.add_parser("csv", help="one run, to standard output")
    table.add_argument("run", metavar="RUN")
    table.add_argument("--evaluations", action="store_true", help="rows of evaluations")
    board = kinds.add_parser("tensorboard", help="an event file for each run")
    board.add_argument("runs", nargs="+", metavar="RUN")
    board.add_argument("--to", type=pathlib.Path, required=True, metavar="DIRECTORY")
    options = parser.parse_args()
    if options.kind == "csv":
        run = Run(options.run)
        write_csv(run.evaluations if options.evaluations else run.steps, sys.stdout)
        return 0
    runs = [Run(path) for path in options.runs]
    for name, run in zip(distinct_names(runs), runs):
        directory = options.to / name
        directory.mkdir(parents=True, exist_ok=True)
        # The name is always the same, so that exporting again replaces the file.
        write_events(run, directory / "events.out.tfevents.0.deltapipe")
        print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
