# SPDX-License-Identifier: BSD-3-Clause
"""No host code touches an element of a device View: not by view(i), view[i], view.access(i), nor
through std:: algorithms on its pointer. Where host and device share memory, as in the tests, that
works; elsewhere it ends the program.

Device Views are known by the names of their types. Kernels are what follows DELTAPIPE_LAMBDA,
KOKKOS_FUNCTION and the like. Kernels begin with DELTAPIPE_LAMBDA, not with KOKKOS_LAMBDA.
"""

import re

from sources import ROOT, check_samples, cpp_files, finish

DEVICE_TYPES = (r"(?:Vector|Matrix|VectorRef|MatrixRef)\s*<[^;(){}<>]*(?:<[^;(){}<>]*>)?[^;(){}<>]*>"
                r"|DeviceBytes|Activations|Records")
DECLARATION = re.compile(rf"\b(?:{DEVICE_TYPES})\s*(?:const\s*)?[&]{{0,2}}\s*"
                         r"(\w+(?:\s*,\s*\w+)*)\s*(?=[;,)({=:\[])")
CONTAINER = re.compile(rf"\b(?:std::)?(?:vector|array|optional)\s*<\s*(?:{DEVICE_TYPES})[^;(){{}}<>]*>"
                       r"\s*[&]?\s*(\w+)\s*[;,)({=]")
KERNEL = re.compile(r"\b(?:DELTAPIPE_LAMBDA|KOKKOS_(?:CLASS_LAMBDA|LAMBDA|INLINE_FUNCTION|"
                    r"FORCEINLINE_FUNCTION|FUNCTION|IMPL_FUNCTION))\b")
ALGORITHM = re.compile(r"\b(?:std::|Kokkos::)?(?:copy|copy_n|fill|fill_n|memcpy|memmove|memset|"
                       r"iota|accumulate|sort|transform|generate)\s*\(")


def blanked(text):
    """The text without comments and literals, every character in its place."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                         r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(text, start):
    """The place of the bracket that closes the one at `start`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    waiting = []
    for place in range(start, len(text)):
        if text[place] in pairs:
            waiting.append(pairs[text[place]])
        elif waiting and text[place] == waiting[-1]:
            waiting.pop()
            if not waiting:
                return place
    return len(text)


def kernel_ranges(text):
    ranges = []
    for kernel in KERNEL.finditer(text):
        place = kernel.end()
        while place < len(text) and text[place] not in "{;":
            place = closing(text, place) + 1 if text[place] in "([" else place + 1
        if place < len(text) and text[place] == "{":
            ranges.append((kernel.start(), closing(text, place)))
    return ranges


def block_starts(text):
    """For every place the start of the innermost block that it is in, -1 outside of all."""
    starts, open_blocks = [], []
    for place, letter in enumerate(text):
        if letter == "}" and open_blocks:
            open_blocks.pop()
        starts.append(open_blocks[-1] if open_blocks else -1)
        if letter == "{":
            open_blocks.append(place)
    return starts


def parenthesis_depths(text):
    depths, depth = [], 0
    for letter in text:
        depths.append(depth)
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth = max(0, depth - 1)
        elif letter in "{}":
            depth = 0
    return depths


def device_names(text):
    """[(name, place of the declaration, begin and end of where it holds)]."""
    blocks, depths = block_starts(text), parenthesis_depths(text)
    found = []
    for declaration in DECLARATION.finditer(text):
        place = declaration.start(1)
        after = text[declaration.end():]
        if depths[place] == 0 and after.startswith("(") and re.match(
                r"\s*(?:\{|const\b|override\b|noexcept\b|=\s*(?:0|default|delete)\b|->)",
                text[closing(text, declaration.end()) + 1:]):
            continue  # a function that returns a View
        if depths[place] > 0:  # a parameter: its function's body
            body = text.find("{", place)
            end_of_statement = text.find(";", place)
            if body < 0 or 0 <= end_of_statement < body:
                continue
            scope = (place, closing(text, body))
        else:
            start = blocks[place]
            scope = (place if start >= 0 else 0, closing(text, start) if start >= 0 else len(text))
        for name in re.split(r"\s*,\s*", declaration.group(1)):
            if depths[place] > 0 and name != re.split(r"\s*,\s*", declaration.group(1))[0]:
                break  # the next parameter's type
            found.append((name, place, scope))
    return found


def is_initialiser(text, begin, depths):
    """name(...) in a constructor's list of initialisers."""
    before = text[:begin].rstrip()
    open_bracket = text.index("(", begin)
    after = text[closing(text, open_bracket) + 1:].lstrip()[:1]
    return depths[begin] == 0 and before[-1:] in (":", ",") and after in (",", "{")


def is_member_name(name):
    return name.endswith("_") or re.search(r"_[A-Z0-9]+$", name) is not None


