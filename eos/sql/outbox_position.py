"""OutboxPosition: which rows of an outbox have been relayed; pure, and short enough for the metadata of an offset.

An id is drawn when a row is inserted, so ids are not in the order of commits, and "id > last" skips what commits late. Nor does
the number of the transaction give the order: it is drawn at the transaction's first change, which may be long before it waits
for a row that another one holds, which commits first. So a position is a snapshot: every row whose transaction had ended in
``seen`` has been relayed. What has ended since is relayed in the order of the ids, up to another snapshot, ``until``; where that
takes several transactions of Kafka, the position also has the last id.

That neither skips nor repeats a row, does not wait for transactions that are open, and keeps the order of cause and effect: if
one transaction has committed before another one inserts its row, every snapshot that has the second has the first, and the id of
the first is lower.

In SQLite one transaction writes at a time, so the ids are in the order of the commits, and a position is an id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eos.sql.snapshot import NOTHING, Snapshot

_FORM = re.compile(
    r"db=(?P<database>[\w.-]+) (?:id=(?P<id>\d+)|seen=(?P<seen>[\da-f:,]+)(?: until=(?P<until>[\da-f:,]+) last=(?P<last>\d+))?)",
    re.ASCII,
)
# Two lists of this length take 2,400 characters where 20,000 transactions begin while the oldest is open; a broker takes 4,096 by
# default. Where more transactions are open at once, those that began last are left for the next round, and with them the rows of
# transactions that began after them: none is skipped, but the order of cause and effect is not kept between two rounds then.
MAX_OPEN = 300


@dataclass(frozen=True, slots=True)
class OutboxPosition:
    """See above.

    Attributes:
        database: names the table in its database, whose numbers the others are.
        seen: every row whose transaction had ended then was relayed.
        until: where the rows that are relayed now end; None between two rounds.
        last: the last id of this round; in SQLite, of all.
    """

    database: str
    seen: Snapshot = NOTHING
    until: Snapshot | None = None
    last: int = 0

    def __str__(self) -> str:
        if self.seen == NOTHING and self.until is None:
            return f"db={self.database} id={self.last}"
        began = f"db={self.database} seen={self.seen}"
        return began if self.until is None else f"{began} until={self.until} last={self.last}"

    @classmethod
    def parse(cls, text: str) -> OutboxPosition | None:
        """The inverse of ``str``; None of any other text."""
        if (match := _FORM.fullmatch(text)) is None:
            return None
        if match["id"] is not None:
            return cls(match["database"], last=int(match["id"]))
        try:
            seen = Snapshot.parse(match["seen"])
            until = None if match["until"] is None else Snapshot.parse(match["until"])
        except ValueError:
            return None
        return cls(match["database"], seen, until, int(match["last"] or 0))

    def begun(self, now: Snapshot) -> OutboxPosition:
        """The position at the begin of a round that ends at ``now``; the same where one is under way."""
        if self.until is not None:
            return self
        return OutboxPosition(self.database, self.seen, now.at_most(MAX_OPEN), 0)

    def after(self, last: int | None, *, all_read: bool) -> OutboxPosition:
        """The position behind the row with this id; with ``all_read`` the round is over."""
        if self.until is None:  # SQLite
            return self if last is None else OutboxPosition(self.database, last=last)
        if all_read:
            return OutboxPosition(self.database, self.until)
        return OutboxPosition(self.database, self.seen, self.until, self.last if last is None else last)

    def covers(self, end: OutboxPosition) -> bool:
        """Whether every row is relayed that ``end``, a position between two rounds, says is."""
        if end.seen == NOTHING:
            return self.last >= end.last
        return (
            self.until is None
            and self.seen.xmax >= end.seen.xmax
            and not any(map(end.seen.ended, self.seen.open))
        )

    def relayed(self, xid: int, row_id: int) -> bool:
        """Whether a row has been relayed."""
        if self.seen == NOTHING and self.until is None:
            return row_id <= self.last
        if self.seen.ended(xid):
            return True
        return self.until is not None and self.until.ended(xid) and row_id <= self.last
