"""Input that open transactions hold back from read_committed readers, and which transactions these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.offsets import Partition
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.settings import Settings

_TIMEOUT_S = 10.0
NOT_ASKED = "by a transaction that could not be asked for: {}"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Records ``[lso, high_watermark)`` that no read_committed reader gets yet: a transaction is open in front of them."""

    partition: Partition
    lso: int
    high_watermark: int
    by: str  # which transaction holds them back, in words

    def __str__(self) -> str:
        return (
            f"{self.high_watermark - self.lso:,} offsets of {self.partition}, from the LSO {self.lso:,} to the high "
            f"watermark {self.high_watermark:,}, are held back {self.by}"
        )


def held_back(
    settings: Settings,
    lsos: Mapping[Partition, int],
    high_watermarks: Mapping[Partition, int],
    deadline: Deadline,
) -> tuple[HeldBack, ...]:
    """What of these partitions is held back. What cannot be found out about the transactions is said in words.

    The high watermarks were asked for before the last stable offsets.
    """
    if all(lso >= high_watermarks[partition] for partition, lso in lsos.items()):
        return ()
    timeout_s = max(1.0, min(_TIMEOUT_S, deadline.left_s))
    try:
        with TransactionsView(settings, timeout_s=timeout_s) as view:
            return held_back_by(view.lingering(), lsos, high_watermarks)
    except EosError as error:
        return held_back_by((), lsos, high_watermarks, NOT_ASKED.format(error))


def held_back_by(
    transactions: Iterable[TransactionDescription],
    lsos: Mapping[Partition, int],
    high_watermarks: Mapping[Partition, int],
    unknown: str | None = None,
) -> tuple[HeldBack, ...]:
    """As `held_back`, of transactions that are known; ``unknown`` is said where it is none of them."""
    known = [one for one in transactions if one.is_open]

    def by(partition: Partition) -> str:
        named = ", ".join(_described(one) for one in known if partition in one.partitions)
        return (
            f"by the open transaction of {named}"
            if named
            else unknown or _not_listed(partition, lsos[partition])
        )

    return tuple(
        HeldBack(p, lso, high_watermarks[p], by(p)) for p, lso in lsos.items() if lso < high_watermarks[p]
    )


def _not_listed(partition: Partition, lso: int) -> str:
    return (
        "by a transaction that no coordinator lists: either this principal may not see it (Describe on its "
        f"TransactionalId), or it hangs: `{_abort(partition, lso)}` shows it. See docs/operations/lso.md, 'The LSO is stuck'"
    )


def _abort(partition: Partition, lso: int) -> str:
    where = ("--topic", partition.topic, "--partition", str(partition.number), "--offset", str(lso))
    return suggested("transactions abort", *where)


_PREPARED = ("PrepareCommit", "PrepareAbort")


def _described(one: TransactionDescription) -> str:
    since = "" if one.open_s is None else f", open for {one.open_s:.0f} s"
    text = (
        f"{one.transactional_id!r} (producer id {one.producer_id}, epoch {one.producer_epoch}{since}, "
        f"timeout {one.timeout_ms / 1000:g} s)"
    )
    if one.state in _PREPARED:
        text += (
            f", which is in {one.state}: its end is decided, and its coordinator has not written all markers. That passes within "
            "moments where all leaders are up; if it stays, no timeout and no owner ends it (a fault of brokers, KAFKA-19999). "
            "See docs/operations/lso.md, 'The LSO is stuck'"
        )
    return text
