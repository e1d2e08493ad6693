"""ToDatabase: an owner's destination that is a database, and what surrounds such an owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy import Engine

from eos.base.commands import suggested
from eos.core.destination import ForTools, OffsetNote
from eos.core.ledger import Ledger
from eos.core.surroundings import Surroundings, TakeOver
from eos.errors import OffsetGapError, RetriableError
from eos.events import Listener
from eos.faces.surroundings import SURROUNDINGS
from eos.group.expiry import count_started
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards.enter import enter
from eos.guards.expired import expired
from eos.guards.start_policy import OnFirstOffsets, first_offsets
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings
from eos.shards import Shard, StartShard
from eos.sql import progress
from eos.sql.limits import Limits, limit
from eos.sql.meaning import explained
from eos.sql.mirror import Mirror, mirrored, refuse_behind_its_mirror, refuse_other_than_the_mirror
from eos.sql.position import Owner
from eos.sql.writer import SqlWriter, moves_of

_LOOKS = 10  # batches that are looked at, record by record, for one whose row is refused


class PositionStore:
    """The committed offsets of a group as the table of positions has them; an `eos.group.committed.OffsetStore`."""

    def __init__(self, engine: Engine, group: str) -> None:
        self._engine = engine
        self._group = group

    def committed(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, Committed]:
        """As of the group; one statement.

        Raises:
            RetriableError: the database did not answer.
        """
        with explained(), self._engine.connect() as connection:
            limit(connection, Limits(timeout_s, 2 * timeout_s))
            found = progress.positions(connection, self._group)
        return {
            p: Committed(found[p].next_offset, found[p].metadata, found[p].leader_epoch)
            for p in partitions
            if p in found
        }


class ToDatabase:
    """Rows and positions in one transaction of a database.

    Args:
        engine: to the database.
        own_engine: made for the one owner that this destination has, so its connections are closed when that ends.
    """

    def __init__(self, engine: Engine, *, own_engine: bool) -> None:
        self.engine = engine
        self._own_engine = own_engine
        self._looks = 0

    @property
    def refused(self) -> bool:
        """Whether the database has refused a row lately, and the record that it was made of is looked for."""
        return self._looks > 0

    def note_refused(self) -> None:
        """It has."""
        self._looks = _LOOKS

    def looked_for(self, *, found: bool) -> None:
        """A batch was looked at for it. Where there was one, there may be more."""
        self._looks = _LOOKS if found else self._looks - 1

    def store(self, reader: ConsumerClient) -> PositionStore:
        return PositionStore(self.engine, reader.group_id)

    def notes(self, consumer: ForTools) -> tuple[OffsetNote, ...]:
        return (Mirror(consumer),)

    def writer(self, settings: Settings, shard: Shard, *, listener: Listener, ledger: Ledger) -> SqlWriter:
        return SqlWriter(
            self.engine,
            settings,
            shard,
            listener=listener,
            ledger=ledger,
            on_refused=self.note_refused,
            on_closed=self._let_go,
        )

    def _let_go(self) -> None:
        if self._own_engine:
            self.engine.dispose()

    def commit_first(
        self,
        partitions: Sequence[Partition],
        settings: Settings,
        reader: ConsumerClient,
        *,
        app: str,
        mode: OwnershipMode,
        on_first_offsets: OnFirstOffsets,
    ) -> None:
        """The first positions of topics that have none, all in one transaction. Of two instances that do so at once, one does.

        Raises:
            OffsetGapError: the group has a mirror of positions there, which are gone.
            RetriableError: another instance has begun a topic meanwhile.
        """
        shard = StartShard(app, reader.group_id)
        positions = first_offsets(partitions, settings)
        # Asked before the transaction, which would hold its rows meanwhile. What another instance has begun since is refused first.
        mirror = mirrored(settings, reader.group_id, partitions)
        ledger = Ledger(OffsetMetadata(mode, str(shard), app=app))
        started = Counter(partition.topic for partition in partitions)
        first = moves_of(ledger, positions, started, positions.topic_ids)
        owner = Owner(app, reader.group_id, f"{shard} {ledger.metadata.owner}")
        with explained(), self.engine.connect() as connection, connection.begin():
            limit(connection, Limits.of(settings))
            if had := progress.begin_at(connection, owner, first):
                raise RetriableError(f"{had[0]}: another instance has begun it meanwhile")
            refuse_other_than_the_mirror(reader.group_id, positions, mirror)
        on_first_offsets(positions)


def surroundings_of(destination: ToDatabase) -> Surroundings:
    """As of an owner that writes to Kafka, but for what is known of a group's offsets: positions do not expire."""
    return replace(
        SURROUNDINGS,
        destination=destination,
        enter=partial(enter, commit_first=destination.commit_first, refuse_missing=refuse_gone),
        guards=(
            *(gone if guard is expired else guard for guard in SURROUNDINGS.guards),
            refuse_behind_its_mirror,
        ),
    )


def gone(settings: Settings, found: TakeOver) -> None:
    """The guard of a takeover: :func:`refuse_gone`."""
    refuse_gone(settings, found.partitions, found.stored, found.group)


def refuse_gone(
    _: Settings, partitions: Iterable[Partition], stored: Mapping[Partition, Committed], group: str
) -> None:
    """Refuse a partition without a position in a topic where others have one, if their metadata count it.

    Raises:
        OffsetGapError: names it.
    """
    started = count_started(stored)
    for partition in partitions:
        if partition not in stored and partition.number < started.get(partition.topic, 0):
            raise OffsetGapError(
                f"{partition}: eos_progress has no position of it for the group {group!r}, though it has for other partitions of "
                f"{partition.topic}: the row was deleted, the database is a copy, or it was never set. How far the partition was processed "
                "is not known. Fix: restore the row, or find its last processed record in the job's tables and set the position while no "
                f"instance runs: {suggested('offsets set', '--to', as_places({partition: 'N'}), job=True)}"
            )
