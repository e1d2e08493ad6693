"""Lists and numbers in messages: the first few by name, the rest by number."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def counted(number: int, what: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def listed(items: Iterable[object], most: int) -> str:
    """``a, b and 7 more``."""
    rest = iter(items)
    shown = ", ".join(map(str, islice(rest, most)))
    more = sum(1 for _ in rest)
    return f"{shown} and {more} more" if more else shown
