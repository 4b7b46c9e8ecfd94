# SPDX-License-Identifier: BSD-3-Clause
"""The names that scripts import from here live in deltapipe_runs and script_support."""

from deltapipe_runs import *  # noqa: F401,F403
from script_support import bytes_text, distinct_names, run_main  # noqa: F401
