#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The batch script under a SLURM of its own on this machine: daemons with ports, keys and folders of
their own, which nothing else on the machine knows of. Skipped where they cannot start."""

import os
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSORS = 8  # that the node claims to have
LIMIT = 150  # seconds for a job


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def why_not():
    """Why SLURM cannot be started here; None: it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
               if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "the daemons want to be root"
    try:
        pwd.getpwnam("munge")
    except KeyError:
        return "there is no user munge"
    return None


class Cluster:
    """One node. stop() ends the daemons."""

    def __init__(self, place):
        self.place = place
        place.chmod(0o755)  # for munge
        self.daemons = []
        host = socket.gethostname().split(".")[0]
        munge = self.munge_folder()
        for name in ("state", "spool", "tmp"):
            (place / name).mkdir()
        configuration = place / "slurm.conf"
        configuration.write_text(f"""ClusterName=deltapipe
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket,cred_expire=4
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
TmpFS={place}/tmp
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={PROCESSORS} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        self.environment = support.ENVIRONMENT | {"SLURM_CONF": str(configuration)}
        # A job gets its own.
        for name in list(self.environment):
            if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF":
                del self.environment[name]
        try:
            self.start("munged", "--foreground", f"--key-file={munge}/key",
                       f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                       f"--log-file={munge}/log", f"--seed-file={munge}/seed", user="munge")
            self.start("slurmctld", "-D", "-f", str(configuration))
            self.start("slurmd", "-D", "-f", str(configuration))
            self.wait_for(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"), 30)
        except BaseException:
            self.stop()
            raise

    def munge_folder(self):
        user = pwd.getpwnam("munge")
        folder = self.place / "munge"
        folder.mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        for path in (folder, folder / "key"):
            os.chown(path, user.pw_uid, user.pw_gid)
        return folder

    def start(self, *command, user=None):
        log = open(self.place / f"{command[0]}.log", "w", encoding="utf-8")
        identity = {"user": user, "group": user, "extra_groups": []} if user else {}
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=log,
                                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                             start_new_session=True, **identity))
        log.close()

    def ask(self, *command):
        """Standard output; nothing while daemons are not there yet."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True,
                              timeout=30).stdout

    def wait_for(self, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or any(d.poll() is not None for d in self.daemons):
                logs = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}"
                                 for path in self.place.glob("*.log"))
                raise AssertionError(f"waited {seconds} s in vain\n{logs}")
            time.sleep(0.2)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


