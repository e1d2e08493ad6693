"""`.ci/prose.py`: what it finds in a page, and that its exceptions are needed."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.ci_scripts import script_of_ci
from tests.support.documents import REPOSITORY

_LONG_SENTENCE = "The job " + "reads a record and then " * 7 + "stops."


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    return script_of_ci("prose")


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        (f"# Title\n\nShort.\n{_LONG_SENTENCE}\n", 4, "a sentence of 38 words, at most 30: The job reads a"),
        ("One.\n\nIt was convicted.\n", 3, "'convicted': say found"),
        ("One.\n\nSo it waits\nfor ever.\n", 4, "archaic"),
        ("A record.\n" * 700, 1, "1,400 words, at most 1,250: make two pages of it"),
    ],
    ids=["a sentence", "a word", "proselint", "a page"],
)
def test_what_is_wrong_is_found_with_its_line(prose: ModuleType, text: str, line: int, found: str) -> None:
    [finding] = prose.findings("docs/page.md", text)
    assert finding.line == line
    assert found in finding.text


@pytest.mark.parametrize(
    "text",
    [
        f"Short.\n\n```\n{_LONG_SENTENCE} convicted\n```\n",
        f"- A list:\n\n      {_LONG_SENTENCE}\n",
        "Say `convicted`, and [why](https://convicted.example).\n",
        "| a | b |\n|---|---|\n" + f"| {'word ' * 20} | {'word ' * 20} |\n",
    ],
    ids=["code", "code in a list", "in a line", "cells"],
)
def test_code_addresses_and_the_cells_of_a_row_are_no_sentence(prose: ModuleType, text: str) -> None:
    assert list(prose.findings("docs/page.md", text)) == []


def test_an_exception_is_still_needed(prose: ModuleType) -> None:
    pages = prose.pages()
    assert {page for page in prose.GENERATED if not (REPOSITORY / page).is_file()} == set()
    assert prose.LONG.keys() <= set(pages)
    lengths = {page: pages[page] for page in prose.LONG}
    prose.LONG.clear()
    for page, text in lengths.items():
        assert any("make two pages" in one.text for one in prose.findings(page, text)), page
