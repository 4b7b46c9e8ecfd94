# SPDX-License-Identifier: BSD-3-Clause
"""Headers that the umbrella headers list are installed: they include no other header of ours."""

import re

from sources import ROOT, finish

UMBRELLAS = ("core/core.hpp", "models/models.hpp", "comm/comm.hpp", "app/training/training.hpp")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')

def includes_of(path):
    lines = (ROOT / path).read_text().splitlines()
    return [(number, found.group(1)) for number, line in enumerate(lines, start=1)
            if (found := INCLUDE.match(line))]


public = [path for umbrella in UMBRELLAS for _, path in includes_of(umbrella)]
mistakes = []
for path in public:
    for number, included in includes_of(path):
        if included not in public:
            mistakes.append(f"{path}:{number}: is installed, {included} is not: "
                            f"put it into {path.split('/')[0]}'s umbrella header, or do without it")
finish(mistakes, len(public))
