#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares training steps of deltapipe with PyTorch's and with what the machine can do at most.

usage: scripts/benchmark.py [--shape NAME]... [--precision fp32|bf16] [--threads N] [--ranks N]
                            [--pairs N]
                            [--small] [--json FILE] [--results MACHINE]

Both sides train the same GPT-2 from random weights on random tokens, in turn and each in a process
of its own. Between them the ceilings are measured: the linear layers' matrix products alone at the
model's shapes and through the same BLAS, and the memory's bandwidth (triad, 12 bytes a value).
Printed are medians over the steps that follow warm-up, and of the ratios of all pairs; the share
of the ceiling is what all of the model's products, attention's causal half included, would take at
the speed of those products, over what the step takes. Where the time goes is from a run of its own.

Both sides use --threads threads. With --ranks deltapipe divides them among as many processes, stages
of a pipeline with 8 micro-batches a step, which PyTorch accumulates, too.

PyTorch is set up as well as it can be: plain GPT-2 with scaled_dot_product_attention and fused
AdamW, denormals flushed, with --precision bf16 autocast, jemalloc with huge pages where it is installed (apt-get install
libjemalloc2), compiled where a compiler is and that is faster. Its Python is --python, else that of
scripts/setup_python.sh (build/venv-newest), else this one; without PyTorch only deltapipe runs.

