# SPDX-License-Identifier: BSD-3-Clause
"""The files of the project, for the style checks."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("core", "comm", "models", "app", "tests")


def files_below(*places):
    """Tracked and new files below the places, as paths relative to ROOT; no links."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *places],
            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        listed = [str(path.relative_to(ROOT)) for place in places
                  for path in (ROOT / place).glob("**/*")
                  if path.relative_to(ROOT).parts[0] not in (".git", "build", "data", "runs")]
    files = [pathlib.Path(name) for name in set(listed) if name]
    return sorted(path for path in files
                  if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


def cpp_files(*rooms):
    """Tracked and new *.hpp and *.cpp files below the rooms, as paths relative to ROOT."""
    return [path for path in files_below(*rooms) if path.suffix in (".hpp", ".cpp")]


def check_samples(mistakes_in, samples):
    """The check itself, on pairs of a text and the number of its mistakes."""
    for text, expected in samples:
        found = len(mistakes_in(text))
        assert found == expected, f"the check itself fails: {found} in {text}"


def finish(mistakes, checked):
    """Prints "file:line: mistake" lines and leaves; a check of nothing is a failure too."""
    for mistake in mistakes:
        print(mistake)
    print(f"{checked} files, {len(mistakes)} mistakes")
    sys.exit(1 if mistakes or not checked else 0)
