# SPDX-License-Identifier: BSD-3-Clause
"""Reads the run files (run.h5) of deltapipe. Needs h5py alone; pandas only for data frames.

    from deltapipe_runs import Run

    run = Run("runs/quickstart/aqsgd")        # a run.h5, or the directory that holds it
    run.status, run.attributes["stages"], run.deck["training"]
    run.steps["loss"]                         # NumPy arrays, one row per step
    run.evaluations["perplexity"]
    run.boundary_bytes("forward")             # [steps, boundaries]
    run.rank_seconds()["bubble"]              # [ranks], summed over the steps
    run.memory["peak"]                        # bytes of each rank
    run.steps_frame()                         # pandas

docs/output.md describes the datasets, whose names are the keys of these tables.
"""

import fcntl
import os
import pathlib
import struct
import sys

import h5py
import numpy as np

# Version 1 counted bubbles as communication and added up what ran at the same time: its columns of
# times are not read.
FORMAT_VERSIONS = (1, 2)
__all__ = ["Run", "RunError", "DIRECTIONS", "TIME_PARTS", "STEP_BYTES", "EVALUATION_BYTES",
           "EVALUATION_MODES", "FORMAT_VERSIONS"]
__version__ = "0.1.0"

# Parts of a stage's wall time: column, word for tables and legends.
TIME_PARTS = (("compute_seconds", "compute"), ("codec_seconds", "codec"),
              ("cache_seconds", "cache"), ("wire_exposed_seconds", "wire"),
              ("bubble_seconds", "bubble"), ("replica_wait_seconds", "replicas"),
              ("other_seconds", "other"))
DIRECTIONS = ("forward", "backward")


STEP_BYTES = ("forward_bytes", "backward_bytes", "tied_row_bytes", "tied_gradient_bytes",
              "replica_bytes", "collective_bytes")
EVALUATION_BYTES = ("forward_bytes", "tied_row_bytes", "collective_bytes")
# Forms in which evaluations send activations: name for people, prefix of the columns.
EVALUATION_MODES = (("fp32", ""), ("codec", "codec_"))


class RunError(Exception):
    """A file that cannot be analysed; the message is for the user."""


