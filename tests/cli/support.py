# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the program share: a place to work, decks, runs with time limits.

The environment names the program (DELTAPIPE_PROGRAM) and the MPI launcher with its options
(DELTAPIPE_MPIEXEC, DELTAPIPE_MPIEXEC_NUMPROC_FLAG). Exit status 77: h5py is missing.
"""

import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.environ.get("DELTAPIPE_PROGRAM", "build/release/bin/deltapipe")
MPIEXEC = shlex.split(os.environ.get("DELTAPIPE_MPIEXEC", "mpirun"))
NUMPROC_FLAG = os.environ.get("DELTAPIPE_MPIEXEC_NUMPROC_FLAG", "-n")
TIME_LIMIT = 60  # seconds; a call takes less than one on an idle machine
HEADER_BYTES = 104  # of a message

ENVIRONMENT = dict(
    os.environ,
    OMPI_ALLOW_RUN_AS_ROOT="1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_rmaps_base_oversubscribe="1",
    OMPI_MCA_hwloc_base_binding_policy="none",
    OMPI_MCA_mpi_yield_when_idle="1",
    OMPI_MCA_odls_base_sigkill_timeout="0",
    OPENBLAS_NUM_THREADS="1")


def text_of(size, seed=1):
    """About `size` bytes of made-up sentences, some with letters outside ASCII."""
    random_numbers = random.Random(seed)
    syllables = ["ka", "lo", "mi", "re", "tu", "sa", "né", "vor", "bel", "un", "dé", "ши"]
    words = ["".join(random_numbers.choices(syllables, k=random_numbers.randint(1, 3)))
             for _ in range(120)]
    text = ""
    while len(text) < size:
        sentence = " ".join(random_numbers.choices(words, k=random_numbers.randint(4, 11)))
        text += sentence.capitalize() + ".\n"
    return text


def merged(*decks):
    """Decks {section: {key: value}} on top of each other."""
    result = {}
    for deck in decks:
        for section, keys in deck.items():
            result.setdefault(section, {}).update(keys)
    return result


def write_deck(path, deck):
    lines = []
    for section, keys in deck.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}"
                  for key, value in keys.items()]
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_safetensors(path):
    """Header and data of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("deltapipe: error:")]

    def __str__(self):
        return f"exit status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def command_of(arguments, ranks):
    command = [PROGRAM, *map(str, arguments)]
    return command if ranks == 1 else [*MPIEXEC, NUMPROC_FLAG, str(ranks), *command]


def command_of_each(commands):
    """Ranks with a command each."""
    launched = [*MPIEXEC]
    for rank, command in enumerate(commands):
        launched += [":"] * (rank > 0) + [NUMPROC_FLAG, "1", *map(str, command)]
    return launched


