# SPDX-License-Identifier: BSD-3-Clause
"""Comments, messages and documents avoid phrases that are not idiomatic English, comments begin with
a verb or a noun phrase, and sentences of documents have at most 35 words."""

import re
import sys

from sources import ROOT, check_samples, files_below, finish

LONGEST_SENTENCE = 35
# Phrase, and what to write instead.
PHRASES = {
    r"\banew\b": "again, from scratch",
    r"\b(?:has|have|had|is|are) none\b": "lacks, is missing, there is no",
    r"\b(?:has|have) not\b(?! (?:been|yet|\w+ed)\b)": "does not have",
    r"\bis no valid\b": "is not a valid",
    r"\bof which\b": "a new sentence",
    r"\bwhat (?:is left|remains) of\b": "the remaining, the rest of",
    r"\b(?:lies|lie|stands|stand) behind\b": "is stored after, follows",
    r"\blets? go of\b": "releases",
    r"\b(?:is|are) told\b": "is reported, is passed",
    r"\bwants?\b": "requires, expects",
    r"\btaken for\b": "treated as",
    r"\bso many\b(?! that)": "a number or the parameter's name",
    r"\bas they are(?=[.,;:)]|$)": "unchanged",
    r"\bgo(?:es|ing)? on (?:from|where|with|without|behind|after|as)\b": "resumes from, continues",
    r"\bfor ever\b": "forever",
    r"\bdo(?:es)? without\b": "does not need",
    r"\b(?:brought|brings?) (?:\w+ )*to the disk\b": "flushed to the disk",
    r"\bnow and then\b": "sometimes",
    r"\bgood until\b": "valid until",
    r"\bmend\b": "correct",
    r"\bwhat (?:is|was) there\b": "the existing, the former",
}
FIRST_WORDS = re.compile(r"(?:Of|What|That of|Those|Whether|Where|How|Which|Why|Who)\b")
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
ADJACENT_LITERALS = re.compile(rf"{LITERAL}(?:\s*{LITERAL})*")
COMMENT = re.compile(r"(?://[/!]?<?|(?<!\S)#)\s+(.*)")
PATTERNS = [(re.compile(phrase, re.IGNORECASE), use) for phrase, use in PHRASES.items()]


def phrases_in(text):
    return [f"'{found.group()}': write {use}"
            for pattern, use in PATTERNS for found in pattern.finditer(text)]


def comment_of(line):
    found = COMMENT.search(line)
    return found.group(1) if found and "://" not in line[:found.start() + 3] else None


def mistakes_in_messages(text):
    """Mistakes in string literals of C++; parts of one literal are joined."""
    code = re.sub(r"(?<!:)//.*", "", text)
    mistakes = []
    for literal in ADJACENT_LITERALS.finditer(code):
        line = 1 + code.count("\n", 0, literal.start())
        joined = "".join(part[1:-1] for part in re.findall(LITERAL, literal.group()))
        mistakes += [f"{line}: {what}" for what in phrases_in(joined)]
    return mistakes


def mistakes_in_source(text):
    mistakes, before = [], None
    for number, line in enumerate(text.splitlines(), start=1):
        comment = comment_of(line)
        if comment is not None:
            mistakes += [f"{number}: {what}" for what in phrases_in(comment)]
            begins = before is None or not line.lstrip().startswith(("//", "#"))
            if begins and FIRST_WORDS.match(comment):
                mistakes.append(f"{number}: a comment begins with '{comment.split()[0]}'")
        before = comment
    return mistakes


def prose_of(text):
    """A document without code, tables and links' targets; lines keep their numbers."""
    text = re.sub(r"^```.*?^```", lambda found: re.sub(r"[^\n]", "", found.group()), text,
                  flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]*`", "CODE", text)


def mistakes_in_document(text):
    mistakes = []
    for number, line in enumerate(prose_of(text).splitlines(), start=1):
        mistakes += [f"{number}: {what}" for what in phrases_in(line)]
        for sentence in re.split(r"(?<=[.!?:;])\s+", line):
            words = len(sentence.split())
            if words > LONGEST_SENTENCE:
                mistakes.append(f"{number}: {words} words, at most {LONGEST_SENTENCE}: "
                                f"'{' '.join(sentence.split()[:6])} ...'")
    return mistakes


check_samples(mistakes_in_source, [
    ("// Returns the sum.\nint f();  // of a row, anew\n", 1), ("/// Whether it runs\n", 1),
    ("int f();  ///< Of a row\n", 1), ("// How it runs, for ever\n", 2),
    ("# It wants a file, of which it has none\n", 3),
    ("// It is complete when all ranks\n// Where a rank fails it is not.\n", 0)])
check_samples(mistakes_in_messages, [
    ('f("it begins "\n  "anew");  // anew\n', 1), ("f('\"', \"for ever\");\n", 0),
    ('f("https://anew.org", "wants");\n', 2)])
check_samples(mistakes_in_document, [
    ("A sentence.\n", 0), ("word " * 36 + "\n", 1), ("| " + "word " * 40 + "|\n", 0),
    ("```\nanew\n```\nBegin anew.\n", 1)])

rooms = sys.argv[1:] or ("app", "comm", "core", "docs", "inputs", "models", "scripts", "tests")
sources = [path for path in files_below(*rooms)
           if path.suffix in (".hpp", ".cpp", ".py", ".sh", ".cmake", ".toml", ".sbatch")
           or path.name == "CMakeLists.txt"]
documents = [path for path in files_below(*rooms) if path.suffix == ".md"]
if not sys.argv[1:]:
    documents += [path for path in files_below("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
mistakes = []
for path in sources + documents:
    if path.parts[:2] == ("tests", "style"):
        continue
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    find_mistakes = mistakes_in_document if path.suffix == ".md" else mistakes_in_source
    mistakes += [f"{path}:{mistake}" for mistake in find_mistakes(text)]
    if path.suffix in (".hpp", ".cpp") and path.parts[0] in ("app", "comm", "core", "models", "tests"):
        mistakes += [f"{path}:{mistake}" for mistake in mistakes_in_messages(text)]
finish(mistakes, len(sources) + len(documents))
