"""Lists as GitHub reads them: what belongs to an item is indented by the width of its mark. Python-Markdown wants four blanks."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARK = re.compile(r"(?:[-*]|\d+\.) +(?=\S)")
_FENCE = re.compile(r"(`{3,}|~{3,})")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Indent what belongs to items by four blanks, a level."""
    return "\n".join(_indented(markdown.split("\n")))


def _indented(lines: list[str]) -> Iterator[str]:
    at, fence = 0, ""
    while at < len(lines):
        line = lines[at]
        at += 1
        yield line
        if fence:
            fence = "" if line.startswith(fence) else fence
        elif opened := _FENCE.match(line):
            fence = opened[0]
        elif mark := _MARK.match(line):
            width, begins = len(mark[0]), at
            while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" " * width)):
                at += 1
            body = [one[width:] for one in lines[begins:at]]
            for below in _indented(body):
                yield f"    {below}" if below.strip() else ""
            if "" in body and body[-1]:  # of several paragraphs: the next item has to be set off
                yield ""
