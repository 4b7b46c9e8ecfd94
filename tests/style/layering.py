# SPDX-License-Identifier: BSD-3-Clause
"""Nothing points upwards: core knows no MPI, models no network, comm no model."""

import re

from sources import ROOT, cpp_files, finish

# room: what its files must not include
FORBIDDEN = {
    "core": ("comm/", "models/", "app/", "mpi.h", "CLI/"),
    "models": ("comm/", "app/", "mpi.h", "CLI/"),
    "comm": ("models/", "app/", "CLI/"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')

mistakes = []
checked = 0
for room, forbidden in FORBIDDEN.items():
    for path in cpp_files(room):
        checked += 1
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
            include = INCLUDE.match(line)
            if include and include.group(1).startswith(forbidden):
                mistakes.append(f"{path}:{number}: {room} must not include {include.group(1)}")
finish(mistakes, checked)
