"""Each accident that the guarantees speak of names what shows it: rows of the proof that exist, tests that exist."""

from __future__ import annotations

import re

from tests.proof.rows import ROWS
from tests.support.documents import REPOSITORY

_GUARANTEES = (REPOSITORY / "docs/GUARANTEES.md").read_text()
_HEAD = "| accident | what happens | shown by |\n|---|---|---|\n"
_ROW = re.compile(r"A\d+(-\w+)?")


def test_every_accident_names_what_shows_it_and_that_exists() -> None:
    rows = {row.id for row in ROWS}
    table = _GUARANTEES.partition(_HEAD)[2].partition("\n\n")[0].splitlines()
    assert len(table) > 30
    for line in table:
        shown_by = line.removesuffix(" |").rpartition(" | ")[2]
        for one in shown_by.split(", "):
            exists = one in rows if _ROW.fullmatch(one) else (REPOSITORY / "tests" / one).is_file()
            assert exists, f"{one}, of: {line}"
