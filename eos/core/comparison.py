"""The comparison that shows another owner: what the group has stored now, held against what this owner knows (`eos.core.ledger`).

init_transactions is unconditional: a zombie that rebuilds its producer fences the current owner (measured: output doubled,
the committed offset went from 30 back to 20). So after every init of an id that this owner has held before, the group must
have stored what this owner committed last, offset metadata included. Nothing here changes the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eos.base.commands import suggested
from eos.core.ledger import Ledger, Outcome
from eos.errors import ONE_OWNER, FencedError, RebalancedError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed, same_commit
from eos.offsets import Partition, as_places

Stored = Mapping[Partition, Committed]


def compared(ledger: Ledger) -> frozenset[Partition]:
    """The partitions whose stored offsets a comparison needs."""
    return frozenset(ledger.stored) | frozenset(ledger.pending or ()) | ledger.left.keys()


def compare(ledger: Ledger, stored_now: Stored) -> Outcome:
    """Compare what the group has stored with what this owner has committed.

    Args:
        ledger: of this owner.
        stored_now: what the group has stored now for the :func:`compared` partitions.

    Returns:
        The outcome of the pending transaction, or of the one that was left; ABORTED if there was none, or nothing shows it.

    Raises:
        FencedError: another owner has committed since.
        RebalancedError: a partition has moved to another shard; the consumer has not been called back yet. The
            outcome stays open until the partition is lost.
    """
    after = ledger.to_be_stored()
    as_after = {p for p, ours in after.items() if same_commit(stored_now.get(p), ours)}
    as_before = {p for p in after if same_commit(stored_now.get(p), ledger.stored.get(p))}
    differs = {
        p for p, was in ledger.stored.items() if p not in after and not same_commit(stored_now.get(p), was)
    }
    lost = [p for p in differs if p in ledger.lost and _by_replacement(ledger, stored_now.get(p))]
    owned = [p for p in differs if p not in ledger.lost]
    neither = [p for p in after if p not in as_after | as_before]
    _raise_if_any(ledger, [*lost, *owned, *neither], stored_now)
    if any(same_commit(stored_now.get(p), ours) for p, ours in ledger.left.items()):
        return Outcome.COMMITTED
    if as_before == set(after):
        return Outcome.ABORTED
    if as_after != set(after):  # a transaction is atomic, so another owner has committed since
        _raise_if_any(ledger, sorted(as_before), stored_now)
    return Outcome.COMMITTED


def look_for_rival(ledger: Ledger, stored_now: Stored) -> None:
    """Look for offsets that only another owner can have committed.

    For offsets that were read while transactions may be pending on them. Our own last commit may not be visible
    yet, because the coordinator answers before it has written the markers (measured: the previous offset was
    read up to 100 ms after the answer). So the offsets from the takeover are no evidence of another owner.

    Raises:
        FencedError: another owner has committed since.
        RebalancedError: the partition has moved to another shard; the consumer has not been called back yet.
    """
    foreign: list[Partition] = []
    for partition, stored in stored_now.items():
        if ledger.metadata.is_owner_of(stored.metadata) or same_commit(stored, ledger.found.get(partition)):
            continue
        owned = partition in ledger.stored and partition not in ledger.lost
        if owned or _by_replacement(ledger, stored):
            foreign.append(partition)
    _raise_if_any(ledger, foreign, stored_now)


def _by_replacement(ledger: Ledger, stored: Committed | None) -> bool:
    metadata = _parsed(stored)
    mine = ledger.metadata
    return metadata is not None and metadata.shard == mine.shard and metadata.owner != mine.owner


def _raise_if_any(ledger: Ledger, foreign: Iterable[Partition], stored_now: Stored) -> None:
    """Raise for partitions whose stored offset is not this owner's: a fence, or a move to another member."""
    moved: Partition | None = None
    for partition in foreign:
        stored = stored_now.get(partition)
        if not _of_another_member(ledger, stored):
            raise FencedError(f"{_difference(ledger, partition, stored)}: {_who_did(partition, stored)}")
        moved = partition
    if moved is not None:
        difference = _difference(ledger, moved, stored_now.get(moved))
        raise RebalancedError(f"{difference}: the group has assigned the partition to another member")


def _who_did(partition: Partition, stored: Committed | None) -> str:
    by = _parsed(stored)
    if by is not None and by.moved_to:
        return f"its offsets were copied to the group {by.moved_to!r}, where the job goes on"
    if by is not None:
        return f"another owner{f' on {by.host}' if by.host else ''} has taken the partition over. {ONE_OWNER}"
    if stored is None:
        return (
            "it was deleted while the job ran, by another program, or by Kafka where it was not committed for offsets.retention.minutes. How "
            "far the input was processed is not known, for another owner may have come and gone; --start earliest would process all of it "
            "again. Fix: stop every instance, find the last processed record in the output, and set the offset: "
            + suggested("offsets set", "--to", as_places({partition: "N"}), job=True)
        )
    return (
        "another program has set it while the job ran. Fix: stop the job before its offsets are set; the next start says how to go on from "
        "what is stored now"
    )


def _of_another_member(ledger: Ledger, stored: Committed | None) -> bool:
    """Whether a member with another ordinal has committed it, which does not mean that our shard has a new owner.

    Under group ownership partitions move between members. A member that was paused for longer than the session
    timeout learns of it at its next poll.
    """
    metadata = _parsed(stored)
    mine = ledger.metadata
    return (
        metadata is not None
        and metadata.mode == mine.mode == OwnershipMode.GROUP
        and metadata.shard != mine.shard
    )


def _difference(ledger: Ledger, partition: Partition, stored_now: Committed | None) -> str:
    known = ledger.stored.get(partition)
    return f"{partition}: the group has stored {_shown(stored_now)}, but this owner last committed {_shown(known)}"


def _parsed(stored: Committed | None) -> OffsetMetadata | None:
    return None if stored is None else OffsetMetadata.parse(stored.metadata, with_more=True)


def _shown(committed: Committed | None) -> str:
    return (
        "nothing"
        if committed is None
        else f"offset {committed.offset} ({committed.metadata or 'no metadata'})"
    )
