#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Killed processes and stopped jobs: everything ends, and what was written can be read."""

import os
import pathlib
import signal
import sys
import time

import support


def processes_of(group):
    """{pid: command line} of the living processes that descend from a process."""
    parents, found = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2:].split()[:2]
        if state != "Z":
            parents[int(entry.name)] = (int(parent), command)
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != group:
            ancestor = parents[ancestor][0]
        if ancestor == group:
            found[pid] = parents[pid][1]
    return found


class Faults(support.TestCase):
    def begin(self, name, ranks, **sections):
        """A long training that has written some of its steps: process, pids of ranks, run.h5.
        OMPI_... goes to the environment."""
        environment = {key: sections.pop(key) for key in list(sections)
                       if key.startswith("OMPI_")}
        output = self.output(name)
        # Nobody reads its lines, which would fill the pipe before a first step is in the file.
        sections.setdefault("output", {}).setdefault("log_every", 10**9)
        deck = self.small(training={"steps": 10**7, "evaluate_every": 10**7}, **sections)
        stages = ranks // sections.get("pipeline", {}).get("replicas", 1)
        process = support.start(["train", self.deck_file(deck), f"output.directory={output}",
                                 f"pipeline.stages={stages}"], ranks, **environment)
        self.addCleanup(self.end, process)
        end = time.monotonic() + support.TIME_LIMIT
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
            # The file is whole whenever one looks.
            if (output / "run.h5").exists() and len(support.Run(output / "run.h5").losses) > 0:
                break
        else:
            self.fail(f"no step was written\n{support.finish(process, 1)}")
        family = processes_of(process.pid)
        pids = sorted(pid for pid, command in family.items()
                      if command.startswith(support.PROGRAM + " "))
        self.assertEqual(len(pids), ranks, family)
        return process, pids, output / "run.h5"

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def assert_all_ended(self, pids):
        end = time.monotonic() + 10
        alive = pids
        while alive and time.monotonic() < end:
            time.sleep(0.05)
            alive = [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
        self.assertEqual(alive, [])

    def test_a_signal_to_one_rank_ends_the_run_in_order(self):
        for rank, number in ((0, signal.SIGINT), (1, signal.SIGTERM)):
            with self.subTest(rank=rank, signal=number):
                process, pids, run_file = self.begin(f"signal{number}", 2)
                os.kill(pids[rank], number)
                result = support.finish(process)
                self.assert_stops(result, "interrupted by " + number.name, status=128 + number)
                self.assert_all_ended(pids)
                self.assert_readable(run_file, "interrupted")

    def test_a_second_signal_ends_a_process_at_once(self):
        process, pids, run_file = self.begin("twice", 2)
        os.kill(pids[0], signal.SIGSTOP)  # rank 1 waits for it and looks at no signal
        os.kill(pids[1], signal.SIGTERM)
        time.sleep(0.2)
        os.kill(pids[1], signal.SIGTERM)
        self.assertNotEqual(support.finish(process).status, 0)
        self.assert_all_ended(pids)
        self.assert_readable(run_file)

    def test_a_stopped_process_is_noticed(self):
        for rank, kept in ((0, "running"), (1, "failed")):
            with self.subTest(rank=rank):
                process, pids, run_file = self.begin(f"stopped{rank}", 2, pipeline={"timeout": 2})
                os.kill(pids[rank], signal.SIGSTOP)
                begin = time.monotonic()
                result = support.finish(process, 30)
                self.assertLess(time.monotonic() - begin, 20)
                self.assertNotEqual(result.status, 0)
                self.assertEqual(len(result.errors), 1, str(result))
                self.assertIn(f"no sign of life from rank {rank} (stage {rank}, replica 0)",
                              result.errors[0])
                self.assertRegex(result.errors[0],
                                 "while rank [01] waited for (.*message from rank|all-reduce)")
                self.assert_all_ended(pids)
                self.assert_readable(run_file, kept)

    def test_a_replica_that_stops_in_a_sum_is_named(self):
        process, pids, run_file = self.begin(
            "replica_in_sum", 2, pipeline={"replicas": 2, "timeout": 2},
            replicas={"codec": "quantized", "bits": 8},
            network__replicas={"bandwidth": "1 Mbit/s"})  # it is nearly always in a sum
        os.kill(pids[1], signal.SIGSTOP)
        result = support.finish(process, 30)
        self.assertNotEqual(result.status, 0)
        self.assertEqual(len(result.errors), 1, str(result))
        self.assertIn("no sign of life from rank 1 (stage 0, replica 1)", result.errors[0])
        self.assertRegex(result.errors[0], "gradient(s| sums) of stage 0, message from rank 1")
        self.assert_all_ended(pids)
        self.assert_readable(run_file, "failed")

    def test_a_rank_that_computes_for_ever_is_noticed(self):
        library = os.environ.get("DELTAPIPE_HANG_IN_GEMM", "")
        if not library:
            self.skipTest("DELTAPIPE_HANG_IN_GEMM names no library")
        for stages, rank in ((1, 0), (2, 0), (2, 1)):
            with self.subTest(stages=stages, rank=rank):
                output = self.output(f"hangs{stages}{rank}")
                deck = self.small(training={"steps": 10**7, "evaluate_every": 10**7},
                                  pipeline={"step_timeout": 2, "stages": stages},
                                  training__optimizer={"schedule": "constant"},
                                  checkpoint={"every_steps": 5})
                command = ["train", self.deck_file(deck), f"output.directory={output}"]
                result = support.finish(support.start(command, stages, LD_PRELOAD=library,
                                                      HANG_RANK=str(rank), HANG_PRODUCT="3000"))
                self.assertNotEqual(result.status, 0)
                self.assertRegex(result.errors[0],
                                 rf"rank {rank} \(stage {rank}, replica 0\) is in step \d+ for 2 s, "
                                 r"at '(F|B|forward|backward)[^']*', and waits for nobody")
                self.assertEqual(len([e for e in result.errors if "waits for" in e]), 1, str(result))
                self.assertEqual(support.Run(output / "run.h5").attributes["status"],
                                 "failed" if rank > 0 else "running")
                result = support.run([*command, "training.steps=100"], stages)
                self.assertEqual(result.status, 0, str(result))
                self.assertIn("resuming from the checkpoint of step", result.out)

    def test_a_rank_that_stops_while_mpi_ends(self):
        library = os.environ.get("DELTAPIPE_STOP_IN_FINALIZE", "")
        if not library:
            self.skipTest("DELTAPIPE_STOP_IN_FINALIZE names no library")
        for rank in (0, 1):
            with self.subTest(rank=rank):
                output = self.output(f"finalize{rank}")
                deck = self.small(pipeline={"stages": 2, "timeout": 2})
                process = support.start(["train", self.deck_file(deck),
                                         f"output.directory={output}"], 2, LD_PRELOAD=library,
                                        STOP_RANK=str(rank))
                self.addCleanup(self.end, process)
                result = support.finish(process)
                self.assert_stops(result, "MPI has not ended within 2 s (pipeline.timeout)",
                                  "what the run has written stays", status=1)
                self.assert_readable(output / "run.h5", "finished")
                self.assertTrue((output / "model/model.safetensors").is_file())
                self.assert_all_ended(list(processes_of(process.pid)))

    def test_a_disk_that_hangs_under_a_checkpoint(self):
        library = os.environ.get("DELTAPIPE_HANG_IN_WRITE", "")
        if not library:
            self.skipTest("DELTAPIPE_HANG_IN_WRITE names no library")
        for call, status in (("fsync", "interrupted"), ("pwrite", "running")):
            with self.subTest(call=call):
                output = self.output(f"hangs-{call}")
                deck = self.small(training={"steps": 10**7, "evaluate_every": 10**7},
                                  training__optimizer={"schedule": "constant"},
                                  checkpoint={"every_steps": 5})
                process = support.start(["train", self.deck_file(deck), "pipeline.stages=2",
                                         f"output.directory={output}"], 2, LD_PRELOAD=library,
                                        HANG_CALL=call, HANG_FILE="rank-0.h5")
                self.addCleanup(self.end, process)
                time.sleep(16)
                self.assertIsNone(process.poll())
                pids = sorted(pid for pid, command in processes_of(process.pid).items()
                              if command.startswith(support.PROGRAM + " "))
                os.kill(pids[0], signal.SIGTERM)  # asks for a checkpoint
                time.sleep(1)
                self.assertIsNone(process.poll())
                os.kill(pids[0], signal.SIGUSR1)
                begin = time.monotonic()
                result = support.finish(process, 60)
                self.assertLess(time.monotonic() - begin, 8)
                self.assertNotEqual(result.status, 0)
                self.assertRegex(result.err, rf"waiting 10 s for the checkpoint of step 5 in {output}")
                self.assertEqual(result.err.count("waiting "), 1, str(result))
                self.assertIn("interrupted by SIGUSR1 while the disk hangs", result.err)
                self.assert_all_ended(pids)
                self.assertEqual(support.Run(output / "run.h5").attributes["status"], status)

    def assert_readable(self, run_file, status="running"):
        run = support.Run(run_file)
        self.assertGreater(len(run.losses), 0)
        self.assertEqual(run.attributes["status"], status)
        self.assertEqual(run.steps["step"].tolist(), list(range(1, len(run.losses) + 1)))

    def test_a_killed_rank_ends_the_job(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                process, pids, run_file = self.begin(
                    f"killed{rank}", 2, boundary__forward={"codec": "aqsgd"},
                    cache={"budget": "20 kB"})
                os.kill(pids[rank], signal.SIGKILL)
                result = support.finish(process)
                self.assertNotEqual(result.status, 0)
                self.assert_all_ended(pids)
                self.assert_readable(run_file)
                self.assertRegex(self.table(run_file), "status +killed")
                # The directory can be used again.
                self.succeed(["train", self.deck_file(self.small(training={"steps": 1})),
                              f"output.directory={run_file.parent}"])
                self.assert_readable(run_file, "finished")

    def table(self, run_file):
        script = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "run_table.py"
        result = support.run_command([sys.executable, str(script), str(run_file)])
        self.assertEqual(result.status, 0, str(result))
        return result.out

    def test_the_end_of_a_peer_is_no_interruption(self):
        """The launcher sends SIGTERM to the ranks that are left, and this long later SIGKILL."""
        for ranks, replicas, lost in ((2, 1, 1), (4, 2, 2)):
            with self.subTest(ranks=ranks):
                process, pids, run_file = self.begin(
                    f"lost{ranks}", ranks, pipeline={"replicas": replicas},
                    OMPI_MCA_odls_base_sigkill_timeout="3")
                self.assertRegex(self.table(run_file), "status +running")
                os.kill(pids[lost], signal.SIGKILL)
                self.assertNotEqual(support.finish(process).status, 0)
                self.assert_all_ended(pids)
                self.assert_readable(run_file, "failed")
                reason = support.Run(run_file).attributes["reason"]
                self.assertRegex(reason, r"^lost contact with rank \d \(stage \d, replica \d\) before "
                                         "SIGTERM came")
                self.assertIn(f"rank {lost} ", reason)

    def test_a_killed_rank_of_a_replica_ends_the_job(self):
        process, pids, run_file = self.begin("replica", 4, pipeline={"replicas": 2})
        os.kill(pids[3], signal.SIGKILL)
        self.assertNotEqual(support.finish(process).status, 0)
        self.assert_all_ended(pids)
        self.assert_readable(run_file)

    def test_a_terminated_job_ends(self):
        # The launcher passes the signal on and gives the ranks this many seconds, in which it reads
        # none of their output.
        process, pids, run_file = self.begin("terminated", 2, output={"log_every": 10**9},
                                             OMPI_MCA_odls_base_sigkill_timeout="3")
        process.terminate()
        self.assertNotEqual(support.finish(process).status, 0)
        self.assert_all_ended(pids)
        self.assert_readable(run_file, "interrupted")

    def test_a_terminated_process_ends(self):
        process, pids, run_file = self.begin("alone", 1)
        process.terminate()
        self.assert_stops(support.finish(process), "interrupted by SIGTERM", status=143)
        self.assert_all_ended(pids)
        self.assert_readable(run_file, "interrupted")


if __name__ == "__main__":
    support.main()
