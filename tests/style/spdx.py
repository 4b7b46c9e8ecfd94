# SPDX-License-Identifier: BSD-3-Clause
"""Every source, script and CMake file names its licence in its first lines.

usage: spdx.py [--fix]
  --fix   adds the line where it is missing: first, or after a script's #! line
"""

import argparse
import re

from sources import ROOT, files_below, finish

TAG = "SPDX-License-Identifier:"
LICENCE = "BSD-3-Clause"
FIRST_LINES = 3
COMMENTS = {".cpp": "//", ".hpp": "//", ".c": "//", ".h": "//", ".cu": "//", ".inc": "//",
            ".py": "#", ".sh": "#", ".sbatch": "#", ".cmake": "#"}


def comment_of(path):
    """What starts a comment in the file; None: not a file of these kinds."""
    name = path.name
    if name == "CMakeLists.txt" or name.endswith(".cmake.in"):
        return "#"
    if path.suffix in COMMENTS:
        return COMMENTS[path.suffix]
    with (ROOT / path).open("rb") as file:
        return "#" if file.read(3) == b"#!/" else None


def mistake_in(path, comment):
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()[:FIRST_LINES]
    for number, line in enumerate(lines, start=1):
        if TAG not in line:
            continue
        if line == f"{comment} {TAG} {LICENCE}":
            return None
        return f"{path}:{number}: not '{comment} {TAG} {LICENCE}'"
    return f"{path}:1: no line '{comment} {TAG} {LICENCE}' (spdx.py --fix adds it)"


def add_line(path, comment):
    """Only where the first lines have none; another licence is for people to look at."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if any(TAG in line for line in text.splitlines()[:FIRST_LINES]):
        return
    script = re.match(r"#![^\n]*\n", text)
    after = script.end() if script else 0
    (ROOT / path).write_text(f"{text[:after]}{comment} {TAG} {LICENCE}\n{text[after:]}",
                             encoding="utf-8")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--fix", action="store_true")
fix = parser.parse_args().fix
files = [(path, comment_of(path)) for path in files_below(".")]
files = [(path, comment) for path, comment in files if comment]
if fix:
    for path, comment in files:
        add_line(path, comment)
mistakes = [mistake for path, comment in files if (mistake := mistake_in(path, comment))]
finish(mistakes, len(files))
