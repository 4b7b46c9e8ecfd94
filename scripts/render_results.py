#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the tables of measured figures into README.md and docs/ from docs/results/*.toml.

usage: render_results.py [--check]
  --check   write nothing; exit status 1 if a table differs from the data

A table stands between `<!-- results: NAME -->` and `<!-- end of results -->` and comes from
docs/results/NAME.toml: `columns`, each with a heading and a cell in Python's format syntax, and one
[[row]] per line. Every row has, itself or from its file, what makes a figure checkable: `commit`,
`commit_is` ("measured": that revision was measured; "recorded": it wrote the figure down), `date`,
`machine` (of machines.toml) and `command`. A row's `measured` may name its `figures`. Needs Python
3.11; exit status 77 without it.
"""

import argparse
import pathlib
import re
import subprocess
import sys

try:
    import tomllib
except ImportError:
    print("skipped: reading TOML needs Python 3.11")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
NEEDED = ("commit", "commit_is", "date", "machine", "command")
BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


class DataError(Exception):
    """Data that cannot be rendered; the message is for the user."""


def read(path):
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: {error}") from error


def is_commit(revision):
    """True also where there is no repository, or only its newest revisions, to ask."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    try:
        if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
            return True
        return git("cat-file", "-e", revision + "^{commit}").returncode == 0
    except OSError:
        return True


def rows_of(path, machines):
    data = read(path)
    shared = {key: value for key, value in data.items() if key not in ("columns", "row")}
    rows = []
    for number, own in enumerate(data.get("row", []), start=1):
        row = {**shared, **own}
        where = f"{path}, row {number}"
        missing = [key for key in NEEDED if not row.get(key)]
        if missing:
            raise DataError(f"{where}: no {', '.join(missing)}")
        if row["commit_is"] not in ("measured", "recorded"):
            raise DataError(f"{where}: commit_is is '{row['commit_is']}', not measured or recorded")
        if row["machine"] not in machines:
            raise DataError(f"{where}: machines.toml has no machine '{row['machine']}'")
        if not is_commit(row["commit"]):
            raise DataError(f"{where}: the repository has no commit '{row['commit']}'")
        rows.append((where, row))
    if not rows or not data.get("columns"):
        raise DataError(f"{path}: no columns or no rows")
    return data["columns"], rows


def fill(where, text, values):
    try:
        return text.format_map(values)
    except (KeyError, ValueError, IndexError) as error:
        raise DataError(f"{where}: '{text}': {error!r}") from error


def origin(row, machines):
    """Where the figures of a row come from, for the line under a table."""
    machine = machines[row["machine"]]
    verb = "Measured" if row["commit_is"] == "measured" else "Recorded"
    text = f"{verb} at commit {row['commit']} ({row['date']})"
    if "software" not in machine:
        return text + f"; {machine['name']}"
    return text + f" on {machine['name']}; {machine['software']}"


def table(path, machines):
    columns, rows = rows_of(path, machines)
    lines = ["| " + " | ".join(column["heading"] for column in columns) + " |",
             "|" + "---|" * len(columns)]
    for where, row in rows:
        values = dict(row)
        if "measured" in row:
            values["measured"] = fill(where, row["measured"], row.get("figures", {}))
        cells = [fill(where, column["cell"], values) for column in columns]
        if any("|" in cell or "\n" in cell for cell in cells):
            raise DataError(f"{where}: a cell has a | or a line break")
        lines.append("| " + " | ".join(cells) + " |")
    if len({row["machine"] for _, row in rows}) > 1 and \
            not any("{machine}" in column["cell"] for column in columns):
        raise DataError(f"{path}: rows of several machines, and no column that names them")
    return "\n".join([*lines, "", footer([row for _, row in rows], machines)])


def footer(rows, machines):
    first = rows[0]
    if all(row[key] == first[key] for row in rows for key in NEEDED):
        text = origin(first, machines)
        text += f"; command `{first['command']}`" if first["command"] != "not kept" \
            else "; the command was not kept"
        return text + (f"; {first['note']}." if first.get("note") else ".")
    used = sorted({row["machine"] for row in rows})
    if len(used) == 1:
        return "Machine: " + "; ".join(machines[used[0]].values()) + "."
    return "\n".join(["Machines:", "", *(f"- `{name}`: {'; '.join(machines[name].values())}."
                                        for name in used)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check

    machines = read(RESULTS / "machines.toml")
    unused = {path.stem for path in RESULTS.glob("*.toml")} - {"machines"}
    stale, tables = [], 0
    for document in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]):
        old = document.read_text(encoding="utf-8")
        names = [match.group(2) for match in BLOCK.finditer(old)]
        if old.count("<!-- results:") != len(names):
            raise DataError(f"{document}: a table of results has no end")
        tables += len(names)
        unused -= set(names)
        new = BLOCK.sub(lambda match: match.group(1) + table(RESULTS / f"{match.group(2)}.toml",
                                                             machines) + "\n" + match.group(3), old)
        if new == old:
            continue
        stale.append(document.relative_to(ROOT))
        if not check:
            document.write_text(new, encoding="utf-8")
    if unused:
        raise DataError("no document shows " + ", ".join(f"{name}.toml" for name in sorted(unused)))
    for document in stale:
        print(f"{document}: " + ("not as docs/results says: run scripts/render_results.py" if check
                                 else "written"))
    print(f"{tables} tables, {len(stale)} {'stale' if check else 'changed'}")
    return 1 if (check and stale) or not tables else 0


try:
    sys.exit(main())
except DataError as error:
    sys.exit(str(error))
