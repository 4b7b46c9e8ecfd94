# SPDX-License-Identifier: BSD-3-Clause
"""Nothing points upwards: core knows no MPI and no deck, models no network, comm no model."""

import re

from sources import ROOT, cpp_files, finish

CORE = ("core/base/", "core/kernels/", "core/files/", "core/text/", "core/codec/", "core/cache/",
        "core/stage/")
COMM = ("comm/transport/", "comm/replicas/", "comm/pipeline/")
# A room's files may include those of the room itself and of these. The longest name is a file's room.
MAY_USE = {
    "core/base/": (),
    "core/kernels/": ("core/base/",),
    "core/files/": ("core/base/",),
    "core/text/": ("core/base/", "core/files/"),
    "core/codec/": ("core/base/", "core/kernels/"),
    "core/cache/": ("core/base/", "core/files/", "core/codec/"),
    "core/stage/": ("core/base/", "core/kernels/"),
    "models/": CORE,
    "models/gpt2/": CORE + ("models/",),
    "comm/transport/": ("core/base/", "core/files/"),
    "comm/replicas/": CORE + ("comm/transport/",),
    "comm/pipeline/": CORE + ("comm/transport/", "comm/replicas/"),
    "app/deck/": CORE + COMM + ("models/",),
    "app/": CORE + COMM + ("models/", "models/gpt2/", "app/deck/"),
}
# Tables that name what is in the rooms below them.
TABLES = {"models/model_types.cpp": ("models/gpt2/",)}
# Headers of others that only some rooms may know.
ONLY_IN = {"mpi.h": ("comm/", "app/"), "CLI/": ("app/",), "toml++/": ("app/deck/",)}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def room_of(path):
    """The room that a file of the project is in; none for files of others."""
    return max((room for room in MAY_USE if path.startswith(room)), key=len, default=None)


mistakes = []
checked = 0
for path in map(str, cpp_files("core", "models", "comm", "app")):
    room = room_of(path)
    checked += 1
    if room is None:
        mistakes.append(f"{path}: is in no room; see MAY_USE in tests/style/layering.py")
        continue
    for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
        include = INCLUDE.match(line)
        if not include:
            continue
        used = room_of(include.group(1))
        if used is not None and used != room and used not in MAY_USE[room] + TABLES.get(path, ()):
            mistakes.append(f"{path}:{number}: {room} must not include {include.group(1)}")
        for header, rooms in ONLY_IN.items():
            if include.group(1).startswith(header) and not path.startswith(rooms):
                mistakes.append(f"{path}:{number}: {header} belongs in {' or '.join(rooms)}")
finish(mistakes, checked)
