#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints and restarts from outside: what is there, what continues from it, what is refused."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np

import support

STOPPED, NO_PROGRESS = 75, 74
ODD_FILES = os.environ.get("DELTAPIPE_ODD_FILES", "build/release/tests/libodd_files.so")
HANG_IN_WRITE = os.environ.get("DELTAPIPE_HANG_IN_WRITE", "build/release/tests/libhang_in_write.so")
MEMORY = {"boundary__forward": {"codec": "aqsgd", "bits": 3},
          "boundary__backward": {"codec": "directq", "bits": 4, "feedback.kind": "ef"}}
# The controller's first step is 1; this target needs a far smaller one.
TARGET = {"codec": "directq", "quantizer.step": 1, "rate": 6}
EXACT = ("step", "epoch", "loss", "learning_rate", "gradient_norm", "tokens", "samples",
         "forward_bytes", "backward_bytes", "tied_row_bytes", "tied_gradient_bytes",
         "collective_bytes")


def steps_of(output):
    return sorted(int(path.name[5:]) for path in (output / "checkpoints").glob("step-*"))


def complete_steps_of(output):
    return [step for step in steps_of(output)
            if (checkpoint(output, step) / "complete.json").is_file()]


def checkpoint(output, step):
    return output / "checkpoints" / f"step-{step:09d}"


