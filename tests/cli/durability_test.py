#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What is on disk is whole: after kills at random moments, with two runs in one directory, on a
full disk, beside links.

DELTAPIPE_KILLS and DELTAPIPE_PAIRS set how many kills and pairs of runs there are; DELTAPIPE_SEED
sets their moments.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import h5py
import numpy as np

import support

KILLS = int(os.environ.get("DELTAPIPE_KILLS", 12))
PAIRS = int(os.environ.get("DELTAPIPE_PAIRS", 5))
SEED = int(os.environ.get("DELTAPIPE_SEED", 1))
PARTIAL = re.compile(r"\.deltapipe-(partial-[0-9a-f]{16}|aside-[0-9a-f]{16}-.+)$")

# Models that have nothing in common: a mixture of two cannot pass for one. Long tables of positions
# take time to save and none to train.
MODELS = {
    "a": {"model.new": {"n_layer": 2, "n_embd": 96, "n_head": 2, "n_positions": 30000},
          "tokenizer": {"train_vocabulary": 300}},
    "b": {"model.new": {"n_layer": 3, "n_embd": 128, "n_head": 4, "n_positions": 30500},
          "tokenizer": {"train_vocabulary": 330}},
}


def names_in(directory):
    return {entry.name for entry in pathlib.Path(directory).iterdir()}


def leftovers_in(directory):
    return {name for name in names_in(directory) if PARTIAL.match(name)}


def which_model(directory):
    """The letter of the model in a directory; raises unless all its files are of that model."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    letter, = (name for name, deck in MODELS.items()
               if deck["model.new"]["n_layer"] == config["n_layer"])
    shape = MODELS[letter]["model.new"]
    vocabulary = MODELS[letter]["tokenizer"]["train_vocabulary"]
    assert {key: config[key] for key in shape} == shape, config
    assert config["vocab_size"] == vocabulary, config
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    pair = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    assert len(tokenizer["model"]["vocab"]) == len(pair) == vocabulary
    merges = (directory / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert len([line for line in merges if not line.startswith("#version")]) == vocabulary - 257
    json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    header, data = support.read_safetensors(directory / "model.safetensors")
    header.pop("__metadata__")
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data)
    assert {name: entry["shape"] for name, entry in header.items() if name.endswith("e.weight")} \
        == {"transformer.wte.weight": [vocabulary, shape["n_embd"]],
            "transformer.wpe.weight": [shape["n_positions"], shape["n_embd"]]}, header.keys()
    assert len([name for name in header if name.endswith("ln_1.weight")]) == shape["n_layer"]
    weights = np.frombuffer(data, np.float32)
    assert np.isfinite(weights).all()
    # A tensor that was never written would be zero throughout.
    for name, entry in header.items():
        if name.endswith("weight"):
            begin, end = entry["data_offsets"]
            assert weights[begin // 4:end // 4].any(), name
    return letter


def descendants(pid):
    """The youngest first."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in children for found in [*descendants(child), int(child)]]