class Slurm(support.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.place / "slurm"
        folder.mkdir()
        cls.place.chmod(0o755)
        try:
            cls.cluster = Cluster(folder)
        except AssertionError as error:
            print(f"skipped: SLURM does not start here: {error}")
            raise unittest.SkipTest("SLURM does not start here") from error
        cls.addClassCleanup(cls.cluster.stop)

    def deck(self, **sections):
        return support.merged(
            self.small(training={"steps": 30}, pipeline={"stages": 3},
                       boundary__forward={"codec": "aqsgd", "bits": 3},
                       boundary__backward={"codec": "directq", "bits": 4, "feedback.kind": "ef"},
                       checkpoint={"every_steps": 10}, output={"overwrite": False}),
            {name.replace("__", "."): keys for name, keys in sections.items()})

    def submit(self, deck, output, *options, ranks=3, program=support.PROGRAM, launcher=None):
        """`deck`: a file."""
        log = self.place / f"{output.name}.log"
        said = subprocess.run(
            ["sbatch", "--parsable", f"--ntasks={ranks}", f"--ntasks-per-node={ranks}",
             "--cpus-per-task=1", f"--output={log}", *options, str(ROOT / "scripts/train.sbatch"),
             str(deck), f"output.directory={output}"],
            env=self.cluster.environment | {"DELTAPIPE": str(pathlib.Path(program).resolve())}
            | ({"DELTAPIPE_LAUNCH": str(launcher)} if launcher else {}),
            capture_output=True, text=True, timeout=30)
        self.assertEqual(said.returncode, 0, said.stderr)
        return said.stdout.strip(), log

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.cluster.ask("scontrol", "show", "job", job))[1]

    def finish(self, job, log):
        """The state in which the job ended."""
        ends = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY")
        try:
            self.cluster.wait_for(lambda: self.state(job) in ends, LIMIT)
        except AssertionError as error:
            text = log.read_text() if log.exists() else "no output"
            raise AssertionError(f"job {job}: {self.state(job)}\n{text}\n{error}") from error
        return self.state(job)

    def wait_for_requeue(self, log):
        try:
            self.cluster.wait_for(lambda: log.exists() and "requeued" in log.read_text(), LIMIT)
        except AssertionError as error:
            raise AssertionError(f"{log.read_text()}\n{error}") from error

    def assert_same(self, output, reference):
        run, expected = support.Run(output / "run.h5"), support.Run(reference / "run.h5")
        self.assertEqual(run.attributes["status"], "finished")
        self.assertEqual(run.losses.tobytes(), expected.losses.tobytes())
        self.assertEqual((output / "model/model.safetensors").read_bytes(),
                         (reference / "model/model.safetensors").read_bytes())

    def test_a_job_runs_to_its_end(self):
        reference, output = self.output("by-hand"), self.output("job")
        deck = self.deck(pipeline={"stages": 2, "replicas": 2}, training={"steps": 6})
        self.succeed(["train", self.deck_file(deck), f"output.directory={reference}"], 4)
        job, log = self.submit(self.deck_file(deck), output, ranks=4)
        self.assertEqual(self.finish(job, log), "COMPLETED", log.read_text())
        self.assert_same(output, reference)
        # Submitted once more it changes nothing.
        before = (output / "run.h5").read_bytes()
        job, log = self.submit(self.deck_file(deck), output, ranks=4)
        self.assertEqual(self.finish(job, log), "COMPLETED", log.read_text())
        self.assertIn("is already finished", log.read_text())
        self.assertEqual((output / "run.h5").read_bytes(), before)

    def test_a_job_that_has_to_make_way_is_requeued_and_goes_on(self):
        reference, output = self.output("reference"), self.output("requeued")
        deck = self.deck()
        self.succeed(["train", self.deck_file(deck), f"output.directory={reference}"], 3)
        job, log = self.submit(self.deck_file(self.deck(network={"latency": "20 ms"})), output)
        self.cluster.wait_for(lambda: list(output.glob("checkpoints/step-*")), LIMIT)
        self.cluster.ask("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(self.finish(job, log), "COMPLETED", log.read_text())
        text = log.read_text()
        self.assertIn("stopped: requeued", text)
        self.assertIn("start 2", text)
        self.assertIn("resuming from the checkpoint of step", text)
        self.assert_same(output, reference)

    def test_a_time_limit_stops_in_time_and_is_no_end(self):
        reference, output = self.output("unlimited"), self.output("limited")
        deck = self.deck(training={"steps": 150})
        self.succeed(["train", self.deck_file(deck), f"output.directory={reference}"], 3)
        # SLURM looks at limits twice a minute: the signal comes 50 to 80 s after the start.
        slow = self.deck_file(self.deck(training={"steps": 150}, network={"latency": "250 ms"}))
        job, log = self.submit(slow, output, "--time=2", "--signal=B:USR1@40")
        self.wait_for_requeue(log)
        support.write_deck(slow, deck)  # the rest over a fast link
        self.assertEqual(self.finish(job, log), "COMPLETED", log.read_text())
        self.assert_same(output, reference)

    def test_a_signal_during_the_launch_requeues(self):
        # srun reports 0 when a signal aborts a launch.
        launcher = self.place / "launcher"
        launcher.write_text("#!/bin/bash\ntrap 'exit 0' USR1\necho launching\n"
                            "while true; do sleep 0.1; done\n")
        launcher.chmod(0o755)
        job, log = self.submit(self.deck_file(self.deck()), self.output("launched"),
                               launcher=launcher)
        self.cluster.wait_for(lambda: log.exists() and "launching" in log.read_text(), LIMIT)
        self.cluster.ask("scancel", "--batch", "--signal=USR1", job)
        self.wait_for_requeue(log)
        self.cluster.ask("scancel", job)

    def test_a_job_that_is_cancelled_or_fails_stays_so(self):
        output = self.output("cancelled")
        job, log = self.submit(self.deck_file(self.deck(network={"latency": "50 ms"})), output)
        self.cluster.wait_for(lambda: list(output.glob("checkpoints/step-*")), LIMIT)
        self.cluster.ask("scancel", job)
        self.assertEqual(self.finish(job, log), "CANCELLED")
        self.assertNotIn("requeued", log.read_text())
        job, log = self.submit(self.deck_file(self.deck(training={"epochs": -1})),
                               self.output("wrong"))
        self.assertEqual(self.finish(job, log), "FAILED")
        self.assertIn("training.epochs", log.read_text())

    def test_a_stop_without_progress_is_not_requeued(self):
        program = self.place / "no-progress"
        program.write_text("#!/bin/sh\nexit 74\n")
        program.chmod(0o755)
        output = self.output("no-progress-log")
        job, log = self.submit(self.deck_file(self.deck()), output, ranks=1, program=program)
        self.assertEqual(self.finish(job, log), "FAILED", log.read_text())
        self.assertIn("ExitCode=74:0", self.cluster.ask("scontrol", "show", "job", job))

    def test_without_requeue_a_job_only_stops(self):
        output = self.output("not-requeued")
        deck = self.deck_file(self.deck(network={"latency": "20 ms"}))
        job, log = self.submit(deck, output, "--no-requeue")
        self.cluster.wait_for(lambda: list(output.glob("checkpoints/step-*")), LIMIT)
        self.cluster.ask("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(self.finish(job, log), "FAILED", log.read_text())
        self.assertIn("ExitCode=75:0", self.cluster.ask("scontrol", "show", "job", job))
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "stopped")


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    support.main()
