# SPDX-License-Identifier: BSD-3-Clause
"""Runs the decks of a study: its text, the pretrained model, the link, then the matrix."""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from run_reader import Run, RunError
from study_matrix import override_text

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUDIES = ROOT / "inputs" / "studies"
CALIBRATION_STEPS = 12


def is_finished(directory):
    try:
        return Run(directory).status == "finished"
    except RunError:
        return False


class Runner:
    def __init__(self, study, output, program, launcher, texts):
        self.study, self.output = study, output
        self.program, self.launcher = program, launcher
        self.pretrain_text, self.fine_tune_text = texts
        self.model = output / "pretrain" / "model"
        if shutil.which(program) is None:
            raise RunError(f"{program}: no such program; build deltapipe or give --program")
        if shutil.which(launcher[0]) is None:
            raise RunError(f"{launcher[0]}: no such launcher; give --launcher")
        self.environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_mpi_yield_when_idle": "1", "OPENBLAS_NUM_THREADS": "1",
                            "DELTAPIPE_PROGRESS": "lines", **os.environ}

    def prepare(self):
        """What all runs share; each part once."""
        if not self.pretrain_text:
            corpus = ROOT / "data" / "quickstart"
            subprocess.run([str(ROOT / "scripts" / "make_corpus.sh"), str(corpus)], check=True)
            self.pretrain_text = str(corpus / "pretrain.txt")
            self.fine_tune_text = str(corpus / "finetune.txt")
        if not is_finished(self.output / "pretrain"):
            self._train("pretrain", STUDIES / "decks" / "pretrain.toml",
                        {"data.train": self.pretrain_text, **self.study.pretrain})
        if self.study.communication_ratio:
            for stages in self.study.matrix["stages"]:
                self._calibrate(stages)

    def run(self, runs):
        for i, run in enumerate(runs):
            if is_finished(self.output / run.name):
                print(f"[{i + 1}/{len(runs)}] {run.name}: finished before", flush=True)
                continue
            print(f"[{i + 1}/{len(runs)}] {run.name}", flush=True)
            overrides = dict(run.overrides)
            if self.study.communication_ratio and not run.bandwidth:
                overrides["network.bandwidth"] = self._calibrate(run.stages)["bandwidth"]
            self._fine_tune(run.name, overrides)

    def _fine_tune(self, name, overrides):
        self._train(name, STUDIES / "decks" / "finetune.toml",
                    {"model.path": str(self.model), "data.train": self.fine_tune_text, **overrides})

    def _calibrate(self, stages):
        """The bandwidth at which uncompressed messages occupy a boundary's link, one direction
        after the other, for `communication_ratio` times as long as a step takes without a link."""
        file = self.output / f"calibration-k{stages}.json"
        if file.is_file():
            return json.loads(file.read_text())
        name = f"calibration-k{stages}"
        self._fine_tune(name, {
            **self.study.deck, "pipeline.stages": stages, "training.steps": CALIBRATION_STEPS,
            "boundary.forward.codec": "none", "boundary.backward.codec": "none",
            "data.max_validation_samples": 1, "output.save_model": False})
        run = Run(self.output / name)
        seconds = statistics.median(run.steps["seconds"][1:] - run.steps["seconds"][:-1])
        sent = (run.steps["forward_bytes"] + run.steps["backward_bytes"])[1:-1].max()
        ratio = self.study.communication_ratio
        found = {"seconds_a_step": float(seconds), "bytes_a_step": int(sent), "ratio": ratio,
                 "bandwidth": f"{8 * sent / (ratio * seconds) / 1e6:.3g} Mbit/s"}
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{stages} stages: {seconds:.4f} s and {sent} bytes per step at a boundary; "
              f"{found['bandwidth']} for {ratio} times the compute", flush=True)
        return found

    def _train(self, name, deck, overrides):
        directory = self.output / name
        stages = overrides.get("pipeline.stages", 2)
        command = [*self.launcher, "-n", str(stages), self.program, "train", str(deck),
                   *(f"{key}={override_text(value)}" for key, value in overrides.items()),
                   f"output.directory={directory}"]
        directory.mkdir(parents=True, exist_ok=True)
        log = directory / "log.txt"
        begin = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT,
                                    stdin=subprocess.DEVNULL, env=self.environment).returncode
        if status != 0:
            sys.stderr.write("".join(open(log, encoding="utf-8").readlines()[-8:]))
            raise RunError(f"{name}: exit status {status}; its output is {log}")
        print(f"    {time.monotonic() - begin:.0f} s", flush=True)
