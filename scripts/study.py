#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs a study: a matrix of decks that differ in codec, stages, links and seeds, one after another,
and what came out as tables and plots in runs/studies/NAME. Runs that finished are not run again, so
that a study which was stopped continues where it was.

    scripts/study.py headline --small      a small one, on the text of the quick start
    scripts/study.py convergence --list    its runs, numbered
    scripts/study.py convergence --run 7   one of them, as a job array does; then --summary

Studies are files inputs/studies/NAME.toml; docs/studies.md describes them.
"""

import argparse
import fcntl
import os
import pathlib
import shlex
import signal
import sys

from script_support import find_program, require, run_main

require("h5py", "matplotlib")

from deltapipe_runs import RunError
from study_matrix import Study
from study_runner import Runner
from study_summary import summarise

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUDIES = ROOT / "inputs" / "studies"


def default_launcher():
    return os.environ.get("DELTAPIPE_LAUNCH", "mpirun --oversubscribe --bind-to none")


def parse_arguments():
    names = sorted(path.stem for path in STUDIES.glob("*.toml"))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", metavar="NAME", help=" ".join(names) + ", or a file")
    parser.add_argument("--small", action="store_true", help="the study's small preset")
    parser.add_argument("--output", metavar="DIR", help="default: runs/studies/NAME, or NAME-small")
    parser.add_argument("--pretrain-text", metavar="FILE", help="instead of the quick start's")
    parser.add_argument("--fine-tune-text", metavar="FILE", help="instead of the quick start's")
    parser.add_argument("--program", default=find_program(),
                        help="default: %(default)s")
    parser.add_argument("--launcher", default=default_launcher(),
                        help="starts the ranks; '-n RANKS' is added (default: %(default)s)")
    parser.add_argument("--shaped", action="store_true",
                        help="links by scripts/shaped_links.sh (root, one machine), not emulated")
    parser.add_argument("--only", metavar="TEXT", default="", help="runs whose name contains it")
    parser.add_argument("--list", action="store_true", help="print the runs and leave")
    parser.add_argument("--prepare", action="store_true", help="text, model and bandwidths only")
    parser.add_argument("--run", type=int, metavar="I", help="only run I of --list, no summary")
    parser.add_argument("--summary", action="store_true", help="run nothing; tables and plots only")
    arguments = parser.parse_args()
    if bool(arguments.pretrain_text) != bool(arguments.fine_tune_text):
        parser.error("--pretrain-text and --fine-tune-text go together")
    return arguments


def lock(output):
    """Held until the process ends; two studies in one folder would run each other's runs."""
    file = open(output / ".study.lock", "w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RunError(f"{output}: another study.py is at work here") from error
    return file


def split_launcher(text):
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RunError(f"--launcher '{text}': {error}") from error
    if not words:
        raise RunError("--launcher (or DELTAPIPE_LAUNCH) is empty")
    return words


def find_definition(name):
    path = pathlib.Path(name) if name.endswith(".toml") else STUDIES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in STUDIES.glob("*.toml")))
        raise RunError(f"{path}: no such study; there are {known}")
    return path


def main():
    arguments = parse_arguments()
    study = Study(find_definition(arguments.study), small=arguments.small)
    all_runs = study.runs()
    runs = [run for run in all_runs if arguments.only in run.name]
    if not runs:
        raise RunError(f"{study.path}: no run's name contains '{arguments.only}'")
    if arguments.list:
        for i, run in enumerate(runs):
            print(i, run.name)
        return 0
    name = study.name + ("-small" if arguments.small else "") + (
        "-shaped" if arguments.shaped else "")
    output = pathlib.Path(arguments.output or f"runs/studies/{name}")
    failed = []
    if not arguments.summary:
        runner = Runner(study, output, program=arguments.program,
                        launcher=split_launcher(arguments.launcher),
                        texts=(arguments.pretrain_text, arguments.fine_tune_text),
                        shaped=arguments.shaped)
        if arguments.run is not None and not 0 <= arguments.run < len(runs):
            raise RunError(f"--run {arguments.run}: the study has runs 0 to {len(runs) - 1}")
        output.mkdir(parents=True, exist_ok=True)
        if arguments.run is None:
            held = lock(output)  # noqa: F841
            runner.prepare()
        else:
            runner.find_texts()
            runner.require_prepared()
        if arguments.prepare:
            return 0
        chosen = runs if arguments.run is None else [runs[arguments.run]]
        failed = runner.run(chosen)
        if arguments.run is not None:
            return 1 if failed else 0
    summarise(study, all_runs, output)
    if failed:
        raise RunError(f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}")
    return 0


def stop(number, _):
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    try:
        sys.exit(run_main(main))
    except KeyboardInterrupt:
        sys.exit("study.py: stopped; started again, it continues with the run that was stopped")
