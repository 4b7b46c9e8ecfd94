#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A small campaign of kills; DELTAPIPE_CAMPAIGN_KILLS and DELTAPIPE_SEED make it another one."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import support

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/kill_campaign.py"
KILLS = os.environ.get("DELTAPIPE_CAMPAIGN_KILLS", "6")
SEED = os.environ.get("DELTAPIPE_SEED", "1")


class Kills(unittest.TestCase):
    def test_killed_runs_end_like_others(self):
        done = subprocess.run([sys.executable, SCRIPT, "--kills", KILLS, "--seed", SEED],
                              env=support.ENVIRONMENT, capture_output=True, text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        last = done.stdout.splitlines()[-1]
        self.assertEqual(last, f"{KILLS} of {KILLS} resumed identically")
        self.assertTrue(re.search(r"[1-9]\d* kill\(s\): identical", done.stdout), done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