Programs are those of --build, with -DDELTAPIPE_BENCHMARKS=ON. Run it on an idle machine; all of it
takes about a quarter of an hour.
"""

import argparse
import datetime
import glob
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "tests/benchmarks"
RESULTS = ROOT / "docs/results"

# layers, heads, channels, vocabulary, positions, samples, tokens
SHAPES = {
    "gpt2-124m": (12, 12, 768, 50257, 1024, 4, 64),
    "l6-c384": (6, 6, 384, 50257, 256, 4, 256),
    "l4-c256": (4, 4, 256, 256, 256, 4, 256),
}
SMALL_SHAPE = (2, 2, 32, 257, 64, 2, 16)
WARM_UP = 2
MICRO_BATCHES = 8  # of a pipeline
LEAST_VOCABULARY = 257  # of `deltapipe train`: bytes and the end of a text
COMPILE_LIMIT = 600  # seconds
MISSING = 77


class BenchmarkError(Exception):
    """What keeps the benchmark from running; the message is for the user."""


# Processes -------------------------------------------------------------------------------------

def find_jemalloc():
    found = sorted(glob.glob("/usr/lib/*/libjemalloc.so*") + glob.glob("/usr/lib*/libjemalloc.so*"))
    return found[0] if found else None


def environment(threads, pytorch=False, jemalloc=None):
    values = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS="1")
    if not pytorch:
        return values
    values["MKL_NUM_THREADS"] = str(threads)
    if jemalloc:
        values["LD_PRELOAD"] = jemalloc
        values["MALLOC_CONF"] = ("thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
                                 "oversize_threshold:0")
    return values


def run_json(command, variables, limit=None):
    """What the command prints as its last line; None: it says that something is missing."""
    done = subprocess.run([str(word) for word in command], env=variables, capture_output=True,
                          timeout=limit, text=True)
    if done.returncode == MISSING:
        return None
    if done.returncode != 0:
        raise BenchmarkError(f"exit status {done.returncode}: {shlex.join(map(str, command))}\n" +
                             "\n".join(done.stderr.splitlines()[-5:]))
    return json.loads(done.stdout.splitlines()[-1])


def run_together(commands, variables):
    """The same as run_json for commands that run at the same time."""
    running = [subprocess.Popen([str(word) for word in command], env=variables,
                                stdout=subprocess.PIPE, text=True) for command in commands]
    made = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise BenchmarkError(f"failed: {shlex.join(map(str, commands[0]))}")
    return [json.loads(text) for text in made]


def program(arguments, name):
    path = arguments.build / "bin" / name
    if not path.exists():
        raise BenchmarkError(
            f"{path} is not there; build it with\n  cmake --preset release "
            f"-DDELTAPIPE_BENCHMARKS=ON && cmake --build --preset release")
    return path


# Sides -----------------------------------------------------------------------------------------

class Deltapipe:
    """Steps of one process, or of ranks that are stages of a pipeline."""

    def __init__(self, arguments, shape, steps):
        self.arguments, self.steps = arguments, steps
        self.threads = arguments.threads
        tiny = [1, 1, 8, 16, 8, 1, 4, 1]
        self.kokkos = run_json([program(arguments, "training_benchmark"), *tiny],
                               environment(1))["execution_space"]
        self.ranks = arguments.ranks
        if self.ranks > shape[0]:
            raise BenchmarkError(f"a pipeline of {self.ranks} stages needs as many blocks; "
                                 "take fewer --ranks")
        self.micro_batches = MICRO_BATCHES if self.ranks > 1 else 1
        vocabulary = max(shape[3], LEAST_VOCABULARY if self.ranks > 1 else 0)
        self.shape = (*shape[:3], vocabulary, *shape[4:])

    def run(self):
        if self.ranks > 1:
            return self.run_ranks()
        return run_json([program(self.arguments, "training_benchmark"), *self.options(),
                         *self.shape, self.steps], environment(self.threads))

    def options(self):
        return ["--bf16"] if self.arguments.precision == "bf16" else []

    def run_ranks(self):
        os.environ["OMP_NUM_THREADS"] = str(self.threads // self.ranks)
        os.environ["DELTAPIPE_PROGRAM"] = str(program(self.arguments, "deltapipe"))
        sys.path.insert(0, str(BENCHMARKS))
        try:
            import pipeline_benchmark
        except (ImportError, SystemExit) as error:
            raise BenchmarkError("ranks want a Python with h5py and numpy (python3-h5py)") from error
        with tempfile.TemporaryDirectory(prefix="deltapipe-benchmark-") as place:
            place = pathlib.Path(place)
            deck = pipeline_benchmark.make_deck(place, self.shape, self.micro_batches, self.steps)
            wall = pipeline_benchmark.step_seconds(
                place, deck, self.ranks, [f"training.precision={self.arguments.precision}"],
                warm_up=0)
            run = pipeline_benchmark.support.Run(place / f"stages{self.ranks}" / "run.h5")
            return {"wall_seconds": list(map(float, wall)),
                    "peak_bytes": int(run.memory["peak"].sum())}

    def ceilings(self):
        times = 3 if self.arguments.small else 5
        command = [program(self.arguments, "ceilings_benchmark"), *self.options(), *self.shape,
                   times]
        made = run_together([command] * self.ranks,
                            environment(self.threads // self.ranks))
        rates = ("product_flop_per_second", "triad_bytes_per_second")
        return {**made[0], **{rate: sum(one[rate] for one in made) for rate in rates}}

    def profile(self):
        """Kernels by seconds, and seconds of a step while they are counted; on one thread."""
        made = run_json([program(self.arguments, "training_benchmark"), "--profile",
                         *self.options(), *self.shape, self.steps], environment(1))
        return {"kernels": sorted(made["kernels"], key=lambda one: -one["seconds_a_step"]),
                "profiled_seconds_a_step": statistics.mean(made["wall_seconds"][WARM_UP:])}


class PyTorch:
    """Its steps in eager mode or compiled, whichever is faster here."""

    def __init__(self, arguments, shape, steps, micro_batches):
        self.arguments, self.shape = arguments, shape
        self.steps, self.micro_batches = steps, micro_batches
        self.jemalloc = find_jemalloc()
        self.compiled = False
        self.why_eager = "not tried"
        self.available = self.run(1) is not None
        if self.available and arguments.compile and not arguments.small:
            self.try_compiling()

    def run(self, steps=None, compiled=None, limit=None):
        compiled = self.compiled if compiled is None else compiled
        command = [self.arguments.python, BENCHMARKS / "pytorch_training.py", *self.shape,
                   steps or self.steps, "--threads", self.arguments.threads,
                   "--micro-batches", self.micro_batches, "--precision",
                   self.arguments.precision, *(["--compile"] if compiled else [])]
        return run_json(command, environment(self.arguments.threads, True, self.jemalloc), limit)

    def try_compiling(self):
        def seconds(compiled):
            made = self.run(WARM_UP + 3, compiled, COMPILE_LIMIT)
            return statistics.median(made["wall_seconds"][WARM_UP:])
        try:
            eager, compiled = seconds(False), seconds(True)
        except (BenchmarkError, subprocess.TimeoutExpired):
            self.why_eager = "torch.compile failed"
            return
        self.compiled = compiled < eager
        self.why_eager = f"torch.compile: {1000 * compiled:.0f} ms, eager: {1000 * eager:.0f} ms"


def find_python():
    """An interpreter with PyTorch, if there is one; not every PyTorch is new enough."""
    for path in (ROOT / "build/venv-newest/bin/python", pathlib.Path(sys.executable)):
        if path.exists() and subprocess.run(
                [path, "-c", "import torch"], capture_output=True).returncode == 0:
            return path
    return pathlib.Path(sys.executable)


# Figures ---------------------------------------------------------------------------------------

def model_flop(shape):
    """Of the matrix products of a micro-batch, forward and backward: 2 a multiply-add, attention's
    over the causal half, nothing that is computed twice."""
    layers, _, channels, vocabulary, _, samples, tokens = shape
    rows = samples * tokens
    linear = 12 * channels * channels * layers + channels * vocabulary
    attention = tokens * channels * layers
    return 6 * rows * (linear + attention)


def summary(runs, tokens):
    """Of the steps after warm-up of all runs."""
    seconds = statistics.median(s for run in runs for s in run["wall_seconds"][WARM_UP:])
    return {"seconds_a_step": seconds, "tokens_per_second": tokens / seconds,
            "peak_bytes": max(run["peak_bytes"] for run in runs)}


def median_of(dictionaries, key):
    return statistics.median(one[key] for one in dictionaries)


def measure(arguments, name, shape):
    steps = WARM_UP + (2 if arguments.small else arguments.steps)
    ours = Deltapipe(arguments, shape, steps)
    shape = ours.shape
    theirs = PyTorch(arguments, shape, steps, ours.micro_batches)
    tokens = shape[5] * shape[6] * ours.micro_batches
    our_runs, their_runs, ceilings, ratios = [], [], [], []
    for pair in range(arguments.pairs):
        sides = [(ours, our_runs)] + ([(theirs, their_runs)] if theirs.available else [])
        for side, runs in sides if pair % 2 == 0 else reversed(sides):
            runs.append(side.run())
        ceilings.append(ours.ceilings())
        if theirs.available:
            ratios.append(summary(our_runs[-1:], tokens)["tokens_per_second"] /
                          summary(their_runs[-1:], tokens)["tokens_per_second"])
    result = {
        "shape": name,
        "layers": shape[0], "heads": shape[1], "channels": shape[2], "vocabulary": shape[3],
        "samples": shape[5], "tokens": shape[6], "micro_batches": ours.micro_batches,
        "precision": arguments.precision, "threads": arguments.threads, "ranks": ours.ranks,
        "pairs": arguments.pairs, "kokkos": ours.kokkos, "blas": ceilings[0]["blas"],
        "deltapipe": summary(our_runs, tokens),
        "pytorch": None,
        "ceilings": {rate: median_of(ceilings, rate) for rate in
                     ("product_flop_per_second", "triad_bytes_per_second")},
        **ours.profile(),
    }
    best = model_flop(shape) * ours.micro_batches / result["ceilings"]["product_flop_per_second"]
    sides = [result["deltapipe"]]
    if theirs.available:
        result["pytorch"] = {
            **summary(their_runs, tokens), "version": their_runs[0]["version"],
            "compiled": theirs.compiled, "compiling": theirs.why_eager,
            "jemalloc": theirs.jemalloc is not None}
        result["ratio"] = statistics.median(ratios)
        result["ratios"] = ratios
        result["memory_ratio"] = (result["deltapipe"]["peak_bytes"] /
                                  result["pytorch"]["peak_bytes"])
        sides.append(result["pytorch"])
    for side in sides:
        side["share_of_ceiling"] = best / side["seconds_a_step"]
    return result


# Output ----------------------------------------------------------------------------------------

def kernel_name(kernel):
    region, name = (kernel[key].replace("deltapipe::", "") for key in ("region", "kernel"))
    if "gemm" in name or "gemv" in name or name.endswith(
            ("Gemm::product", "Gemv::product", "CausalProducts::product")):
        name = "products"
    elif kernel["kernel"] == kernel["region"]:
        name = "between kernels"
    return f"{region}: {name}" if region else name


def grouped(kernels):
    """(name, seconds, calls) with one line for all products of a region, by seconds."""
    groups = {}
    for kernel in kernels:
        seconds, calls = groups.get(kernel_name(kernel), (0.0, 0.0))
        groups[kernel_name(kernel)] = (seconds + kernel["seconds_a_step"],
                                       calls + kernel["calls_a_step"])
    return sorted(((name, *values) for name, values in groups.items()), key=lambda row: -row[1])


def side_line(name, side):
    return (f"  {name:<16}{side['tokens_per_second']:>10,.0f}"
            f"{1000 * side['seconds_a_step']:>12,.1f}{side['peak_bytes'] / 1e9:>12.2f}"
            f"{100 * side['share_of_ceiling']:>13.0f} %")


def show(result):
    print(f"{result['shape']}: {result['layers']} blocks, {result['channels']} channels, vocabulary "
          f"{result['vocabulary']}, B = {result['samples']}, T = {result['tokens']}; "
          f"{result['precision']}, {result['threads']} thread(s), {result['ranks']} rank(s), "
          f"{result['micro_batches']} micro-batch(es) a step; Kokkos {result['kokkos']}, "
          f"{result['blas']}")
    print(f"  {'':<16}{'tokens/s':>10}{'ms a step':>12}{'peak GB':>12}{'of ceiling':>15}")
    print(side_line("deltapipe", result["deltapipe"]))
    pytorch = result["pytorch"]
    if pytorch:
        print(side_line(f"PyTorch {pytorch['version'].split('+')[0]}", pytorch))
        low, high = min(result["ratios"]), max(result["ratios"])
        print(f"  ratio {result['ratio']:.3f} (median of {result['pairs']} pairs, {low:.3f} to "
              f"{high:.3f}), memory {result['memory_ratio']:.2f}; PyTorch "
              f"{'compiled' if pytorch['compiled'] else 'eager'} ({pytorch['compiling']}), "
              f"{'with' if pytorch['jemalloc'] else 'without'} jemalloc")
    else:
        print("  PyTorch 2.4 or later is not installed here (scripts/setup_python.sh installs it)")
    ceilings = result["ceilings"]
    print(f"  ceilings: products {ceilings['product_flop_per_second'] / 1e9:.1f} GFLOP/s, triad "
          f"{ceilings['triad_bytes_per_second'] / 1e9:.1f} GB/s")
    rows = grouped(result["kernels"])
    total = sum(seconds for _, seconds, _ in rows)
    print("  where the time goes, on one thread:")
    for name, seconds, calls in rows:
        if seconds < 0.002 * total:
            continue
        print(f"    {1000 * seconds:>9.2f} ms {100 * seconds / total:>5.1f} % {calls:>7.0f} x  {name}")
    sys.stdout.flush()


def toml_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(v)}" for key, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.rstrip()


def measured_commit():
    changed = [line for line in git("status", "--porcelain").splitlines()
               if not line[3:].startswith("docs/")]
    if changed:
        raise BenchmarkError("--results names a commit: commit these changes first\n  " +
                             "\n  ".join(changed))
    return git("rev-parse", "--short=7", "HEAD")


RESULT_HEAD = """# SPDX-License-Identifier: BSD-3-Clause
# {what} Written by scripts/benchmark.py --results.
machine = "{machine}"
commit = "{commit}"
commit_is = "measured"
date = {date}
command = "{command}"
"""

TRAINING_COLUMNS = """columns = [
  { heading = "model", cell = "{shape}: {layers} blocks, C = {channels}, V = {vocabulary}, B = {samples}, T = {tokens}" },
  { heading = "threads", cell = "{threads}" },
  { heading = "tokens/s", cell = "{measured}" },
  { heading = "ratio", cell = "{ratio_text}" },
  { heading = "of the ceiling", cell = "{share_text}" },
  { heading = "peak memory", cell = "{memory_text}" },
  { heading = "ceilings", cell = "{ceilings_text}" },
]
"""


def training_row(result):
    ours, theirs = result["deltapipe"], result["pytorch"]
    row = {key: result[key] for key in ("shape", "layers", "channels", "vocabulary", "samples",
                                        "tokens", "micro_batches", "threads", "precision")}
    figures = {"tokens_per_second": ours["tokens_per_second"],
               "share_of_ceiling": ours["share_of_ceiling"], "peak_GB": ours["peak_bytes"] / 1e9}
    row["measured"] = "{tokens_per_second:,.0f}"
    row["ratio_text"] = "no PyTorch"
    row["share_text"] = f"{100 * ours['share_of_ceiling']:.0f} %"
    row["memory_text"] = f"{ours['peak_bytes'] / 1e9:.2f} GB"
    if theirs:
        figures.update({"pytorch_tokens_per_second": theirs["tokens_per_second"],
                        "pytorch_share_of_ceiling": theirs["share_of_ceiling"],
                        "pytorch_peak_GB": theirs["peak_bytes"] / 1e9, "ratio": result["ratio"],
                        "pytorch_compiled": theirs["compiled"], "jemalloc": theirs["jemalloc"]})
        low, high = min(result["ratios"]), max(result["ratios"])
        row["pytorch"] = theirs["version"]
        row["measured"] += (" and {pytorch_tokens_per_second:,.0f} (PyTorch "
                            f"{theirs['version'].split('+')[0]}"
                            f"{', compiled' if theirs['compiled'] else ''})")
        row["ratio_text"] = f"{result['ratio']:.2f} ({low:.2f}–{high:.2f})"
        row["share_text"] += f" and {100 * theirs['share_of_ceiling']:.0f} %"
        row["memory_text"] += f" and {theirs['peak_bytes'] / 1e9:.2f} GB"
    rates = result["ceilings"]
    figures.update({"product_GFLOP_per_second": rates["product_flop_per_second"] / 1e9,
                    "triad_GB_per_second": rates["triad_bytes_per_second"] / 1e9})
    row["ceilings_text"] = (f"{rates['product_flop_per_second'] / 1e9:.0f} GFLOP/s, "
                            f"{rates['triad_bytes_per_second'] / 1e9:.1f} GB/s")
    row["figures"] = figures
    return row


KERNEL_COLUMNS = """columns = [
  {{ heading = "kernel", cell = "{{kernel}}" }},
{shapes}
]
"""


def kernel_rows(results):
    """Milliseconds by kernel, a column a model; what takes less than half a percent everywhere is
    one row."""
    tables = [{name: seconds for name, seconds, _ in grouped(r["kernels"])} for r in results]
    totals = [sum(table.values()) for table in tables]
    names = sorted({name for table in tables for name in table},
                   key=lambda name: -max(t.get(name, 0) / s for t, s in zip(tables, totals)))
    kept = [name for name in names
            if max(t.get(name, 0) / s for t, s in zip(tables, totals)) >= 0.005]
    rest = [sum(s for name, s in table.items() if name not in kept) for table in tables]
    lines = [(name, [table.get(name, 0.0) for table in tables]) for name in kept]
    for name, seconds in [*lines, ("everything else", rest)]:
        row = {"kernel": name}
        for result, value, total in zip(results, seconds, totals):
            key = result["shape"].replace("-", "_")
            row[f"{key}_ms"] = 1000 * value
            row[f"{key}_percent"] = 100 * value / total
        yield row


def without_places(words):
    """Arguments that say what was measured, without those that say where files are."""
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        if word.split("=")[0] not in ("--json", "--python", "--build"):
            kept.append(word)
        elif "=" not in word:
            words.pop(0)
    return kept


def write_results(arguments, results, commit):
    command = shlex.join(["scripts/benchmark.py", *without_places(arguments.given)])
    head = {"machine": arguments.results, "commit": commit, "command": command,
            "date": datetime.date.today().isoformat()}

    def write(name, what, columns, rows):
        text = RESULT_HEAD.format(what=what, **head) + columns
        for row in rows:
            text += "\n[[row]]\n" + "".join(f"{key} = {toml_value(value)}\n"
                                            for key, value in row.items())
        (RESULTS / f"{name}.toml").write_text(text, encoding="utf-8")

    suffix = "" if arguments.precision == "fp32" else f"_{arguments.precision}"
    suffix += "" if arguments.threads == 1 else f"_{arguments.threads}_threads"
    suffix += "" if arguments.ranks == 1 else f"_{arguments.ranks}_ranks"
    write("training" + suffix, "Training steps compared with PyTorch and the ceilings of the machine.",
          TRAINING_COLUMNS, map(training_row, results))
    if arguments.threads == 1:
        shapes = "\n".join(
            f'  {{ heading = "{r["shape"]}, ms per step", cell = "{{{key}_ms:.1f}} '
            f'({{{key}_percent:.1f}} %)" }},'
            for r in results for key in [r["shape"].replace("-", "_")])
        write("training_kernels" + suffix, "Time of each kernel in a training step.",
              KERNEL_COLUMNS.format(shapes=shapes), kernel_rows(results))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=None)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all of them")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32",
                        help="of matrix products, on both sides (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the threads")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of a run, after warm-up")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the benchmark")
    parser.add_argument("--no-compile", dest="compile", action="store_false",
                        help="do not try torch.compile")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--python", type=pathlib.Path, help="an interpreter with PyTorch")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    parser.add_argument("--results", metavar="MACHINE",
                        help="write docs/results and the tables, as measured on this machine of "
                             "docs/results/machines.toml")
    arguments = parser.parse_args()
    for name in ("threads", "ranks", "pairs", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.threads % arguments.ranks != 0:
        parser.error("--ranks must divide --threads")
    arguments.given = sys.argv[1:]
    arguments.python = arguments.python or find_python()
    return arguments


def main():
    arguments = parse()
    commit = measured_commit() if arguments.results else None
    if arguments.results and arguments.small:
        raise BenchmarkError("--small measures nothing that is worth keeping")
    shapes = {"small": SMALL_SHAPE} if arguments.small else {
        name: SHAPES[name] for name in arguments.shape or SHAPES}
    results = []
    for name, shape in shapes.items():
        results.append(measure(arguments, name, shape))
        show(results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"machine": platform.machine(), "date": datetime.date.today().isoformat(),
             "results": results}, indent=2) + "\n", encoding="utf-8")
    if not arguments.results:
        return 0
    write_results(arguments, results, commit)
    return subprocess.run([sys.executable, ROOT / "scripts/render_results.py"]).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as problem:
        sys.exit(f"benchmark.py: {problem}")