def mistakes_in(text, members=(), containers=()):
    """(line, name) of every access; `members` and `containers` of Views hold everywhere."""
    text = blanked(text)
    kernels, depths = kernel_ranges(text), parenthesis_depths(text)
    names = device_names(text)
    names += [(name, -1, (0, len(text))) for name in members]
    seen = {}
    for name, declared, (begin, end) in names:
        # A member may be reached through its object; a local name after a dot is something else.
        before_name = r"(?<!\w)" if declared < 0 or name.endswith("_") else r"(?<![\w.>])(?<!::)"
        access = re.compile(rf"{before_name}{re.escape(name)}\s*"
                            r"(?:\(|\[|\.access\s*\(|\.data\(\)\s*\[)")
        for found in access.finditer(text, begin, end):
            start = text.rindex(name, found.start(), found.end())
            if any(a <= start < b for a, b in kernels) or start == declared:
                continue
            opened = found.group()[-1]
            if opened == "(" and ".access" not in found.group():
                before = text[:start].rstrip()
                # `Matrix<float> name(...)` constructs; a word or > before a name is its type.
                if re.search(r"[\w>]$", before) and not re.search(r"\breturn$", before):
                    continue
                if is_initialiser(text, start, depths):
                    continue
            seen[start] = name
        for call in ALGORITHM.finditer(text, begin, end):
            arguments = text[call.end():closing(text, call.end() - 1)]
            if re.search(rf"(?<!\w){re.escape(name)}\.data\(\)", arguments) and \
                    not any(a <= call.start() < b for a, b in kernels):
                seen[call.start()] = name
    for found in re.finditer(r"\.(rounded|lower)\s*[(\[]", text):  # of halves.hpp's structs
        if not any(a <= found.start() < b for a, b in kernels):
            seen[found.start()] = found.group(1)
    for name in {found.group(1) for found in CONTAINER.finditer(text)} | set(containers):
        element = re.compile(rf"(?<!\w){re.escape(name)}(?:\.(?:back|front|value)\(\)|"
                             r"\[[^\]]*\]|\.at\([^)]*\))\s*(?:\(|\[|\.access\s*\()")
        for found in element.finditer(text):
            if not any(a <= found.start() < b for a, b in kernels):
                seen[found.start()] = name
    return sorted((text.count("\n", 0, place) + 1, name) for place, name in seen.items())


def members_of(text):
    """Device Views among a header's class members."""
    text = blanked(text)
    depths = parenthesis_depths(text)
    names = set()
    for name, place, _ in device_names(text):
        if depths[place] == 0 and not any(a <= place < b for a, b in kernel_ranges(text)):
            names.add(name)
    return {name for name in names if is_member_name(name)}


def containers_of(text):
    return {found.group(1) for found in CONTAINER.finditer(blanked(text))}


SAMPLES = [
    ("void f(const MatrixRef<float>& x) { g(&x(0, 0)); }", 1),
    ("void f() { Vector<float> x(\"\", 3); x(1) = 2; }", 1),
    ("void f() { Vector<float> x(\"\", 3); x[1] = 2; return x(0); }", 2),
    ("void f(const DeviceBytes& x) { std::fill_n(x.data(), 3, 0); }", 1),
    ("void f(const DeviceBytes& x) { x.access(3) = 1; }", 1),
    ("struct S { Matrix<double> x_NC; }; void f(S& s) { s.x_NC.data()[3] = 1; }", 0),
    ("struct S { std::vector<Matrix<float>> x_NC; void f() { g(&x_NC.back()(1, 0)); } };", 1),
    ("struct S { std::vector<Matrix<float>> x_NC; void f() { g(x_NC[1](1, 0)); } };", 1),
    ("struct S { std::vector<Matrix<float>> x_NC; void f() { g(x_NC[1].data()); } };", 0),
    ("void f(const VectorHalves& halves) { g(halves.rounded(3)); }", 1),
    ("void f(const VectorHalves& halves) { g(halves.lower.data()); }", 0),
    ("VectorRef<float> value(int i) const { return v.value(i); }", 0),
    ("void f() { const VectorRef<float> x = s.x(1); }", 0),
    ("void f(const VectorRef<float>& x) { run(DELTAPIPE_LAMBDA(int i) { x(i) = 1; }); }", 0),
    ("KOKKOS_INLINE_FUNCTION void f(const VectorRef<float>& x) { x(1) = 1; }", 0),
    ("void f(const VectorRef<float>& x) { g(x.data() + 3, x.extent(0)); }", 0),
    ("S::S(int x) : a_(x), b_(1) {}\nstruct S { Vector<float> a_, b_; };", 0),
]
check_samples(mistakes_in, SAMPLES)

mistakes = []
files = cpp_files("core", "comm", "models", "app") + cpp_files("tests/support")
members = {path: members_of((ROOT / path).read_text()) for path in files if path.suffix == ".hpp"}
containers = {path: containers_of((ROOT / path).read_text()) for path in members}
for path in files:
    header = path.with_suffix(".hpp")
    for line, name in mistakes_in((ROOT / path).read_text(), sorted(members.get(header, ())),
                                  sorted(containers.get(header, ()))):
        mistakes.append(f"{path}:{line}: element of the device View {name} outside a kernel")
# A lambda for hosts and devices is not safe in templates (core/base/parallel/kokkos_compat.hpp).
for path in cpp_files("core", "comm", "models", "app", "tests"):
    for line, text in enumerate((ROOT / path).read_text().splitlines(), 1):
        if "KOKKOS_LAMBDA" in text and path.name != "kokkos_compat.hpp":
            mistakes.append(f"{path}:{line}: KOKKOS_LAMBDA instead of DELTAPIPE_LAMBDA")
finish(mistakes, len(files))
