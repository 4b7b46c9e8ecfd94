# SPDX-License-Identifier: BSD-3-Clause
"""Links inside the documents lead to files and headings that are there, files that they name exist,
every document is linked, and the README is short."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
README_LINES = 200
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
# A file of the project, named in code style; NAME and the like stand for others.
NAMED = re.compile(r"`((?:app|comm|core|docs|inputs|models|scripts|tests)/[a-z0-9_./-]+\.\w+)`")


def without_code(text):
    """The text with fenced code emptied, lines in their places."""
    return re.sub(r"^```.*?^```", lambda found: re.sub(r"[^\n]", "", found.group()), text,
                  flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors of all headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code(text), flags=re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchor, count = base, 0
        while anchor in found:
            count += 1
            anchor = f"{base}-{count}"
        found.add(anchor)
    return found


def mistakes_in(document, text, linked):
    for found in LINK.finditer(without_code(text)):
        target, _, anchor = found.group(1).partition("#")
        if re.match(r"\w+:", target):
            continue
        number = text.count("\n", 0, found.start()) + 1
        place = (document.parent / target).resolve() if target else document
        if not place.is_relative_to(ROOT) or not place.exists():
            yield f"{document.relative_to(ROOT)}:{number}: there is no {target}"
            continue
        linked.add(place)
        if anchor and (place.suffix != ".md"
                       or anchor not in anchors(place.read_text(encoding="utf-8"))):
            yield f"{document.relative_to(ROOT)}:{number}: {place.name} has no heading #{anchor}"
    for found in NAMED.finditer(without_code(text)):
        if not (ROOT / found.group(1)).exists():
            number = text.count("\n", 0, found.start()) + 1
            yield f"{document.relative_to(ROOT)}:{number}: there is no {found.group(1)}"


FOLDERS = ("app", "comm", "core", "docs", "inputs", "models", "scripts", "tests")
documents = sorted([*ROOT.glob("*.md"),
                    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
linked, mistakes = set(), []
for document in documents:
    mistakes += mistakes_in(document, document.read_text(encoding="utf-8"), linked)
for document in documents:
    if document not in linked and document.name != "README.md":
        mistakes.append(f"{document.relative_to(ROOT)}: no document links to it")
lines = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
if lines > README_LINES:
    mistakes.append(f"README.md: {lines} lines, at most {README_LINES}; the rest belongs into docs")
for mistake in mistakes:
    print(mistake)
print(f"{len(documents)} documents, {len(mistakes)} mistakes")
sys.exit(1 if mistakes or not documents else 0)
