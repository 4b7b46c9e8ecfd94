# SPDX-License-Identifier: BSD-3-Clause
"""Kernels and copies in core, comm, models and where models are saved name the execution space instance that they run on,
and nobody waits for the whole device.

tests/unit/core/base/execution_test.cpp watches the same as it happens, where Kokkos tells instances apart.
"""

import re

from sources import ROOT, check_samples, cpp_files, finish

INSTANCE = r"(?:exec|space|copies_|copy|exec\(\)|instances_\.(?:compute|codec|copy))"
COPY = re.compile(r"\bdeep_copy\s*\(\s*([^,]*),")
POLICY = re.compile(r"\b(?:Range|Team|MDRange)Policy\s*<[^;]*?>\s*\(\s*([^,]*),")
GIVEN = re.compile(INSTANCE)
DEFAULT = re.compile(r"\bExecSpace\s*\(\s*\)|\bExecSpace\s+\w+\s*;|\bDefaultExecutionSpace\s*\(")
FENCE = re.compile(r"\bKokkos::fence\s*\(")
BLAS = re.compile(r"\bKokkosBlas::\w+\s*\(\s*([^,]*),")

# Before any step, or the very place where instances come from.
EXCEPTIONS = {
    "core/base/parallel/kokkos_compat.hpp": "makes the instances",
    "core/base/parallel/execution.hpp": "holds them",
    "core/base/parallel/host_team.cpp": "asks how many threads Kokkos has",
    "core/kernels/gemm/blas.cpp": "a first product before the program starts",
    "core/kernels/gemm/gemm.cpp": "Kokkos Kernels 3 takes no instance",
    "core/kernels/gemm/gemv.cpp": "the same",
    "core/codec/rows/row_codec.hpp": "remembers users of its table",
    "core/cache/activation_cache.hpp": "holds the cache's own",
    "core/kernels/attention/relative_distances.cpp": "tables are made before anything runs",
    "models/weights.cpp": "weights are loaded before anything runs",
}


def mistakes_in(text):
    """(line, what) of everything without an instance."""
    text = re.sub(r"//[^\n]*", "", text)
    found = []
    for pattern, what in ((COPY, "deep_copy"), (POLICY, "policy"), (BLAS, "BLAS call")):
        for call in pattern.finditer(text):
            if not GIVEN.fullmatch(call.group(1).strip()):
                found.append((call.start(), f"{what} without the instance that was given"))
    for call in FENCE.finditer(text):
        found.append((call.start(), "fence of the whole device"))
    for call in DEFAULT.finditer(text):
        found.append((call.start(), "default instance in place of one that was given"))
    return [(text.count("\n", 0, place) + 1, what) for place, what in sorted(found)]


SAMPLES = [
    ("Kokkos::deep_copy(exec, a, b);", 0),
    ("Kokkos::deep_copy(\n    instances_.copy, a, b);", 0),
    ("Kokkos::deep_copy(a, b);", 1),
    ("Kokkos::deep_copy(a, 0.0f);", 1),
    ("Kokkos::RangePolicy<ExecSpace>(exec, 0, n)", 0),
    ("Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, n)", 0),
    ("Kokkos::RangePolicy<ExecSpace>(0, n)", 1),
    ("Kokkos::fence();", 1),
    ("const ExecSpace exec;", 1),
    ("f(ExecSpace(), 1);", 1),
    ('KokkosBlas::gemm(exec, "N", "T", 1, a, b, 0, c);', 0),
    ('KokkosBlas::gemm("N", "T", 1, a, b, 0, c);', 1),
]
check_samples(mistakes_in, SAMPLES)

mistakes = []
files = [*cpp_files("core", "comm", "models"), "app/output/save_model.cpp"]
for path in map(str, files):
    if path in EXCEPTIONS:
        continue
    for line, what in mistakes_in((ROOT / path).read_text()):
        mistakes.append(f"{path}:{line}: {what}")
finish(mistakes, len(files))
