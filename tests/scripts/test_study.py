# SPDX-License-Identifier: BSD-3-Clause
"""Tests of scripts/study.py with a program that writes run files instead of training."""

import csv
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

try:
    import h5py
    import matplotlib  # noqa: F401
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

STUDY = """
title = "Test"
baseline = "none"
communication_ratio = 7.0
claims = [
  { finding = "as good", better = "half", than = "none", within = 1.0 },
  { finding = "better", better = "half", than = "none", by = 1.0 },
]
[deck]
"training.epochs" = 2
[matrix]
stages = [2, 3]
seeds = [1, 2]
[settings.none]
[settings.half]
"boundary.forward.codec" = "fp16"
[small]
settings = ["none"]
[small.matrix]
stages = [2]
"""

# Stands for the launcher and deltapipe: 10 steps of 0.5 s (with a link 4 s, half of the bytes 2 s).
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, sys
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parent)!r})
from test_analysis import write_run
import h5py
arguments = sys.argv[sys.argv.index("train") + 1:]
deck = dict(a.split("=", 1) for a in arguments[1:])
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([sys.argv[1:3], deck]) + "\\n")
if os.environ.get("FAIL") and os.environ["FAIL"] in deck["output.directory"]:
    sys.exit("a mistake")
output = pathlib.Path(deck["output.directory"])
(output / "model").mkdir(parents=True, exist_ok=True)
(output / "model" / "config.json").write_text('{{"n_embd": 10}}')
half = deck.get("boundary.forward.codec") == "fp16"
link = deck.get("network.bandwidth", "")
write_run(output / "run.h5", steps=10, boundaries=int(deck.get("pipeline.stages", 2)) - 1,
          rate=8.0 if not link else 2.0 if half else 1.0,
          evaluations=[(5, 3.5), (10, 3.0 + 0.001 * int(deck.get("training.seed", 0)) * half)],
          codec_losses=[3.6, 3.25] if deck.get("evaluation.boundary") == "both" else None)
with h5py.File(output / "run.h5", "r+") as file:
    file.attrs["deck"] = f'[network]\\nbandwidth = ["{{link}}"]' if link else ""
    if "evaluation.prompts" in deck:
        file["evaluations/exact_match"] = [0.0, 0.8 if half else float(deck["training.epochs"]) / 2]
    if pathlib.Path(arguments[0]).stem == "images":
        file.attrs["metrics"] = ["accuracy"]
        last = 0.8 if half else 0.75
        file["evaluations/accuracy"] = [0.5, last]
        file["evaluations/codec_accuracy"] = [0.4, last - 0.2]
    if "pipeline.replicas" in deck:  # 500 bytes of 100 parameters
        file.attrs["replicas"] = int(deck["pipeline.replicas"])
        file.attrs["trained_parameters"] = 100
        if "steps/replica_bytes" in file:
            del file["steps/replica_bytes"]
        file["steps/replica_bytes"] = [[500]] * 10
    if half:
        file["steps/forward_bytes"][...] = file["steps/forward_bytes"][...] // 2
