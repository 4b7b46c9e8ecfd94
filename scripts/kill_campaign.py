#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Kills small training runs at random moments, starts them again until they end, and compares them
with runs that nobody interrupted.

Of each case (codec, stages, replicas) the uninterrupted run is made first. The others write
checkpoints and get SIGKILL, one rank or all, as often as --kills says altogether. At the end their
weights, memories of both ends of every boundary, losses and byte counts must be the same: to the
bit with checkpoint.mode = "exact", losses within RESYNC_TOLERANCE with "resync". The last line is
"N of N resumed identically"; the exit status is 1 when some were not.

With --measure DECK it trains that deck without checkpoints and with those of the deck, --rounds
times in turn, and then with one kill every --interval seconds, and prints how long each took to its
end (medians).
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import h5py
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("DELTAPIPE_PROGRAM", str(ROOT / "build/release/bin/deltapipe"))
MPIEXEC = shlex.split(os.environ.get("DELTAPIPE_MPIEXEC", "mpirun --oversubscribe --bind-to none"))
NUMPROC_FLAG = os.environ.get("DELTAPIPE_MPIEXEC_NUMPROC_FLAG", "-n")
ENVIRONMENT = dict(
    os.environ,
    OMPI_ALLOW_RUN_AS_ROOT="1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_rmaps_base_oversubscribe="1",
    OMPI_MCA_hwloc_base_binding_policy="none",
    OMPI_MCA_mpi_yield_when_idle="1",
    OMPI_MCA_odls_base_sigkill_timeout="0",
    OPENBLAS_NUM_THREADS="1")

TIME_LIMIT = 120  # seconds, of one start
MOST_STARTS = 60  # of one run
RESYNC_TOLERANCE = 0.02  # relative, of losses

STEPS = 40
CODECS = {
    "none": {},
    "directq": {
        "boundary.forward": {"codec": "directq", "bits": 4, "quantizer.rounding": "stochastic"},
        "boundary.backward": {"codec": "directq", "bits": 4, "feedback.kind": "ef"},
    },
    "aqsgd": {  # most records are in files
        "boundary.forward": {"codec": "aqsgd", "bits": 3, "memory.first_visit": "quantize8"},
        "boundary.backward": {"codec": "directq", "bits": 6, "feedback.kind": "ef"},
        "cache": {"budget": "8 kB", "verify_every": 1},
    },
    "ef21": {  # records in memory
        "boundary.forward": {"codec": "aqsgd", "bits": 2, "quantizer.entropy_coding": True},
        "boundary.backward": {"codec": "topk", "topk": 0.2, "feedback.kind": "ef21"},
    },
    "auto": {  # the recommended settings, with most records and errors in files
        "boundary.forward": {"codec": "auto"},
        "boundary.backward": {"codec": "auto"},
        "cache": {"budget": "8 kB", "verify_every": 1},
    },
}
COMPARED_STEPS = ("step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens", "samples",
                  "forward_bytes", "backward_bytes", "tied_row_bytes", "tied_gradient_bytes",
                  "replica_bytes", "collective_bytes")
COMPARED_EVALUATIONS = ("step", "epoch", "loss", "tokens", "forward_bytes", "tied_row_bytes",
                        "collective_bytes")


class Difference(Exception):
    """What a resumed run has that differs."""


def text_of(size):
    words = random.Random(3)
    syllables = ["ka", "lo", "mi", "re", "tu", "sa", "vor", "bel", "un", "de"]
    text = ""
    while len(text) < size:
        text += " ".join("".join(words.choices(syllables, k=words.randint(1, 3)))
                         for _ in range(8)) + ".\n"
    return text


def deck_of(case, text, mode):
    codec, stages, replicas = case
    deck = {
        "model.new": {"n_layer": 4, "n_embd": 32, "n_head": 2, "n_positions": 16},
        "model": {"dropout_residual": 0.1 if codec == "none" else 0.0},
        "tokenizer": {"train_vocabulary": 300},
        "data": {"train": [str(text)], "max_train_samples": 28, "max_validation_samples": 4},
        "training": {"steps": STEPS, "micro_batch_size": 2, "micro_batches": 2},
        "training.optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
        "pipeline": {"stages": stages, "replicas": replicas, "schedule": "1f1b"},
        "checkpoint": {"every_steps": 3, "milestone_every": STEPS, "mode": mode},
    }
    for section, keys in CODECS[codec].items():
        deck.setdefault(section, {}).update(keys)
    return "".join(f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n"
                                               for key, value in keys.items())
                   for section, keys in deck.items())


