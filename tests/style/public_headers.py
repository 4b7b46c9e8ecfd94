# SPDX-License-Identifier: BSD-3-Clause
"""Headers that are installed are there, and include no header of ours that is not installed."""

import re

from sources import ROOT, finish

LIST = "scripts/cmake/PublicHeaders.cmake"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')

public = re.findall(r"^  ([a-z0-9_/]+\.hpp)", (ROOT / LIST).read_text(), re.MULTILINE)
mistakes = []
for path in public:
    if not (ROOT / path).is_file():
        mistakes.append(f"{LIST}: there is no {path}")
        continue
    for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
        include = INCLUDE.match(line)
        if include and include.group(1) not in public:
            mistakes.append(f"{path}:{number}: is installed, {include.group(1)} is not: "
                            f"put it into {LIST}, or do without it")
if public != sorted(set(public)):
    mistakes.append(f"{LIST}: out of order, or twice the same")
finish(mistakes, len(public))