"""


class StudyTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.study = self.directory / "test.toml"
        self.study.write_text(STUDY)
        self.program = self.directory / "program"
        self.program.write_text(PROGRAM)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.calls = self.directory / "calls"
        self.calls.touch()
        self.output = self.directory / "out"
        for name in ("a.txt", "b.txt"):
            (self.directory / name).write_text("text")

    def run_study(self, *arguments, status=0, study=None, texts=True, **environment):
        names = ["--pretrain-text", self.directory / "a.txt", "--fine-tune-text",
                 self.directory / "b.txt"] if texts else []
        result = subprocess.run(
            [sys.executable, SCRIPTS / "study.py", str(study or self.study), "--output",
             self.output, "--program", self.program, "--launcher", str(self.program), *names,
             *map(str, arguments)],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, "CALLS": str(self.calls), **environment})
        self.assertEqual(result.returncode, status, result.stderr + result.stdout)
        self.assertNotIn("Traceback", result.stderr)
        return result.stdout if status == 0 else result.stderr

    def decks(self):
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def rows(self):
        with open(self.output / "summary.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_whole_study(self):
        text = self.run_study()
        rows = self.rows()
        self.assertEqual(list(rows[0])[:8], ["setting", "stages", "perplexity", "wire_bytes",
                                             "seconds", "speedup", "forward_bits",
                                             "backward_bits"])
        self.assertEqual([(row["setting"], row["stages"], row["seed"]) for row in rows],
                         [(s, k, seed) for k in "23" for seed in "12" for s in ("none", "half")])
        # 100 s before the first step; 10 steps of 4 s and of 2 s.
        self.assertAlmostEqual(float(rows[0]["seconds"]), 140)
        self.assertAlmostEqual(float(rows[1]["speedup"]), 140 / 120, places=4)
        self.assertAlmostEqual(float(rows[2]["speedup"]), 1)
        # 1000 bytes per step, 400 tokens of 10 channels, one or two boundaries.
        for row in rows:
            self.assertAlmostEqual(float(row["backward_bits"]), 2)
            self.assertAlmostEqual(float(row["forward_bits"]), 1 if row["setting"] == "half" else 2)
        self.assertAlmostEqual(float(rows[3]["perplexity"]), np.exp(3.002), places=3)
        self.assertIn("| as good | agrees |", text)
        self.assertIn("| better | does not agree |", text)
        self.assertIn("±", (self.output / "table.md").read_text())
        with h5py.File(self.output / "summary.h5") as file:
            self.assertEqual(file["speedup"].shape, (8,))
            np.testing.assert_array_equal(file["curves/none-k3-seed2/wire_bytes"],
                                          [20000, 40000])
        self.assertGreater((self.output / "curves.png").stat().st_size, 10000)

    def test_perplexity_through_the_codec(self):
        self.study.write_text(STUDY.replace('"boundary.forward.codec" = "fp16"',
                                            '"boundary.forward.codec" = "fp16"\n'
                                            '"evaluation.boundary" = "both"').replace(
            "claims = [", 'claims = [\n  { finding = "needs the codec", better = "half:codec", '
                          'than = "half", by = 1.0 },\n  { finding = "does not", better = "half", '
                          'than = "half:codec", by = 20.0 },'))
        text = self.run_study("--only", "k2-seed1")
        self.assertIn("| through codec |", text)
        self.assertIn("| needs the codec | does not agree | half:codec 25.790, half 20.106 "
                      "(+28.27 %) |", text)
        self.assertIn("| does not | agrees | half 20.106, half:codec 25.790 (-22.04 %) |", text)
        self.assertEqual([row["codec_perplexity"] for row in self.rows()], ["nan", "25.7903"])
        with h5py.File(self.output / "summary.h5") as file:
            self.assertEqual(file["curves/half-k2-seed1/codec_loss"][()].tolist(), [3.6, 3.25])
            self.assertNotIn("codec_loss", file["curves/none-k2-seed1"])

    def test_link_of_the_ratio(self):
        self.run_study("--only", "k2-seed1")
        calibration = json.loads((self.output / "calibration-k2.json").read_text())
        # 0.5 s and 2000 bytes per step: 7 x 0.5 s for 16,000 bits.
        self.assertEqual(calibration["bandwidth"], "0.00457 Mbit/s")
        runs = {deck["output.directory"].rsplit("/", 1)[1]: deck for _, deck in self.decks()}
        self.assertEqual(runs["half-k2-seed1"]["network.bandwidth"], "0.00457 Mbit/s")
        self.assertNotIn("network.bandwidth", runs["calibration-k2"])
        self.assertEqual(runs["half-k2-seed1"]["training.epochs"], "2")
        self.assertEqual(runs["half-k2-seed1"]["training.seed"], "1")

    def test_replicas(self):
        """Bytes and bits of their sums; a rank's link carries both kinds of messages."""
        self.study.write_text(STUDY.replace('[deck]\n', '[deck]\n"pipeline.replicas" = 2\n'
                                            '"network.wire" = "rank"\n'))
        text = self.run_study("--only", "k2-seed1")
        self.assertIn("| replicas |", text)
        for row in self.rows():
            self.assertEqual(row["replica_bytes"], "5000")
            # 40,000 bits of 10 steps, 2 legs and 100 parameters.
            self.assertAlmostEqual(float(row["replica_bits"]), 20)
        calibration = json.loads((self.output / "calibration-k2.json").read_text())
        self.assertEqual(calibration["bytes_per_step"], 1250)
        runs = {deck["output.directory"].rsplit("/", 1)[1]: deck for _, deck in self.decks()}
        self.assertNotIn("network.wire", runs["calibration-k2"])
        self.assertEqual(runs["half-k2-seed1"]["network.wire"], "rank")

    def test_shaped_links(self):
        """Runs with links have real ones, all others are started as ever."""
        sys.path.insert(0, str(SCRIPTS))
        self.addCleanup(sys.path.remove, str(SCRIPTS))
        from study_matrix import Study
        from study_runner import Runner
        for shaped in (False, True):
            runner = Runner(Study(self.study, small=False), self.output, str(self.program),
                            [str(self.program)], (None, None), shaped=shaped)
            launched = [str(self.program), "-n", "3", str(self.program), "train", "deck"]
            self.assertEqual(runner._command("deck", {"pipeline.stages": 3}),
                             [*launched, "pipeline.stages=3"])
            linked = {"pipeline.stages": 3, "network.bandwidth": "20 Mbit/s"}
            keys = ["pipeline.stages=3", "network.bandwidth=20 Mbit/s"]
            script = [str(SCRIPTS / "shaped_links.sh"), "--program", str(self.program), "deck"]
            self.assertEqual(runner._command("deck", linked),
                             [*(script if shaped else launched), *keys])

    def test_goes_on_where_it_stopped(self):
        message = self.run_study(status=1, FAIL="half-k2-seed2")
        self.assertIn("1 of 8 runs failed: half-k2-seed2", message)
        self.assertEqual(len(self.rows()), 7)
        before = len(self.decks())
        self.run_study()
        # 8 runs, a model and two calibrations, and one run again.
        self.assertEqual(len(self.decks()), 8 + 3 + 1)
        self.assertEqual(before, 8 + 3)
        self.run_study()
        self.assertEqual(len(self.decks()), 8 + 3 + 1)
        self.assertEqual(len(self.rows()), 8)

    def test_another_study_in_the_same_folder(self):
        self.run_study("--only", "half-k2-seed1")
        (self.directory / "b.txt").write_text("other text")
        self.assertIn("finished here with another deck or text",
                      self.run_study("--only", "half-k2-seed1", status=1))
        (self.directory / "b.txt").write_text("text")
        self.study.write_text(STUDY.replace('"training.epochs" = 2', '"training.epochs" = 3'))
        self.assertIn("finished here", self.run_study("--only", "half-k2-seed1", status=1))

    def test_one_run_of_a_job_array(self):
        self.assertEqual(self.run_study("--list").splitlines()[3], "3 half-k2-seed2")
        self.assertIn("missing: the pretrained model, the bandwidth of 2 stages",
                      self.run_study("--run", 3, status=1))
        self.run_study("--prepare")
        self.run_study("--run", 3)
        self.assertTrue((self.output / "half-k2-seed2" / "run.h5").exists())
        self.assertFalse((self.output / "summary.csv").exists())
        self.assertIn("left out", self.run_study("--summary"))
        self.assertEqual([row["setting"] for row in self.rows()], ["half"])
        self.assertIn("runs 0 to 7", self.run_study("--run", 8, status=1))

    def test_small(self):
        self.assertEqual(len(self.run_study("--small", "--list").splitlines()), 2)

    def jobs(self):
        script = SCRIPTS / "make_exercises.py"
        return STUDY.replace("communication_ratio = 7.0", f'texts = "{script.name}"').replace(
            "[matrix]", '[jobs.learning]\n[jobs.fine-tuning]\nstart = "learning/none"\n'
                        "[ruler]\nnone = 1.0\nhasty = 0.5\n[matrix]").replace(
            "[settings.half]", '[settings.hasty]\n"training.epochs" = 1\n[settings.half]')

    def test_jobs(self):
        self.study.write_text(self.jobs())
        names = self.run_study("--list").splitlines()
        self.assertEqual(names[0], "0 learning-none-k2-seed1")
        self.assertEqual(names[-1], "23 fine-tuning-half-k3-seed2")
        sys.path.insert(0, str(SCRIPTS))
        self.addCleanup(sys.path.remove, str(SCRIPTS))
        from study_matrix import Study
        small = Study(SCRIPTS.parent / "inputs" / "studies" / "generation.toml", small=True)
        self.assertEqual({run.overrides["data.max_train_samples"] for run in small.runs()}, {256})
        import make_exercises
        from study_matrix import Study
        from study_runner import Runner
        from study_summary import summarise
        with unittest.mock.patch.dict(os.environ, {"CALLS": str(self.calls)}):
            study = Study(self.study, small=False)
            runner = Runner(study, self.output, str(self.program), [str(self.program)],
                            (None, None))
            runner.exercises = self.directory / "exercises"
            make_exercises.PRETRAIN_DOCUMENTS = 10
            make_exercises.make(runner.exercises)
            runner.pretrain_text = str(runner.exercises / "pretrain.jsonl")
            runner.find_texts = lambda: None
            self.output.mkdir()
            runner.prepare()
            chosen = [run for run in study.runs() if run.stages == 2]
            self.assertEqual(runner.run(chosen), [])
        decks = {pathlib.Path(deck["output.directory"]).name: deck for _, deck in self.decks()}
        tuned = decks["fine-tuning-half-k2-seed2"]
        self.assertEqual(tuned["model.path"],
                         str(self.output / "learning-none-k2-seed1" / "model"))
        self.assertIn("fine-tuning-prompts.jsonl", tuned["evaluation.prompts"])
        self.assertEqual(decks["learning-none-k2-seed1"]["output.save_model"], "true")
        self.assertNotIn("output.save_model", decks["learning-half-k2-seed1"])
        summarise(study, chosen, self.output)
        rows = self.rows()
        self.assertEqual(list(rows[0])[:10],
                         ["job", "setting", "seed", "exact_match", "codec_exact_match", "loss",
                          "forward_bits", "backward_bits", "forward_error", "backward_error"])
        self.assertEqual(len(rows), 2 * 3 * 2)
        # Half of the steps have 50 %, all of them 100 %: 80 % are those of 80 % of the steps.
        table = (self.output / "table.md").read_text()
        self.assertRegex(table, r"\| learning \| half \| 2 \| 80.0 ± 0.0 % \| 20 % \| - \|")
        self.assertRegex(table, r"\| learning \| none \| 2 \| 100.0 ± 0.0 % \| 0 % \|")
        self.assertGreater((self.output / "exact_match.png").stat().st_size, 10000)

    def test_exercises(self):
        folders = [self.directory / name for name in ("one", "two")]
        for folder in folders:
            subprocess.run([sys.executable, SCRIPTS / "make_exercises.py", folder], check=True)
        for path in sorted(folders[0].iterdir()):
            self.assertEqual(path.read_bytes(), (folders[1] / path.name).read_bytes())
        for job in ("learning", "fine-tuning"):
            def lines(part, job=job):
                return [json.loads(line) for line in
                        (folders[0] / f"{job}-{part}.jsonl").read_text().splitlines()]
            seen = {line.split(":")[0] for part in ("train", "valid") for row in lines(part)
                    for line in row["text"].splitlines()}
            prompts = lines("prompts")
            self.assertEqual(len(prompts), 1200)
            for row in prompts:
                question = row["prompt"].splitlines()[-1]
                self.assertTrue(question.endswith(":"))
                self.assertNotIn(question[:-1], seen)
                self.assertLess(len(row["prompt"] + row["answer"]), 127)

    IMAGES = STUDY.replace("communication_ratio = 7.0", 'data = "images"').replace(
        "within = 1.0", "within = 10.0").replace("by = 1.0", "by = 10.0").replace(
        '"training.epochs" = 2', '"training.epochs" = 2\n"evaluation.boundary" = "both"')

    def test_images(self):
        """Nothing is pretrained; accuracies instead of perplexities, bits from the baseline."""
        self.study.write_text(self.IMAGES)
        text = self.run_study(texts=False)
        names = {pathlib.Path(deck["output.directory"]).name for _, deck in self.decks()}
        self.assertEqual(len(names), 8)
        self.assertNotIn("pretrain", names)
        rows = self.rows()
        self.assertEqual(list(rows[0])[:4], ["setting", "stages", "accuracy", "codec_accuracy"])
        for row in rows:
            half = row["setting"] == "half"
            self.assertAlmostEqual(float(row["accuracy"]), 0.8 if half else 0.75)
            self.assertAlmostEqual(float(row["codec_accuracy"]), 0.6 if half else 0.55)
            self.assertAlmostEqual(float(row["best_accuracy"]), 0.8 if half else 0.75)
            self.assertAlmostEqual(float(row["forward_bits"]), 16 if half else 32)
            self.assertAlmostEqual(float(row["forward_error"]), 0.125)
        self.assertIn("| half | 2 | 2 | 80.0 ± 0.0 | +5.0 | 60.0 ± 0.0 | -15.0 | 80.0 |", text)
        self.assertIn("| as good | agrees | half 80.0 ± 0.0, none 75.0 ± 0.0 (+5.00 points) |",
                      text)
        self.assertIn("| better | does not agree |", text)
        with h5py.File(self.output / "summary.h5") as file:
            self.assertEqual(file["curves/half-k2-seed1/accuracy"][()].tolist(), [0.5, 0.8])
        self.run_study("--run", 0, texts=False)
        self.assertIn("is a study of images", self.run_study(status=1))
        for key in ('texts = "make_exercises.py"', "communication_ratio = 7.0"):
            self.study.write_text(self.IMAGES.replace('data = "images"', f'data = "images"\n{key}'))
            self.assertIn("is for studies of texts", self.run_study("--list", status=1))

    def test_mistakes(self):
        for old, new, message in (("title", "titel", "unknown key 'titel'"),
                                  ("stages", "stage", "unknown key 'matrix.stage'"),
                                  ("seeds = [1, 2]", "seeds = 1", "matrix.seeds is a list"),
                                  ("seeds = [1, 2]", "seeds = [1, 1]", "matrix.seeds is a list"),
                                  ("stages = [2, 3]", 'stages = ["2"]', "matrix.stages is a list"),
                                  ("= 7.0", '= "x"', "communication_ratio is a number"),
                                  ('"training.epochs"', '"training.seed"', "set by the study"),
                                  ("[settings.half]", '[settings."../half"]', "no name for"),
                                  ('baseline = "none"', 'baseline = "non"', "no setting 'non'"),
                                  ("by = 1.0", "by = 1.0, within = 2.0", "one of by and within"),
                                  ('than = "none"', 'than = "nine"', "unknown setting 'nine'"),
                                  ('than = "none"', 'than = "none:wire"', "nor NAME:codec"),
                                  ("[deck]", "data = 1\n[deck]", "data is one of text, images"),
                                  ("[deck]", "[deck", "test.toml")):
            self.study.write_text(STUDY.replace(old, new, 1))
            self.assertIn(message, self.run_study("--list", status=1))
        for old, new, message in (("learning/none", "learning/non", "'JOB/SETTING' of a job before"),
                                  ("texts =", "#", "jobs need texts"),
                                  ("hasty = 0.5", "hasty = 2", "ruler.hasty is a share")):
            self.study.write_text(self.jobs().replace(old, new, 1))
            self.assertIn(message, self.run_study("--list", status=1))
        self.assertIn("no such study", self.run_study("--list", status=1, study="nothing"))
        self.study.write_text(STUDY)
        self.assertIn("no such program",
                      self.run_study("--program", "/nonexistent/deltapipe", status=1))
        self.assertIn("nothing was run", self.run_study("--summary", status=1))

    def test_studies_of_the_project(self):
        for path in sorted((SCRIPTS.parent / "inputs" / "studies").glob("*.toml")):
            for small in ([], ["--small"]):
                names = self.run_study("--list", *small, study=path).splitlines()
                self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
