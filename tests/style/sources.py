"""The C++ files of the project, for the style checks."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("core", "comm", "models", "app", "tests")


def cpp_files(*rooms):
    """Tracked and new *.hpp and *.cpp files below the rooms, as paths relative to ROOT."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *rooms],
            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        listed = [str(path.relative_to(ROOT)) for room in rooms for path in ROOT.glob(room + "/**/*")]
    files = [pathlib.Path(name) for name in listed if name.endswith((".hpp", ".cpp"))]
    return sorted(path for path in files if (ROOT / path).exists())


def finish(mistakes, checked):
    """Prints "file:line: mistake" lines and leaves; a check of nothing is a failure too."""
    for mistake in mistakes:
        print(mistake)
    print(f"{checked} files, {len(mistakes)} mistakes")
    sys.exit(1 if mistakes or not checked else 0)