def command_of(deck, output, ranks):
    command = [PROGRAM, "train", str(deck), f"output.directory={output}"]
    return command if ranks == 1 else [*MPIEXEC, NUMPROC_FLAG, str(ranks), *command]


def start(command):
    # Files, not pipes: nobody reads while the run lasts.
    log = tempfile.TemporaryFile()
    process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
    process.log = log
    return process


def log_of(process):
    process.log.seek(0)
    return process.log.read().decode(errors="replace")[-4000:]


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def ranks_of(process):
    """Processes of the program that belong to a start of it."""
    found, program = [], os.path.realpath(PROGRAM)
    waiting = [process.pid]
    while waiting:
        pid = waiting.pop()
        try:
            if os.path.realpath(f"/proc/{pid}/exe") == program:
                found.append(pid)
            waiting += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            pass
    return found


def kill(process, chance):
    """SIGKILL for one rank, or for all of them. False: there was none any more."""
    ranks = ranks_of(process)
    if not ranks or process.poll() is not None:
        return False
    for pid in ranks if chance.random() < 0.3 else [chance.choice(ranks)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
    return True


def rows(file, table, names):
    return {name: file[table][name][()] for name in names}


def same(a, b):
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def compare_tables(expected, found, mode):
    with h5py.File(expected / "run.h5") as a, h5py.File(found / "run.h5") as b:
        for table, names in (("steps", COMPARED_STEPS), ("evaluations", COMPARED_EVALUATIONS)):
            left, right = rows(a, table, names), rows(b, table, names)
            if not same(left["step"], right["step"]):
                raise Difference(f"{table} {right['step'].tolist()}")
            if mode == "resync":
                if not np.allclose(left["loss"], right["loss"], rtol=RESYNC_TOLERANCE, atol=0):
                    worst = np.abs(right["loss"] / left["loss"] - 1).max()
                    raise Difference(f"losses of {table} by {worst:.3f}")
                continue
            for name in names:
                if not same(left[name], right[name]):
                    at = np.argwhere(np.asarray(left[name] != right[name]))[0][0]
                    raise Difference(f"{table}/{name} in row {at}: {right[name][at]}, not "
                                     f"{left[name][at]}")


def compare_states(expected, found):
    """Weights, moments, and what both ends of every boundary remember, after the last step."""
    place = pathlib.Path("checkpoints") / f"step-{STEPS:09d}"
    names = sorted(path.name for path in (expected / place).glob("rank-*.h5"))
    for name in names:
        with h5py.File(expected / place / name) as a, h5py.File(found / place / name) as b:
            parts = {part: sorted(a[part]) for part in a}
            if parts != {part: sorted(b[part]) for part in b}:
                raise Difference(f"{name} has other parts or items")
            for part, items in parts.items():
                for item in items:
                    if part == "run" and item in ("seconds", "stages"):
                        continue
                    if not same(a[part][item][()], b[part][item][()]):
                        raise Difference(f"{name}: {part}: {item}")


def compare(expected, found, mode):
    compare_tables(expected, found, mode)
    if mode == "resync":
        return
    weights = [path / "model/model.safetensors" for path in (expected, found)]
    if weights[0].read_bytes() != weights[1].read_bytes():
        raise Difference("model.safetensors")
    compare_states(expected, found)


class Campaign:
    def __init__(self, place, options):
        self.place, self.options = place, options
        self.chance = random.Random(options.seed)
        self.text = place / "text.txt"
        self.text.write_text(text_of(9000))
        self.references = {}

    def deck(self, case):
        path = self.place / ("-".join(map(str, case)) + ".toml")
        path.write_text(deck_of(case, self.text, self.options.mode))
        return path

    def reference(self, case):
        """The uninterrupted run of a case, and the seconds it took."""
        if case not in self.references:
            output = self.place / ("reference-" + "-".join(map(str, case)))
            process = start(command_of(self.deck(case), output, case[1] * case[2]))
            begin = time.monotonic()
            try:
                process.wait(TIME_LIMIT)
            finally:
                end(process)
            if process.returncode != 0:
                raise SystemExit(f"{case} does not run:\n{log_of(process)}")
            self.references[case] = output, time.monotonic() - begin
        return self.references[case]

    def run(self, number, case, kills):
        """One run with up to so many kills; how many it got, and what differs, if anything."""
        expected, seconds = self.reference(case)
        output = self.place / f"run-{number}"
        command = command_of(self.deck(case), output, case[1] * case[2])
        killed = 0
        for _ in range(MOST_STARTS):
            process = start(command)
            moment = time.monotonic() + self.chance.uniform(0, 1.1 * seconds)
            wants = killed < kills
            while wants and process.poll() is None and time.monotonic() < moment:
                time.sleep(0.002)
            if wants and kill(process, self.chance):
                killed += 1
            try:
                process.wait(TIME_LIMIT)
            except subprocess.TimeoutExpired:
                left = len(ranks_of(process))
                end(process)
                if left > 0:
                    return killed, f"hangs, {left} rank(s) left: {log_of(process)}"
                print(f"a launcher whose ranks had all ended did not: {log_of(process)}", flush=True)
                continue
            end(process)
            if process.returncode == 0:
                break
            if not wants:
                return killed, f"does not start again: {log_of(process)}"
        try:
            compare(expected, output, self.options.mode)
        except (Difference, OSError, KeyError) as error:
            return killed, f"differs: {error}"
        shutil.rmtree(output)
        return killed, None

    def all(self):
        killed = identical = number = 0
        cases = [(codec, stages, replicas) for codec in self.options.codecs
                 for stages in (1, 2, 3, 4) for replicas in (1, 2)
                 if codec == "none" or stages > 1]
        self.chance.shuffle(cases)
        while killed < self.options.kills:
            case = cases[number % len(cases)]
            count, problem = self.run(number, case,
                                      min(self.chance.randint(1, 4), self.options.kills - killed))
            number += 1
            killed += count
            identical += count if problem is None else 0
            codec, stages, replicas = case
            print(f"{codec}, {stages} stage(s) x {replicas} replica(s), {count} kill(s): "
                  f"{problem or 'identical'}", flush=True)
        print(f"{identical} of {killed} resumed identically")
        return 0 if identical == killed else 1


def seconds_to_end(command, interval, chance):
    """How long a run takes with a kill in every interval (0: none), and how many it got."""
    begin, kills = time.monotonic(), 0
    while True:
        process = start(command)
        try:
            process.wait(interval or None)
        except subprocess.TimeoutExpired:
            kills += kill(process, chance)
            process.wait()
        end(process)
        if process.returncode == 0:
            return time.monotonic() - begin, kills
        if interval == 0:
            raise SystemExit(f"does not run:\n{log_of(process)}")


def measure(options, place):
    none = ["checkpoint.every_steps=0", "checkpoint.every=0", "checkpoint.milestone_every=0",
            "checkpoint.time_limit=0"]
    chance = random.Random(options.seed)

    def run(name, overrides, interval):
        output = place / name
        command = command_of(options.measure, output, options.ranks) + options.overrides + overrides
        result = seconds_to_end(command, interval, chance)
        shutil.rmtree(output, ignore_errors=True)
        return result

    pairs = [(run("without", none, 0)[0], run("with", [], 0)[0]) for _ in range(options.rounds)]
    without, with_ = (statistics.median(seconds) for seconds in zip(*pairs))
    cost = statistics.median(b / a - 1 for a, b in pairs)
    print(f"without checkpoints: {without:.1f} s")
    print(f"with checkpoints: {with_:.1f} s, {100 * cost:+.1f} %", flush=True)
    seconds, kills = run("killed", [], options.interval)
    print(f"with a kill every {options.interval:g} s: {seconds:.1f} s, "
          f"{100 * (seconds / without - 1):+.1f} %, {kills} kills", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of moments, ranks and cases")
    parser.add_argument("--codecs", nargs="+", choices=list(CODECS), default=list(CODECS),
                        help="default: all")
    parser.add_argument("--mode", choices=("exact", "resync"), default="exact")
    parser.add_argument("--place", type=pathlib.Path, metavar="DIRECTORY",
                        help="for runs that differ, which stay; default: a temporary directory")
    parser.add_argument("--measure", type=pathlib.Path, metavar="DECK")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="of --measure")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of --measure")
    parser.add_argument("--interval", type=float, default=20, metavar="SECONDS")
    parser.add_argument("overrides", nargs="*", help="of --measure: section.key=value")
    options = parser.parse_args()
    if options.kills < 1 or options.rounds < 1:
        parser.error("--kills and --rounds must be at least 1")

    def run(place):
        return measure(options, place) if options.measure else Campaign(place, options).all()

    if options.place:
        options.place.mkdir(parents=True, exist_ok=True)
        return run(options.place.resolve())
    with tempfile.TemporaryDirectory(prefix="deltapipe-kills-") as place:
        return run(pathlib.Path(place))


if __name__ == "__main__":
    sys.exit(main())
