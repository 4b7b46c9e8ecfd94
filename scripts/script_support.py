# SPDX-License-Identifier: BSD-3-Clause
"""Shared by the scripts: an interpreter that has their packages, words, and how they end."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

DEBIAN = {"h5py": "python3-h5py", "matplotlib": "python3-matplotlib", "numpy": "python3-numpy"}
STARTED_AGAIN = "DELTAPIPE_PYTHON_FOUND"


def pythons():
    """Each python3 on the path, and the system's."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    found = (shutil.which("python3", path=folder) for folder in folders if folder)
    return list(dict.fromkeys(path for path in found if path))


def has(python, packages):
    try:
        return subprocess.run([python, "-c", "import " + ", ".join(packages)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def require(*packages):
    """Returns if this interpreter has the packages. Otherwise starts the script again with another
    python3 that has them, or ends with their names."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    if STARTED_AGAIN not in os.environ:
        for python in pythons():
            if python != sys.executable and has(python, packages):
                os.environ[STARTED_AGAIN] = python
                sys.stdout.flush()
                os.execv(python, [python, *sys.argv])
    sys.exit(f"error: no python3 here has {' and '.join(packages)}; install "
             f"{' '.join(DEBIAN[name] for name in missing)} (Debian, Ubuntu), or "
             f"pip install {' '.join(missing)}")


def find_program():
    """deltapipe of the checkout or of the installed tree that the script is in, else of the path."""
    root = pathlib.Path(__file__).resolve().parents[1]
    for program in (root / "build/release/bin/deltapipe", root.parents[1] / "bin/deltapipe"):
        if os.access(program, os.X_OK):
            return str(program)
    return "deltapipe"


def distinct_names(runs):
    """Names for tables and legends; the path where a name occurs twice."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.path) for name, run in zip(names, runs)]


def bytes_text(count):
    if count != count:  # NaN: unknown
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return ""


def run_main(main):
    """Exit status of a script: mistakes in its input are one line, no stack trace."""
    from deltapipe_runs import RunError
    try:
        status = main() or 0
        sys.stdout.flush()
        return status
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Nobody reads on. Python would flush again when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a program that SIGPIPE ended
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 1
