#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Lets PyPI's PyTorch, which is built for CUDA, run on CPUs without 2 GB of CUDA libraries.

PyTorch's libraries name cuBLAS, cuDNN and others although a run on CPUs calls none of their
functions. Next to PyTorch's libraries this writes, for each library that is missing, an empty one of
its name and symbols, and a .pth file that has Python resolve functions when they are called.

usage: PYTHON stand_in_libraries.py      with the interpreter of the virtual environment to mend
"""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"])
LIBRARIES = PACKAGES / "torch" / "lib"
LAZY = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted_symbols(library):
    """(library, version, symbol) of all undefined symbols with a version."""
    owner = {}  # version: the library that defines it
    file = None
    for line in output_of("readelf", "--version-info", "--wide", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif found := re.search(r"Name: (\S+)\s+Flags", line):
            owner[found[1]] = file
    for line in output_of("nm", "--dynamic", "--undefined-only", library).splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        version = version.lstrip("@")
        if version in owner:
            yield owner[version], version, symbol


def write_stand_in(name, symbols):
    """symbols: version -> names."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stand_in.c"), pathlib.Path(folder, "versions")
        source.write_text("".join(f"char {s}[64];\n" for names in symbols.values() for s in names))
        script.write_text("".join(
            f"{version} {{ global: {' '.join(f'{s};' for s in sorted(names))} }};\n"
            for version, names in symbols.items()))
        versions = [f"-Wl,--version-script={script}"] if symbols else []
        output_of("cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", *versions, "-o",
                  LIBRARIES / name, source)


def main():
    torch_libraries = sorted(LIBRARIES.glob("lib*.so"))
    missing = {}
    for library in torch_libraries:
        for name in re.findall(r"^\s*(\S+) => not found$", output_of("ldd", library), re.M):
            missing[name] = {}
    for library in torch_libraries:
        for name, version, symbol in wanted_symbols(library):
            if name in missing:
                missing[name].setdefault(version, set()).add(symbol)
    for name, symbols in missing.items():
        write_stand_in(name, symbols)
    (PACKAGES / "resolve_when_called.pth").write_text(LAZY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
