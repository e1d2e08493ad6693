"""Position: what a sink's table says of an input partition, and what a difference from it means; pure.

Positions only grow, but where an operator has set one back. So a row that is gone, or further back than its owner has brought it, comes
from a copy of the database (a dump that was restored, a replica without the last commits), and no owner may go on silently. A row that
is further on, or says another owner, has a new owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from eos.errors import ONE_OWNER, FencedError, OffsetGapError, RebalancedError
from eos.group.metadata import OPERATOR, OffsetMetadata
from eos.offsets import Partition


class Owner(NamedTuple):
    """Who claims positions.

    Attributes:
        app: the job's name.
        group: the consumer group.
        token: "SHARD TOKEN", unique to the session. The shard tells another owner of it from another member of the group.
    """

    app: str
    group: str
    token: str


class Position(NamedTuple):
    """What the table says of a partition.

    Attributes:
        next_offset: the next offset to read.
        leader_epoch: of the record before it, if it is known.
        topic_id: the id of the topic that it counts in.
        metadata: who committed it, when: the text that eos stores with an offset in Kafka too.
        owner: the token of the session that has claimed it last.
        app: the job that it belongs to.
    """

    next_offset: int
    leader_epoch: int | None
    topic_id: str
    metadata: str
    owner: str
    app: str


class Move(NamedTuple):
    """What a transaction does to the position of a partition.

    Attributes:
        start: the offset that it begins at; None: the partition has no position yet.
        end: the next offset to read behind it.
        leader_epoch: of the record before ``end``.
        topic_id: of the topic.
        metadata: another text for each move of an owner, else a move from an offset to itself could not be told from none.
    """

    start: int | None
    end: int
    leader_epoch: int | None
    topic_id: str
    metadata: str


class Outcome(StrEnum):
    """What became of a COMMIT that was not answered."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


_WENT_BACK = (
    "the database is a copy from an earlier time (a dump that was restored, a replica without its last commits), or another "
    "program has set the position. Fix: find out which; if the job's tables were put back together with eos_progress, nothing is "
    "doubled in them, and the next start says how to go on from that position; else put both back to the same time"
)


def refusal(
    partition: Partition,
    expected: int | None,
    position: Position | None,
    token: str,
    *,
    written: str = "Nothing of this transaction was written",
) -> FencedError | OffsetGapError | RebalancedError | None:
    """Why an owner whose position is ``expected`` may not go on from what the table says; None: it may.

    Another token of the same shard is that of another owner of this one. That of another instance is of another member of the group,
    which has been given the partition: as when this one did not poll for too long. Any other is an operator's.

    Args:
        partition: whose position it is.
        expected: where this owner has brought it; None: nowhere yet.
        position: what the table says.
        token: this owner's.
        written: what is known of the transaction.
    """
    had = "none" if expected is None else str(expected)
    if position is None:
        if expected is None:
            return None
        return OffsetGapError(
            f"{partition}: eos_progress has no row any more, and this owner's position was {expected}: {_WENT_BACK}"
        )
    another = position.owner != token
    if position.next_offset < (expected or 0) and not (another and _is_operators(position)):
        return OffsetGapError(
            f"{partition}: the position in eos_progress went back from {expected} to {position.next_offset}: {_WENT_BACK}"
        )
    if not another and position.next_offset == expected:
        return None
    taken = (
        f"has taken it over in eos_progress ({position.metadata or 'without metadata'}), its position is {position.next_offset} and "
        f"this owner's was {had}. {written}"
    )
    if _is_member(token) and _is_member(position.owner) and _shard_of(position.owner) != _shard_of(token):
        return RebalancedError(f"{partition}: another member of the group {taken}")
    return FencedError(f"{partition}: another owner {taken}. {ONE_OWNER}")


def _is_member(token: str) -> bool:
    """Whether it is that of an instance in a group, which the group gives partitions and takes them away."""
    return token.startswith("#")


def _is_operators(position: Position) -> bool:
    metadata = OffsetMetadata.parse(position.metadata)
    return metadata is not None and metadata.shard == OPERATOR


def _shard_of(token: str) -> str:
    return token.rpartition(" ")[0]


def outcome_of(
    moves: Mapping[Partition, Move], stored: Mapping[Partition, Position | None], token: str
) -> Outcome:
    """Whether the transaction that made these moves was committed, by what the table says once it has ended.

    Raises:
        FencedError: another owner has taken a partition over.
        RebalancedError: another member of the group has.
        OffsetGapError: a position went back.
    """
    before = after = 0
    for partition, move in sorted(moves.items()):
        position = stored.get(partition)
        if position is not None and position.owner == token and position.metadata == move.metadata:
            if error := refusal(partition, move.end, position, token):
                raise error
            after += 1
        elif error := refusal(partition, move.start, position, token, written=_written(move, position)):
            raise error
        else:
            before += 1
    if before and after:
        partition = min(moves)
        raise OffsetGapError(
            f"{partition} and others: of the positions that one transaction moved, eos_progress has some: {_WENT_BACK}"
        )
    return Outcome.COMMITTED if after else Outcome.ROLLED_BACK


def _written(move: Move, position: Position | None) -> str:
    """What another owner's position shows of a transaction whose COMMIT was not answered. A claim leaves all but the owner as it was."""
    hidden = "Whether the transaction whose COMMIT was not answered was written, this does not show"
    if position is None:
        return hidden
    if position.metadata == move.metadata:
        return "The transaction whose COMMIT was not answered was written"
    if position.next_offset == move.start != move.end and not _is_operators(position):
        return "Nothing of the transaction whose COMMIT was not answered was written"
    return hidden
