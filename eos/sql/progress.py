"""Progress: the statements that claim, move and read the positions of a sink.

A position's row is the lock of its partition. An owner *claims* it by an UPDATE, which waits for the transaction that a former
owner has moved the same row in; and only then it knows where to begin. Each transaction *moves* its rows by a compare-and-set:
owner and start must be what they were. A row count that is not the number of partitions is a fence; the transaction rolls back,
and nothing of it was written. PostgreSQL's READ COMMITTED is enough for both, because an UPDATE that has waited looks at the row
anew.

The move comes last, right before the COMMIT. First would do as well; but a former owner that stands still in its transaction then
holds the row, and its successor waits for PostgreSQL to end it. And a transaction in which a statement has failed, and the code
went on, would end with a COMMIT that PostgreSQL answers without an error, though it rolls back: the move fails there instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, Connection, Engine, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from eos.errors import ConfigError, UnclassifiedError, UsageError
from eos.offsets import Partition
from eos.sql.dialect import Dialect, require_transaction
from eos.sql.limits import Limits, limit
from eos.sql.position import Move, Outcome, Owner, Position, outcome_of, refusal
from eos.sql.tables import progress

_READ = (
    progress.c.next_offset,
    progress.c.leader_epoch,
    progress.c.topic_id,
    progress.c.metadata,
    progress.c.owner,
    progress.c.app,
)
_ROW = and_(
    progress.c.consumer_group == bindparam("of_group"),
    progress.c.topic == bindparam("of_topic"),
    progress.c.partition == bindparam("of_partition"),
)
_CLAIM = (
    update(progress)
    .where(_ROW, or_(progress.c.app == bindparam("of_app"), bindparam("of_any_app", type_=Boolean)))
    .values(owner=bindparam("new_owner"), app=bindparam("of_app"), updated_at=func.now())
    .returning(*_READ)
)
_MOVE = (
    update(progress)
    .where(_ROW, progress.c.owner == bindparam("of_owner"), progress.c.next_offset == bindparam("start"))
    .values(
        next_offset=bindparam("end"),
        leader_epoch=bindparam("epoch"),
        topic_id=bindparam("new_topic_id"),
        metadata=bindparam("new_metadata"),
        updated_at=func.now(),
    )
)
_LOOK = select(*_READ).where(_ROW)


def claim(
    connection: Connection, owner: Owner, partitions: Iterable[Partition], *, adopt: bool = False
) -> dict[Partition, Position | None]:
    """Become the owner of these partitions, and read where each of them is; None for one that has no row yet.

    Waits for a transaction that has a row locked. In the order of the partitions: of two that claim the same, none waits for
    what the other one has.

    With ``adopt`` the positions of another job belong to this one from now on (``ownership.adopt_offsets``).

    Raises:
        ConfigError: the position belongs to another job.
    """
    found: dict[Partition, Position | None] = {}
    for partition in sorted(partitions):
        where = _where(owner.group, partition)
        row = connection.execute(
            _CLAIM, where | {"of_app": owner.app, "of_any_app": adopt, "new_owner": owner.token}
        ).one_or_none()
        if row is None and (foreign := _look(connection, owner.group, partition)) is not None:
            raise ConfigError(
                f"{partition}: the position of group {owner.group!r} in eos_progress belongs to job {foreign.app!r}, not to "
                f"{owner.app!r}. Fix: a group of its own for each job (the setting group); or, if the job was renamed, stop every instance "
                "of the old name and start once with ownership.adopt_offsets = true (--adopt-offsets)"
            )
        found[partition] = None if row is None else _position(row)
    if found:
        require_transaction(connection)
    return found


def begin_at(connection: Connection, owner: Owner, firsts: Mapping[Partition, Move]) -> list[Partition]:
    """Write a first position, that of ``end``, where there is none.

    Returns:
        The partitions that had a position meanwhile, which stays as it is: claim them.
    """
    dialect: Any = postgresql if connection.dialect.name == Dialect.POSTGRESQL else sqlite
    # Not by a row count: SQLAlchemy keeps none of an INSERT.
    statement = dialect.insert(progress).on_conflict_do_nothing().returning(progress.c.partition)
    had = []
    for partition, first in sorted(firsts.items()):
        values = {
            "consumer_group": owner.group,
            "topic": partition.topic,
            "partition": partition.number,
            "app": owner.app,
            "next_offset": first.end,
            "leader_epoch": first.leader_epoch,
            "topic_id": first.topic_id,
            "metadata": first.metadata,
            "owner": owner.token,
        }
        if connection.execute(statement, values).one_or_none() is None:
            had.append(partition)
    if firsts:
        require_transaction(connection)
    return had


def move(connection: Connection, owner: Owner, moves: Mapping[Partition, Move]) -> None:
    """Move the positions; in the transaction of the rows, which the caller rolls back if this raises.

    Raises:
        FencedError: another owner has taken a partition over.
        RebalancedError: another member of the group has.
        OffsetGapError: a position is gone, or went back.
        UsageError: the connection commits each statement by itself.
    """
    if not moves:
        raise UsageError("a transaction moves one position at least: without, nothing fences its owner")
    firsts = {partition: one for partition, one in moves.items() if one.start is None}
    rows = [
        _where(owner.group, partition)
        | {
            "of_owner": owner.token,
            "start": one.start,
            "end": one.end,
            "epoch": one.leader_epoch,
            "new_topic_id": one.topic_id,
            "new_metadata": one.metadata,
        }
        for partition, one in sorted(moves.items())
        if partition not in firsts
    ]
    moved = connection.execute(_MOVE, rows if len(rows) > 1 else rows[0]).rowcount if rows else 0
    require_transaction(connection)
    had = begin_at(connection, owner, firsts)
    if moved + len(firsts) - len(had) == len(moves):
        return
    # The transaction will be rolled back. Which partition it was, and why, is read now.
    for partition, one in sorted(moves.items()):
        position = _look(connection, owner.group, partition)
        if position is not None and position.owner == owner.token and position.metadata == one.metadata:
            continue  # moved, by the statement above
        if error := refusal(partition, one.start, position, owner.token):
            raise error
    raise UnclassifiedError(
        f"the database says that it moved {moved} of {len(rows)} positions of {', '.join(map(str, sorted(moves)))}"
    )


def forget_former(
    connection: Connection, owner: Owner, moved: Iterable[Partition], present: Collection[Partition]
) -> None:
    """Forget positions in topics that were deleted, where these were moved to the ones that were created anew and have fewer partitions.

    A partition that is added later would pass for one of the former topic.
    """
    found = positions(connection, owner.group)
    ids = {partition.topic: found[partition].topic_id for partition in moved if partition in found}
    for partition, position in found.items():
        topic_id = ids.get(partition.topic)
        if partition not in present and topic_id and position.topic_id not in ("", topic_id):
            connection.execute(delete(progress).where(_ROW), _where(owner.group, partition))


def positions(connection: Connection, group: str) -> dict[Partition, Position]:
    """What the table says of a group; claims nothing."""
    rows = connection.execute(
        select(progress.c.topic, progress.c.partition, *_READ).where(progress.c.consumer_group == group)
    )
    return {Partition(row.topic, row.partition): Position(*row[2:]) for row in rows}


def settle(engine: Engine, owner: Owner, moves: Mapping[Partition, Move], limits: Limits) -> Outcome:
    """Find out what became of a transaction whose COMMIT was not answered, over a new connection.

    Only to read would not do: the COMMIT may still be on its way. This claims the rows again, so it waits until the transaction
    that had moved them has ended, in whichever way.

    Raises:
        FencedError: another owner has taken a partition over.
        RebalancedError: another member of the group has.
        OffsetGapError: a position is gone, or went back.
    """
    with engine.connect() as connection, connection.begin():
        limit(connection, limits)
        # Not by `claim`, which would take it from an owner that came meanwhile.
        stored = {partition: _lock(connection, owner, partition) for partition in sorted(moves)}
    return outcome_of(moves, stored, owner.token)


def _lock(connection: Connection, owner: Owner, partition: Partition) -> Position | None:
    """The position, once no other transaction has changed it."""
    where = _where(owner.group, partition)
    same = update(progress).where(_ROW).values(owner=progress.c.owner).returning(*_READ)
    row = connection.execute(same, where).one_or_none()
    return None if row is None else _position(row)


def _look(connection: Connection, group: str, partition: Partition) -> Position | None:
    row = connection.execute(_LOOK, _where(group, partition)).one_or_none()
    return None if row is None else _position(row)


def _where(group: str, partition: Partition) -> dict[str, Any]:
    return {"of_group": group, "of_topic": partition.topic, "of_partition": partition.number}


def _position(row: Sequence[Any]) -> Position:
    return Position(*row)
