"""Each fault of docs/guarantees-appendix.md names what shows it: rows of the proof that exist, tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.proof.rows import ROWS
from tests.support.documents import REPOSITORY

_PAGE = REPOSITORY / "docs/guarantees-appendix.md"
_FAULTS = re.findall(
    r"^### (?P<fault>.*)\n(?P<text>(?:(?!#).*\n)*)",
    _PAGE.read_text().partition("\n## Expiry")[0],
    re.MULTILINE,
)
_SHOWN_BY = re.compile(r"^Shown by: (?P<links>(?:.+\n)+)\Z", re.MULTILINE)
_LINK = re.compile(r"\[(?P<name>[^]]+)\]\((?P<target>[^)]+)\)")


def test_the_page_has_the_faults() -> None:
    """Else the tests below would pass over nothing."""
    assert len(_FAULTS) > 70


@pytest.mark.parametrize(("fault", "text"), _FAULTS, ids=[fault for fault, _ in _FAULTS])
def test_a_fault_names_what_shows_it_and_that_exists(fault: str, text: str) -> None:
    shown_by = _SHOWN_BY.search(text.rstrip("\n") + "\n")
    assert shown_by is not None
    links = _LINK.findall(shown_by["links"])
    assert links
    assert ", ".join(f"[{name}]({target})" for name, target in links) == shown_by["links"].strip().replace(
        "\n", " "
    )
    rows = {f"proof-cells.md#{row.id.lower()}" for row in ROWS}
    for name, target in links:
        if target not in rows:
            assert target == f"../tests/{name}"
            assert (_PAGE.parent / target).is_file(), f"{name}, of: {fault}"
