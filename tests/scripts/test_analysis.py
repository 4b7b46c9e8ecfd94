# SPDX-License-Identifier: BSD-3-Clause
"""Tests of scripts/plot_run.py, compare_runs.py and run_table.py.

Runs of known content are written with h5py; when DELTAPIPE_UNIT_TESTS names the unit tests' binary,
the scripts also read what deltapipe itself writes.
"""

import csv
import fcntl
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py
    import matplotlib  # noqa: F401
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


PARTS = {"compute": 0.5, "codec": 0.05, "cache": 0.05, "wire_exposed": 0.2, "bubble": 0.1,
         "replica_wait": 0.0, "other": 0.1}


def evaluation_bytes(rows, boundaries, wire):
    if not wire:
        return ()
    return (("forward_bytes", np.full((rows, boundaries), 300, np.uint64)),
            ("tied_row_bytes", np.full(rows, 50, np.uint64)))


def write_run(path, rate=2.0, steps=100, boundaries=2, version=2, evaluations=None, wire=False,
              status="finished", codec_losses=None, fp32=True):
    """Steps of 4 samples at `rate` samples per second after a slow first step. `codec_losses`:
    of evaluations through the codecs, without which there are none; fp32: whether there are others.
    """
    number = np.arange(1, steps + 1)
    with h5py.File(path, "w") as file:
        file.attrs.update({"format_version": version, "status": status,
                           "stages": boundaries + 1, "replicas": 1,
                           "partition": [1] * (boundaries + 1),
                           "started": "2000-01-01T00:00:00Z", "deltapipe_version": "0.1.0"})
        table = {"step": number.astype(np.uint64), "epoch": number / 50,
                 "seconds": 100 + number * 4 / rate, "loss": 3 + np.exp(-number / 20),
                 "learning_rate": np.full(steps, 1e-4), "gradient_norm": np.ones(steps),
                 "tokens": np.full(steps, 400, np.uint64), "samples": np.full(steps, 4, np.uint64)}
        for direction in ("forward", "backward"):
            table[direction + "_bytes"] = np.full((steps, boundaries), 1000, np.uint64)
            error = np.full((steps, boundaries), np.nan)
            error[::10] = 0.125 if direction == "forward" else 0.0625
            table[direction + "_error"] = error
        stages = (steps, boundaries + 1)
        if version == 1:
            table["forward_hidden_seconds"] = np.full((steps, boundaries), 0.3)
            table["compute_seconds"] = np.full(stages, 1.0)
        else:
            for part, share in PARTS.items():
                table[part + "_seconds"] = np.full(stages, share * 4 / rate)
            table["wall_seconds"] = np.full(stages, 4 / rate)
            table["wire_seconds"] = np.full(stages, 0.8)
            table["wire_hidden_seconds"] = np.full(stages, 0.6)
            table["cache_stall_seconds"] = np.full(stages, 0.01)
            for name, value in (("first_visits", 1), ("hits", 2), ("misses", 3),
                                ("late_misses", 0), ("bytes_read", 5000), ("bytes_written", 0)):
                table["cache_" + name] = np.full(stages, value, np.uint64)
        if wire:
            table["tied_row_bytes"] = np.full(steps, 10, np.uint64)
            table["tied_gradient_bytes"] = np.full(steps, 20, np.uint64)
            table["replica_bytes"] = np.full(stages, 100, np.uint64)
            table["collective_bytes"] = np.full(steps, 5, np.uint64)
        for name, values in table.items():
            file[f"steps/{name}"] = values
        # (step, validation loss)
        rows = np.array(evaluations or ([(steps, 3.25)] if steps else []), float).reshape(-1, 2)
        for name, values in (("step", rows[:, 0].astype(np.uint64)), ("epoch", rows[:, 0] / 50),
                             ("seconds", 100 + rows[:, 0] * 4 / rate), ("loss", rows[:, 1]),
                             ("perplexity", np.exp(rows[:, 1])),
                             *evaluation_bytes(len(rows), boundaries, wire)):
            file[f"evaluations/{name}"] = values
        if codec_losses is None:
            return
        file["evaluations/codec_loss"] = np.array(codec_losses, float)
        file["evaluations/codec_perplexity"] = np.exp(codec_losses)
        for name, values in evaluation_bytes(len(rows), boundaries, wire):
            file[f"evaluations/codec_{name}"] = values // 10
        if not fp32:
            for name in ("loss", "perplexity"):
                file[f"evaluations/{name}"][...] = np.nan
            for name, _ in evaluation_bytes(len(rows), boundaries, wire):
                file[f"evaluations/{name}"][...] = 0


