# SPDX-License-Identifier: BSD-3-Clause
"""All C++ files are as clang-format 14 writes them. Exit status 77 (skipped) without it."""

import re
import shutil
import subprocess
import sys

from sources import ROOT, ROOMS, cpp_files, finish

program = shutil.which("clang-format-14") or shutil.which("clang-format")
if program is None:
    print("clang-format is not installed (Debian: clang-format)")
    sys.exit(77)
version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
if not re.search(r"\bversion 14\.", version):
    print(f"other versions format otherwise: {version.strip()}")
    sys.exit(77)

files = cpp_files(*ROOMS)
result = subprocess.run([program, "--dry-run", *map(str, files)], cwd=ROOT, capture_output=True,
                        text=True)
mistakes = [line for line in result.stderr.splitlines() if "-Wclang-format-violations" in line]
if result.returncode and not mistakes:
    mistakes = result.stderr.splitlines()
mistakes += [f"to mend: {program} -i FILE"] * bool(mistakes)
finish(mistakes, len(files))