class Place:
    """A small disk of its own."""

    def __init__(self, path, megabytes):
        self.path = path
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", path],
                       check=True, stderr=subprocess.DEVNULL)

    def fill(self):
        with open(self.path / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    def free(self):
        (self.path / "filler").unlink()

    def remove(self):
        subprocess.run(["umount", "-l", self.path], check=False)


class Durability(support.TestCase):
    def place_of(self, name, megabytes):
        try:
            place = Place(self.output(name), megabytes)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no right to mount a small disk")
        self.addCleanup(place.remove)
        return place

    def deck_of(self, letter, directory, **sections):
        deck = support.merged(
            self.small(training={"steps": 2, "evaluate_every": 10**6},
                       data={"sequence_length": 16}, output={"directory": str(directory)}),
            MODELS[letter], {name.replace("__", "."): keys for name, keys in sections.items()})
        return self.deck_file(deck)

    def begin(self, deck, ranks=1, overrides=()):
        """A run whose output is gathered while it lasts."""
        process = support.start(["train", deck, f"pipeline.stages={ranks}", *overrides], ranks)
        self.addCleanup(self.end, process)
        process.lines = []
        process.reader = threading.Thread(
            target=lambda: process.lines.extend(process.stderr), daemon=True)
        process.reader.start()
        process.drain = threading.Thread(target=process.stdout.read, daemon=True)
        process.drain.start()
        return process

    @staticmethod
    def end(process):
        """SIGKILL for all processes of a run; its exit status."""
        for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        if process.stdout.closed:
            return process.returncode
        process.reader.join()
        process.drain.join()
        process.stdout.close()
        process.stderr.close()
        return process.returncode

    def wait_until(self, what, process=None):
        end = time.monotonic() + support.TIME_LIMIT
        while time.monotonic() < end:
            if what():
                return True
            if process is not None and process.poll() is not None:
                return bool(what())
            time.sleep(0.0003)
        self.fail("waits in vain")

    # --- kills

    def check_after_a_kill(self, output, allowed):
        letter = which_model(output / "model")
        self.assertIn(letter, allowed)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.steps["step"].tolist(), list(range(1, len(run.losses) + 1)))
        self.assertEqual({len(column) for column in run.steps.values()}, {len(run.losses)})
        for path in output.glob("cache-*.h5"):
            with h5py.File(path, "r") as file:
                self.assertEqual(file.attrs["format"], b"deltapipe activation cache")
                self.assertEqual(len(file["records"]), len(file["visits"]))
        return letter

    def killable(self, kind, letter, output):
        """A run that is about to write, and the moment when it began to."""
        cache = kind == "cache"
        deck = self.deck_of(letter, output, boundary__forward={"codec": "aqsgd" if cache else "none"},
                            training={"steps": 20 if cache else 2}, cache={"budget": "30 kB"})
        before = leftovers_in(output)
        process = self.begin(deck, 2 if cache else 1)
        self.wait_until(lambda: any((output / name).is_dir() == (kind == "model")
                                    for name in leftovers_in(output) - before), process)
        return process, time.monotonic()

    def test_kills_at_any_moment_of_saving(self):
        """From the first write of the kind to the end of the run: run file and cache while they are
        made and written, the model while it is saved."""
        moments = random.Random(SEED)
        output = self.output("killed")
        kinds = ("model", "run file", "cache")
        self.succeed(["train", self.deck_of("a", output)])
        window = {}
        for kind in kinds:
            process, begin = self.killable(kind, "a", output)
            process.wait()
            window[kind] = 1.1 * (time.monotonic() - begin)
            self.end(process)
        former, killed, replaced = "a", 0, 0
        for i in range(KILLS):
            new = "b" if former == "a" else "a"
            kind = kinds[i % len(kinds)]
            process, begin = self.killable(kind, new, output)
            time.sleep(moments.random() * window[kind])
            killed += self.end(process) != 0
            self.assertEqual([line for line in process.lines if "deltapipe: error" in line], [],
                             f"run {i}: stopped by what the one before it left")
            letter = self.check_after_a_kill(output, (former, new))
            replaced += letter == new
            former = letter
        print(f"{KILLS} runs, {killed} killed, {replaced} had replaced the model; "
              f"seconds in which they were: {window}")
        self.assertGreater(killed, KILLS // 3)
        # What the kills have left goes with the next run.
        self.succeed(["train", self.deck_of("a", output)])
        self.assertEqual(leftovers_in(output), set())
        self.succeed(["evaluate", self.deck_of("a", output, model={"path": str(output / "model")},
                                               tokenizer={"train_vocabulary": 0})])

    # --- two runs in one directory

    def test_pairs_of_runs_in_one_directory(self):
        """The second one waits for the first, and then leaves its results alone."""
        moments = random.Random(SEED)
        won = {"a": 0, "b": 0}
        for i in range(PAIRS):
            output = self.output(f"shared-{i}")
            letters = ["a", "b"] if moments.random() < 0.5 else ["b", "a"]
            decks = [self.deck_of(letter, output, training={"steps": 40},
                                  output={"directory": str(output), "overwrite": False})
                     for letter in letters]
            first = support.start(["train", decks[0]])
            time.sleep(moments.random() * 0.1)
            second = support.start(["train", decks[1]])
            results = [support.finish(process) for process in (first, second)]
            shown = "\n".join(map(str, results))
            statuses = [result.status for result in results]
            self.assertEqual(sorted(statuses), [0, 2], shown)
            winner = letters[0 if results[0].status == 0 else 1]
            self.assert_stops(results[0 if results[0].status == 2 else 1], output,
                              "has another deck", status=2)
            won[winner] += 1
            self.assertEqual(which_model(output / "model"), winner)
            run = support.Run(output / "run.h5")
            self.assertEqual(run.attributes["status"], "finished")
            self.assertEqual(len(run.losses), 40)
            self.assertIn(f"n_layer = {MODELS[winner]['model.new']['n_layer']}\n",
                          run.attributes["deck"])
            self.assertEqual(names_in(output), {"model", "run.h5"})
        print(f"{PAIRS} pairs; won: {won}")

    def test_a_shared_cache_directory(self):
        """Runs of two ranks with output directories of their own: every rank of one is refused."""
        sections = {"boundary__forward": {"codec": "aqsgd"},
                    "cache": {"budget": "30 kB", "directory": str(self.output("caches"))}}
        first = self.begin(self.deck_of("a", self.output("one"), training={"steps": 10**6},
                                        **sections), 2)
        self.wait_until(lambda: len(list(self.place.glob("caches/cache-*.h5"))) == 2, first)
        second = support.run(["train", self.deck_of("b", self.output("two"), **sections),
                              "pipeline.stages=2"], 2)
        self.assert_stops(second, self.output("caches"), "another run writes", "process ",
                          " since ", status=1)
        self.end(first)
        self.succeed(["train", self.deck_of("b", self.output("two"), **sections),
                      "pipeline.stages=2"], 2)
        self.assertEqual(names_in(self.output("caches")), set())

    # --- spill files

    def test_spill_files_go_with_the_run(self):
        output = self.output("spilling")
        spilling = {"boundary__forward": {"codec": "aqsgd"}, "cache": {"budget": "30 kB"}}
        for keep in (False, True):
            self.succeed(["train", self.deck_of("a", output, **spilling), "pipeline.stages=2",
                          f"cache.keep={str(keep).lower()}"], 2)
            files = list(output.glob("cache-*.h5"))
            self.assertEqual(len(files), 2 if keep else 0)
        # Killed during start-up by an older version, or by a power failure.
        files[0].write_bytes(b"")
        self.succeed(["train", self.deck_of("a", output, **spilling), "pipeline.stages=2"], 2)
        self.assertEqual(names_in(output), {"model", "run.h5"})

    def test_a_budget_for_all_records_makes_no_file(self):
        output = self.output("roomy")
        self.succeed(["train", self.deck_of("a", output, boundary__forward={"codec": "aqsgd"}),
                      "pipeline.stages=2", "cache.budget=1 GB", "cache.keep=true"], 2)
        self.assertEqual(names_in(output), {"model", "run.h5"})

    def test_damaged_records_are_forgotten_at_both_ends(self):
        """Memories are compared after every visit: an end that went on alone would be found."""
        output = self.output("damaged")
        process = self.begin(
            self.deck_of("b", output, boundary__forward={"codec": "aqsgd"},
                         training={"steps": 10**6},
                         cache={"budget": "30 kB", "verify_every": 1}), 2)
        for end in ("receiver", "sender"):
            cache = output / f"cache-replica0-boundary0-forward-{end}.h5"
            self.wait_until(lambda: cache.exists(), process)
            with h5py.File(cache, "r") as file:
                offset = file["records"].id.get_chunk_info(0).byte_offset
                size = file["records"].size
            found = self.damaged(output, process)
            with open(cache, "r+b", buffering=0) as file:
                while self.damaged(output, process) == found:
                    os.pwrite(file.fileno(), os.urandom(size), offset)
                    time.sleep(0.05)
        self.assertIsNone(process.poll(), process.lines)
        process.send_signal(signal.SIGUSR1)
        process.wait(60)
        self.end(process)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.attributes["status"], "interrupted")
        self.assertTrue(np.isfinite(run.losses).all())
        self.assertEqual(run.steps["step"].tolist(), list(range(1, len(run.losses) + 1)))
        told = [line for line in process.lines if "are damaged: both ends reset" in line]
        self.assertGreater(len(told), 0, process.lines)

    def damaged(self, output, process):
        """Records that were found so, once a step is in the run file."""
        self.wait_until(lambda: (output / "run.h5").exists() and
                        len(support.Run(output / "run.h5").losses) > 0, process)
        return support.Run(output / "run.h5").steps["cache_damaged"].sum()

    # --- full disks

    def test_a_full_disk_leaves_the_former_model(self):
        place = self.place_of("small-disk", 24)
        output = place.path / "run"
        self.succeed(["train", self.deck_of("a", output)])
        result = support.run(["train", self.deck_of("b", output)])
        self.assert_stops(result, output / "model" / "model.safetensors", "No space left",
                          "former model is as it was", status=1)
        self.assertEqual(names_in(output), {"model", "run.h5"})
        self.assertEqual(which_model(output / "model"), "a")
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "failed")

    def test_a_model_that_cannot_take_its_place_is_not_lost(self):
        place = self.place_of("mounted/model", 24)
        output = place.path.parent
        result = support.run(["train", self.deck_of("a", output)])
        self.assert_stops(result, place.path, "model.new", status=1)
        self.assertEqual(which_model(output / "model.new"), "a")
        self.assertEqual(names_in(output), {"model", "model.new", "run.h5"})

    def test_a_full_disk_does_not_end_training(self):
        place = self.place_of("filled", 24)
        output = place.path / "run"
        process = self.begin(self.deck_of("a", output, training={"steps": 10**7},
                                          output={"log_every": 10**7}))
        rows = lambda: (output / "run.h5").exists() and len(support.Run(output / "run.h5").losses)
        self.wait_until(lambda: rows() and rows() > 0, process)
        place.fill()
        written = rows()
        # The start warns that this many steps need more disk.
        warned = lambda: [line for line in process.lines if "deltapipe: warning" in line
                          and "too little disk space" not in line]
        self.wait_until(warned, process)
        self.assertIn("No space left", warned()[0])
        time.sleep(6)  # another flush that fails
        self.assertEqual(len(warned()), 1)
        self.assertIsNone(process.poll())
        place.free()
        self.wait_until(lambda: rows() > written, process)
        self.end(process)
        run = support.Run(output / "run.h5")
        self.assertEqual(run.steps["step"].tolist(), list(range(1, len(run.losses) + 1)))

    def test_a_disk_that_stays_full_is_an_error_at_the_end(self):
        place = self.place_of("stays-full", 24)
        output = place.path / "run"
        process = self.begin(self.deck_of("a", output, training={"steps": 60}),
                             overrides=["output.save_model=false"])
        self.wait_until((output / "run.h5").exists, process)
        place.fill()
        self.wait_until(lambda: process.poll() is not None)
        self.end(process)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(len([line for line in process.lines if "deltapipe: error" in line]), 1)
        self.assertEqual(names_in(output), {"run.h5"})
        support.Run(output / "run.h5")

    def test_a_full_disk_after_the_model_was_saved(self):
        """The same command then continues, although the run's own model is there."""
        place = self.place_of("last-rows", 24)
        output = place.path / "run"
        deck = self.deck_of("a", output)
        self.succeed(["train", deck])
        pages = sum(-(-path.stat().st_size // 4096) for path in output.rglob("*") if path.is_file())
        shutil.rmtree(output)
        disk = os.statvfs(place.path)
        with open(place.path / "filler", "wb") as file:
            file.write(bytes(disk.f_bavail * disk.f_frsize - 4096 * pages - 100000))
        result = support.run(["train", deck])
        self.assert_stops(result, output / "run.h5", "No space left", status=1)
        self.assertEqual(which_model(output / "model"), "a")
        place.free()
        self.succeed(["train", deck])
        self.assertEqual(names_in(output), {"model", "run.h5"})
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "finished")

    # --- links

    def test_links_are_not_followed(self):
        output = self.output("links")
        output.mkdir()
        precious = self.output("precious")
        precious.write_text("mine")
        for name in ("run.h5.partial", "run.h5", "trace.json"):
            (output / name).symlink_to(precious)
        self.succeed(["train", self.deck_of("a", output, output={"trace_step": 1})])
        self.assertEqual(precious.read_text(), "mine")
        self.assertEqual(support.Run(output / "run.h5").attributes["status"], "finished")
        elsewhere = self.output("elsewhere")
        (output / "model").rename(elsewhere)
        (output / "model").symlink_to(elsewhere)
        result = support.run(["train", self.deck_of("b", output)])
        self.assert_stops(result, output / "model", "symbolic link", status=2)
        self.assertEqual(which_model(elsewhere), "a")
        (output / "model").unlink()
        (output / "model").write_text("no directory")
        self.assert_stops(support.run(["train", self.deck_of("b", output)]), output / "model",
                          status=2)

    def test_a_strangers_file_in_the_model_directory_is_kept(self):
        output = self.output("notes")
        self.succeed(["train", self.deck_of("a", output)])
        (output / "model" / "notes.md").write_text("mine")
        said = self.succeed(["train", self.deck_of("b", output)])
        self.assertIn("model.former", said.out)
        self.assertEqual((output / "model.former" / "notes.md").read_text(), "mine")
        self.assertEqual(which_model(output / "model.former"), "a")
        self.assertEqual(which_model(output / "model"), "b")


if __name__ == "__main__":
    support.main()
