"""docs/FENCED.md: its commands do what it says, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.consoles import commands, masked, run
from tests.support.documents import blocks

pytestmark = [pytest.mark.broker, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
PAGE = "docs/FENCED.md"


def test_what_the_page_shows_of_a_fence_is_what_its_commands_print(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(blocks("README.md")["A job"])
    shown = commands(PAGE)
    printed = run(
        [one.line for one in shown],
        tmp_path,
        {"EOS_LOCAL__JARS": str(REPOSITORY / ".eos/jars"), "COLUMNS": "120"},
        timeout_s=240,
    )
    for ours, theirs in zip(shown, printed, strict=True):
        if ours.output:
            assert masked(theirs.output) == masked([line for line in ours.output if line.strip()]), ours.line