def start_command(command, **environment):
    """A process in a group of its own."""
    return subprocess.Popen(command, env=ENVIRONMENT | environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def start(arguments, ranks=1, **environment):
    """The program; one process is started without a launcher."""
    return start_command(command_of(arguments, ranks), **environment)


def finish(process, limit=TIME_LIMIT):
    """The end of a process; one that does not come to its end is a hang, and a failure."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"hangs: {shlex.join(process.args)}\n{Result(None, out, err)}")
    return Result(process.returncode, out, err)


def run_command(command, **environment):
    return finish(start_command(command, **environment))


def run(arguments, ranks=1):
    return finish(start(arguments, ranks))


def without_measurements(text):
    """What `check` says, but for what depends on the moment: memory of the process, free space."""
    varying = ("# program and data", "# peak", "# all ", "# disk:", "# memory:", "# files:")
    return [line for line in text.splitlines() if not line.startswith(varying)]


class Run:
    """The tables and attributes of a run.h5."""

    def __init__(self, path):
        with h5py.File(path, "r") as file:
            self.attributes = dict(file.attrs)
            self.steps = {name: data[()] for name, data in file["steps"].items()}
            self.evaluations = {name: data[()] for name, data in file["evaluations"].items()}
            self.memory = {name: data[()] for name, data in file.get("memory", {}).items()}

    @property
    def losses(self):
        return self.steps["loss"]


class TestCase(unittest.TestCase):
    """A directory for each class, with a text in it."""

    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="deltapipe-cli-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.text = cls.place / "text.txt"
        cls.text.write_text(text_of(20000), encoding="utf-8")
        cls.decks = 0

    @classmethod
    def trained_model(cls):
        """A model of one step, whose directory files can be taken from."""
        deck = cls.deck_file(cls.small(training={"steps": 1}))
        result = run(["train", deck, f"output.directory={cls.place}/base"])
        if result.status != 0:
            raise AssertionError(str(result))
        return cls.place / "base" / "model"

    @classmethod
    def small(cls, **sections):
        """A deck of a model that trains in a moment, also where another one was."""
        deck = {
            "model.new": {"n_layer": 4, "n_embd": 32, "n_head": 2, "n_positions": 32},
            "tokenizer": {"train_vocabulary": 300},
            "data": {"train": [str(cls.text)], "max_train_samples": 30,
                     "max_validation_samples": 7},
            "training": {"steps": 3, "micro_batch_size": 2, "micro_batches": 2},
            "training.optimizer": {"learning_rate": 1e-3},
            "output": {"directory": str(cls.place / "run"), "overwrite": True},
        }
        return merged(deck, {name.replace("__", "."): keys for name, keys in sections.items()})

    @classmethod
    def deck_file(cls, deck):
        cls.decks += 1
        return write_deck(cls.place / f"deck{cls.decks}.toml", deck)

    @classmethod
    def output(cls, name):
        return cls.place / name

    def succeed(self, arguments, ranks=1):
        result = run(arguments, ranks)
        self.assertEqual(result.status, 0, f"{command_of(arguments, ranks)}\n{result}")
        return result

    def train(self, deck, name, ranks=1, overrides=()):
        """Trains into the directory `name` and returns its run."""
        output = self.output(name)
        self.succeed(["train", self.deck_file(deck), f"output.directory={output}", *overrides],
                     ranks)
        return Run(output / "run.h5")

    def model_bytes(self, name):
        return (self.output(name) / "model/model.safetensors").read_bytes()

    def check_stages(self, deck_of_pipeline):
        """Losses, accuracies and models have the same bits for one to four stages.
        deck_of_pipeline(keys) is a deck with these keys of [pipeline]."""
        alone = self.train(deck_of_pipeline({}), "k1")
        for stages, schedule in ((2, "1f1b"), (3, "zb-h1"), (4, "gpipe")):
            made = self.train(deck_of_pipeline({"stages": stages, "schedule": schedule}),
                              f"k{stages}", stages)
            self.assertEqual(made.losses.tobytes(), alone.losses.tobytes())
            self.assertEqual(made.evaluations["accuracy"].tobytes(),
                             alone.evaluations["accuracy"].tobytes())
            self.assertEqual(self.model_bytes(f"k{stages}"), self.model_bytes("k1"))

    def check_restart(self, deck, between=lambda output: None):
        """Two ranks that stop at a time limit and resume end with the bits of a whole run. Calls
        between(output directory) before the restart."""
        names = [f"{self._testMethodName}-{part}" for part in ("whole", "parts")]
        whole = self.train(deck, names[0], 2)
        output = self.output(names[1])
        stopped = run(["train", self.deck_file(deck), f"output.directory={output}",
                       "network.latency=0.1", "checkpoint.time_limit=3"], 2)
        self.assertEqual(stopped.status, 75, stopped)
        between(output)
        resumed = self.train(deck, names[1], 2)
        self.assertEqual(resumed.losses.tobytes(), whole.losses.tobytes())
        self.assertEqual(self.model_bytes(names[1]), self.model_bytes(names[0]))

    def assert_stops(self, result, *parts, status=None):
        """One line that says all the parts, no crash."""
        shown = str(result)
        if status is None:
            self.assertIn(result.status, (1, 2), shown)
        else:
            self.assertEqual(result.status, status, shown)
        self.assertEqual(len(result.errors), 1, shown)
        for part in parts:
            self.assertIn(str(part), result.errors[0])
        for crash in ("terminate called", "Process received signal", "core dumped",
                      "MPI_ABORT", "HDF5-DIAG", "what():", "Assertion"):
            self.assertNotIn(crash, result.err + result.out, shown)


def main():
    unittest.main(verbosity=2)
