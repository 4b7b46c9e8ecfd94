# SPDX-License-Identifier: BSD-3-Clause
"""Tests of scripts/benchmark.py with a tiny model: what it prints and writes, not how fast it is.

DELTAPIPE_BUILD names the build folder with the benchmarks' programs. Without a PyTorch the half that
compares with it is left out.
"""

import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/benchmark.py"
BUILD = os.environ.get("DELTAPIPE_BUILD", str(ROOT / "build/release"))
TIME_LIMIT = 240  # seconds
SIDE = {"seconds_a_step", "tokens_per_second", "peak_bytes", "share_of_ceiling"}


def load():
    specification = importlib.util.spec_from_file_location("benchmark", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def has_torch(python):
    code = "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 4)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def run(place, *options):
    file = pathlib.Path(place) / "figures.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--small", "--pairs", "1", "--build", BUILD, "--json", file,
         *options], capture_output=True, text=True, timeout=TIME_LIMIT)
    if done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, json.loads(file.read_text())["results"]


class BenchmarkTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="deltapipe-benchmark-")
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)

    def without_pytorch(self):
        """Stands for an interpreter without PyTorch: the other tests need not wait for it."""
        python = self.place / "python"
        python.write_text("#!/bin/sh\nexit 77\n", encoding="utf-8")
        python.chmod(0o755)
        return python

    def check_side(self, side, tokens):
        self.assertLessEqual(SIDE, set(side))
        for key in SIDE:
            self.assertTrue(math.isfinite(side[key]) and side[key] > 0, (key, side[key]))
        self.assertAlmostEqual(side["tokens_per_second"] * side["seconds_a_step"], tokens, 6)

    def test_one_thread(self):
        text, (result,) = run(self.place, "--python", self.without_pytorch())
        self.assertEqual(result["precision"], "fp32")
        self.assertEqual(result["micro_batches"], 1)
        tokens = result["samples"] * result["tokens"]
        self.check_side(result["deltapipe"], tokens)
        for rate in ("product_flop_per_second", "triad_bytes_per_second"):
            self.assertGreater(result["ceilings"][rate], 0)
        kernels = {(kernel["region"], kernel["kernel"]) for kernel in result["kernels"]}
        names = {kernel for _, kernel in kernels}
        for name in ("deltapipe::AdamW::update", "deltapipe::CrossEntropy::lossAndGradient"):
            self.assertIn(name, names)
        # A region's products have a line of their own, whoever makes them.
        lines = {load().kernel_name(kernel) for kernel in result["kernels"]}
        self.assertIn("Attention::forward: products", lines)
        # Each kernel's own time: what nests is counted once.
        total = sum(kernel["seconds_a_step"] for kernel in result["kernels"])
        self.assertLess(total, result["profiled_seconds_a_step"])
        for word in ("tokens/s", "of ceiling", "GFLOP/s", "GB/s", "AdamW::update"):
            self.assertIn(word, text)

    def test_beside_pytorch(self):
        python = load().find_python()
        if not has_torch(python):
            self.skipTest("no PyTorch of today")
        text, (result,) = run(self.place, "--python", python)
        self.check_side(result["pytorch"], result["samples"] * result["tokens"])
        self.assertEqual(len(result["ratios"]), 1)
        self.assertGreater(result["ratio"], 0)
        self.assertGreater(result["memory_ratio"], 0)
        self.assertIn("PyTorch " + result["pytorch"]["version"].split("+")[0], text)
        self.assertIn("ratio", text)

    def test_bf16(self):
        python = load().find_python()
        options = ["--python", python if has_torch(python) else self.without_pytorch()]
        text, (result,) = run(self.place, "--precision", "bf16", *options)
        self.assertEqual(result["precision"], "bf16")
        self.check_side(result["deltapipe"], result["samples"] * result["tokens"])
        if result["pytorch"]:
            self.check_side(result["pytorch"], result["samples"] * result["tokens"])
        self.assertIn("deltapipe::Bf16Gemm::round",
                      {kernel["kernel"] for kernel in result["kernels"]})
        self.assertIn("bf16, 1 thread", text)

    def test_two_threads(self):
        _, (result,) = run(self.place, "--threads", "2", "--python", self.without_pytorch())
        self.assertEqual((result["ranks"], result["micro_batches"]), (1, 1))

    def test_two_ranks(self):
        text, (result,) = run(self.place, "--threads", "2", "--ranks", "2", "--python",
                              self.without_pytorch())
        self.assertIsNone(result["pytorch"])
        self.assertIn("is not installed here", text)
        if result["kokkos"] == "Serial":
            self.assertEqual((result["ranks"], result["micro_batches"]), (2, 8))
        self.check_side(result["deltapipe"],
                        result["samples"] * result["tokens"] * result["micro_batches"])

    def test_missing_programs_are_named(self):
        done = subprocess.run([sys.executable, SCRIPT, "--small", "--build", self.place],
                              capture_output=True, text=True, timeout=TIME_LIMIT)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("DELTAPIPE_BENCHMARKS=ON", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_both_models_do_the_same_work(self):
        """Parameters of GPT-2 small, and the products' operations by hand."""
        benchmark = load()
        shape = benchmark.SHAPES["gpt2-124m"]
        linear = 12 * 12 * 768 ** 2 + 768 * 50257
        self.assertEqual(benchmark.model_flop(shape), 6 * 256 * (linear + 12 * 64 * 768))

    def test_results_are_data(self):
        """Rows have what scripts/render_results.py wants, and cells fill in."""
        benchmark = load()
        side = {"seconds_a_step": 0.5, "tokens_per_second": 2000.0, "peak_bytes": 10 ** 9,
                "share_of_ceiling": 0.75}
        kernels = [{"region": "deltapipe::A::b", "kernel": kernel, "seconds_a_step": seconds,
                    "calls_a_step": 3.0}
                   for kernel, seconds in (("KokkosBlas::gemm[TPL_BLAS,float]", 0.4),
                                           ("deltapipe::AdamW::update", 0.0999),
                                           ("deltapipe::B::c", 0.0001))]
        result = {"shape": "gpt2-124m", "layers": 12, "channels": 768, "vocabulary": 50257,
                  "samples": 4, "tokens": 64, "micro_batches": 1, "threads": 1,
                  "precision": "fp32", "deltapipe": side,
                  "pytorch": {**side, "version": "2.15.0+cpu", "compiled": True, "jemalloc": False},
                  "ratio": 1.05, "ratios": [1.0, 1.05, 1.1], "kernels": kernels,
                  "ceilings": {"product_flop_per_second": 1.5e11, "triad_bytes_per_second": 2e10}}
        benchmark.RESULTS = self.place
        given = ["--json", "a", "--pairs", "3", "--build=b"]
        benchmark.write_results(
            types.SimpleNamespace(results="epyc-2", given=given, threads=1, ranks=1, precision="fp32"),
            [result], "0123abc")
        for name, needle in (("training", "1.05"), ("training_kernels", "A::b: products")):
            data = tomllib.loads((self.place / f"{name}.toml").read_text(encoding="utf-8"))
            for key in ("commit", "commit_is", "date", "machine", "command"):
                self.assertTrue(data[key], key)
            self.assertEqual(data["command"], "scripts/benchmark.py --pairs 3")
            cells = []
            for row in data["row"]:
                values = dict(row)
                if "measured" in row:
                    values["measured"] = row["measured"].format_map(row["figures"])
                cells += [column["cell"].format_map(values) for column in data["columns"]]
            self.assertTrue(any(needle in cell for cell in cells), cells)
            self.assertFalse(any("|" in cell for cell in cells))
        self.assertEqual(data["row"][-1]["kernel"], "everything else")
        self.assertAlmostEqual(data["row"][-1]["gpt2_124m_ms"], 0.1)


if __name__ == "__main__":
    unittest.main()
