"""The mark of a relay: a row of the outbox's own database that says how many rows it has read, so that a lost commit is seen.

A relay's position is in Kafka. A database that loses its last commits (a failover to a replica that lacks them, a restore in
place) gives their transaction numbers out again: rows of the new transactions look like relayed ones, and would be skipped. So
behind each read, and before Kafka's commit, the relay commits its mark in the database. What the read has seen was committed
before the mark; so a copy of the database that has the mark has these rows too, and one in which the mark is behind the offset
that Kafka has committed has lost some.

Each mark is written by the owner that has claimed it. One that stood still and was replaced meanwhile would set it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from eos.errors import FencedError, OffsetGapError
from eos.sql.dialect import Dialect, require_transaction
from eos.sql.outbox_read import WAY_OUT
from eos.sql.tables import relays


@dataclass(frozen=True, slots=True)
class RelayMark:
    """The row of one shard of a relay.

    Attributes:
        group: of the relay.
        shard: of the relay.
        owner: a token of the process that has it.
    """

    group: str
    shard: str
    owner: str

    def claim(self, connection: Connection, committed: int | None) -> None:
        """Take the row over; from then on no former owner writes it.

        After the init of the shard's producer, which has ended the transaction that a former owner left open.

        Args:
            connection: in a transaction.
            committed: the offset that Kafka has committed: how many rows are relayed; None: there is none yet.

        Raises:
            OffsetGapError: the database went back, or Kafka has lost the offset.
        """
        _durably(connection)
        dialect: Any = postgresql if connection.dialect.name == Dialect.POSTGRESQL else sqlite
        connection.execute(
            dialect.insert(relays)
            .values(consumer_group=self.group, shard=self.shard, owner=self.owner, relayed=0)
            .on_conflict_do_update(
                index_elements=["consumer_group", "shard"],
                set_={"owner": self.owner, "updated_at": func.now()},
            )
        )
        require_transaction(connection)
        self.require(connection, committed or 0)
        marked = self._row(connection)
        if committed is None and marked is not None and marked[1] > 0:
            raise self.lost(marked[1])

    def read_by_another(self, connection: Connection) -> int | None:
        """How many rows were read, if another owner has the row by now."""
        marked = self._row(connection)
        return None if marked is None or marked[0] == self.owner else marked[1]

    def lost(self, read: int) -> OffsetGapError:
        """The error for an offset that Kafka has lost, when so many rows were read."""
        return OffsetGapError(
            f"the relay {self.shard!r} has read {read} rows, and the group {self.group!r} has no offset of it: Kafka drops one "
            f"with its topic, and where it was not committed for days (offsets.retention.minutes). How many rows are relayed is not known. {WAY_OUT}"
        )

    def note(self, connection: Connection, relayed: int) -> None:
        """Note how many rows were read, those of the open transaction of Kafka included; commit it before that.

        In the transaction of the read, behind it. It is on disk (and on synchronous replicas) when its COMMIT is answered, whatever
        the database does else, and all that the read has seen with it.

        Raises:
            FencedError: another owner has the row.
        """
        _durably(connection)
        moved = connection.execute(
            update(relays)
            .where(self._is_ours & (relays.c.owner == self.owner))
            .values(relayed=relayed, updated_at=func.now())
        ).rowcount
        require_transaction(connection)
        if not moved:
            self.require(connection, 0)
            raise FencedError(
                f"the relay {self.shard!r} of group {self.group!r}: its row of eos_relays is gone"
            )

    def require(self, connection: Connection, committed: int) -> None:
        """As `require_kept`, by the owner of the row.

        Raises:
            OffsetGapError: the database went back.
            FencedError: another owner has the row.
        """
        owner = self.require_kept(connection, committed)
        if owner not in (None, self.owner):
            raise FencedError(
                f"the relay {self.shard!r} of group {self.group!r}: another owner has taken it over (eos_relays)"
            )

    def require_kept(self, connection: Connection, committed: int) -> str | None:
        """Look whether the database still has all that was read. Returns the owner.

        In the transaction that goes by it: behind a pooler another one may come to another server.

        Args:
            connection: to the database.
            committed: how many rows are relayed: the offset that Kafka has committed.

        Raises:
            OffsetGapError: the database went back.
        """
        marked = self._row(connection)
        if (0 if marked is None else marked[1]) < committed:
            raise OffsetGapError(
                f"the database went back: the relay {self.shard!r} of group {self.group!r} has relayed {committed} rows, and "
                f"eos_relays says {'nothing of it' if marked is None else marked[1]}. It is a copy from an earlier time (a replica "
                f"without the last commits, a restored backup), in which new rows would look like relayed ones. {WAY_OUT}"
            )
        return None if marked is None else marked[0]

    def _row(self, connection: Connection) -> tuple[str, int] | None:
        row = connection.execute(select(relays.c.owner, relays.c.relayed).where(self._is_ours)).one_or_none()
        return None if row is None else (row[0], row[1])

    @property
    def _is_ours(self) -> Any:
        return (relays.c.consumer_group == self.group) & (relays.c.shard == self.shard)


def _durably(connection: Connection) -> None:
    if connection.dialect.name == Dialect.POSTGRESQL:
        connection.execute(text("SET LOCAL synchronous_commit = on"))
