"""RelayPace: how many rows the next transaction of a relay takes; pure numbers."""

from __future__ import annotations

_FIRST = 100  # of an unknown size: a record of Kafka has 1 MB at most by default
_LEAST_BYTES = 1
_GROWTH = 4  # rows of a page may be larger than those of the one before


class RelayPace:
    """Grows and shrinks a page.

    Args:
        max_rows: of a transaction.
        max_bytes: of a transaction, about.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.rows = min(_FIRST, max_rows)

    def behind(self, rows: int, size: int) -> int:
        """How many rows the page behind one of so many takes: four times as many, as far as their bytes allow it."""
        if not rows:
            return self.rows
        fits = self._max_bytes * rows // max(size, _LEAST_BYTES)
        return max(1, min(self._max_rows, fits, _GROWTH * self.rows))

    def relayed(self, rows: int, size: int) -> None:
        """A page was relayed."""
        self.rows = self.behind(rows, size)

    def refused(self, rows: int) -> None:
        """A page holds a row that Kafka refuses: it is looked for by halves."""
        self.rows = max(1, rows // 2)