class Checkpoints(support.TestCase):
    def deck(self, **sections):
        return support.merged(
            self.small(training={"steps": 12}, checkpoint={"every_steps": 2},
                       training__optimizer={"schedule": "cosine"}, output={"overwrite": False}),
            {name.replace("__", "."): keys for name, keys in sections.items()})

    def begin(self, deck, output, stages=2, overrides=()):
        """Says little, since nobody reads it before the end."""
        if "training.steps=1000000" in overrides:
            overrides = [*overrides, "output.log_every=1000000", "training.evaluate_every=1000000"]
        process = support.start(["train", self.deck_file(deck), f"output.directory={output}",
                                 f"pipeline.stages={stages}", *overrides], stages)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process

    def stop(self, deck, output, overrides=("checkpoint.time_limit=0.001",), stages=2):
        """Stops in order after the first step."""
        result = support.finish(self.begin(deck, output, stages, overrides))
        self.assertEqual(result.status, STOPPED, str(result))
        return result

    def go_on(self, deck, output, stages=2, overrides=(), status=0):
        result = support.finish(self.begin(deck, output, stages, overrides))
        self.assertEqual(result.status, status, str(result))
        return result

    def on_disks(self, deck, output, disks):
        """Starts the deck with two ranks, each with its own directory for checkpoints."""
        path = self.deck_file(deck)

        def run(*overrides):
            each = [[support.NUMPROC_FLAG, "1", support.PROGRAM, "train", str(path),
                     f"output.directory={output}", "pipeline.stages=2",
                     f"checkpoint.directory={disk}", *overrides] for disk in disks]
            return support.run_command([*support.MPIEXEC, *each[0], ":", *each[1]])

        return run

    def assert_same_runs(self, output, reference):
        found, expected = support.Run(output / "run.h5"), support.Run(reference / "run.h5")
        for name in EXACT:
            np.testing.assert_array_equal(found.steps[name], expected.steps[name], name)
        for name in ("step", "loss", "forward_bytes", "collective_bytes"):
            np.testing.assert_array_equal(found.evaluations[name], expected.evaluations[name], name)
        self.assertEqual((output / "model/model.safetensors").read_bytes(),
                         (reference / "model/model.safetensors").read_bytes())

    def assert_same_steps(self, output, reference, rtol):
        """Of the codes that hold a target."""
        found, expected = (support.Run(path / "run.h5").steps["backward_step"][:, 0]
                           for path in (output, reference))
        np.testing.assert_allclose(found, expected, rtol=rtol)
        self.assertLess(expected[3:].max(), 0.5)

    def reference(self, deck, name, stages=2):
        output = self.output(name)
        if not output.exists():
            self.go_on(deck, output, stages)
        return output

    # --- existing checkpoints

    def test_ctrl_c_under_the_launcher(self):
        """mpirun gives its ranks SIGTERM for SIGINT, and kills them after a second or as long as
        this test says."""
        deck = self.deck(checkpoint={"every_steps": 1000000})
        output = self.output("ctrl_c")
        command = ["train", self.deck_file(deck), f"output.directory={output}", "pipeline.stages=2",
                   "training.steps=1000000", "training.evaluate_every=1000000",
                   "output.log_every=1000000"]
        process = support.start(command, 2, OMPI_MCA_odls_base_sigkill_timeout="6")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        first = process.stdout.readline()
        while first and not first.startswith("step 1/"):
            first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        result = support.finish(process)
        self.assertIn("asked to stop: a checkpoint follows the step under way", result.err)
        self.assertNotIn("mpirun kills", result.err)
        self.assertIn("the same command continues from step", result.out)
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "stopped")
        self.assertTrue(list((output / "checkpoints").glob("step-*/complete.json")))

    def test_ctrl_c_in_a_long_step(self):
        """The launcher kills the ranks before the step has ended: what to do is said, and the last
        checkpoint is what the run continues from."""
        deck = self.deck(checkpoint={"every_steps": 1}, network={"latency": "1.5 s"},
                         training={"evaluate_every": 12, "evaluate_at_start": False})
        output = self.output("ctrl_c_slow")
        command = ["train", self.deck_file(deck), f"output.directory={output}", "pipeline.stages=2"]
        process = support.start(command, 2, OMPI_MCA_odls_base_sigkill_timeout="1")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        wait_until(self, lambda: complete_steps_of(output), process)
        process.send_signal(signal.SIGINT)
        result = support.finish(process)
        self.assertNotEqual(result.status, 0)
        self.assertRegex(result.err, r"asked to stop: a checkpoint follows the step under way, in "
                                     r"about [\d.]+ s; after Ctrl-C or SIGTERM mpirun kills the ranks "
                                     r"1 s from now, which may be too early: `kill -USR1` to mpirun")
        self.assertEqual(result.err.count("asked to stop"), 1, str(result))
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "running")
        self.assertEqual(complete_steps_of(output), [1])
        # The latency is of the emulated link and may change.
        result = self.go_on(deck, output, overrides=["network.latency=0"])
        self.assertIn("resuming from the checkpoint of step 1", result.out)

    def test_a_batch_job_that_ends(self):
        deck = self.deck(checkpoint={"every_steps": 1000000}, output={"log_every": 1000000})
        output = self.output("job")
        command = ["train", self.deck_file(deck), f"output.directory={output}", "pipeline.stages=2",
                   "training.steps=1000000", "training.evaluate_every=1000000"]
        # 10 s before its end the run has to be over.
        begin = time.time()
        process = support.start(command, 2, SLURM_JOB_END_TIME=str(int(begin + 13)))
        result = support.finish(process)
        self.assertLess(time.time(), begin + 13)
        self.assertEqual(result.status, STOPPED, str(result))
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "stopped")
        # Times that are over or are no times limit nothing.
        for text in ("", "soon", "1000", "nan", "-1"):
            process = support.start([*command[:-2], "training.steps=2", "output.overwrite=true"], 2,
                                    SLURM_JOB_END_TIME=text)
            self.assertEqual(support.finish(process).status, 0, text)

    def test_the_last_ones_and_milestones_stay(self):
        # Errors are kept at one end only.
        deck = self.deck(checkpoint={"keep": 3, "milestone_every": 4},
                         boundary__backward=MEMORY["boundary__backward"])
        output = self.output("kept")
        process = self.begin(deck, output, overrides=["training.steps=1000000"])
        wait_until(self, lambda: max(steps_of(output), default=0) >= 20, process)
        process.send_signal(signal.SIGUSR1)
        result = support.finish(process)
        self.assertEqual(result.status, STOPPED, str(result))
        steps = steps_of(output)
        self.assertEqual([s for s in steps if s % 4 == 0], list(range(4, steps[-1] + 1, 4)))
        self.assertEqual(len([s for s in steps if s % 4 != 0]), 3)
        marker = json.loads((checkpoint(output, 8) / "complete.json").read_text())
        self.assertEqual((marker["step"], marker["stages"], marker["milestone"]), (8, 2, True))
        self.assertIn("every_steps = 2", marker["deck"])
        self.assertEqual({file["name"] for file in marker["files"]},
                         {path.name for path in checkpoint(output, 8).iterdir()} - {"complete.json"})
        with h5py.File(checkpoint(output, 8) / "rank-0.h5") as file:
            self.assertIn("parameters", file)
        with h5py.File(output / "run.h5") as file:
            self.assertEqual(file.attrs["status"], "stopped")
            self.assertIn("SIGUSR1", file.attrs["reason"])
            rows = file["checkpoints"]
            self.assertEqual(rows["step"][:5].tolist(), [2, 4, 6, 8, 10])
            self.assertTrue((rows["bytes"][()] > 10000).all())
            self.assertTrue((rows["seconds"][()] >= rows["blocked_seconds"][()]).all())

    def test_a_finished_run_leaves_milestones_only(self):
        output = self.output("finished")
        deck = self.deck(checkpoint={"milestone_every": 5})
        self.go_on(deck, output)
        self.assertEqual(steps_of(output), [5, 10])
        with h5py.File(output / "run.h5", "a") as file:  # as an earlier version wrote it
            file.attrs["deck"] = file.attrs["deck"].replace(
                "[checkpoint]\n", '[checkpoint]\nresume = "auto"\n')
        # The same command then changes nothing, whatever the checkpoints that it asks for.
        before = snapshot(output)
        for overrides in ([], ["checkpoint.every=\"15 min\"", "output.log_every=7"]):
            result = self.go_on(deck, output, overrides=overrides)
            self.assertIn("is already finished (12 steps): nothing is changed", result.out)
            self.assertIn("output.overwrite = true", result.out)
            self.assertEqual(snapshot(output), before)
        check = ["check", self.deck_file(deck), f"output.directory={output}", "pipeline.stages=2"]
        self.assertIn("# the run in output.directory is already finished", self.succeed(check).out)
        self.assert_stops(support.run([*check, "training.steps=13"]), "has another deck", status=2)
        # Another one is refused, and names what differs.
        other = self.place / "finished-other.txt"
        other.write_text(support.text_of(20000, seed=4), encoding="utf-8")
        for override, key in (("training.steps=13", "training.steps = 12"),
                              ("model.new.n_embd=64", "model.new.n_embd = 32"),
                              (f'data.train=["{other}"]', "data.train = "),
                              ("pipeline.schedule=gpipe", "pipeline.schedule = ")):
            result = support.finish(self.begin(deck, output, overrides=[override]))
            self.assert_stops(result, output, "has another deck", key, "output.overwrite", status=2)
            self.assertEqual(snapshot(output), before)
        # The data's file is another one since.
        os.utime(self.text)
        self.assertIn(f"{self.text} is newer than this run", self.go_on(deck, output).out)
        # On purpose.
        result = self.go_on(deck, output, overrides=["output.overwrite=true", "training.steps=3"])
        self.assertEqual(len(support.Run(output / "run.h5").losses), 3)

    def test_an_unfinished_run_without_checkpoints(self):
        deck = self.deck(checkpoint={"every_steps": 0})
        output = self.output("unfinished")
        self.go_on(deck, output, stages=1)
        with h5py.File(output / "run.h5", "a") as file:  # as if it had been killed at its end
            del file.attrs["finished"]
        before = snapshot(output)
        for override in ("training.seed=7", "training.optimizer.learning_rate=0.5"):
            result = support.finish(self.begin(deck, output, 1, [override]))
            self.assert_stops(result, override.split("=")[0], "has another deck", status=2)
        # The model is another run's than that of run.h5.
        with h5py.File(output / "run.h5", "a") as file:
            own = file.attrs["deck"]
            file.attrs["deck"] = own.replace("overwrite = false", "overwrite = true")
        result = support.finish(self.begin(deck, output, stages=1))
        self.assert_stops(result, output / "model", "a model is in the place", status=2)
        with h5py.File(output / "run.h5", "a") as file:
            file.attrs["deck"] = own
        # Its own it may write again.
        self.assertEqual({**snapshot(output), "run.h5": b""}, {**before, "run.h5": b""})
        result = self.go_on(deck, output, stages=1)
        self.assertIn("has no checkpoint: its 12 step(s) are repeated", result.out)
        self.assertEqual({**snapshot(output), "run.h5": b""}, {**before, "run.h5": b""})

    def test_a_run_that_was_killed_in_its_first_moments(self):
        """Any other run replaces it, unless it has evaluated."""
        deck = self.deck(training={"evaluate_at_start": True, "steps": 2},
                         checkpoint={"every_steps": 0}, output={"save_model": False})
        output = self.output("first-moments")
        self.go_on(deck, output, stages=1)
        with h5py.File(output / "run.h5", "a") as file:
            del file.attrs["finished"]
            for column in file["steps"].values():
                column.resize(0, axis=0)
        result = support.finish(self.begin(deck, output, 1, ["training.seed=7"]))
        self.assert_stops(result, "has another deck", "training.seed", status=2)
        with h5py.File(output / "run.h5", "a") as file:
            for column in file["evaluations"].values():
                column.resize(0, axis=0)
        self.go_on(deck, output, 1, ["training.seed=7"])
        self.assertEqual(support.Run(output / "run.h5").steps["step"].tolist(), [1, 2])

    def test_what_is_in_the_way_stays(self):
        deck = self.deck(checkpoint={"every_steps": 0})
        model = self.trained_model()
        for name, stay in (("a-model", "model/config.json"), ("not-a-run-file", "run.h5")):
            output = self.output(name)
            (output / stay).parent.mkdir(parents=True)
            if stay == "run.h5":
                (output / stay).write_text("mine")
            else:
                shutil.copytree(model, output / "model", dirs_exist_ok=True)
            before = snapshot(output)
            result = support.finish(self.begin(deck, output, 1))
            self.assert_stops(result, output / stay.split("/")[0], "output.overwrite", status=2)
            self.assertEqual(snapshot(output), before)
        # A source is not replaced, not even on purpose.
        source = self.output("source")
        shutil.copytree(model, source / "model")
        link = self.output("link")
        link.symlink_to(source)
        before = snapshot(source)
        fine = {**deck, "model": {"path": str(source / "model")}, "tokenizer": {}}
        del fine["model.new"]
        for directory in (source, link):
            for overrides in ([], ["output.overwrite=true"]):
                result = support.finish(self.begin(fine, directory, 1, overrides))
                self.assertEqual(result.status, 2, str(result))
            self.assert_stops(result, "would replace that of model.path", status=2)
        self.assertEqual(snapshot(source), before)

    # --- restarts

    def test_a_damaged_milestone_stays(self):
        deck = self.deck(checkpoint={"milestone_every": 1})
        output = self.output("damaged-milestone")
        for _ in range(2):
            self.stop(deck, output)
        path = checkpoint(output, 1) / "complete.json"
        path.write_bytes(path.read_bytes().replace(b'"step"', b'"stop"'))
        self.go_on(deck, output)
        self.assertEqual(steps_of(output), list(range(1, 13)))

    def test_a_stopped_run_goes_on_with_the_same_bits(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        reference = self.reference(deck, "reference")
        output = self.output("resumed")
        limit = "checkpoint.time_limit=0.001"
        for step in range(1, 12):
            result = self.go_on(deck, output, overrides=[limit], status=STOPPED)
            self.assertIn(f"stopped by checkpoint.time_limit after step {step};", result.out)
        result = self.go_on(deck, output)
        self.assertIn("resuming from the checkpoint of step 11", result.out)
        self.assert_same_runs(output, reference)
        with h5py.File(output / "run.h5") as file:
            self.assertEqual(file["restarts/step"][()].tolist(), list(range(1, 12)))
            self.assertTrue((np.diff(file["restarts/time"][()]) > 0).all())

    def test_other_threads_are_warned_of(self):
        deck = self.deck(training={"steps": 4})
        output = self.output("threads")
        warning = "the run so far was computed with Kokkos"
        self.stop(deck, output, stages=1)
        result = self.stop(deck, output, stages=1)
        self.assertNotIn("computed with", result.err)
        if "thread(s)" not in support.Run(output / "run.h5").attributes["kokkos"]:
            self.skipTest("threads are Kokkos' own")
        path = self.deck_file(deck)
        result = support.run_command(
            support.command_of(["train", path, f"output.directory={output}"], 1),
            OMP_NUM_THREADS="3")
        self.assertEqual(result.status, 0, str(result))
        self.assertIn(warning, result.err)
        self.assertIn(", 3 thread(s), ", result.err)

    def test_products_in_bf16(self):
        """Checkpoints have fp32 values; matrices' halves come back to the bit."""
        for label, frozen in (("bf16", []), ("bf16-frozen", ["wte", "h.1.*"])):
            deck = self.deck(**MEMORY, training={"precision": "bf16"},
                             training__optimizer={"frozen": frozen})
            reference = self.reference(deck, label)
            output = self.output(f"{label}-resumed")
            for _ in range(3):
                self.stop(deck, output)
            self.go_on(deck, output)
            self.assert_same_runs(output, reference)

    def test_signals_give_a_checkpoint(self):
        deck = self.deck(**MEMORY)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(signal=number.name):
                output = self.output(f"signal-{number.name}")
                process = self.begin(deck, output, stages=1,
                                     overrides=["training.steps=1000000",
                                                "checkpoint.every_steps=1000000"])
                wait_until(self, lambda: stepped(output), process)
                process.send_signal(number)
                result = support.finish(process)
                self.assertEqual(result.status, STOPPED, str(result))
                run = support.Run(output / "run.h5")
                self.assertEqual(run.attributes["status"], "stopped")
                self.assertIn(number.name, run.attributes["reason"])
                self.assertEqual(steps_of(output), [len(run.losses)])

    def test_a_signal_during_the_last_evaluation(self):
        """The checkpoint of the last step and the model are there by then."""
        validation = self.place / "validation.txt"
        validation.write_text(support.text_of(400000, seed=2), encoding="utf-8")
        deck = self.deck(data={"validation": [str(validation)], "max_validation_samples": 0},
                         training={"evaluate_every": 10**6})
        output = self.output("evaluating")
        process = self.begin(deck, output)
        wait_until(self, (output / "model").exists, process)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(support.finish(process).status, 75)
        self.assertTrue((output / "model/config.json").is_file())
        self.assertEqual(support.finish(self.begin(deck, output)).status, 0)
        self.assert_same_runs(output, self.reference(deck, "evaluated"))
        self.assertEqual(steps_of(output), [])
        with h5py.File(output / "run.h5") as file:
            self.assertEqual(file["checkpoints/step"][()].tolist(), [2, 4, 6, 8, 10, 12])
        # Without checkpoints it ends the run, whose model is saved by then, and which may be repeated.
        output = self.output("evaluating-only")
        without = support.merged(deck, {"checkpoint": {"every_steps": 0}})
        process = self.begin(without, output)
        wait_until(self, (output / "model").exists, process)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(support.finish(process).status, 128 + signal.SIGUSR1)
        model = snapshot(output / "model")
        self.assertEqual(model, snapshot(self.output("evaluated") / "model"))
        self.assertIn("12 step(s) are repeated", self.go_on(without, output).out)
        self.assertEqual(snapshot(output / "model"), model)

    def test_a_signal_during_an_evaluation_between_steps(self):
        """Two ranks stop before the same evaluation step, and the step before has a checkpoint."""
        deck = self.deck(data={"max_train_samples": 8, "max_validation_samples": 120,
                               "validation_fraction": 0.5},
                         training={"micro_batch_size": 1, "micro_batches": 1, "evaluate_every": 2},
                         checkpoint={"every_steps": 0, "every": "1 h"})
        output = self.output("between")
        process = self.begin(deck, output, overrides=["network.latency=0.1"])
        time.sleep(5)  # two steps take a second, the evaluation after them twelve
        begin = time.monotonic()
        process.send_signal(signal.SIGUSR1)
        result = support.finish(process)
        self.assertLess(time.monotonic() - begin, 6)
        self.assertEqual(result.status, STOPPED, str(result))
        self.assertIn("stopped by SIGUSR1 after step 2; the same command continues", result.out)
        self.assertEqual(steps_of(output), [2])

    def test_a_second_signal_quits(self):
        deck = self.deck(**{"model.new": {"n_embd": 256}}, data={"max_train_samples": 0},
                         training={"micro_batches": 100, "steps": 100})
        output = self.output("impatient")
        process = self.begin(deck, output, stages=1)
        wait_until(self, lambda: (output / "run.h5").exists(), process)
        time.sleep(0.3)  # now it is in the first step, which takes seconds
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        result = support.finish(process)
        self.assertEqual(result.status, 128 + signal.SIGTERM, str(result))
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "interrupted")

    def test_disks_of_their_own(self):
        """Each rank writes to a directory that the other does not know."""
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output = self.output("own-disks")
        disks = [self.output(f"disk-of-{rank}") for rank in range(2)]
        run = self.on_disks(deck, output, disks)
        for step in (1, 2, 3):
            result = run("checkpoint.time_limit=0.001")
            self.assertEqual(result.status, STOPPED, str(result))
            for rank, disk in enumerate(disks):
                names = {entry.name for entry in (disk / f"step-{step:09d}").iterdir()}
                self.assertEqual(names, {f"rank-{rank}.h5", "complete.json"}
                                 | ({"run.h5"} if rank == 0 else set()))
        result = run()
        self.assertIn("resuming from the checkpoint of step 3", result.out, str(result))
        self.assert_same_runs(output, self.reference(deck, "reference"))

    def test_from_scratch_on_purpose(self):
        deck = self.deck()
        output = self.output("anew")
        for _ in range(2):
            self.stop(deck, output)
        purpose = ["output.overwrite=true", "checkpoint.time_limit=0.001"]
        self.assertNotIn("resuming from", self.stop(deck, output, purpose).out)
        self.assertEqual(steps_of(output), [1])
        # A job that is requeued repeats the command, and continues.
        self.assertIn("resuming from the checkpoint of step 1",
                      self.stop(deck, output, purpose).out)
        result = self.go_on(deck, output, overrides=["output.overwrite=true"])
        self.assertIn("resuming from the checkpoint of step 2", result.out)
        self.assertEqual(len(support.Run(output / "run.h5").losses), 12)

    def test_a_refused_start_leaves_the_mark_of_a_killed_run(self):
        output = self.output("marked")
        lock = output / ".deltapipe.lock"
        deck = self.deck(training={"steps": 1000000, "evaluate_every": 1000000})
        process = self.begin(deck, output, 1)
        wait_until(self, lambda: complete_steps_of(output), process)
        process.kill()
        support.finish(process)
        self.assertTrue(lock.is_file())
        refused = self.go_on(deck, output, 1, ["training.seed=3"], status=2)
        self.assertIn("training.seed must not change", refused.err)
        self.assertTrue(lock.is_file())  # by which scripts tell a killed run
        self.stop(deck, output, stages=1)
        self.assertFalse(lock.exists())

    def test_a_job_never_replaces_what_it_has_finished(self):
        deck = self.deck(training={"steps": 2})
        output = self.output("requeued")
        command = ["train", self.deck_file(deck), f"output.directory={output}",
                   "output.overwrite=true"]

        def start(job, *overrides, status=0):
            result = support.finish(support.start([*command, *overrides], SLURM_JOB_ID=job))
            self.assertEqual(result.status, status, str(result))
            return result.out

        start("70", "checkpoint.time_limit=0.001", status=STOPPED)
        self.assertIn("resuming from the checkpoint of step 1", start("71"))
        finished = (output / "run.h5").read_bytes()
        said = start("71")
        self.assertIn("already finished (2 steps): nothing is changed", said)
        self.assertIn("no run that the same SLURM job has finished", said)
        self.assertEqual((output / "run.h5").read_bytes(), finished)
        # Another job, or another deck, is meant to replace it.
        self.assertNotIn("already finished", start("72"))
        self.assertNotIn("already finished", start("72", "training.seed=3"))

    def test_without_memories(self):
        deck = self.deck(boundary__forward=MEMORY["boundary__forward"],
                         boundary__backward={**TARGET, "feedback.kind": "ef"},
                         checkpoint={"mode": "resync"})
        reference = self.reference(deck, "resync-reference")
        output = self.output("resync")
        for _ in range(2):
            self.stop(deck, output)
        for rank, target in enumerate((set(), {"target of boundary 0 backward sender"})):
            with h5py.File(checkpoint(output, 2) / f"rank-{rank}.h5") as file:
                self.assertEqual(set(file), {"parameters", "moments", "run"} | target)
        self.go_on(deck, output)
        self.assert_same_steps(output, reference, rtol=0.02)
        losses = [support.Run(path / "run.h5").losses for path in (output, reference)]
        self.assertEqual(losses[0][0], losses[1][0])
        np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)

    def test_spilled_memories_of_both_ends_are_compared(self):
        deck = self.deck(**MEMORY, checkpoint={"mode": "resync"},
                         cache={"budget": "10 kB", "storage": "fp32"},
                         training={"steps": 16, "evaluate_every": 100})
        reference = self.reference(deck, "compared-reference")
        output = self.output("compared")
        for _ in range(9):
            self.stop(deck, output)
        # All that was in memory went to the files, so that nothing starts from scratch ...
        copy = self.output("compared-copy")
        shutil.copytree(output, copy)
        result = self.go_on(deck, output)
        counts = re.search(r"memories: (\d+) samples kept, (\d+) reset", result.out)
        self.assertEqual(int(counts[2]), 0, result.out)
        self.assertGreaterEqual(int(counts[1]), 2 * 30)
        losses = [support.Run(path / "run.h5").losses for path in (output, reference)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=5e-3)
        self.assertEqual(support.Run(output / "run.h5").steps["cache_first_visits"][9:].sum(), 0)
        # ... but what one end lost or has otherwise.
        with h5py.File(copy / "cache-replica0-boundary0-forward-receiver.h5", "r+") as file:
            for n in (3, 5):
                file["records"][file["slots"][n], 7] ^= 1
            file["visits"][8] += 1
        result = self.go_on(deck, copy)
        counts = re.search(r"memories: (\d+) samples kept, (\d+) reset", result.out)
        self.assertEqual(int(counts[2]), 6, result.out)
        self.assertGreater(support.Run(copy / "run.h5").steps["cache_first_visits"][9:].sum(), 0)

    def test_lost_spill_files(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output = self.output("lost")
        for _ in range(3):
            self.stop(deck, output)
        lost = output / "cache-replica0-boundary0-forward-sender.h5"
        other = self.output("lost-other")
        for _ in range(3):
            self.stop(deck, other)
        for damage in (lambda: shutil.copy(other / lost.name, lost), lost.unlink):
            damage()
            result = support.finish(self.begin(deck, output))
            self.assert_stops(result, "no checkpoint exists that all ranks can read",
                              'checkpoint.mode = "resync"', status=2)
            for step in (2, 3):
                self.assertRegex(result.err, f"step {step} is skipped: rank 0: .*/{lost.name}")
            if damage != lost.unlink:  # may be all that the other run has
                result = support.finish(self.begin(deck, output, overrides=["checkpoint.mode=resync"]))
                self.assert_stops(result, "is not finished", str(other), status=2)
        # Only the samples of that boundary start from scratch.
        result = self.go_on(deck, output, overrides=["checkpoint.mode=resync"])
        self.assertIn("resuming from the checkpoint of step 3", result.out)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.steps["step"].tolist(), list(range(1, 13)))
        losses = support.Run(self.reference(deck, "reference") / "run.h5").losses
        np.testing.assert_array_equal(run.losses[:3], losses[:3])
        np.testing.assert_allclose(run.losses, losses, rtol=0.02)

    def test_back_from_another_layout(self):
        """Until that has a checkpoint of its own, with spill files of the same names."""
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output, reference = self.output("back"), self.reference(deck, "back-reference")
        for _ in range(3):
            self.stop(deck, output)
        files = {path: path.read_bytes() for path in sorted(output.glob("cache-*.h5"))}
        kept = steps_of(output)
        for stages in (3, 4):  # once more on files that are set aside
            process = self.begin(deck, output, stages,
                                 ["checkpoint.every_steps=1000", "network.latency=\"0.5 s\""])
            last = output / f"cache-replica0-boundary{stages - 2}-forward-receiver.h5"
            end = time.monotonic() + support.TIME_LIMIT
            while not last.exists() and time.monotonic() < end and process.poll() is None:
                time.sleep(0.02)
            time.sleep(1)
            for rank in ranks_of(process):
                os.kill(rank, signal.SIGKILL)
            support.finish(process)
            self.assertEqual(steps_of(output), kept)
        # Another trial, which ends in order, resumes from its own checkpoint.
        trial = self.output("back-trial")
        shutil.copytree(output, trial)
        self.stop(deck, trial, stages=3)
        self.assertEqual(list(trial.glob("*former*")), [])
        self.go_on(deck, trial, stages=3)
        self.assertEqual(list(trial.glob("cache-*.h5")), [])
        # Back.
        self.stop(deck, output)
        self.assertEqual(sorted(output.glob("cache-*.h5")), sorted(files))
        self.go_on(deck, output)
        self.assertEqual(list(output.glob("cache-*.h5")), [])
        self.assert_same_runs(output, reference)

    def test_resync_past_a_truncated_spill_file(self):
        for mode in ("exact", "resync"):
            deck = self.deck(**MEMORY, cache={"budget": "10 kB"}, checkpoint={"mode": mode})
            output = self.output(f"truncated-{mode}")
            for _ in range(3):
                self.stop(deck, output)
            damaged = output / "cache-replica0-boundary0-forward-receiver.h5"
            os.truncate(damaged, damaged.stat().st_size // 2)
            result = self.go_on(deck, output, overrides=["checkpoint.mode=resync"])
            self.assertIn("resuming from the checkpoint of step 3", result.out)
            self.assertRegex(result.err, f"warning: an activation cache cannot be used.*{damaged}")
            counts = re.search(r"memories: (\d+) samples kept, (\d+) reset", result.out)
            self.assertGreater(int(counts[2]), 0, result.out)
        # A user's own file under that name stays.
        self.stop(deck, self.output("notes"))
        notes = self.output("notes") / damaged.name
        notes.write_text("notes")
        result = support.finish(self.begin(deck, self.output("notes")))
        self.assert_stops(result, str(notes), "in the way")
        self.assertEqual(notes.read_text(), "notes")

    def test_a_spill_file_with_damaged_metadata(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"}, checkpoint={"milestone_every": 2})
        output = self.output("metadata")
        for _ in range(3):
            self.stop(deck, output)
        damaged = output / "cache-replica0-boundary0-forward-receiver.h5"
        content = bytearray(damaged.read_bytes())
        header = content.index(b"OHDR", content.index(b"OHDR") + 4)  # of the first dataset
        content[header + 20] ^= 0xff
        damaged.write_bytes(content)
        alone = self.output("metadata-alone")
        shutil.copytree(output, alone)
        result = self.go_on(deck, output)
        self.assertIn("the checkpoint of step 3 is skipped", result.err)
        self.assertIn("resuming from the checkpoint of step 2", result.out)
        shutil.rmtree(checkpoint(alone, 2))
        result = support.finish(self.begin(deck, alone))
        self.assert_stops(result, 'checkpoint.mode = "resync"')
        self.assertIn(damaged.name, result.err)
        result = self.go_on(deck, alone, overrides=["checkpoint.mode=resync"])
        self.assertIn("resuming from the checkpoint of step 3", result.out)

    def test_memories_that_a_restart_resets_are_counted(self):
        deck = self.deck(**MEMORY, checkpoint={"mode": "resync"})
        output = self.output("reset")
        self.stop(deck, output)
        result = self.go_on(deck, output)
        self.assertIn("memories: reset at 3 end(s) of boundaries", result.out)
        output = self.output("reset-layout")
        self.stop(self.deck(**MEMORY), output)
        result = self.go_on(self.deck(**MEMORY), output, stages=3)
        self.assertIn("memories: reset at", result.out)
        output = self.output("not-reset")
        self.stop(self.deck(**MEMORY), output)
        self.assertNotIn("memories: ", self.go_on(self.deck(**MEMORY), output).out)

    def test_spill_files_that_another_run_needs(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB",
                                          "directory": str(self.output("needed-cache"))})
        first, second = self.output("needed"), self.output("needed-second")
        self.stop(deck, first)
        files = sorted(self.output("needed-cache").glob("cache-*.h5"))
        self.assertEqual(len(files), 3)
        result = support.finish(self.begin(deck, second))
        self.assert_stops(result, "cache-replica0-boundary0-", "is not finished", str(first),
                          "set another cache.directory", status=2)
        self.assertEqual([path for path in second.rglob("*") if path.is_file()], [])
        # The first one continues as if nothing had happened; one that starts from scratch replaces its own.
        self.stop(deck, first)
        self.stop(deck, first, ["output.overwrite=true", "checkpoint.time_limit=0.001"])
        self.go_on(deck, first, overrides=["cache.keep=true"])
        # A finished run needs them no longer.
        self.assertEqual(sorted(self.output("needed-cache").glob("cache-*.h5")), files)
        self.go_on(deck, second)
        self.assertEqual(list(self.output("needed-cache").glob("cache-*.h5")), [])

    def test_moved_and_removed_output_directories(self):
        """Spill files elsewhere: those of a moved directory are needed, of a removed one not."""
        caches = self.output("moved-cache")
        deck = self.deck(**MEMORY, cache={"budget": "10 kB", "directory": str(caches)})
        output, backup = self.output("here"), self.output("here.bak")
        for _ in range(2):
            self.stop(deck, output)
        before = contents(caches)
        self.assertEqual(len(before), 3)
        output.rename(backup)
        result = support.finish(self.begin(deck, output))
        self.assert_stops(result, "is not finished", str(output), "set another cache.directory",
                          status=2)
        self.assertEqual(contents(caches), before)
        result = self.go_on(deck, backup)
        self.assertIn("resuming from the checkpoint of step 2", result.out)
        self.assert_same_runs(backup, self.reference(deck_in(deck, None), "reference"))
        shutil.rmtree(backup)
        # Checkpoints elsewhere are those of the run, whatever becomes of its output directory.
        there = [f"checkpoint.directory={self.output('there')}"]
        shutil.rmtree(output)
        self.stop(deck, output, ["checkpoint.time_limit=0.001", *there])
        before = contents(caches)
        shutil.rmtree(output)
        result = support.finish(self.begin(deck, output))
        self.assert_stops(result, "is not finished", str(output), status=2)
        self.assertEqual(contents(caches), before)
        shutil.rmtree(output)
        shutil.rmtree(self.output("there"))
        result = self.go_on(deck, output)
        self.assertRegex(result.err, "spill files of run .* are no longer needed")
        self.assertEqual(contents(caches), {})

    def test_files_set_aside_for_another_layout(self):
        """They leave their names to others, and take them back only when nobody needs them."""
        caches = self.output("aside-cache")
        deck = self.deck(**MEMORY, cache={"budget": "10 kB", "directory": str(caches)})
        first, second = self.output("aside-first"), self.output("aside-second")
        for _ in range(2):
            self.stop(deck, first)
        for path in sorted(caches.glob("cache-*.h5")):  # as a killed start with one stage
            path.rename(path.with_name(path.stem + "-former.h5"))
        # One run at a time has the directory, also one that makes no spill files.
        process = self.begin(deck, second, overrides=["checkpoint.every_steps=1000",
                                                      'network.latency="0.5 s"'])
        wait_until(self, lambda: len(contents(caches)) == 6, process)
        result = support.finish(self.begin(deck, first, stages=1))
        self.assert_stops(result, caches, "another run writes into this directory")
        for rank in ranks_of(process):
            os.kill(rank, signal.SIGKILL)
        support.finish(process)
        for _ in range(2):
            self.stop(deck, second)
        before = contents(caches)
        self.assertEqual(len(before), 6)
        for overrides in ([], ["checkpoint.mode=resync", "cache.budget=0"]):
            result = support.finish(self.begin(deck, first, overrides=overrides))
            self.assert_stops(result, "is not finished", str(second), status=2)
            self.assertEqual(contents(caches), before)
        result = support.finish(self.begin(deck, second, stages=1))
        self.assert_stops(result, "-former.h5", "is not finished", str(first), status=2)
        self.assertEqual(contents(caches), before)
        self.go_on(deck, second)
        self.go_on(deck, first)
        self.assert_same_runs(first, self.reference(deck_in(deck, None), "reference"))
        self.assertEqual(contents(caches), {})

    def test_a_run_without_a_checkpoint_needs_no_files(self):
        caches = self.output("early-cache")
        deck = self.deck(**MEMORY, cache={"budget": "10 kB", "directory": str(caches)})
        process = self.begin(deck, self.output("early"), overrides=[
            "checkpoint.every_steps=1000", 'network.latency="0.5 s"'])
        wait_until(self, lambda: len(contents(caches)) == 3, process)
        for rank in ranks_of(process):
            os.kill(rank, signal.SIGKILL)
        support.finish(process)
        self.go_on(deck, self.output("early-other"))

    def test_an_unreadable_file_is_not_replaced(self):
        """It may be the one that the checkpoint refers to."""
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output = self.output("unreadable")
        for _ in range(2):
            self.stop(deck, output)
        path = output / "cache-replica0-boundary0-forward-sender.h5"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        result = support.finish(self.begin(deck, output, 3))
        self.assert_stops(result, str(path), "not a valid activation cache is in the way")
        self.assertEqual(path.read_bytes(), whole[:-1])
        path.write_bytes(whole)
        self.go_on(deck, output)
        self.assert_same_runs(output, self.reference(deck, "reference"))

    def test_a_start_without_checkpoints_that_fails(self):
        """What it went on from stays: the spill files and the records that are referred to."""
        # Two steps have all samples: later ones change records that the checkpoint refers to.
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"}, data={"max_train_samples": 8},
                         training={"steps": 40, "evaluate_every": 100})
        output = self.output("without")
        for _ in range(3):
            self.stop(deck, output)
        files = sorted(output.glob("cache-*.h5"))
        before = [path.stat().st_mtime_ns for path in files]
        process = self.begin(deck, output, overrides=["checkpoint.every_steps=0",
                                                      'network.latency="0.1 s"'])
        wait_until(self, lambda: all(path.stat().st_mtime_ns > time
                                     for path, time in zip(files, before)), process)
        time.sleep(4)  # some of its steps
        for rank in ranks_of(process):
            os.kill(rank, signal.SIGTERM)
        result = support.finish(process)
        self.assertEqual(result.status, 128 + signal.SIGTERM, str(result))
        self.assertEqual(sorted(output.glob("cache-*.h5")), files)
        # Nor does one that cannot use a file replace it.
        whole = files[0].read_bytes()
        with h5py.File(files[0], "r+") as file:
            del file["visits"]
        damaged = files[0].read_bytes()
        result = support.finish(self.begin(deck, output, overrides=["checkpoint.every_steps=0"]))
        self.assert_stops(result, 'checkpoint.mode = "resync"')
        self.assertIn(str(files[0]), result.err)
        self.assertEqual(files[0].read_bytes(), damaged)
        files[0].write_bytes(whole)
        result = self.go_on(deck, output)
        self.assertIn("resuming from the checkpoint of step 3", result.out)
        self.assertNotIn("damaged", result.err)
        self.assert_same_runs(output, self.reference(deck, "without-reference"))

    def test_milestones_need_no_spill_files(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"},
                         checkpoint={"every_steps": 0, "milestone_every": 1})
        output = self.output("milestones")
        for _ in range(3):
            self.stop(deck, output)
        for path in output.glob("cache-*.h5"):
            os.truncate(path, path.stat().st_size // 2)
        self.go_on(deck, output)
        self.assert_same_runs(output, self.reference(self.deck(
            **MEMORY, cache={"budget": "10 kB"}), "reference"))

    def test_memories_of_another_cut_are_not_compared(self):
        """Both ends' files may be those of another layout, which was tried meanwhile."""
        deck = self.deck(**MEMORY, checkpoint={"mode": "resync"}, cache={"budget": "10 kB"},
                         pipeline={"partition": [2, 2]})
        output = self.output("cut")
        for _ in range(3):
            self.stop(deck, output)
        for path in output.glob("cache-*.h5"):
            with h5py.File(path, "r+") as file:
                self.assertEqual(file.attrs["blocks_before"], 2)
                file.attrs["blocks_before"] = np.uint64(1)
        result = self.go_on(deck, output)
        self.assertIn("blocks_before is not 2 (got 1)", result.err)
        self.assertNotRegex(result.out, r"memories: [1-9]\d* samples kept")

    def test_a_budget_with_which_nothing_spills(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output = self.output("budget")
        for _ in range(3):
            self.stop(deck, output)
        before = contents(output)
        for budget in ("0", "1 GB"):
            result = support.finish(self.begin(deck, output, overrides=[f"cache.budget={budget}"]))
            self.assert_stops(result, "cache.budget must not change at a restart", "nothing spills",
                              'cache.budget = "9.765625 KiB"', "set it back", status=2)
            self.assertIn(budget, result.err)
            self.assertEqual(contents(output), before)
        self.go_on(deck, output)
        self.assert_same_runs(output, self.reference(deck, "reference"))

    def test_a_partition_that_is_removed_from_the_deck(self):
        """The program's own one may be another, for which every rank reads all files."""
        disks = [self.output(f"removed-{rank}") for rank in range(2)]
        run = self.on_disks(self.deck(), self.output("removed"), disks)
        partition = "pipeline.partition=[3,1]"
        self.assertEqual(run("checkpoint.time_limit=0.001", partition).status, STOPPED)
        result = run()
        self.assert_stops(result, "no checkpoint exists that all ranks can read", status=2)
        self.assertRegex(result.err, r"step 1 is skipped: rank 0: .*rank-1\.h5")
        self.assertEqual(run(partition).status, 0)

    def test_another_layout(self):
        deck = self.deck(training={"steps": 12})
        reference = self.reference(deck, "layout-reference", 1)
        output = self.output("layout")
        for stages in (2, 3, 1):
            self.stop(deck, output, stages=stages)
        self.go_on(deck, output, 2)
        run, expected = support.Run(output / "run.h5"), support.Run(reference / "run.h5")
        self.assertEqual(run.steps["step"].tolist(), list(range(1, 13)))
        np.testing.assert_allclose(run.losses, expected.losses, rtol=0, atol=1e-5)
        self.assertEqual(run.steps["forward_bytes"].shape[1], 2)  # of the widest layout

    def test_other_replicas(self):
        """As many samples a step, on twice the replicas and back."""
        deck = self.deck(boundary__forward=MEMORY["boundary__forward"], boundary__backward=TARGET)
        output = self.output("replicas")
        for replicas, ranks in ((1, 2), (2, 4), (1, 2)):
            result = support.finish(support.start(
                ["train", self.deck_file(deck), f"output.directory={output}", "pipeline.stages=2",
                 f"pipeline.replicas={replicas}", f"training.micro_batches={2 // replicas}",
                 "checkpoint.time_limit=0.001"], ranks))
            self.assertEqual(result.status, STOPPED, str(result))
        self.go_on(deck, output)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.steps["step"].tolist(), list(range(1, 13)))
        self.assertEqual(set(run.steps["samples"][:7]), {4})
        self.assert_same_steps(output, self.reference(deck, "replicas-reference"), rtol=0.1)
        reference = support.Run(self.reference(deck, "replicas-reference") / "run.h5")
        np.testing.assert_allclose(run.losses[:4], reference.losses[:4], rtol=0.03)

    def test_memories_move_with_their_boundary(self):
        """A cut that another layout has as well takes its memories along, others begin anew."""
        deck = self.deck(boundary__forward=MEMORY["boundary__forward"], boundary__backward=TARGET,
                         **{"training.optimizer": {"schedule": "constant"}})
        output = self.output("moved")
        self.go_on(support.merged(deck, {"checkpoint": {"milestone_every": 9}}), output, 2,
                   ["training.steps=9", "pipeline.partition=[2,2]"])
        with h5py.File(output / "run.h5", "a") as file:
            del file.attrs["finished"]
        for partition, first_visits in (([1, 1, 2], 4), ([3, 1], 4), ([2, 2], 0)):
            with self.subTest(partition=partition):
                moved = self.output(f"moved-{len(partition)}-{partition[0]}")
                shutil.copytree(output, moved)
                self.go_on(deck, moved, len(partition),
                           ["training.steps=10", f"pipeline.partition={partition}"])
                run = support.Run(moved / "run.h5")
                # With 30 samples, 4 a step, the tenth step has samples that the first steps have seen.
                seen = run.steps["cache_first_visits"][9, :len(partition)]
                self.assertEqual(seen.max() > 0, first_visits > 0, seen)
                # The target belongs to the run: all boundaries keep it.
                steps = run.steps["backward_step"]
                np.testing.assert_allclose(steps[9, :len(partition) - 1], steps[8, 0], rtol=0.2)
                if partition == [1, 1, 2]:  # the cut before block 2 is now that behind stage 1
                    self.assertGreater(seen[0], seen[2])

    # --- what is refused

    def test_changed_decks(self):
        deck = self.deck()
        output = self.output("changed")
        self.stop(deck, output)
        for override, old, new in (("training.optimizer.learning_rate=0.5", "0.001", "0.5"),
                                   ("training.seed=7", "42", "7"),
                                   ("training.steps=13", "12", "13"),
                                   ("training.micro_batches=3", "2", "3"),
                                   ("training.micro_batch_size=3", "2", "3"),
                                   ("boundary.forward.bits=5", "4", "5")):
            with self.subTest(override=override):
                key = override.split("=")[0]
                result = support.finish(self.begin(deck, output, overrides=[override]))
                self.assert_stops(result, f"{key} must not change", f"{key} = {old}", new, status=2)
        self.assertEqual(steps_of(output), [1])
        # These may.
        self.go_on(deck, output, overrides=["output.log_every=3", "checkpoint.every_steps=5",
                                            "pipeline.timeout=99.0", "network.latency=\"1 us\"",
                                            "training.evaluate_every=4"])

    def test_another_rate_on_purpose(self):
        deck = self.deck(checkpoint={"change_optimizer": True})
        output, reference = self.output("rate"), self.reference(deck, "rate-reference")
        for _ in range(2):
            self.stop(deck, output)
        result = support.finish(self.begin(deck, output, overrides=[
            "training.optimizer.learning_rate=1000", "training.optimizer.weight_decay=1000"]))
        self.assert_stops(result, "no longer finite",
                          "checkpoint.change_optimizer = true", status=1)
        for step in [step for step in steps_of(output) if step > 2]:  # by then all is lost
            shutil.rmtree(checkpoint(output, step))
        changes = ["training.optimizer.learning_rate=0.0005", "training.optimizer.schedule=constant",
                   "training.steps=14"]
        result = support.finish(self.begin(deck, output, overrides=[
            *changes, "checkpoint.change_optimizer=false"]))
        self.assert_stops(result, "must not change", "checkpoint.change_optimizer = true", status=2)
        result = self.go_on(deck, output, overrides=changes)
        self.assertIn("step 2 with training.steps = 12 -> 14, training.optimizer.learning_rate = "
                      "0.001 -> 5e-04", result.out)
        run, expected = support.Run(output / "run.h5"), support.Run(reference / "run.h5")
        np.testing.assert_array_equal(run.losses[:3], expected.losses[:3])
        self.assertEqual(run.steps["learning_rate"][2:].tolist(), [0.0005] * 12)
        with h5py.File(output / "run.h5") as file:
            changes = file["restarts"].attrs["changes"].decode().split("\n")
            self.assertEqual(len(changes), len(file["restarts/step"]))
            self.assertIn("learning_rate = 0.001 -> 5e-04", changes[-1])
            self.assertEqual(changes[0], "")

    def test_a_model_of_a_checkpoint(self):
        """Of any layout, by one process; it is the model that a run of as many steps saves."""
        deck = self.deck(training__optimizer={"schedule": "constant"})
        output = self.output("exported")
        overrides = ["pipeline.stages=4", "pipeline.stages_per_rank=2",
                     "pipeline.schedule=interleaved", "checkpoint.milestone_every=4"]
        self.succeed(["train", self.deck_file(deck), f"output.directory={output}", *overrides,
                      "training.steps=6"], 2)
        short = self.output("exported-short")
        self.succeed(["train", self.deck_file(deck), f"output.directory={short}", *overrides[:3],
                      "training.steps=4"], 2)
        export = ["export", self.deck_file(deck), f"output.directory={output}", *overrides[:3]]
        result = self.succeed(export)
        self.assertIn(f"{output}/model-step-4: the model after step 4", result.out)
        model = snapshot(output / "model-step-4")
        self.assertEqual(model, snapshot(short / "model"))
        self.assert_stops(support.run(export), "nothing is replaced", status=1)
        self.assertEqual(snapshot(output / "model-step-4"), model)
        self.assert_stops(support.run([*export, "--step", "3", f"--to={output}/other"]),
                          "no checkpoint of that step", "--step 3", status=1)
        self.assert_stops(support.run([*export, "model.new.n_embd=64", f"--to={output}/other"]),
                          "model.new.n_embd = 32", status=2)
        self.assert_stops(support.run(export, 2), "one process")
        self.assert_stops(support.run([*export, f"--to={output}/model"]), "saves its model", status=1)
        other = self.place / "other.txt"
        other.write_text(support.text_of(3000, seed=9), encoding="utf-8")
        self.assert_stops(support.run([*export, f"data.train={other}", f"--to={output}/other"]),
                          "other training samples", status=2)
        with open(checkpoint(output, 4) / "rank-1.h5", "r+b") as file:
            file.seek(5000)
            file.write(b"damaged")
        self.assert_stops(support.run([*export, f"--to={output}/other"]),
                          "no complete checkpoint", status=2)
        self.assertFalse((output / "other").exists())

    def test_a_model_that_may_not_survive_a_loss_of_power(self):
        deck = self.deck(training={"steps": 1}, checkpoint={"milestone_every": 1})
        output, models = self.output("synced"), self.output("not-synced-models")
        models.mkdir()
        self.go_on(deck, output, stages=1)
        result = support.run_command(
            support.command_of(["export", self.deck_file(deck), f"output.directory={output}",
                                f"--to={models}/model"], 1),
            LD_PRELOAD=os.path.abspath(ODD_FILES), FAIL_SYNC="/not-synced-models")
        self.assert_stops(result, f"{models}: cannot be flushed to the disk",
                          f"{models}/model is complete, but may not survive a loss of power",
                          status=1)
        self.assertNotIn("as it was", result.err)
        self.assertEqual(snapshot(models), {f"model/{name}": content for name, content
                                            in snapshot(output / "model").items()})

    def test_a_run_that_starts_beside_an_export(self):
        if not HANG_IN_WRITE:
            self.skipTest("DELTAPIPE_HANG_IN_WRITE names no library")
        deck = self.deck()
        output = self.output("beside-an-export")
        self.stop(deck, output)
        export = support.start(["export", self.deck_file(deck), f"output.directory={output}"],
                               LD_PRELOAD=os.path.abspath(HANG_IN_WRITE), HANG_CALL="fsync",
                               HANG_FILE="/.deltapipe-partial-")
        self.addCleanup(support.finish, export)
        self.addCleanup(os.killpg, export.pid, signal.SIGKILL)
        partial = lambda: list(output.glob(".deltapipe-partial-*/*"))
        wait_until(self, partial, export)
        found = partial()
        self.go_on(deck, output)
        self.assertEqual(partial(), found)

    def test_locks_that_reach_no_further_than_a_machine(self):
        """Each rank gets the lock, as on machines that do not see each other's."""
        deck = self.deck(training={"steps": 6})
        output = self.output("local-locks")
        arguments = ["train", self.deck_file(deck), f"output.directory={output}",
                     "pipeline.stages=2"]
        granted = {"LD_PRELOAD": os.path.abspath(ODD_FILES), "GRANT_LOCKS": "1"}
        result = support.run_command(
            support.command_of([*arguments, "checkpoint.time_limit=0.001"], 2), **granted)
        self.assertEqual(result.status, STOPPED, str(result))
        self.assertNotIn("warning", result.err)
        self.assertEqual(steps_of(output), [1])
        result = support.run_command(support.command_of(arguments, 2), **granted)
        self.assertEqual((result.status, result.err), (0, ""), str(result))
        with h5py.File(output / "run.h5") as file:
            self.assertEqual(file["checkpoints/step"][()].tolist(), [1, 2, 4, 6])

    def test_the_last_checkpoint_is_tried_again(self):
        """Not before the first try is out of the way."""
        deck = self.deck(training={"steps": 2}, checkpoint={"milestone_every": 2, "mode": "resync"})
        output = self.output("tried-again")
        result = support.run_command(
            support.command_of(["train", self.deck_file(deck), f"output.directory={output}",
                                "pipeline.stages=2"], 2),
            LD_PRELOAD=os.path.abspath(ODD_FILES), FAIL_SYNC="rank-1.h5", FAIL_SYNC_COUNT="1",
            SLOW_REMOVAL=".deltapipe-partial-")
        self.assertEqual(result.status, 0, str(result))
        self.assertEqual(result.err.count("is given up"), 1, str(result))
        self.assertEqual({path.name for path in checkpoint(output, 2).iterdir()},
                         {"rank-0.h5", "rank-1.h5", "run.h5", "complete.json"})

    def test_directories_that_do_not_get_to_the_disk(self):
        deck = self.deck(checkpoint={"every_steps": 0}, training={"steps": 1})
        for name, failing in (("not-synced", "/not-synced"), ("new-parent/run", "/new-parent")):
            output = self.output(name)
            result = support.run_command(
                support.command_of(["train", self.deck_file(deck), f"output.directory={output}"], 1),
                LD_PRELOAD=os.path.abspath(ODD_FILES), FAIL_SYNC=failing)
            self.assert_stops(result, "cannot be flushed to the disk", failing)

    def test_a_run_file_that_the_file_system_forgets(self):
        """It is opened again by its name."""
        deck = self.deck(training={"steps": 3}, checkpoint={"every_steps": 2})
        output = self.output("stale")
        stale = {"LD_PRELOAD": os.path.abspath(ODD_FILES), "STALE_READ": "/stale/run.h5"}
        command = support.command_of(["train", self.deck_file(deck), f"output.directory={output}"], 1)
        result = support.run_command(command, **stale, STALE_READ_COUNT="1")
        self.assertEqual((result.status, result.err), (0, ""), str(result))
        self.assertEqual(len(support.Run(output / "run.h5").losses), 3)
        shutil.rmtree(output)
        result = support.run_command(command, **stale)
        self.assert_stops(result, f"{output}/run.h5: cannot be read", "Stale file handle")

    def test_a_start_after_a_kill_waits_for_the_old_ranks(self):
        deck = self.deck(training={"steps": 10**6, "evaluate_every": 10**6},
                         output={"log_every": 10**6})
        output = self.output("lingering")
        holder = self.begin(deck, output, stages=1)
        wait_until(self, lambda: 2 in steps_of(output), holder)
        second = self.begin(deck, output, 1, ["checkpoint.time_limit=0.001"])
        line = second.stderr.readline()
        self.assertRegex(line, f"{output} is in use by process {holder.pid} .*: waiting up to 6 s")
        holder.kill()
        support.finish(holder)
        self.assertEqual(support.finish(second).status, STOPPED)

    def test_other_data(self):
        deck = self.deck()
        output = self.output("data")
        self.stop(deck, output)
        other = self.place / "other.txt"
        other.write_text(support.text_of(20000, seed=9), encoding="utf-8")
        result = support.finish(self.begin(deck, output, overrides=[f'data.train=["{other}"]']))
        self.assert_stops(result, "other training samples", status=2)

    def test_directories_of_checkpoints(self):
        deck = self.deck()
        # The output directory itself will do.
        output = self.output("flat")
        flat = [f"checkpoint.directory={output}"]
        self.stop(deck, output, ["checkpoint.time_limit=0.001", *flat])
        self.assertTrue((output / "step-000000001" / "complete.json").exists())
        self.assertIn("resuming from the checkpoint of step 1",
                      self.go_on(deck, output, overrides=flat).out)
        self.assert_same_runs(output, self.reference(deck, "undamaged"))
        # One that another run uses will not.
        shutil.rmtree(output)
        self.stop(deck, output, ["checkpoint.time_limit=0.001", *flat])
        result = support.finish(self.begin(deck, self.output("second"), overrides=flat))
        self.assert_stops(result, "checkpoints of another run", "step-000000001", status=2)

    def test_spill_files_grow_with_the_number_of_checkpoints(self):
        deck = self.deck(**MEMORY, cache={"budget": "10 kB"})
        output = self.output("grown")
        for _ in range(3):
            self.stop(deck, output)
        self.go_on(deck, output, overrides=["checkpoint.keep=9", "checkpoint.every_steps=1"])
        self.assert_same_runs(output, self.reference(deck, "reference"))

    def test_more_steps_with_a_constant_rate(self):
        deck = self.deck(**{"training.optimizer": {"schedule": "constant"}})
        output = self.output("longer")
        self.stop(deck, output, ["training.steps=5", "checkpoint.time_limit=0.001"])
        self.go_on(deck, output)
        self.assert_same_runs(output, self.reference(deck, "constant"))

    def test_fewer_steps_than_the_checkpoint_has(self):
        deck = self.deck(**{"training.optimizer": {"schedule": "constant"}})
        output = self.output("shorter")
        for _ in range(2):
            self.stop(deck, output)
        result = support.finish(self.begin(deck, output, overrides=["training.steps=1"]))
        self.assert_stops(result, "checkpoint of step 2 is beyond the end", status=2)

    # --- damage

    def damaged(self, name, damage):
        """A run with checkpoints of steps 1 and 2, of which the second is damaged, continues from the
        first to the same end."""
        deck = self.deck()
        reference = self.reference(deck, "undamaged")
        output = self.output(name)
        for _ in range(2):
            self.stop(deck, output)
        self.assertEqual(steps_of(output), [1, 2])
        damage(checkpoint(output, 2))
        result = self.go_on(deck, output)
        self.assertIn("resuming from the checkpoint of step 1", result.out)
        self.assert_same_runs(output, reference)
        return result.err

    def test_damaged_checkpoints_are_skipped(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 8
            path.write_bytes(data)

        def cut(path):
            os.truncate(path, path.stat().st_size // 2)

        def change(path, former, new):
            text = path.read_bytes()
            self.assertEqual(text.count(former), 1)
            path.write_bytes(text.replace(former, new))

        def as_pipe(path):
            path.unlink()
            os.mkfifo(path)

        for name, damage, reason in (
                ("no marker", lambda place: (place / "complete.json").unlink(), "complete.json"),
                ("cut marker", lambda place: cut(place / "complete.json"), "complete.json"),
                ("flipped marker", lambda place: flip(place / "complete.json"), "complete.json"),
                ("other step", lambda place: change(place / "complete.json", b'"step": 2',
                                                    b'"step": 1'), "complete.json"),
                ("pipe", lambda place: as_pipe(place / "rank-1.h5"), "not a regular file"),
                ("flipped", lambda place: flip(place / "rank-1.h5"), "rank 1"),
                ("truncated", lambda place: cut(place / "rank-0.h5"), "another size"),
                ("no file", lambda place: (place / "rank-1.h5").unlink(), "rank-1.h5"),
                ("run file", lambda place: flip(place / "run.h5"), "run.h5")):
            with self.subTest(name):
                told = self.damaged(name.replace(" ", "-"), damage)
                self.assertIn("the checkpoint of step 2 is skipped", told)
                self.assertIn(reason, told)

    def test_a_damaged_run_file(self):
        deck = self.deck()
        output = self.output("no-run-file")
        for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 3000)):
            self.stop(deck, output)
            damage(output / "run.h5")
        self.go_on(deck, output)
        self.assert_same_runs(output, self.reference(deck, "undamaged"))

    def test_a_lost_run_file_with_a_checkpoint_directory(self):
        deck = self.deck()
        output, place = self.output("lost-run-file"), self.output("lost-run-file-checkpoints")
        there = [f"checkpoint.directory={place}"]
        for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 3000)):
            self.stop(deck, output, [*there, "checkpoint.time_limit=0.001"])
            damage(output / "run.h5")
        # Checkpoints of another run in the same place are not taken.
        other = support.finish(self.begin(deck, self.output("lost-run-file-other"),
                                          overrides=there))
        self.assert_stops(other, "checkpoints of another run", status=2)
        self.go_on(deck, output, overrides=there)
        self.assert_same_runs(output, self.reference(deck, "undamaged"))
        # A run does not resume from milestones of a finished run.
        milestones = [*there, "checkpoint.milestone_every=4", "output.overwrite=true"]
        self.go_on(deck, output, overrides=milestones)
        (output / "run.h5").unlink()
        shutil.rmtree(output / "model")
        result = support.finish(self.begin(deck, output, overrides=milestones[:2]))
        self.assert_stops(result, "checkpoints of another run", status=2)

    def test_checkpoints_that_are_not_there(self):
        """A disk that is not mounted must not make the run begin anew over its results."""
        deck = self.deck()
        for name, key in (("gone", None), ("gone-elsewhere", "checkpoint.directory")):
            with self.subTest(name):
                output = self.output(name)
                place = output / "checkpoints" if key is None else self.output(name + "-disk")
                there = [] if key is None else [f"{key}={place}"]
                self.stop(deck, output, [*there, "checkpoint.time_limit=0.001"])
                run_file = (output / "run.h5").read_bytes()
                place.rename(self.output(name + "-aside"))
                result = support.finish(self.begin(deck, output, overrides=there))
                self.assert_stops(result, "has written checkpoints", "overwrite", status=2)
                self.assertEqual((output / "run.h5").read_bytes(), run_file)
                if place.exists():
                    shutil.rmtree(place)
                self.output(name + "-aside").rename(place)
                self.go_on(deck, output, overrides=there)
                self.assert_same_runs(output, self.reference(deck, "undamaged"))
        shutil.rmtree(output)
        self.stop(deck, output, [*there, "checkpoint.time_limit=0.001"])
        shutil.rmtree(place)
        self.go_on(deck, output, overrides=[*there, "output.overwrite=true"])

    def test_a_run_killed_after_its_end(self):
        """It is finished; only its checkpoints were to be removed."""
        deck = self.deck(checkpoint={"milestone_every": 4})  # the last one is a milestone
        output, aside = self.output("late"), self.output("late-checkpoints")
        self.stop(deck, output)
        shutil.copytree(output / "checkpoints", aside)  # not a step's folder
        self.go_on(deck, output)
        self.assertEqual(steps_of(output), [4, 8, 12])
        shutil.copytree(aside, output / "checkpoints", dirs_exist_ok=True)
        before = {path.name: path.read_bytes() for path in (output / "run.h5",
                                                            output / "model/model.safetensors")}
        result = self.go_on(deck, output)
        self.assertIn("is already finished", result.out)
        self.assertEqual(steps_of(output), [4, 8, 12])
        for path in (output / "run.h5", output / "model/model.safetensors"):
            self.assertEqual(path.read_bytes(), before[path.name], path.name)
        # Without its run file only the model tells that the run may be finished.
        (output / "run.h5").unlink()
        longer = ["training.optimizer.schedule=constant", "training.steps=14",
                  "checkpoint.change_optimizer=true"]
        result = support.finish(self.begin(deck, output, overrides=longer))
        self.assert_stops(result, "run.h5: is missing", "may be finished", status=2)
        self.assertEqual((output / "model/model.safetensors").read_bytes(),
                         before["model.safetensors"])
        shutil.rmtree(output / "model")
        self.assertIn("resuming from the checkpoint of step 12",
                      self.go_on(deck, output, overrides=longer).out)

    def test_spill_files_of_a_run_killed_after_its_end(self):
        caches, other = self.output("late-cache"), self.output("late-other")
        deck = self.deck(**MEMORY, cache={"budget": "10 kB", "directory": str(caches)})
        output, aside = self.output("late-spill"), self.output("late-aside")
        for keep in ("false", "true"):
            shutil.rmtree(output, ignore_errors=True)
            deck["cache"]["keep"] = keep == "true"
            self.stop(deck, output)
            shutil.copytree(caches, aside)
            self.go_on(deck, output)
            self.assertEqual(len(contents(caches)), 3 if keep == "true" else 0)
            shutil.rmtree(caches)
            aside.rename(caches)
            result = support.finish(self.begin(deck, other))
            self.assert_stops(result, "is not finished", status=2)
            result = self.go_on(deck, output)
            self.assertIn("is already finished", result.out)
            self.assertEqual(len(contents(caches)), 3 if keep == "true" else 0)
        self.go_on(deck, other)

    def test_a_finished_run_with_disks_of_its_own(self):
        """Also the disk that only rank 1 sees is cleared."""
        deck = self.deck()
        disks = [self.output(f"late-disk-{rank}") for rank in range(2)]
        run = self.on_disks(deck, self.output("late-own"), disks)
        self.assertEqual(run("checkpoint.time_limit=0.001").status, STOPPED)
        aside = self.output("late-disk-aside")
        shutil.copytree(disks[1], aside)
        self.assertEqual(run().status, 0)
        shutil.copytree(aside, disks[1], dirs_exist_ok=True)
        result = run()
        self.assertIn("is already finished", result.out, str(result))
        self.assertEqual(list(disks[1].glob("step-*")), [])

    # --- time

    def test_a_time_limit_leaves_time_for_evaluations(self):
        # An evaluation takes 120 times the latency of a link, a step twice that.
        deck = self.deck(data={"max_train_samples": 8, "max_validation_samples": 120,
                               "validation_fraction": 0.5},
                         training={"micro_batch_size": 1, "micro_batches": 1},
                         checkpoint={"every_steps": 0})
        output = self.output("limited")
        for step, every in ((2, 2), (12, 1000)):
            # Before the evaluation that it would not have time for, in the middle and at the end.
            self.stop(deck, output, [f"training.evaluate_every={every}", "checkpoint.time_limit=4",
                                     "network.latency=0.02"])
            run = support.Run(output / "run.h5")
            self.assertEqual(run.steps["step"][-1], step)
            self.assertEqual(run.evaluations["step"].tolist(), [2] if step > 2 else [])
            self.assertIn("time_limit", run.attributes["reason"])
            if step == 2:  # an evaluation longer than the limit comes first, and then a step
                result = self.stop(deck, output, ["training.evaluate_every=2", "network.latency=0.02",
                                                  "checkpoint.time_limit=0.5"])
                self.assertIn("after step 3;", result.out)
                self.assertRegex(result.err, r"an evaluation lasted .* larger training.evaluate_ev")
        # All steps are done: what is left is done whatever the limit.
        self.go_on(deck, output, overrides=["checkpoint.time_limit=0.001"])

    def small_disk(self, name, kilobytes):
        place = self.output(name)
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place],
                          stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no right to mount a small disk")
        self.addCleanup(lambda: subprocess.run(["umount", "-l", place], check=False))
        return place

    def test_a_full_disk_keeps_the_last_checkpoint(self):
        deck = self.deck(**{"model.new": {"n_embd": 64}})
        reference = self.reference(deck, "full-reference")
        output = self.output("full")
        self.stop(deck, output)
        size = sum(path.stat().st_size for path in checkpoint(output, 1).iterdir())
        disk = self.small_disk("disk", 3 * size // 2 // 1024)
        shutil.move(checkpoint(output, 1), disk)
        on_disk = [f"checkpoint.directory={disk}"]
        # A stop that cannot write leaves the former one, and must not be repeated forever.
        result = self.go_on(deck, output, overrides=[*on_disk, "checkpoint.time_limit=0.001"],
                            status=NO_PROGRESS)
        self.assertIn("the checkpoint of step 2 is given up", result.err)
        self.assertIn("continues from step 1, where this start began", result.out)
        self.assertEqual(sorted(path.name for path in disk.iterdir()), ["step-000000001"])
        # A run that trains on does so without.
        result = self.go_on(deck, output, overrides=on_disk)
        for step in (2, 4, 6, 8, 10):
            self.assertIn(f"the checkpoint of step {step} is given up", result.err)
        self.assert_same_runs(output, reference)


def snapshot(directory):
    """Names and contents."""
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*")) if path.is_file()}


def ranks_of(process):
    """The launcher's children."""
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    return [int(pid) for pid in pathlib.Path(children).read_text().split()]


def contents(directory):
    """Of spill files, which other files do not belong to."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("cache-*.h5"))}


def deck_in(deck, directory):
    """The deck with its spill files in another directory; None: in the output directory."""
    cache = {name: value for name, value in deck["cache"].items() if name != "directory"}
    return {**deck, "cache": {**cache, **({"directory": str(directory)} if directory else {})}}


def stepped(output):
    """The run trains: its run file has rows, or it has a checkpoint."""
    try:
        return len(support.Run(output / "run.h5").losses) > 0
    except OSError:
        return False


def wait_until(test, what, process):
    limit = time.monotonic() + support.TIME_LIMIT
    while time.monotonic() < limit:
        try:
            if what():
                return
        except (OSError, KeyError):
            pass
        if process.poll() is not None:
            test.fail(f"ended: {support.finish(process)}")
        time.sleep(0.02)
    test.fail("waits in vain")


if __name__ == "__main__":
    support.main()
