#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A rank that fails while the job starts: all ranks end soon, with its message and a failure."""

import os
import shutil
import signal
import time

import support

LIMIT = 30  # seconds for all ranks to end
FAIL_THREADS = os.environ.get("DELTAPIPE_FAIL_THREADS", "")


class StartUp(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Relative, so that a rank that works elsewhere does not find it.
        deck = cls.small(pipeline={"stages": 2}, data={"train": ["text.txt"]},
                         boundary__forward={"codec": "aqsgd"}, cache={"budget": "20 kB"},
                         training={"steps": 1})
        cls.deck = cls.deck_file(deck)

    def start_two(self, failing, prefix=(), arguments=None, status=None, wdir=None,
                  **environment):
        """Two ranks, of which `failing` runs behind `prefix` or with other arguments."""
        good = [support.PROGRAM, "train", str(self.deck)]
        # PROGRAM may be relative to where the tests run.
        good[0] = os.path.abspath(good[0])
        commands = []
        for rank in (0, 1):
            place = wdir if rank == failing and wdir else self.place
            inner = good
            if rank == failing:
                inner = [*prefix, good[0], *(arguments or good[1:])]
            commands.append(["sh", "-c", 'cd "$0" && exec "$@"', place, *inner])
        begin = time.monotonic()
        result = support.run_command(support.command_of_each(commands), **environment)
        self.assertLess(time.monotonic() - begin, LIMIT, str(result))
        self.assertNotEqual(result.status, 0, str(result))
        return result

    def assert_one_fails(self, *parts, **how):
        for failing in (0, 1):
            with self.subTest(failing=failing):
                result = self.start_two(failing, **how)
                self.assert_stops(result, *parts)

    def test_nothing_fails(self):
        """What the other tests break works when it is left whole."""
        command = [*support.MPIEXEC, support.NUMPROC_FLAG, "2", "sh", "-c", 'cd "$0" && exec "$@"',
                   str(self.place), os.path.abspath(support.PROGRAM), "train", str(self.deck)]
        result = support.run_command(command)
        self.assertEqual(result.status, 0, str(result))

    def test_command_line(self):
        self.assert_one_fails("--wrong", arguments=["train", str(self.deck), "--wrong"])

    def test_deck(self):
        self.assert_one_fails("missing.toml", arguments=["train", "missing.toml"])

    def test_data(self):
        elsewhere = self.place / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        self.assert_one_fails("text.txt", wdir=elsewhere)

    def test_kokkos(self):
        self.assert_one_fails("Kokkos does not start",
                              prefix=["env", "KOKKOS_NUM_THREADS=many"])

    def test_threads(self):
        if not FAIL_THREADS:
            self.skipTest("DELTAPIPE_FAIL_THREADS names no library")
        for number, purpose in ((1, "communication"), (2, "reading and writing caches")):
            self.assert_one_fails(
                "the system cannot start a thread for " + purpose,
                prefix=["env", f"LD_PRELOAD={FAIL_THREADS}", f"FAIL_THREAD={number}"])

    def test_a_rank_that_does_not_start(self):
        """The others wait in MPI_Init, each of them watched by itself."""
        for prefix in (["sh", "-c", "exec sleep 60"],
                       ["sh", "-c", 'kill -STOP $$; exec "$0" "$@"']):
            self.assert_one_fails("did not connect within 2 s", "DELTAPIPE_START_TIMEOUT",
                                  prefix=prefix, DELTAPIPE_START_TIMEOUT="2")

    def test_time_to_start(self):
        for wrong in ("soon", "-1", "nan", "2 s"):
            command = [*support.MPIEXEC, support.NUMPROC_FLAG, "2", support.PROGRAM, "train",
                       str(self.deck)]
            result = support.run_command(command, DELTAPIPE_START_TIMEOUT=wrong)
            self.assert_stops(result, "DELTAPIPE_START_TIMEOUT", wrong, status=1)

    def test_address_space(self):
        """OpenBLAS would ask for its work memory for ever."""
        for megabytes in (300, 400):
            with self.subTest(megabytes=megabytes):
                result = self.start_two(
                    1, prefix=["sh", "-c", f'ulimit -v {megabytes * 1000} && exec "$0" "$@"'])
                self.assert_stops(result, "not enough address space for OpenBLAS's work memory")

    def test_address_space_of_blas_threads(self):
        """OpenBLAS' own threads ask for memory for ever; MPI's start and the program's end would
        wait for them."""
        for megabytes in (170, 200, 250, 400):
            for command, variables in ((["check", str(self.deck)], {"OMP_NUM_THREADS": "3"}),
                                       (["--version"], {"OPENBLAS_NUM_THREADS": "8"}),
                                       (["--version"], {"GOTO_NUM_THREADS": "8"}),
                                       (["check", str(self.deck)], {"GOTO_NUM_THREADS": "1",
                                                                    "OPENBLAS_NUM_THREADS": "8"})):
                with self.subTest(megabytes=megabytes, command=command):
                    result = support.run_command(
                        ["sh", "-c", f'ulimit -v {megabytes * 1000} && exec "$0" "$@"',
                         *support.command_of(command, 1)], **variables)
                    if result.status != 0:
                        self.assertEqual(result.status, 1, str(result))
                        self.assertRegex(result.err, "deltapipe: error:|MPI_INIT")

    def test_limits_leave_the_number_of_threads(self):
        deck = self.deck_file(self.small(pipeline={"stages": 1}))
        for variables, threads in (({"OPENBLAS_NUM_THREADS": "2"}, 2), ({}, None),
                                   ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, 2)):
            seen = []
            for limit in ("unlimited", "4000000"):
                output = self.output(f"limit-{limit}")
                unset = [word for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
                         for word in ("-u", name)]
                result = support.run_command(
                    ["env", *unset, *(f"{name}={value}" for name, value in variables.items()),
                     "sh", "-c", f'ulimit -v {limit} && exec "$0" "$@"',
                     *support.command_of(["train", deck, f"output.directory={output}",
                                          "training.steps=1"], 1)])
                self.assertEqual(result.status, 0, str(result))
                seen.append(support.Run(output / "run.h5").attributes["kokkos"])
                shutil.rmtree(output)
            self.assertEqual(seen[0], seen[1])
            if threads and "thread(s)" in seen[0]:
                self.assertIn(f", {threads} thread(s), ", seen[0])

    def test_address_space_of_several_threads(self):
        """However little is left behind the start: an end, with a message. HDF5 1.10 crashes where
        it finds no memory for a new table."""
        deck = support.merged(self.small(), {"model.new": {"n_embd": 256, "n_head": 4}})
        for megabytes in range(750, 1150, 50):
            result = support.run_command(
                ["sh", "-c", f'ulimit -v {megabytes * 1000} && exec "$0" "$@"',
                 *support.command_of(["train", self.deck_file(deck), "pipeline.stages=1",
                                      f"output.directory={self.output(f'tight{megabytes}')}"], 1)],
                OMP_NUM_THREADS="3")
            if result.status == -signal.SIGSEGV:
                self.assertIn("libhdf5", result.err)
            elif result.status != 0:
                self.assertEqual(result.status, 1, str(result))
                self.assertIn("deltapipe: error:", result.err)
                if "not enough memory" in result.err:
                    self.assertIn("raise a limit on address space (ulimit -v)", result.err)

    def test_threads_are_bound_where_openmp_computes_alone(self):
        """OMP_PROC_BIND binds the threads of a Kokkos with OpenMP, and no others: those of MPI and
        files may use all cores. Without OpenMP nothing that the program is linked with binds."""
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            self.skipTest("one core")
        deck = support.merged(self.small(pipeline={"stages": 1}), {
            "training": {"steps": 1000000, "evaluate_every": 1000000},
            "output": {"log_every": 1000000, "directory": str(self.output("bound"))},
            "checkpoint": {"every": 5}})
        process = support.start(["train", self.deck_file(deck)], OMP_PROC_BIND="spread",
                                OMP_PLACES="threads", OMP_NUM_THREADS="2")
        self.addCleanup(process.kill)
        run = self.output("bound") / "run.h5"
        begin = time.monotonic()
        while not run.exists() and time.monotonic() - begin < LIMIT:
            time.sleep(0.1)
        time.sleep(2)
        found = [len(os.sched_getaffinity(int(task))) for task in
                 os.listdir(f"/proc/{process.pid}/task")]
        kokkos = support.Run(run).attributes["kokkos"]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        bound = sum(count < cores for count in found)
        self.assertEqual(bound, 2 if "OpenMP" in kokkos else 0, found)
        self.assertIn(cores, found)

    def test_file_size(self):
        """A limit on file sizes is a message, not the end by a signal (SIGXFSZ)."""
        # Files of MPI are smaller than 10 MB, the model is larger.
        command = [*support.MPIEXEC, support.NUMPROC_FLAG, "1",
                   "sh", "-c", 'ulimit -f 20000; cd "$0" && exec "$@"', str(self.place),
                   os.path.abspath(support.PROGRAM), "train", str(self.deck), "pipeline.stages=1",
                   "model.new.n_embd=320"]
        result = support.run_command(command)
        self.assert_stops(result, "File too large", status=1)


if __name__ == "__main__":
    support.main()