def is_locked(path):
    """True if a process holds a lock on a file, as a run does on .deltapipe.lock beside its run.h5;
    None: unknown."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:  # struct flock: type, whence, start, length, process
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, = struct.unpack_from("h", fcntl.fcntl(descriptor, fcntl.F_GETLK, lock))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return kind != fcntl.F_UNLCK


def row_sums(columns):
    """Sums of columns, one number per row."""
    return sum((column if column.ndim == 1 else column.sum(axis=1)).astype(np.float64)
               for column in columns)


def frame(table):
    """A table as a pandas data frame. A column with a value per boundary or rank becomes several,
    NAME_0, NAME_1 ..."""
    import pandas
    columns = {}
    for name, values in table.items():
        if values.ndim == 1:
            columns[name] = values
        else:
            columns.update({f"{name}_{i}": values[:, i] for i in range(values.shape[1])})
    return pandas.DataFrame(columns)


class Run:
    """One run, as its file was when it was opened.

    attributes   the attributes of the file
    steps        dict: the datasets of /steps as NumPy arrays
    evaluations  dict: the datasets of /evaluations
    memory       dict: the datasets of /memory, bytes of each rank; empty in files without them
    checkpoints  dict: the datasets of /checkpoints; empty for runs without
    restarts     steps of the checkpoints that later starts resumed from
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        if self.path.is_dir():
            self.path = self.path / "run.h5"
        if not self.path.exists():
            raise RunError(f"{self.path}: no such file")
        try:
            with h5py.File(self.path, "r") as file:
                self._read(file)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read as HDF5: {error}") from error

    def _read(self, file):
        version = file.attrs.get("format_version")
        if version is None:
            raise RunError(f"{self.path}: not a run of deltapipe (no attribute format_version)")
        if version not in FORMAT_VERSIONS:
            raise RunError(f"{self.path}: format version {version}, these scripts read "
                           f"{' and '.join(map(str, FORMAT_VERSIONS))}; use the scripts of the "
                           "version that wrote it")
        self.attributes = {name: file.attrs[name] for name in file.attrs}
        self.steps = self._table(file, "steps", ("step", "epoch", "seconds", "loss", "tokens",
                                                 "samples", "forward_bytes", "backward_bytes"))
        self.evaluations = self._table(file, "evaluations", ("step", "epoch", "seconds", "loss",
                                                             *self.metrics))
        self.memory = self._optional(file, "memory")
        self.checkpoints = self._optional(file, "checkpoints")
        self.restarts = file["restarts/step"][()] if "restarts" in file else np.empty(0, np.uint64)
        if version >= 2:
            missing = [name for name in ("wall_seconds", "wire_seconds", "wire_hidden_seconds",
                                         *(name for name, _ in TIME_PARTS))
                       if name not in self.steps]
            if missing:
                raise RunError(f"{self.path}: group 'steps' has no {', '.join(missing)}")

    @staticmethod
    def _optional(file, name):
        if name not in file:
            return {}
        return {key: dataset[()] for key, dataset in file[name].items()}

    def _table(self, file, name, required):
        if name not in file:
            raise RunError(f"{self.path}: has no group '{name}'")
        table = {key: dataset[()] for key, dataset in file[name].items()}
        missing = [key for key in required if key not in table]
        if missing:
            raise RunError(f"{self.path}: group '{name}' has no {', '.join(missing)}")
        if len({len(column) for column in table.values()}) > 1:
            raise RunError(f"{self.path}: the columns of '{name}' differ in length")
        return table

    @property
    def name(self):
        """Directory of run.h5, name of any other file."""
        if self.path.name == "run.h5":
            return self.path.resolve().parent.name
        return self.path.stem

    @property
    def deck(self):
        """The deck with all defaults, as nested dicts. Needs Python 3.11 (tomllib)."""
        import tomllib
        return tomllib.loads(str(self.attributes.get("deck", "")))

    def steps_frame(self):
        """Steps as a pandas data frame."""
        return frame(self.steps)

    def evaluations_frame(self):
        """Evaluations as a pandas data frame."""
        return frame(self.evaluations)

    def boundary_bytes(self, direction):
        """Bytes on the wire [steps, boundaries], "forward" or "backward"."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction '{direction}': forward or backward")
        return self.steps[direction + "_bytes"]

    def rank_seconds(self):
        """Dict: what each rank's time was spent on, summed over the steps, [ranks]; "wall" is their
        sum. Empty for files of format version 1."""
        if not self.has_times:
            return {}
        parts = {word: self.rank_sum(column) for column, word in TIME_PARTS}
        return {"wall": self.rank_sum("wall_seconds"), **parts}

    @property
    def length(self):
        return len(self.steps["step"])

    @property
    def step_bytes(self):
        """Bytes on the wire in each step: boundaries, token rows, replicas, sums over ranks."""
        return row_sums(self.steps[name] for name in STEP_BYTES if name in self.steps)

    def evaluation_bytes_of(self, prefix):
        """Bytes on the wire in the evaluations of one mode; NaN: not recorded."""
        columns = [self.evaluations[prefix + name] for name in EVALUATION_BYTES
                   if prefix + name in self.evaluations]
        return float(row_sums(columns).sum()) if columns else float("nan")

    @property
    def evaluation_bytes(self):
        """Bytes on the wire in all evaluations; NaN: not recorded."""
        known = [count for count in (self.evaluation_bytes_of(prefix)
                                     for _, prefix in EVALUATION_MODES) if not np.isnan(count)]
        return sum(known) if known else float("nan")

    def evaluated(self, prefix):
        """True if there are evaluations of this mode."""
        return bool(np.isfinite(self.evaluations.get(prefix + "loss", np.empty(0))).any())

    @property
    def validation_loss(self):
        """Of all evaluations; through the codecs where there are no others."""
        through_codec = self.evaluated("codec_") and not self.evaluated("")
        return self.evaluations["codec_loss" if through_codec else "loss"]

    @property
    def status(self):
        """As the file has it; `killed` where it says `running` and nobody holds the lock, and
        `unknown` where there is no lock to see: the file was copied, or the run killed."""
        status = str(self.attributes.get("status", "unknown"))
        if status != "running":
            return status
        locked = is_locked(self.path.resolve().parent / ".deltapipe.lock")
        return {True: "running", False: "killed", None: "unknown"}[locked]

    @property
    def reason(self):
        """Of the run's end, in words; empty: none given."""
        if "reason" in self.attributes:
            return str(self.attributes["reason"])
        return {"killed": "the file says running, but no process holds the directory's lock",
                "unknown": "the file says running, and there is no lock beside it to tell"}.get(
                    self.status, "")

    @property
    def has_times(self):
        return "wall_seconds" in self.steps

    @property
    def stages_per_rank(self):
        return int(self.attributes.get("stages_per_rank", 1))

    @property
    def rank_word(self):
        """What names a rank of the pipeline: its stage or stages."""
        return "stages" if self.stages_per_rank > 1 else "stage"

    def held_stages(self, rank):
        """Of a rank of the pipeline: "1", "1, 3"."""
        if self.stages_per_rank == 1:
            return str(rank)
        stages = int(self.attributes["stages"])
        return ", ".join(map(str, range(rank, stages, stages // self.stages_per_rank)))

    def rank_sum(self, column):
        """Sum over the steps of a column of one value per rank of a pipeline; zeros where there is
        none."""
        if column not in self.steps:
            return np.zeros(int(self.attributes.get("stages", 1))
                            // self.stages_per_rank)
        return self.steps[column].sum(axis=0)

    def errors(self, direction):
        """Largest relative error of the codec over the boundaries in each step; NaN: unknown."""
        errors = self.steps.get(direction + "_error", np.empty((self.length, 0)))
        known = np.isfinite(errors).any(axis=1)
        largest = np.full(self.length, np.nan)
        if known.any():
            largest[known] = np.nanmax(errors[known], axis=1)
        return largest

    def reach(self, loss):
        """Seconds and bytes until an evaluation at or below a validation loss; NaN: never."""
        found = np.flatnonzero(self.validation_loss <= loss)
        if not len(found):
            return float("nan"), float("nan")
        evaluation = found[0]
        until = self.steps["step"] <= self.evaluations["step"][evaluation]
        return float(self.evaluations["seconds"][evaluation]), float(self.step_bytes[until].sum())

    @property
    def wire_bytes(self):
        """Bytes on the wire in training."""
        return float(self.step_bytes.sum())

    @property
    def total_bytes(self):
        """Bytes on the wire in training and in evaluations, where these were recorded."""
        return self.wire_bytes + float(np.nan_to_num(self.evaluation_bytes))

    @property
    def seconds(self):
        """Time of training, without evaluations; NaN: no step."""
        return float(self.steps["seconds"][-1]) if self.length else float("nan")

    def rate(self, column):
        """Mean per second after the first step, whose start-up time tells nothing; NaN: unknown."""
        if self.length < 2:
            return float("nan")
        elapsed = self.steps["seconds"][-1] - self.steps["seconds"][0]
        return float(self.steps[column][1:].sum() / elapsed) if elapsed > 0 else float("nan")

    @property
    def metrics(self):
        """Names of the task's metrics, which are columns of evaluations."""
        names = self.attributes.get("metrics", ("perplexity",))  # none in files of older versions
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    def metric(self, name, prefix=""):
        """Of the last evaluation, or with the prefix "codec_" of the last one through the codecs;
        NaN: none."""
        return self._last(prefix + name)

    @property
    def perplexity(self):
        """Of the last evaluation; NaN: none."""
        return self._last("perplexity")

    @property
    def codec_perplexity(self):
        """Of the last evaluation through the codecs; NaN: none."""
        return self._last("codec_perplexity")

    @property
    def exact_match(self):
        """Of the last evaluation, 0 to 1; NaN: no prompts with answers."""
        return self._last("exact_match")

    @property
    def codec_exact_match(self):
        """Of the last evaluation through the codecs; NaN: none."""
        return self._last("codec_exact_match")

    def _last(self, column):
        values = self.evaluations.get(column, ())
        return float(values[-1]) if len(values) else float("nan")

    @property
    def final_loss(self):
        """Mean training loss of the last 5 % of the steps (at least one)."""
        if self.length == 0:
            return float("nan")
        return float(self.steps["loss"][-max(1, self.length // 20):].mean())
