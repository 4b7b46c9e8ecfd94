# SPDX-License-Identifier: BSD-3-Clause
"""Runs the decks of a study: its text, the pretrained model, the link, then the matrix."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

from deltapipe_runs import Run, RunError
from study_matrix import override_text

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUDIES = ROOT / "inputs" / "studies"
SHAPED_LINKS = ROOT / "scripts" / "shaped_links.sh"
CALIBRATION_STEPS = 12


def fingerprint(path):
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error


class RunFailed(RunError):
    """A run that ended with another exit status than 0."""


def reason_in(log):
    """What the program said of its end: its errors, or else its last line."""
    lines = [line.strip() for line in open(log, encoding="utf-8", errors="replace") if line.strip()]
    errors = [line for line in lines if "error:" in line]
    return " ".join(errors[:3] or lines[-1:] or ["no output"])


def is_finished(directory):
    try:
        return Run(directory).status == "finished"
    except RunError:
        return False


class Runner:
    def __init__(self, study, output, program, launcher, texts, shaped=False):
        self.study, self.output = study, output
        self.program, self.launcher, self.shaped = program, launcher, shaped
        self.pretrain_text, self.fine_tune_text = texts
        self.model = output / "pretrain" / "model"
        self.links = {}  # by stages, what _calibrate found
        self.exercises = None  # folder of what study.texts makes
        self.starts = {run.start for run in study.runs()} - {""}
        if study.data == "images" and self.pretrain_text:
            raise RunError(f"{study.path} is a study of images; leave --pretrain-text out")
        if study.texts and self.pretrain_text:
            raise RunError(f"{study.path} makes its own texts; leave --pretrain-text out")
        if shutil.which(program) is None:
            raise RunError(f"{program}: no such program; build deltapipe or give --program")
        if shutil.which(launcher[0]) is None:
            raise RunError(f"{launcher[0]}: no such launcher; give --launcher")
        self.environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_mpi_yield_when_idle": "1", "OPENBLAS_NUM_THREADS": "1",
                            "DELTAPIPE_PROGRESS": "lines", **os.environ}

    def require_prepared(self):
        """Elements of a job array run at the same time: none of them makes what all share."""
        missing = []
        if self.study.data == "text" and not is_finished(self.output / "pretrain"):
            missing.append("the pretrained model")
        missing += [f"the model of {name}" for name in sorted(self.starts)
                    if not is_finished(self.output / name)]
        if self.study.communication_ratio:
            missing += [f"the bandwidth of {stages} stages"
                        for stages in self.study.matrix["stages"]
                        if not self._calibration_file(stages).is_file()]
        if missing:
            raise RunError(f"{self.output}: missing: {', '.join(missing)}; "
                           "run scripts/study.py with --prepare first")

    def prepare(self):
        """What all runs share; each part once. Runs of images share nothing."""
        if self.study.data == "images":
            return
        self.find_texts()
        self._train("pretrain", STUDIES / "decks" / "pretrain.toml",
                    {"data.train": self.pretrain_text, **self.study.pretrain})
        if self.study.communication_ratio:
            for stages in self.study.matrix["stages"]:
                self._link_of(stages)
        if self.starts:
            self.run([run for run in self.study.runs() if run.name in self.starts])

    def find_texts(self):
        if self.study.data == "images":
            return
        # An installed tree is not a place for data.
        place = ROOT if (ROOT / "CMakeLists.txt").is_file() else pathlib.Path()
        if self.study.texts:
            # A script that changed makes other texts, and runs with the old ones are refused.
            script = ROOT / "scripts" / self.study.texts
            self.exercises = place / "data" / f"{script.stem}-{fingerprint(script)}"
            subprocess.run([sys.executable, str(script), str(self.exercises)], check=True)
            self.pretrain_text = str(self.exercises / "pretrain.jsonl")
            return
        if not self.pretrain_text:
            corpus = place / "data" / "quickstart"
            subprocess.run([str(ROOT / "scripts" / "make_corpus.sh"), str(corpus)], check=True)
            self.pretrain_text = str(corpus / "pretrain.txt")
            self.fine_tune_text = str(corpus / "finetune.txt")
        for text in (self.pretrain_text, self.fine_tune_text):
            if not pathlib.Path(text).is_file() or not pathlib.Path(text).stat().st_size:
                raise RunError(f"{text}: no such file, or an empty one")

    def run(self, runs):
        """Names of those that failed."""
        failed = []
        for i, run in enumerate(runs):
            print(f"[{i + 1}/{len(runs)}] {run.name}", flush=True)
            overrides = dict(run.overrides)
            if self.study.communication_ratio and not run.bandwidth:
                overrides["network.bandwidth"] = self._link_of(run.stages)["bandwidth"]
            if run.name in self.starts:
                overrides["output.save_model"] = True
            try:
                self._fine_tune(run.name, overrides, run)
            except RunFailed as error:
                print(f"    {error}", flush=True)
                failed.append(run.name)
        return failed

    def _fine_tune(self, name, overrides, run=None):
        if self.study.data == "images":
            self._train(name, STUDIES / "decks" / "images.toml", overrides)
            return
        start = run.start if run else ""
        model = self.output / start / "model" if start else self.model
        texts = {"data.train": self.fine_tune_text}
        if self.exercises:
            job = run.job if run else next(iter(self.study.jobs))
            of_job = {part: str(self.exercises / f"{job}-{part}.jsonl")
                      for part in ("train", "valid", "prompts")}
            texts = {"data.train": of_job["train"], "data.validation": [of_job["valid"]],
                     "evaluation.prompts": [of_job["prompts"]]}
        self._train(name, STUDIES / "decks" / "finetune.toml",
                    {"model.path": str(model), **texts, **overrides})

    def _link_of(self, stages):
        if stages not in self.links:
            self.links[stages] = self._calibrate(stages)
        return self.links[stages]

    def _calibrate(self, stages):
        """The bandwidth at which uncompressed messages occupy a boundary's link, one direction
        after the other, for `communication_ratio` times as long as a step takes without a link.
        With replicas, what a rank sends to them adds to its boundary's messages."""
        file = self._calibration_file(stages)
        name = f"calibration-k{stages}"
        self._fine_tune(name, {
            **{key: value for key, value in self.study.deck.items()
               if not key.startswith("network.")}, "pipeline.stages": stages, "training.steps": CALIBRATION_STEPS,
            "boundary.forward.codec": "none", "boundary.backward.codec": "none",
            "data.max_validation_samples": 1, "output.save_model": False,
            "training.optimizer.warmup_steps": 0})
        run = Run(self.output / name)
        seconds = statistics.median(run.steps["seconds"][1:] - run.steps["seconds"][:-1])
        # All replicas send these together.
        sent = (run.steps["forward_bytes"] + run.steps["backward_bytes"])[1:-1].max()
        if self.study.replicas > 1:
            sent = (sent + run.steps["replica_bytes"][1:-1].max()) / self.study.replicas
        ratio = self.study.communication_ratio
        found = {"seconds_per_step": float(seconds), "bytes_per_step": int(sent), "ratio": ratio,
                 "bandwidth": f"{8 * sent / (ratio * seconds) / 1e6:.3g} Mbit/s"}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(file)
        print(f"{stages} stages: {seconds:.4f} s and {sent} bytes per step at a boundary; "
              f"{found['bandwidth']} for {ratio} times the compute", flush=True)
        return found

    def _calibration_file(self, stages):
        return self.output / f"calibration-k{stages}.json"

    def _is_shaped(self, overrides):
        """The run has links, and they are to be real ones."""
        return self.shaped and any(key.startswith("network.") and key.endswith("bandwidth")
                                   for key in overrides)

    def _command(self, deck, overrides):
        keys = [f"{key}={override_text(value)}" for key, value in overrides.items()]
        if self._is_shaped(overrides):
            return [str(SHAPED_LINKS), "--program", self.program, str(deck), *keys]
        ranks = (overrides.get("pipeline.stages", 2)
                 // overrides.get("pipeline.stages_per_rank", 1)
                 * overrides.get("pipeline.replicas", 1))
        return [*self.launcher, "-n", str(ranks), self.program, "train", str(deck), *keys]

    def _train(self, name, deck, overrides):
        """Unless it finished before, with the same deck and text."""
        directory = self.output / name
        asked = {"deck": fingerprint(deck),
                 "overrides": {key: override_text(value) for key, value in overrides.items()}}
        if "data.train" in overrides:
            asked["text"] = fingerprint(overrides["data.train"])
        record = directory / "asked.json"
        if self._is_shaped(overrides):
            asked["links"] = "shaped"
        if is_finished(directory):
            if not record.is_file() or json.loads(record.read_text()) != asked:
                raise RunError(f"{directory}: a run finished here with another deck or text; remove "
                               "the folder to run it again, or give another --output")
            print(f"    {name}: finished before", flush=True)
            return
        # Replaces an interrupted run; finished ones do not come here.
        command = self._command(deck, {**overrides, "output.directory": str(directory),
                                       "output.overwrite": True})
        directory.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(asked, indent=1) + "\n")
        log = directory / "log.txt"
        begin = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, env=self.environment,
                                       start_new_session=True)
            try:
                status = process.wait()
            except BaseException:  # a signal: the ranks end as they do on one of their own
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise
        if status != 0:
            raise RunFailed(f"{name}: exit status {status}: {reason_in(log)} (all of it: {log})")
        print(f"    {time.monotonic() - begin:.0f} s", flush=True)
