#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""scripts/shaped_links.sh: the same losses and bytes as over emulated links, no faster than the
wire, nothing left behind. Exit status 77 without root, network namespaces, tc, mpirun or h5py.
"""

import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts" / "shaped_links.sh"
PROGRAM = os.environ.get("DELTAPIPE_PROGRAM", str(SOURCE / "build/release/bin/deltapipe"))
MPIEXEC = shlex.split(os.environ.get("DELTAPIPE_MPIEXEC", "mpirun --oversubscribe"))
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OPENBLAS_NUM_THREADS="1")
BITS_PER_SECOND = 20e6
DECK = """
[model.new]
n_layer = 2
n_head = 2
n_embd = 64
n_positions = 64
[tokenizer]
train_vocabulary = 300
[data]
train = "train.txt"
validation_fraction = 0
[training]
steps = 4
micro_batch_size = 8
micro_batches = 4
[pipeline]
stages = 2
[network]
bandwidth = "20 Mbit/s"
[output]
save_model = false
"""


def ready():
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "tc", "mpirun"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    name = f"deltapipe-test-{os.getpid()}"
    add = ["ip", "-n", name, "link", "add", "left", "type", "veth", "peer", "name", "right"]
    shape = ["tc", "-n", name, "qdisc", "add", "dev", "left", "root", "tbf", "rate", "1mbit",
             "burst", "32kb", "latency", "20ms"]
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return "no network namespaces"
    try:
        for command in (add, shape):
            if subprocess.run(command, capture_output=True).returncode != 0:
                return "no veth or tbf in this kernel"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


def namespaces(pid):
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"deltapipe{pid}-")]


class ShapedLinks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        numbers = random.Random(1)
        text = " ".join("".join(numbers.choices("abcdefgh", k=numbers.randint(2, 6)))
                        for _ in range(8000))
        pathlib.Path(self.folder.name, "train.txt").write_text(text, encoding="utf-8")
        pathlib.Path(self.folder.name, "deck.toml").write_text(DECK, encoding="utf-8")

    def start(self, *arguments):
        return subprocess.Popen([SCRIPT, "--program", PROGRAM, *arguments], cwd=self.folder.name,
                                env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def finish(self, process, status):
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, output)
        self.assertEqual(namespaces(process.pid), [])
        return output

    def steps(self, directory):
        with h5py.File(pathlib.Path(self.folder.name, directory, "run.h5")) as run:
            return {name: values[()] for name, values in run["steps"].items()}

    def run_both(self, ranks, *overrides):
        """Returns the steps of a run over shaped and of one over emulated links."""
        self.finish(self.start("deck.toml", "output.directory=shaped", *overrides), 0)
        subprocess.run([*MPIEXEC, "-n", str(ranks), PROGRAM, "train", "deck.toml",
                        "output.directory=emulated", *overrides], cwd=self.folder.name,
                       env=ENVIRONMENT, check=True, capture_output=True, timeout=60)
        shaped, emulated = self.steps("shaped"), self.steps("emulated")
        for name in ("loss", "gradient_norm", "forward_bytes", "backward_bytes", "tied_row_bytes",
                     "tied_gradient_bytes", "replica_bytes"):
            np.testing.assert_array_equal(shaped[name], emulated[name], name)
        return shaped, emulated

    def test_same_as_emulated(self):
        shaped, _ = self.run_both(2)
        # Without shaping these steps are many times faster. A full bucket lets 32 KiB pass at once.
        wire = (shaped["forward_bytes"].sum() - 32768) * 8 / BITS_PER_SECOND
        self.assertGreater(shaped["seconds"][-1], wire)

    def test_replicas_over_one_wire_each(self):
        shaped, emulated = self.run_both(3, "pipeline.stages=1", "pipeline.replicas=3",
                                         "network.wire=rank")
        for steps in (shaped, emulated):
            wire = (steps["replica_bytes"].sum() / 3 - 32768) * 8 / BITS_PER_SECOND
            self.assertGreater(steps["seconds"][-1], wire)

    def test_links_between_two_replicas(self):
        shaped, _ = self.run_both(4, "pipeline.replicas=2", "network.bandwidth=0",
                                  "network.replicas.bandwidth=20 Mbit/s")
        wire = (shaped["replica_bytes"].sum(axis=0).max() / 2 - 32768) * 8 / BITS_PER_SECOND
        self.assertGreater(shaped["seconds"][-1], wire)

    def test_leaves_nothing_behind_when_stopped(self):
        process = self.start("--rate", "1mbit", "deck.toml")
        deadline = time.monotonic() + 30
        for line in process.stdout:
            if line.startswith("step 1/") or time.monotonic() > deadline:
                break
        self.assertEqual(len(namespaces(process.pid)), 2)
        process.send_signal(signal.SIGTERM)
        self.finish(process, 143)

    def test_mistakes(self):
        cases = [(["missing.toml"], 2, "missing.toml"),
                 (["-n", "1", "deck.toml"], 1, "a link needs two"),
                 (["deck.toml", "pipeline.replicas=3"], 1, "use network.wire=rank"),
                 (["--rate", "fast", "deck.toml"], 1, "rate fast"),
                 (["--rate"], 1, "--rate needs a value"),
                 (["--wrong", "deck.toml"], 1, "unknown option --wrong"),
                 ([], 1, "which deck?"),
                 (["deck.toml", "training.stepps=1"], 2, "stepps")]
        for arguments, status, message in cases:
            with self.subTest(arguments=arguments):
                self.assertIn(message, self.finish(self.start(*arguments), status))


if __name__ == "__main__":
    missing = ready()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    unittest.main()
