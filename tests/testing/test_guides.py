"""The pages that lead from nothing to a job: their files and commands, as they stand, do what the page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.consoles import commands, masked, run
from tests.support.documents import REPOSITORY, blocks, named_files

pytestmark = [pytest.mark.broker, pytest.mark.timeout(500)]

_PAGE_S = 400
_PYTHON = {
    "docs/quickstart.md": ["1. Write a job", "7. Keep the proof as a test"],
    "docs/guides/testing.md": [
        "The transform alone",
        "The job on a real Kafka",
        "The job's process is killed",
    ],
    "docs/guides/tutorial.md": ["The rules", "The job", "Test it", "A batch function"],
}


@pytest.mark.parametrize(
    "page",
    [
        "docs/quickstart.md",
        pytest.param("docs/guides/testing.md", marks=pytest.mark.slow),
        pytest.param("docs/guides/tutorial.md", marks=pytest.mark.slow),
    ],
)
def test_a_page_leads_to_what_it_shows(page: str, tmp_path: Path) -> None:
    assert list(blocks(page)) == _PYTHON[page]
    files = named_files(page)
    assert [code for code in blocks(page).values() if code not in files.values()] == []
    for name, code in {**named_files("docs/quickstart.md"), **files}.items():
        (tmp_path / name).write_text(code)
    shown = commands(page)
    printed = run(
        [one.line for one in shown],
        tmp_path,
        {
            "EOS_LOCAL__JARS": os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos/jars")),
            "PYTEST_EOS_KAFKA": "process",
            "COLUMNS": "120",
        },
        timeout_s=_PAGE_S,
        each_succeeds=True,
    )
    for ours, theirs in zip(shown, printed, strict=True):
        if any(line.strip() for line in ours.output):
            assert masked(theirs.output) == masked([line for line in ours.output if line.strip()]), ours.line
