"""Checks that README, docs/, help texts and descriptions of settings keep to plain English: `make prose`.

It reports what proselint finds, words for which the glossary has another one, long sentences and long pages. Code does not count.
(Vale knows more, but its PyPI package downloads the program when it first runs, so it cannot be locked.)
"""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

REPOSITORY = Path(__file__).parents[1]
SENTENCE_WORDS = 30  # 25 are the habit
PAGE_WORDS = 1_250  # about three screens

# Checks of proselint that are off, and why.
OFF = {
    "typography": "pages are Markdown with ASCII quotes; names of commands and clients have signs and no accents",
    "misc.phrasal_adjectives.ly": "exactly-once is Kafka's term",
    "dates_times.dates.decade_apostrophes": "KIP-890's is no decade",
    "lexical_illusions": "a word before code and the same word behind it look like a repetition",
}
# What is not said here -> what is.
WORDS = {
    "torments?": "faults, a chaos test",
    "convicted": "found",
    "dead letters?(?! topic)": "dead-letter records",
    "rooms?(?! on)": "package, module",
    "accidents?": "fault",
    "a person decides": "the operator decides",
    "whitelist": "allow-list",
}
# Written by a program, from facts that are checked elsewhere.
GENERATED = frozenset({"docs/LICENCES.md", "docs/MUTANTS.md", "docs/PROOF.md", "docs/proof-cells.md"})
# Pages that are longer than three screens, and why.
LONG = {
    "docs/DESIGN.md": "the whole of the design, looked up by heading",
    "docs/guides/faq.md": "a reference, by error text",
    "docs/reference/cli.md": "a reference",
    "docs/reference/prove.md": "a reference",
    "docs/reference/settings.md": "a reference",
    "docs/guarantees-appendix.md": "an appendix",
    "docs/performance-appendix.md": "an appendix",
}

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1`*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]+`+|<!--.*?-->|\]\([^)\n]*\)|https?://\S+", re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}(?! *(?:[-*]|\d+\.) ).*(?:\n|\Z))+")
_BREAK = re.compile(r"\n\s*\n|\n *(?:[-*]|\d+\.) |[|·]|^#.*$|(?<=[.!?:;])[*_)\"\u201d]*\s+", re.MULTILINE)
_WORD = re.compile("[\\w`][\\w'\u2019.,-]*")
_UNSAID = re.compile(
    "|".join(rf"(?P<w{number}>\b{word}\b)" for number, word in enumerate(WORDS)), re.IGNORECASE
)


class Finding(NamedTuple):
    """What is wrong, and where."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> dict[str, str]:
    """Name -> text of README, of the pages of docs/ that people write, and of those that are made of help texts and settings."""
    found = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    texts = {str(page.relative_to(REPOSITORY)): page.read_text() for page in found}
    sys.path.insert(0, str(REPOSITORY / "docs/site"))
    made = import_module("generated")
    texts |= {"docs/reference/cli.md": made.commands(), "docs/reference/settings.md": made.settings()}
    return {name: text for name, text in texts.items() if name not in GENERATED}


def prose_of(text: str) -> str:
    """The text without its code, each word in the line where it was."""
    for pattern, instead in ((_FENCE, ""), (_INDENTED, ""), (_CODE, "`")):
        text = pattern.sub(lambda found, sign=instead: sign + "\n" * found[0].count("\n"), text)  # type: ignore[misc]
    return text


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Each sentence, heading and cell, with the line where it begins."""
    at = 0
    for match in [*_BREAK.finditer(prose), None]:
        begin, at, end = (at, len(prose), len(prose)) if match is None else (at, match.end(), match.start())
        yield prose.count("\n", 0, begin) + 1, prose[begin:end]


def findings(page: str, text: str) -> Iterator[Finding]:
    """All that is wrong with a page."""
    prose = prose_of(text)
    yield from (Finding(page, *one) for one in _of_proselint(page, prose))
    for match in _UNSAID.finditer(prose):
        said = WORDS[list(WORDS)[int(str(match.lastgroup)[1:])]]
        yield Finding(page, prose.count("\n", 0, match.start()) + 1, f"{match[0]!r}: say {said}")
    for line, sentence in sentences(prose):
        if (words := len(_WORD.findall(sentence))) > SENTENCE_WORDS:
            begin = " ".join(sentence.split()[:6])
            yield Finding(page, line, f"a sentence of {words} words, at most {SENTENCE_WORDS}: {begin} …")
    if (words := len(_WORD.findall(prose))) > PAGE_WORDS and page not in LONG:
        yield Finding(page, 1, f"{words:,} words, at most {PAGE_WORDS:,}: make two pages of it")


@cache
def _checks() -> dict[str, bool]:
    """Of proselint: the more special a name, the earlier it has to stand."""
    CheckRegistry().register_many(__register__)
    checks = {**DEFAULT["checks"], **dict.fromkeys(OFF, False)}
    return dict(sorted(checks.items(), key=lambda one: -one[0].count(".")))


def _of_proselint(page: str, prose: str) -> Iterator[tuple[int, str]]:
    if not prose.strip():
        return
    config: Any = {**DEFAULT, "checks": _checks()}
    for found in LintFile(page, prose).lint(config):
        line, _ = found.pos
        yield line, f"{found.check_result.message} ({found.check_result.check_path})"


def main() -> int:
    """Print what is wrong; whether anything is."""
    found = [one for page, text in pages().items() for one in findings(page, text)]
    for one in found:
        print(one)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
