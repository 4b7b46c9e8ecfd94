# SPDX-License-Identifier: BSD-3-Clause
"""Nothing points upwards: core knows no MPI and no deck, models no network, comm no model, the
training library no deck and no output."""

import re

from sources import ROOT, cpp_files, finish

def rooms_in(room, *names):
    return (room, *(f"{room}{name}/" for name in names))


BASE = rooms_in("core/base/", "parallel", "numeric", "state", "observe")
CODEC = rooms_in("core/codec/", "quantizer", "entropy", "wire", "rows", "topk",
                 "algorithms")
KERNELS, FILES, TEXT, DATA = ("core/kernels/",), ("core/files/",), ("core/text/",), ("core/data/",)
CORE = BASE + KERNELS + FILES + TEXT + DATA + CODEC + ("core/cache/", "core/stage/")
COMM = ("comm/transport/", "comm/schedule/", "comm/boundary/", "comm/replicas/", "comm/pipeline/")
APP = rooms_in("app/", "deck", "output", "checkpoint", "session", "preflight", "training", "commands")

# A room's files may include those of the room itself and of these. The longest name is a file's room.
MAY_USE = {
    "core/": CORE,
    "core/base/": ("core/base/parallel/",),
    "core/base/parallel/": ("core/base/",),
    **dict.fromkeys(BASE[2:], ("core/base/", "core/base/parallel/")),
    "core/kernels/": BASE,
    "core/files/": BASE,
    "core/text/": BASE + FILES,
    "core/data/": BASE + FILES + TEXT,
    **dict.fromkeys(CODEC, BASE + CODEC),
    "core/cache/": BASE + FILES + CODEC,
    "core/stage/": BASE + KERNELS + CODEC,
    "models/": CORE,
    "models/gpt2/": CORE + ("models/",),
    "comm/": COMM,
    "comm/transport/": BASE + FILES + KERNELS + ("core/codec/",),
    "comm/schedule/": BASE,
    "comm/boundary/": CORE + ("comm/transport/",),
    "comm/replicas/": CORE + ("comm/transport/",),
    "comm/pipeline/": CORE + COMM,
    "app/deck/": CORE + COMM + ("models/",),
    # A library of its own: it knows no deck and prints nothing.
    "app/training/": CORE + COMM + ("models/",),
    **dict.fromkeys((room for room in APP if room not in ("app/deck/", "app/training/")),
                    CORE + COMM + ("models/", "models/gpt2/") + APP),
}
# Inside of core/codec: the contract and the settings first, then what codes are made of.
INNER = {
    "core/codec/quantizer/": ("core/codec/",),
    "core/codec/wire/": ("core/codec/", "core/codec/rows/"),
    "core/codec/entropy/": ("core/codec/", "core/codec/quantizer/", "core/codec/rows/"),
    "core/codec/rows/": CODEC[:4],
    "core/codec/topk/": CODEC[:5],
}
MAY_USE |= {room: BASE + inner for room, inner in INNER.items()}
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
        if used is not None and used != room \
                and used not in MAY_USE[room] + TABLES.get(path, ()):
            mistakes.append(f"{path}:{number}: {room} must not include {include.group(1)}")
        for header, rooms in ONLY_IN.items():
            if include.group(1).startswith(header) and not path.startswith(rooms):
                mistakes.append(f"{path}:{number}: {header} belongs in {' or '.join(rooms)}")
finish(mistakes, checked)
