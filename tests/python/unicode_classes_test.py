#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The tables of characters are those of the newest tokenizers library.

usage: unicode_classes_test.py PROGRAM --newest      exit status 77: not with that library
"""

import pathlib
import subprocess
import sys

if "--newest" not in sys.argv:
    print("skipped: older libraries know older versions of Unicode")
    sys.exit(77)
try:
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error} (scripts/setup_python.sh)")
    sys.exit(77)
if int(transformers.__version__.split(".")[0]) < 5:
    print(f"skipped: no build/venv-newest, here is tokenizers {tokenizers.__version__}")
    sys.exit(77)
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/make_unicode_classes.py"
sys.exit(subprocess.run([sys.executable, SCRIPT, "--check"], check=False).returncode)
