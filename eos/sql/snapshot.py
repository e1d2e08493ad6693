"""Snapshot: which transactions of PostgreSQL had ended at a moment; pure.

Those below ``xmin`` had; of those from ``xmin`` on and below ``xmax``, all but ``open``; none from ``xmax`` on. The numbers are
full ones (xid8): they do not wrap around.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Snapshot:
    """See above. ``open`` is sorted."""

    xmin: int
    xmax: int
    open: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        inside = all(self.xmin <= xid < self.xmax for xid in self.open)
        if not (0 <= self.xmin <= self.xmax and inside and all(a < b for a, b in pairwise(self.open))):
            raise ValueError(f"no snapshot: {self.xmin}:{self.xmax}:{self.open}")

    def ended(self, xid: int) -> bool:
        """Whether that transaction had ended: committed, or rolled back."""
        return xid < self.xmax and xid not in self.open

    def at_most(self, number: int) -> Snapshot:
        """The same with that many open transactions at most: those from the next one on count as not begun."""
        if len(self.open) <= number:
            return self
        cut = self.open[number]
        return Snapshot(min(self.xmin, cut), cut, self.open[:number])

    @classmethod
    def of_postgresql(cls, text: str) -> Snapshot:
        """What ``pg_current_snapshot()`` shows: ``xmin:xmax:open,open``."""
        xmin, xmax, opened = text.split(":")
        return cls(int(xmin), int(xmax), tuple(sorted(int(xid) for xid in opened.split(",") if xid)))

    def __str__(self) -> str:
        """Compact: in hexadecimal, and each number as its distance from the one before."""
        steps = [b - a for a, b in pairwise((self.xmin, *self.open))]
        return f"{self.xmin:x}:{self.xmax - self.xmin:x}:{','.join(f'{step:x}' for step in steps)}"

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """The inverse of ``str``.

        Raises:
            ValueError: it is none.
        """
        xmin, length, opened = text.split(":")
        first = int(xmin, 16)
        steps = [int(step, 16) for step in opened.split(",") if step]
        return cls(first, first + int(length, 16), tuple(accumulate(steps, initial=first))[1:])


NOTHING = Snapshot(0, 0)
