# SPDX-License-Identifier: BSD-3-Clause
"""Every Kokkos kernel, region and fence is written with a label deltapipe::Component::what.

Kernels that a test launches are also watched as they run (tests/support/kernel_labels.hpp); this
finds those that no test reaches.
"""

import re

from sources import ROOT, cpp_files, finish

LAUNCH = re.compile(r"\b(?:parallel_(?:for|reduce|scan)|for_rows|for_elements|for_range|as_kernel|for_each_attention_block)\s*\(\s*(.{0,80})", re.DOTALL)
NAMED = re.compile(
    r"\b(?:pushRegion|ScopedRegion\s*\w*|Kokkos::fence|WithoutInitializing\s*,|view_alloc)"
    r'\s*\(?\s*"([^"]*)"')
# Nested loops inside a team have a range in place of a label.
NESTED = re.compile(r"(?:Kokkos::)?(?:Team(?:Thread|Vector)|ThreadVector)(?:MD)?Range\b")
PROPER = re.compile(r"deltapipe(::[A-Za-z0-9_]+)+::.+")

mistakes = []
files = cpp_files("core", "comm", "models", "app")
for path in files:
    text = (ROOT / path).read_text()
    text = re.sub(r"//[^\n]*", "", text)
    for launch in LAUNCH.finditer(text):
        first = launch.group(1)
        number = text.count("\n", 0, launch.start()) + 1
        literal = re.match(r'"([^"]*)"', first)
        if NESTED.match(first):
            continue
        if literal is None and re.match(r"(?:\[\[maybe_unused\]\] )?(?:const char\* )?\w*[lL]abel\w*\b", first):
            continue  # passed on from a caller, watched as it runs
        if literal is None or not PROPER.fullmatch(literal.group(1)):
            mistakes.append(f"{path}:{number}: kernel without a label deltapipe::Component::what")
    for named in NAMED.finditer(text):
        if not PROPER.fullmatch(named.group(1)):
            number = text.count("\n", 0, named.start()) + 1
            mistakes.append(f"{path}:{number}: label '{named.group(1)}' is not "
                            "deltapipe::Component::what")
finish(mistakes, len(files))
