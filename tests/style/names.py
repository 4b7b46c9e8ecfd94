# SPDX-License-Identifier: BSD-3-Clause
"""Sources of a folder are one unit of a unity build: names in their unnamed namespaces differ, functions
included, since an overload of another file could be called instead."""

import collections
import re

from sources import ROOT, check_samples, cpp_files, finish

# A source of a target of its own.
ALONE = {"core/kernels/gemm/onednn_module.cpp"}
NOISE = re.compile(r"""//[^\n]*|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'""",
                   re.MULTILINE)
NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*)$")
TYPE = re.compile(r"(?:struct|class|enum class|enum|union) (\w+)|using (\w+) =")
FUNCTION = re.compile(r"[^(=]*?\b(\w+) ?\(")
VALUE = re.compile(r"[^=({]*?\b([A-Za-z_]\w*)(?:\[[^\]]*\])* ?(?:[=({]|$)")


def name_of(statement):
    """The name that a declaration declares; None: none."""
    statement = re.sub(r"^template ?<.*?>(?= ?[a-zA-Z])", "", statement).strip()
    statement = re.sub(r"\[\[\w+\]\] ?", "", statement)
    if re.match(r"using namespace|using [\w:]+$|static_assert|namespace \w+ =|extern", statement):
        return None
    for pattern in (TYPE, FUNCTION, VALUE):
        if found := pattern.match(statement):
            return next(name for name in found.groups() if name)
    return None


def names_in(text):
    """(namespaces around it, name) of all that the unnamed namespaces of a source contain."""
    names, spaces, statement = set(), [], ""
    code = NOISE.sub(lambda noise: '""' if noise.group()[0] in "\"'" else "", text)
    for character in code:
        if character not in "{};":
            statement += character
            continue
        statement = " ".join(statement.split())
        in_spaces = all(space is not None for space in spaces)
        if character in "{;" and statement and in_spaces and "" in spaces:
            if not NAMESPACE.match(statement) and (name := name_of(statement)):
                names.add(("::".join(space for space in spaces if space), name))
        if character == "{":
            space = NAMESPACE.match(statement)
            spaces.append(space.group(1) if space and in_spaces else None)
        elif character == "}" and spaces:
            spaces.pop()
        statement = ""
    return names


check_samples(names_in, [
    ("#include <b>\nnamespace a {\nint f();\nnamespace {\nconstexpr int k = 2; // int m;\nstruct S {\nint x;\n};\n"
     "template <class T>\nint g(T t) {\n  int y = 0;\n}\n}  // namespace\nint h() {\n}\n}\n", 3),
    ("namespace {\nnamespace fs = std::filesystem;\nusing namespace b;\nthread_local bool inside = false;\n"
     "const char* const text = \"int f();\";\nstd::array<int, 3> list{1, 2};\n}\n", 3)])

mistakes, places = [], collections.defaultdict(list)
sources = [path for path in cpp_files("app", "comm", "core", "models")
           if path.suffix == ".cpp" and str(path) not in ALONE]
for path in sources:
    for spaces, name in names_in((ROOT / path).read_text(encoding="utf-8")):
        places[path.parent, spaces, name].append(path)
for (_, _, name), paths in sorted(places.items(), key=str):
    if len(paths) > 1:
        mistakes.append(f"{paths[1]}: '{name}' is also in {paths[0].name}")
finish(mistakes, len(sources))
