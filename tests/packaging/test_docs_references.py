"""Where messages and configuration send a reader: the page is there, and has that heading."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.documents import REPOSITORY

_PAGE = r"(?P<page>docs/[\w/-]+\.md)"
_REFERENCES = [
    re.compile(_PAGE + r""",?\s+(?:#\s*)?['"](?P<heading>[^'"]+)['"]"""),
    re.compile(r"'(?P<heading>[^']+)' in " + _PAGE),
    re.compile(_PAGE + r"#(?P<anchor>[\w-]+)"),
]
_CONFIGURATION = ["docker/**/*.yaml", "docker/**/*.yml", "conf/*.toml"]


def _texts() -> Iterator[str]:
    for path in sorted((REPOSITORY / "eos").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    for pattern in ["eos/**/*.html", *_CONFIGURATION]:
        yield from (path.read_text() for path in sorted(REPOSITORY.glob(pattern)))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _found() -> set[tuple[str, str]]:
    return {
        (found["page"], found.groupdict().get("anchor") or _anchor(found["heading"]))
        for text in _texts()
        for pattern in _REFERENCES
        for found in pattern.finditer(text)
    }


def test_references_are_found() -> None:
    """Else the test below would pass over nothing."""
    assert ("docs/operations/lso.md", "the-lso-is-stuck") in _found()
    assert ("docs/reference/spark-clusters.md", "what-an-executor-needs") in _found()
    assert len(_found()) > 10


@pytest.mark.parametrize(("page", "anchor"), sorted(_found()))
def test_a_page_has_the_heading_that_a_message_names(page: str, anchor: str) -> None:
    headings = re.findall(r"^#+ (.*)$", (REPOSITORY / page).read_text(), re.MULTILINE)
    assert anchor in {_anchor(heading) for heading in headings}
