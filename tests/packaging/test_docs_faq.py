"""docs/guides/faq.md: what it quotes of messages stands in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from eos.pages import ENTRIES, pattern_of
from tests.support.documents import REPOSITORY

_PAGE = (REPOSITORY / "docs/guides/faq.md").read_text()
_QUOTED = re.findall(r"^### `(.*)`$", _PAGE, re.MULTILINE)
_ENTRIES = REPOSITORY / "eos/pages.py"  # it quotes them too
_ANY = "\0"  # what an f-string fills in


@cache
def _messages() -> str:
    return "\n".join(
        text
        for path in sorted({*(REPOSITORY / "eos").rglob("*.py")} - {_ENTRIES})
        for text in _texts(path.read_text())
    )


def _texts(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else _ANY for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_page_quotes_messages() -> None:
    assert len(_QUOTED) > 15


@pytest.mark.parametrize("quoted", _QUOTED)
def test_a_quoted_message_is_one_of_the_code(quoted: str) -> None:
    assert pattern_of(quoted).search(_messages())


def test_an_error_names_each_entry_of_the_page() -> None:
    assert set(_QUOTED) == set(ENTRIES)
