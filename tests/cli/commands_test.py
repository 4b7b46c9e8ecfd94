#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""train, evaluate, generate and check agree with each other, and with transformers."""

import fcntl
import json
import math
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import tomllib
import unittest

import h5py
import numpy as np

import support

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


def python_with_transformers():
    """An interpreter that has transformers, PyTorch and h5py, or None."""
    candidates = [str(SOURCE / "build" / "venv" / "bin" / "python"), sys.executable]
    candidates += [str(pathlib.Path(folder) / "python3")
                   for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for candidate in dict.fromkeys(candidates):
        try:
            subprocess.run([candidate, "-c", "import transformers, torch, h5py"], check=True,
                           capture_output=True, timeout=support.TIME_LIMIT)
            return candidate
        except (OSError, subprocess.SubprocessError):
            pass
    return None


class Commands(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.deck = cls.small(training={"steps": 40, "micro_batch_size": 4},
                             data={"max_train_samples": 0, "max_validation_samples": 0},
                             pipeline={"stages": 2},
                             **{"training.optimizer": {"learning_rate": 5e-3}})
        cls.said = support.run(["train", cls.deck_file(cls.deck)], 2)
        if cls.said.status != 0:
            raise AssertionError(str(cls.said))
        cls.run_file = support.Run(cls.place / "run" / "run.h5")
        cls.model = cls.place / "run" / "model"
        cls.trained = cls.deck_file(support.merged(
            cls.deck, {"model": {"path": str(cls.model)}, "tokenizer": {"train_vocabulary": 0},
                       "output": {"directory": str(cls.place / "elsewhere")}}))

    def evaluated(self, *overrides, ranks=2):
        """Loss, perplexity and tokens."""
        out = self.succeed(["evaluate", self.trained, f"pipeline.stages={ranks}", *overrides],
                           ranks).out
        numbers = re.search(r"(\d+) samples, (\d+) tokens.*\nloss ([\d.]+), perplexity ([\d.]+)",
                            out)
        self.assertIsNotNone(numbers, out)
        return (float(numbers[3]), float(numbers[4]), int(numbers[2]))

    def generated(self, *overrides, ranks=1):
        return self.succeed(["generate", self.trained, f"pipeline.stages={ranks}",
                             "generate.max_new_tokens=12", *overrides], ranks).out

    # --- train

    def test_history(self):
        run = self.run_file
        self.assertEqual(run.steps["step"].tolist(), list(range(1, 41)))
        self.assertLess(run.losses[-1], run.losses[0] - 1)
        self.assertTrue((np.diff(run.steps["seconds"]) > 0).all())
        # The schedule "linear": down to zero behind the last step.
        np.testing.assert_allclose(run.steps["learning_rate"], 5e-3 * (1 - np.arange(40) / 40))
        self.assertEqual(run.attributes["status"], "finished")
        self.assertEqual(run.evaluations["step"][-1], 40)
        np.testing.assert_allclose(run.evaluations["perplexity"], np.exp(run.evaluations["loss"]))
        self.assertIn(f"{run.evaluations['perplexity'][-1]:.3f}", self.said.out)

    def test_blas_kernels_fit_the_processor(self):
        """OpenBLAS takes processors that are newer than itself for those of 2004."""
        def blas_of(run, **environment):
            result = support.finish(support.start(
                ["train", self.deck_file(self.deck), "pipeline.stages=1", "training.steps=1",
                 f"output.directory={self.output(run)}"], **environment))
            self.assertEqual(result.status, 0, str(result))
            return support.Run(self.output(run) / "run.h5").attributes["kokkos"]

        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        if "OpenBLAS" not in blas_of("blas") or "avx2" not in flags:
            self.skipTest("another library, or no AVX2")
        self.assertNotIn("Prescott", blas_of("blas"))
        # A choice of the user is not overruled.
        self.assertIn("Prescott", blas_of("blas", OPENBLAS_CORETYPE="Prescott"))

    def test_threads_are_those_of_the_environment(self):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
        output = self.output("threads")
        losses = []
        cores = len(os.sched_getaffinity(0))
        for threads, values in ((cores, (None, None)), (cores, ("", "")), (2, ("1", "2")),
                                (1, ("1", None)), (3, ("3", None)), (1, (None, "1"))):
            environment = {name: value for name, value in zip(names, values) if value is not None}
            unset = [word for name in names if name not in environment for word in ("-u", name)]
            result = support.run_command(
                ["env", *unset, *support.command_of(
                    ["train", self.deck_file(self.deck), "pipeline.stages=1", "training.steps=3",
                     f"output.directory={output}"], 1)], **environment)
            self.assertEqual(result.status, 0, str(result))
            run = support.Run(output / "run.h5")
            kokkos = run.attributes["kokkos"]
            if "thread(s)" not in kokkos:
                self.skipTest("no threads of a host")
            self.assertIn(f", {threads} thread(s), ", kokkos, values)
            losses.append(run.losses)
        for other in losses[1:]:
            np.testing.assert_allclose(losses[0], other, rtol=1e-5)

    def test_numbers_of_threads(self):
        for text, threads in (("2", 2), ("2,1", 2), (" 1 , 3 ", 1), ("many", None), ("0", None),
                              ("-1", None), ("2x", None), ("2,", None), (",2", None)):
            with self.subTest(text=text):
                output = self.output("numbers")
                result = support.run_command(support.command_of(
                    ["train", self.deck_file(self.deck), "training.steps=1",
                     f"output.directory={output}"], 2), OMP_NUM_THREADS=text)
                if threads is None:
                    self.assertEqual(result.status, 1, str(result))
                    for part in ("OMP_NUM_THREADS is not a number of threads", f"got {text}",
                                 "set it to 1 or more"):
                        self.assertIn(part, result.err)
                    self.assertFalse(output.exists())
                    continue
                self.assertEqual(result.status, 0, str(result))
                kokkos = support.Run(output / "run.h5").attributes["kokkos"]
                if "thread(s)" in kokkos:
                    self.assertIn(f", {threads} thread(s), ", kokkos)
                shutil.rmtree(output)

    def test_both_ends_agree_with_other_threads(self):
        """Both ends of a link find the same memories: with an end's own number of threads their
        bits must be the same, or memories drift apart."""
        deck = self.small(
            boundary__forward={"codec": "auto"},
            cache={"storage": "8bit", "verify_every": 1}, pipeline={"stages": 2},
            training={"steps": 24})
        losses = []
        for name, threads in (("one", (1, 1)), ("other", (2, 1)), ("others", (1, 3))):
            path = self.deck_file(support.merged(
                deck, {"output": {"directory": str(self.output(f"threads-{name}"))}}))
            ranks = [[support.NUMPROC_FLAG, "1", "env", f"OMP_NUM_THREADS={count}",
                      *support.command_of(["train", path], 1)] for count in threads]
            result = support.run_command([*support.MPIEXEC, *ranks[0], ":", *ranks[1]])
            self.assertEqual(result.status, 0, str(result))
            losses.append(support.Run(self.output(f"threads-{name}") / "run.h5").losses)
        for other in losses[1:]:
            np.testing.assert_allclose(losses[0], other, rtol=1e-3)

    def test_nobody_reads(self):
        """What a command prints is its result; a training continues without a reader."""
        deck = self.deck_file(self.deck)
        for arguments in (["check", deck], ["check", "--reference"], ["--version"]):
            with subprocess.Popen([support.PROGRAM, *map(str, arguments)], env=support.ENVIRONMENT,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as left:
                left.stdout.close()  # as `head` does when it has enough
                self.assertEqual(left.stderr.read(), b"")
            self.assertEqual(left.returncode, 0, arguments)
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([support.PROGRAM, *map(str, arguments)], stdout=full,
                                      stderr=subprocess.PIPE, env=support.ENVIRONMENT, text=True,
                                      timeout=support.TIME_LIMIT)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("standard output cannot be written", done.stderr)
        output = self.output("unread")
        run = subprocess.Popen([support.PROGRAM, "train", str(deck), "pipeline.stages=1",
                                "training.steps=5", "output.log_every=1",
                                f"output.directory={output}"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=support.ENVIRONMENT)
        run.stdout.close()
        self.assertEqual(run.wait(support.TIME_LIMIT), 0)
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "finished")

    def test_minimal_deck(self):
        deck = SOURCE / "inputs" / "minimal.toml"
        overrides = [f"model.path={self.model}", f"data.train={self.text}"]
        self.assertNotIn("# warning", self.succeed(["check", deck, *overrides]).out)
        output = self.output("minimal")
        done = self.succeed(["train", deck, *overrides, "training.steps=1",
                             f"output.directory={output}"], 2)
        self.assertNotIn("warning", done.err)
        self.assertEqual(len(support.Run(output / "run.h5").losses), 1)

    def test_trace(self):
        self.train(self.deck, "traced", 2, ["training.steps=3", "output.trace_step=2"])
        trace = json.loads((self.output("traced") / "trace.json").read_text(encoding="utf-8"))
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        for rank in (0, 1):
            names = {event["name"] for event in events if event.get("pid") == rank}
            self.assertTrue({"forward 0", "backward 1", "optimizer"} <= names, names)

    def test_a_trace_that_does_not_come(self):
        deck = self.deck_file(self.small(
            output={"trace_step": 4, "directory": str(self.output("untraced"))}))
        warning = "output.trace_step is 4 and the run ends after step 3"
        self.assertEqual(self.succeed(["train", deck]).err.count(warning), 1)
        self.assertIn("# warning: " + warning, self.succeed(["check", deck]).out)
        self.assertNotIn(warning, self.succeed(["check", deck, "output.trace_step=3"]).out)

    def test_help_and_version(self):
        for arguments in (["--help"], ["train", "--help"], ["--version"], ["check", "--reference"],
                          ["check", "--schema"]):
            result = self.succeed(arguments)
            self.assertTrue(result.out.strip())
            self.assertEqual(result.err, "")

    def test_what_documents_say_of_the_command_line(self):
        """The man page and the completion name every command, option and exit status."""
        page = (SOURCE / "docs" / "deltapipe.1").read_text(encoding="utf-8").replace("\\-", "-")
        completion = (SOURCE / "scripts/completion/deltapipe.bash").read_text(encoding="utf-8")
        said = self.succeed(["--help"]).out
        statuses = re.findall(r"(?m)^ +(\d+)  (.+)$", said)
        self.assertLessEqual({"0", "1", "2", "75", "130", "138", "143"},
                             {status for status, _ in statuses})
        for status, meaning in statuses:
            self.assertIn(f".B {status}\n{meaning}", page)
        commands = re.findall(r"(?m)^  ([a-z]+) {2,}\S", said)
        self.assertIn("train", commands)
        for command in commands:
            self.assertIn(f".B {command}\n", page)
            self.assertRegex(completion, rf'commands="[^"]*\b{command}\b')
            for option in re.findall(r"--[a-z]+", self.succeed([command, "--help"]).out):
                self.assertIn(option, page)
                self.assertRegex(completion, rf'[" ]{option}\b')

    def test_schema(self):
        """The schema holds for all decks here, and refuses what the program refuses."""
        schema = json.loads(self.succeed(["check", "--schema"]).out)

        def flaw(rule, value, where="deck"):
            """A small validator of what the schema uses; where it does not hold, or None."""
            kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
                     "number": (int, float)}
            kind = rule.get("type")
            is_flag = isinstance(value, bool)
            if kind and (not isinstance(value, kinds[kind]) or is_flag != (kind == "boolean")):
                return where
            if "enum" in rule and value not in rule["enum"]:
                return where
            if "const" in rule and value != rule["const"]:
                return where
            if "anyOf" in rule and all(flaw(one, value, where) for one in rule["anyOf"]):
                return where
            if isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
                return where
            if isinstance(value, str) and len(value) < rule.get("minLength", 0):
                return where
            if isinstance(value, (int, float)) and not is_flag and not (
                    rule.get("minimum", value) <= value <= rule.get("maximum", value)
                    and rule.get("exclusiveMinimum", -math.inf) < value
                    < rule.get("exclusiveMaximum", math.inf)):
                return where
            if kind == "array":
                return next((f for v in value if (f := flaw(rule["items"], v, where))), None)
            if kind == "object":
                for name, inner in value.items():
                    if name not in rule["properties"]:
                        return f"{where}.{name}"
                    if found := flaw(rule["properties"][name], inner, f"{where}.{name}"):
                        return found
            return None

        decks = [*SOURCE.glob("inputs/*.toml"), *SOURCE.glob("inputs/studies/decks/*.toml")]
        self.assertGreater(len(decks), 6)
        for path in decks:
            self.assertIsNone(flaw(schema, tomllib.loads(path.read_text(encoding="utf-8"))), path)
        whole = tomllib.loads(self.succeed(["check", "--deck", self.trained]).out)
        self.assertIsNone(flaw(schema, whole))
        for section, values in schema["properties"].items():
            for name, rule in values["properties"].items():
                self.assertTrue("default" in rule or "properties" in rule, f"{section}.{name}")
        for text, where in (("training.stepz = 1", "deck.training.stepz"),
                            ("training.micro_batches = 0", "deck.training.micro_batches"),
                            ("boundary.forward.codec = 'zip'", "deck.boundary.forward.codec"),
                            ("boundary.forward.quantizer.step = 0.005",
                             "deck.boundary.forward.quantizer.step"),
                            ("network.latency = '1 week'", "deck.network.latency"),
                            ("training.recompute = 1", "deck.training.recompute")):
            self.assertEqual(flaw(schema, tomllib.loads(text)), where)

    # --- evaluate

    def test_evaluation_is_that_of_the_training(self):
        expected = self.run_file.evaluations["loss"][-1]
        for ranks in (1, 2, 3):
            loss, perplexity, tokens = self.evaluated(ranks=ranks)
            # evaluate shows six digits behind the point.
            self.assertLess(abs(loss - expected), 1e-6 * expected + 5e-7)
            self.assertLess(abs(perplexity / math.exp(expected) - 1), 1e-4)
            self.assertEqual(tokens, self.run_file.evaluations["tokens"][-1])
        self.assertFalse((self.place / "elsewhere").exists())

    def test_evaluation_does_not_depend_on_batches(self):
        expected = self.run_file.evaluations["loss"][-1]
        loss, _, _ = self.evaluated("training.micro_batch_size=3", "training.micro_batches=5")
        self.assertLess(abs(loss - expected), 1e-6 * expected + 5e-7)

    # --- generate

    def test_generation(self):
        first = self.generated("generate.seed=3", "--prompt", "Ka lo")
        self.assertTrue(first.startswith("Ka lo"), first)
        self.assertGreater(len(first), len("Ka lo\n"))
        self.assertEqual(self.generated("generate.seed=3", "--prompt", "Ka lo"), first)
        self.assertEqual(self.generated("generate.seed=3", "--prompt", "Ka lo", ranks=2), first)
        others = {self.generated(f"generate.seed={seed}", "--prompt", "Ka lo")
                  for seed in (4, 5, 6)}
        self.assertTrue(others - {first})

    def test_greedy(self):
        text = {self.generated("generate.temperature=0", f"generate.seed={seed}", "--prompt",
                               "Ka lo", ranks=ranks) for seed, ranks in ((0, 1), (1, 1), (2, 2))}
        self.assertEqual(len(text), 1)
        # The one likeliest token is what sampling among one gives.
        text.add(self.generated("generate.top_k=1", "--prompt", "Ka lo"))
        self.assertEqual(len(text), 1)

    def test_several_prompts(self):
        out = self.generated("generate.prompts=[\"Ka\", \"Né ши\"]", "generate.temperature=0")
        self.assertTrue(out.startswith("Ka"))
        self.assertIn("\n\nNé ши", out)

    # --- the deck of a new model

    def test_the_same_deck_uses_the_trained_model(self):
        """model.path on the command line stands for [model.new] and the tokenizer it was given."""
        deck = self.deck_file(self.deck)
        options = ["pipeline.stages=1", "generate.max_new_tokens=12", "--prompt", "Ka lo"]
        said = self.succeed(["generate", deck, f"model.path={self.model}", *options])
        self.assertEqual(said.out, self.generated("--prompt", "Ka lo"))
        self.assertEqual(said.err, "")
        out = self.succeed(["evaluate", deck, f"model.path={self.model}"], 2).out
        expected, _, _ = self.evaluated()
        self.assertIn(f"loss {expected:.6f}", out)
        self.assertIn("train_vocabulary = 0",
                      self.succeed(["check", "--deck", deck, f"model.path={self.model}",
                                    f"output.directory={self.place / 'again'}"]).out)

    def test_untrained_weights_are_warned_of_once(self):
        deck = self.deck_file(self.deck)
        for command, ranks in (("generate", 1), ("evaluate", 1), ("evaluate", 2)):
            result = self.succeed([command, deck, f"pipeline.stages={ranks}",
                                   *(["--prompt", "Ka"] if command == "generate" else [])], ranks)
            warnings = [line for line in result.err.splitlines() if "warning" in line]
            self.assertEqual(len(warnings), 1, str(result))
            # The deck's run is over: this is what was meant.
            self.assertIn(f"set model.path={self.model}", warnings[0])

    def test_progress_bar(self):
        """One process in a terminal of 80 columns: a bar, on one line."""
        deck = self.deck_file(support.merged(self.deck, {"pipeline": {"stages": 1},
                                                         "training": {"steps": 3}}))
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in support.ENVIRONMENT.items()
                       if name != "DELTAPIPE_PROGRESS"}
        process = subprocess.Popen(
            support.command_of(["train", deck, f"output.directory={self.output('bar')}"], 1),
            env=environment, stdin=subprocess.DEVNULL, stdout=end, stderr=subprocess.DEVNULL)
        os.close(end)
        said = b""
        try:
            while part := os.read(terminal, 65536):
                said += part
        except OSError:  # the other end is closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(support.TIME_LIMIT), 0)
        drawn = re.findall(r"\r\x1b\[K(\[=.*?)(?=\r)", said.decode())
        self.assertIn("step 3/3", drawn[-1])
        self.assertLess(max(map(len, drawn)), 80, drawn)

    # --- check

    def test_check(self):
        out = self.succeed(["check", "--deck", self.trained]).out
        for part in ("[training]", "micro_batch_size = 4", "# stage", "# optimizer", "# peak",
                     "# forward", "# backward"):
            self.assertIn(part, out)
        self.assertFalse((self.place / "elsewhere").exists())
        # Several processes say it once.
        several = self.succeed(["check", "--deck", self.trained], 2).out
        self.assertEqual(support.without_measurements(several), support.without_measurements(out))

    def test_decks_of_studies(self):
        """Every setting of every study makes a deck that the program takes."""
        root = SOURCE / "inputs" / "studies"
        studies = sorted(root.glob("*.toml"))
        self.assertGreater(len(studies), 3)
        text = self.place / "text.txt"
        text.write_text(support.text_of(20000), encoding="utf-8")
        for path in studies:
            study = tomllib.loads(path.read_text(encoding="utf-8"))
            for name, setting in study["settings"].items():
                keys = {**study.get("deck", {}), **setting, "pipeline.stages": 4}
                with self.subTest(f"{path.stem} {name}"):
                    self.succeed(["check", root / "decks" / "pretrain.toml", f'data.train=["{text}"]',
                                  "tokenizer.train_vocabulary=300",
                                  *(f"{key}={str(value).lower() if isinstance(value, bool) else value}"
                                    for key, value in keys.items())])

    def test_check_draws_the_schedule(self):
        deck = [self.trained, "pipeline.stages=2", "training.micro_batches=4"]
        grids = {"1f1b": ["# stage 0 | F0 F1 .  .  B0--- F2 B1--- F3 B2--- .  B3---",
                          "# stage 1 | .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- .  ."],
                 "gpipe": ["# stage 0 | F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3---",
                           "# stage 1 | .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  ."],
                 "zb-h1": ["# stage 0 | F0 F1 .  B0 W0 F2 B1 W1 F3 B2 W2 B3 W3",
                           "# stage 1 | .  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"]}
        waits = {"1f1b": "20.0", "gpipe": "20.0", "zb-h1": "7.7"}
        for schedule, grid in grids.items():
            out = self.succeed(["check", "--deck", "--schedule", *deck, f"pipeline.schedule={schedule}"]).out
            lines = out.splitlines()
            self.assertEqual(lines[lines.index(grid[0]):][:2], grid)
            self.assertIn(f"wait (.) {waits[schedule]} % of the step", out)
            self.assertIn(f"idle by the schedule: {waits[schedule]} %", out)
            # The output of check is still a deck.
            drawn = self.place / "drawn.toml"
            drawn.write_text(out, encoding="utf-8")
            self.assertNotIn(grid[0], self.succeed(["check", drawn]).out)

    def test_delta_with_dropout_is_warned_of_once(self):
        remedy = "set model.dropout_residual = 0"
        deck = [self.trained, "pipeline.stages=2", "training.steps=1", "output.save_model=false",
                f"output.directory={self.place / 'dropout'}"]
        doubtful = ["boundary.forward.codec=aqsgd", "model.dropout_residual=0.1"]
        for command, stream in ("check", "out"), ("train", "err"):
            said = getattr(self.succeed([command, *deck, *doubtful], 2), stream)
            self.assertEqual(said.count(remedy), 1, said)
            self.assertIn("warning: with dropout (dropout_residual 0.1)", said)
            self.assertNotIn(remedy, getattr(self.succeed([command, *deck], 2), stream))

    def test_the_effective_deck_is_a_deck(self):
        deck = self.place / "effective.toml"
        deck.write_text(self.run_file.attributes["deck"], encoding="utf-8")
        out = self.succeed(["check", "--deck", deck]).out
        self.assertTrue(out.startswith(self.run_file.attributes["deck"].rstrip("\n")))
        again = self.place / "again.toml"
        again.write_text(out, encoding="utf-8")  # what check says is a deck as well
        self.assertEqual(support.without_measurements(self.succeed(["check", "--deck", again]).out),
                         support.without_measurements(out))

    # --- the saved model

    def test_half_precision_model(self):
        for precision, kind in (("fp16", "F16"), ("bf16", "BF16")):
            name = f"saved-{precision}"
            self.train(self.deck, name, 2, ["training.steps=1",
                                            f"output.model_precision={precision}"])
            header, _ = support.read_safetensors(self.output(name) / "model" / "model.safetensors")
            self.assertEqual({about["dtype"] for tensor, about in header.items()
                              if tensor != "__metadata__"}, {kind})
            self.evaluated(f"model.path={self.output(name) / 'model'}")

    def test_transformers_give_the_same_loss(self):
        python = python_with_transformers()
        if python is None:
            self.skipTest("no python3 here has transformers, PyTorch and h5py")
        # The last windows of T inputs and T targets, of the tokens that transformers reads.
        script = """
import json, sys, torch, transformers
directory, text, samples, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
tokenizer = transformers.GPT2TokenizerFast.from_pretrained(directory)
ids = tokenizer(open(text, encoding="utf-8", newline="").read())["input_ids"]
ids.append(tokenizer.eos_token_id)
windows = [ids[i:i + width + 1] for i in range(0, len(ids) - 1, width)][-samples:]
model, info = transformers.GPT2LMHeadModel.from_pretrained(
    directory, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
model = model.double().eval()
loss, tokens = 0.0, 0
with torch.no_grad():
    for window in windows:
        logits = model(torch.tensor([window[:-1]])).logits[0]
        targets = torch.tensor(window[1:])
        loss += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        tokens += len(targets)
greedy = tokenizer("Ka lo")["input_ids"]
with torch.no_grad():
    for _ in range(12):
        greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
print(json.dumps({"loss": loss / tokens, "tokens": tokens, "greedy": tokenizer.decode(greedy)}))
"""
        samples = int(re.search(r"and (\d+) validation samples", self.said.out)[1])
        result = subprocess.run([python, "-c", script, self.model, self.text, str(samples), "32"],
                                capture_output=True, text=True, timeout=3 * support.TIME_LIMIT,
                                env=dict(os.environ, TRANSFORMERS_OFFLINE="1"), check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        expected = json.loads(result.stdout.splitlines()[-1])
        loss, _, tokens = self.evaluated()
        self.assertEqual(tokens, expected["tokens"])
        self.assertLess(abs(loss / expected["loss"] - 1), 1e-5)
        said = self.generated("generate.temperature=0", "--prompt", "Ka lo")
        self.assertEqual(said.rstrip("\n"), expected["greedy"].rstrip("\n"))


if __name__ == "__main__":
    support.main()