sys.path.insert(0, str(SCRIPTS))
import export_run  # noqa: E402


class Exports(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        (self.place / "run").mkdir()
        write_run(self.place / "run/run.h5", steps=30)

    def export(self, *arguments):
        return subprocess.run([sys.executable, SCRIPTS / "export_run.py", *arguments], check=True,
                              capture_output=True, text=True).stdout

    def test_csv(self):
        rows = list(csv.DictReader(self.export("csv", self.place / "run").splitlines()))
        self.assertEqual([int(row["step"]) for row in rows], list(range(1, 31)))
        self.assertEqual({row["forward_bytes_1"] for row in rows}, {"1000"})
        self.assertAlmostEqual(float(rows[0]["loss"]), 3 + np.exp(-1 / 20))

    def test_tensorboard(self):
        """Records have the lengths and checksums of the format, and the values of the run."""
        self.assertEqual(export_run.masked_crc32c(b"123456789"),  # RFC 3720: 0xe3069283
                         ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF)
        self.export("tensorboard", self.place / "run", "--to", self.place / "board")
        path, = (self.place / "board").rglob("events.out.tfevents.*")
        data, losses = path.read_bytes(), []
        while data:
            length, = struct.unpack_from("<Q", data)
            message = data[12:12 + length]
            self.assertEqual(struct.unpack_from("<I", data, 8)[0],
                             export_run.masked_crc32c(data[:8]))
            self.assertEqual(struct.unpack_from("<I", data, 12 + length)[0],
                             export_run.masked_crc32c(message))
            if b"training/loss" in message:
                losses.append(struct.unpack("<f", message[-4:])[0])
            data = data[16 + length:]
        np.testing.assert_allclose(losses, 3 + np.exp(-np.arange(1, 31) / 20), rtol=1e-6)


class AnalysisTest(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.addCleanup(self._directory.cleanup)
        self.directory = pathlib.Path(self._directory.name)

    def run_script(self, name, *arguments, status=0):
        result = subprocess.run([sys.executable, SCRIPTS / name, *map(str, arguments)],
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stdout if status == 0 else result.stderr

    def file(self, name, **options):
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        write_run(path, **options)
        return path

    def test_compare(self):
        first = self.file("none/run.h5")
        second = self.file("delta.h5", rate=6.0, boundaries=1)
        table = self.directory / "out.csv"
        text = self.run_script("compare_runs.py", first.parent, second, "--csv", table)
        self.assertEqual(len(text.splitlines()), 3)
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(list(rows[0]), ["run", "status", "perplexity", "wire_bytes",
                                         "sequences_per_second", "speedup", "target_loss",
                                         "seconds_to_loss", "bytes_to_loss",
                                         "evaluation_bytes", "codec_perplexity", "total_bytes",
                                         "total_percent", "exact_match",
                                         "codec_exact_match", "seconds"])
        self.assertGreater(float(rows[0]["seconds"]), float(rows[1]["seconds"]))
        self.assertEqual([row["status"] for row in rows], ["finished", "finished"])
        self.assertEqual([row["run"] for row in rows], ["none", "delta"])
        self.assertEqual([row["wire_bytes"] for row in rows], ["400000", "200000"])
        self.assertAlmostEqual(float(rows[0]["sequences_per_second"]), 2)
        self.assertAlmostEqual(float(rows[1]["speedup"]), 3)
        self.assertAlmostEqual(float(rows[0]["perplexity"]), np.exp(3.25))

    def test_time_and_bytes_to_a_loss(self):
        first = self.file("a.h5", evaluations=[(25, 3.5), (50, 3.25), (100, 3.0)])
        second = self.file("b.h5", rate=4.0, boundaries=1, evaluations=[(50, 3.4), (100, 3.2)])
        with h5py.File(second, "r+") as file:
            file.attrs["status"] = "failed"
        self.file("none.h5", steps=0)
        table = self.directory / "out.csv"
        # By default the lowest loss that both reach: 3.2, at step 100 (200 s) and 100 (100 s).
        for arguments, seconds, sent in (([], [300, 200], [400000, 200000]),
                                         (["--loss", 3.45], [200, 150], [200000, 100000]),
                                         (["--loss", 3.1], [300, None], [400000, None])):
            text = self.run_script("compare_runs.py", first, second, "--csv", table, *arguments)
            self.assertIn("failed", text)
            with open(table, newline="") as file:
                rows = list(csv.DictReader(file))
            for row, s, b in zip(rows, seconds, sent):
                self.assertEqual(float(row["seconds_to_loss"]) if s else row["seconds_to_loss"],
                                 s or "nan")
                self.assertEqual(float(row["bytes_to_loss"]) if b else row["bytes_to_loss"],
                                 b or "nan")
        self.assertIn("nan", self.run_script("compare_runs.py", self.directory / "none.h5"))

    def test_same_names_are_told_apart(self):
        text = self.run_script("compare_runs.py", self.file("a/x.h5"), self.file("b/x.h5"))
        self.assertIn("a/x.h5", text)
        self.assertIn("b/x.h5", text)

    def test_table(self):
        text = self.run_script("run_table.py", self.file("r.h5"), "--every", 10)
        lines = text.splitlines()
        self.assertEqual(lines[0].split()[:4], ["step", "epoch", "s", "loss"])
        self.assertEqual(sum(line.endswith("4.00 kB") for line in lines), 11)
        self.assertIn("0.125", lines[1])
        self.assertIn("0.0625", lines[1])
        stage = "0 200.00 50.0 % 5.0 % 5.0 % 20.0 % 10.0 % 0.0 % 10.0 % 80.00 s 75.0 %".split()
        self.assertIn(stage, [line.split() for line in lines])
        cache = ["0", "100", "200", "300", "0", "500.00", "kB", "0", "B", "1.00", "s"]
        self.assertIn(cache, [line.split() for line in lines])
        old = self.run_script("run_table.py", self.file("old.h5", version=1))
        self.assertIn("version 1", old)
        self.assertNotIn("75.0 %", old)
        self.assertIn("400.00 kB", text)
        self.run_script("run_table.py", self.directory / "r.h5", "--every", -1, status=2)

    def test_metrics_of_another_task(self):
        both = self.file("labels.h5", evaluations=[(50, 3.5), (100, 3.0)],
                         codec_losses=[3.75, 3.25])
        with h5py.File(both, "r+") as file:
            file.attrs["task"], file.attrs["metrics"] = "classification", ["accuracy", "f1"]
            for prefix, shift in (("", 0), ("codec_", 0.25)):
                del file[f"evaluations/{prefix}perplexity"]
                file[f"evaluations/{prefix}accuracy"] = np.array([0.5, 0.625]) - shift
                file[f"evaluations/{prefix}f1"] = np.array([0.25, 0.75]) - shift
        text = self.run_script("run_table.py", both)
        lines = [line.split() for line in text.splitlines()]
        self.assertIn(["50", "1.000", "200.00", "3.5000", "0.500", "0.250", "3.7500", "0.250",
                       "0.000"], lines)
        self.assertIn("accuracy     0.625, 0.375 through the codec", text)
        self.assertIn("f1           0.750, 0.500 through the codec", text)
        self.assertNotIn("perplexity", text)
        table = self.directory / "labels.csv"
        self.run_script("compare_runs.py", both, "--csv", table)
        with open(table, newline="", encoding="utf-8") as file:
            row, = csv.DictReader(file)
        self.assertEqual((float(row["accuracy"]), float(row["codec_accuracy"])), (0.625, 0.375))

    def test_evaluations_through_the_codec(self):
        both = self.file("both.h5", wire=True, evaluations=[(50, 3.5), (100, 3.0)],
                         codec_losses=[3.75, 3.25])
        text = self.run_script("run_table.py", both)
        lines = [line.split() for line in text.splitlines()]
        self.assertIn(["50", "1.000", "200.00", "3.5000", "33.115", "3.7500", "42.521"], lines)
        self.assertIn("perplexity   20.086, 25.790 through the codec", text)
        self.assertIn("evaluations  1.43 kB more on the wire, 1.30 kB of them with fp32, "
                      "130 B of them with codec", text)
        # A run that was only evaluated through the codec: that is its loss.
        only = self.file("only.h5", wire=True, evaluations=[(50, 0), (100, 0)],
                         codec_losses=[3.5, 3.0], fp32=False)
        text = self.run_script("run_table.py", only)
        self.assertIn("perplexity   20.086 through the codec", text)
        plain = self.file("plain.h5", evaluations=[(50, 3.5), (100, 3.0)])
        table = self.directory / "out.csv"
        text = self.run_script("compare_runs.py", both, only, plain, "--csv", table)
        header, *cells = [line.split("  ") for line in text.splitlines()]
        self.assertIn("through codec", [cell.strip() for cell in header])
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([f"{float(row['codec_perplexity']):.3f}" for row in rows],
                         ["25.790", "20.086", "nan"])
        self.assertEqual([row["target_loss"] for row in rows], ["3.0"] * 3)
        self.assertTrue(all(float(row["seconds_to_loss"]) > 0 for row in rows))
        self.assertNotIn("codec", self.run_script("compare_runs.py", plain))
        picture = self.directory / "both.png"
        self.run_script("plot_run.py", both, only, "-o", picture)
        self.assertGreater(picture.stat().st_size, 10000)

    def test_all_bytes_are_summed(self):
        run = self.file("r.h5", wire=True)
        text = self.run_script("run_table.py", run)
        # A step: two boundaries both ways, rows and their gradients, three stages' replicas, sums.
        self.assertIn("433.50 kB (4.33 kB per step)", text)
        self.assertIn("evaluations  650 B more", text)
        table = self.directory / "out.csv"
        self.run_script("compare_runs.py", run, "--csv", table)
        with open(table, newline="") as file:
            row, = csv.DictReader(file)
        self.assertEqual((row["wire_bytes"], row["evaluation_bytes"]), ("433500", "650"))

    def test_a_run_that_was_killed(self):
        run = self.file("run.h5", status="running")
        lock = self.directory / ".deltapipe.lock"

        def status():
            self.run_script("compare_runs.py", run, "--csv", self.directory / "out.csv")
            with open(self.directory / "out.csv", newline="") as file:
                row, = csv.DictReader(file)
            self.assertRegex(self.run_script("run_table.py", run), "status +" + row["status"])
            return row["status"]

        self.assertEqual(status(), "unknown")
        lock.write_text("0123\nprocess 1 on here\n")
        self.assertEqual(status(), "killed")
        self.assertIn("no process holds", self.run_script("run_table.py", run))
        with open(lock, "r+b") as holder:
            fcntl.fcntl(holder, fcntl.F_OFD_SETLK,
                        struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            self.assertEqual(status(), "running")
        self.assertEqual(status(), "killed")
        lock.unlink()
        lock.symlink_to("elsewhere")
        self.assertEqual(status(), "unknown")
        with h5py.File(run, "r+") as file:
            file.attrs["status"] = "failed"
            file.attrs["reason"] = "lost contact with rank 1"
        self.assertIn("failed: lost contact with rank 1", self.run_script("run_table.py", run))

    def test_restarts(self):
        path = self.file("one.h5")
        with h5py.File(path, "a") as file:
            file["restarts/step"] = np.array([20, 20, 70], np.uint64)
        self.assertIn("restarts     3, after steps 20 20 70",
                      self.run_script("run_table.py", path))
        for x in ("step", "epoch"):
            picture = self.directory / f"restarts-{x}.png"
            self.run_script("plot_run.py", path, "-o", picture, "-x", x)
            self.assertGreater(picture.stat().st_size, 10000)

    def test_plot(self):
        first, second = self.file("a.h5"), self.file("b.h5", steps=1, boundaries=0)
        self.run_script("plot_run.py", self.file("old.h5", version=1), "-o",
                        self.directory / "old.png")
        for arguments in ([], ["-x", "epoch"]):
            picture = self.directory / "out.png"
            self.run_script("plot_run.py", first, second, "-o", picture, *arguments)
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            picture.unlink()

    def test_module(self):
        code = """
import sys
import deltapipe_runs
run = deltapipe_runs.Run(sys.argv[1])
assert "matplotlib" not in sys.modules and "pandas" not in sys.modules
assert run.deck == {"training": {"epochs": 2}}, run.deck
assert run.boundary_bytes("backward").sum(axis=0).tolist() == [100000, 100000]
assert run.rank_seconds()["wall"].tolist() == [200, 200, 200]
assert run.rank_seconds()["bubble"].round(6).tolist() == [20, 20, 20]
assert run.memory["peak"].tolist() == [1, 2, 3] and run.checkpoints == {}
assert (run.wire_bytes, run.total_bytes) == (433500, 434150)
"""
        path = self.file("r.h5", wire=True)
        with h5py.File(path, "r+") as file:
            file["memory/peak"] = [1, 2, 3]
            file.attrs["deck"] = "[training]\nepochs = 2\n"
        subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60,
                       env=dict(os.environ, PYTHONPATH=str(SCRIPTS)))

    def test_evaluations_count(self):
        """The share of the first run's bytes contains what evaluations sent."""
        first = self.file("none.h5", wire=True)
        second = self.file("delta.h5", wire=True, boundaries=1)
        text = self.run_script("compare_runs.py", first, second)
        # (100 x (2,000 + 235) + 350) / (100 x (4,000 + 335) + 650)
        self.assertIn("51.6 %", text)
        self.assertIn("650 B", text)

    def test_reader_that_leaves(self):
        run = self.file("r.h5")
        for script in ("run_table.py", "compare_runs.py"):
            read, write = os.pipe()
            os.close(read)
            result = subprocess.run([sys.executable, SCRIPTS / script, run], stdout=write,
                                    stderr=subprocess.PIPE, text=True, timeout=60)
            os.close(write)
            self.assertEqual((result.returncode, result.stderr), (141, ""))

    def test_python_without_packages(self):
        """Another python3 of the path that has them is used; without one the packages are named."""
        run = self.file("r.h5")
        bare = "import sys; sys.path = [p for p in sys.path if 'packages' not in p]; "
        code = bare + "sys.argv = sys.argv[1:]; import runpy; sys.path.insert(0, %r); " \
            "runpy.run_path(sys.argv[0], run_name='__main__')" % str(SCRIPTS)
        folder = self.directory / "bin"
        folder.mkdir()

        def start(**environment):
            return subprocess.run([sys.executable, "-c", code, SCRIPTS / "run_table.py", run],
                                  capture_output=True, text=True, timeout=60,
                                  env={**os.environ, **environment})
        (folder / "python3").write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
        (folder / "python3").chmod(0o755)
        found = start(PATH=f"{folder}:{os.environ['PATH']}")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("final loss", found.stdout)
        none = start(DELTAPIPE_PYTHON_FOUND="this")
        self.assertEqual(none.returncode, 1)
        self.assertIn("python3-h5py", none.stderr)
        self.assertEqual(len(none.stderr.splitlines()), 1)

    def test_sets_of_packages(self):
        def listed(*sets, status=0):
            result = subprocess.run([SCRIPTS / "setup.sh", "--list", *sets], capture_output=True,
                                    text=True, timeout=60)
            self.assertEqual(result.returncode, status, result.stderr)
            return set(result.stdout.split())
        self.assertEqual(listed(), listed("build", "analysis"))
        self.assertEqual(listed(), listed("quickstart"))
        self.assertLess(listed(), listed("tests"))
        self.assertFalse({"munge", "slurmd", "slurmctld", "python3-torch", "catch2"} & listed())
        self.assertIn("g++", listed("build"))
        self.assertNotIn("g++", listed("run"))
        listed("everything", status=2)

    def test_short_runs(self):
        empty = self.file("empty.h5", steps=0)
        self.assertIn("steps        0", self.run_script("run_table.py", empty))
        self.assertIn("nan", self.run_script("compare_runs.py", empty, self.file("one.h5", steps=1)))
        self.assertIn("no steps yet", self.run_script("plot_run.py", empty, "-o",
                                                      self.directory / "x.png", status=1))

    def test_broken_files(self):
        text = self.directory / "text.h5"
        text.write_text("not HDF5")
        cut = self.file("cut.h5")
        cut.write_bytes(cut.read_bytes()[:5000])
        other, version = self.directory / "other.h5", self.file("version.h5")
        h5py.File(other, "w").close()
        with h5py.File(version, "r+") as file:
            file.attrs["format_version"] = 99
        column, length, group = self.file("column.h5"), self.file("length.h5"), self.file("group.h5")
        with h5py.File(column, "r+") as file:
            del file["steps/loss"]
        with h5py.File(length, "r+") as file:
            del file["steps/loss"]
            file["steps/loss"] = np.zeros(3)
        with h5py.File(group, "r+") as file:
            del file["evaluations"]
        cases = ((self.directory / "none.h5", "no such file"), (text, "cannot be read as HDF5"),
                 (cut, "cannot be read as HDF5"), (other, "not a run of deltapipe"),
                 (version, "format version 99"), (column, "has no loss"),
                 (length, "differ in length"), (group, "has no group 'evaluations'"))
        for path, expected in cases:
            for script in ("run_table.py", "compare_runs.py"):
                message = self.run_script(script, path, status=1)
                self.assertIn(expected, message)
                self.assertIn(str(path), message)
                self.assertEqual(len(message.splitlines()), 1)

    def test_places_that_cannot_be_written(self):
        run = self.file("r.h5")
        for script, option in (("compare_runs.py", "--csv"), ("plot_run.py", "-o")):
            self.assertIn("No such file", self.run_script(
                script, run, option, self.directory / "no" / "x.png", status=1))
        self.assertIn("x.nonsense", self.run_script("plot_run.py", run, "-o",
                                                    self.directory / "x.nonsense", status=1))

    def test_runs_of_deltapipe(self):
        binary = os.environ.get("DELTAPIPE_UNIT_TESTS")
        if not binary:
            self.skipTest("DELTAPIPE_UNIT_TESTS does not name the unit tests' binary")
        subprocess.run([binary, "Runs for the analysis scripts"], check=True, timeout=120,
                       stdout=subprocess.DEVNULL,
                       env=dict(os.environ, DELTAPIPE_WRITE_RUNS=str(self.directory)))
        runs = [self.directory / "stages1.h5", self.directory / "stages3.h5"]
        with h5py.File(runs[1]) as file:
            steps = file["steps"]
            self.assertEqual(steps["loss"][99], 3 + 4 * np.exp(-2.0))
            self.assertEqual(steps["forward_bytes"].shape, (200, 2))
            self.assertEqual(steps["seconds"].attrs["unit"], "s")
            self.assertEqual(file.attrs["deck"], "[training]\nepochs = 2\n")
            self.assertEqual(list(file.attrs["partition"]), [3, 3, 3])
        self.assertEqual(len(self.run_script("compare_runs.py", *runs).splitlines()), 3)
        self.run_script("plot_run.py", *runs, "-o", self.directory / "x.png")
        for run in [*runs, self.directory / "empty.h5"]:
            self.assertIn("2 replicas", self.run_script("run_table.py", run))


if __name__ == "__main__":
    unittest.main()
