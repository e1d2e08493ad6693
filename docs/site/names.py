"""A short name that fills a cell stays in one line: a column that is narrow would break it anywhere."""

from __future__ import annotations

import re

_CELL = re.compile(r"<td><code>(?=[\w.-]{1,30}</code></td>)")


def on_page_content(html: str, **_: object) -> str:
    """Mark the names, as those of settings are marked."""
    return _CELL.sub('<td><code class="name">', html)
