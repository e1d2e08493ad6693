"""What open transactions hold back from read_committed readers, and which transactions these are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError
from eos.group.committed import offsets_at
from eos.kafka.admin import Admin, Mark
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.retry import ask
from eos.settings import Settings

_TIMEOUT_S = 10.0
NOT_ASKED = "by a transaction that could not be asked for: {}"
ENDED = "by a transaction that has ended since"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Records ``[lso, high_watermark)`` that no read_committed reader gets yet: a transaction is open in front of them.

    Attributes:
        partition: where.
        lso: the last stable offset, where that transaction began.
        high_watermark: the log's end.
        by: which transaction holds them back, in words.
        hangs: no coordinator counts it as open, though it stays: it hangs, or this principal may not see it.
        producer_id: whose it is; None if the partition's leader was not asked.
        ids: whose it may be: transactional.ids that a coordinator lists as open there.
    """

    partition: Partition
    lso: int
    high_watermark: int
    by: str
    hangs: bool = False
    producer_id: int | None = None
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.high_watermark - self.lso:,} offsets of {self.partition}, from the LSO {self.lso:,} to the high "
            f"watermark {self.high_watermark:,}, are held back {self.by}"
        )


OnHeldBack = Callable[[HeldBack], None]


def held_back(
    settings: Settings,
    lsos: Mapping[Partition, int],
    high_watermarks: Mapping[Partition, int],
    deadline: Deadline,
) -> tuple[HeldBack, ...]:
    """What of these partitions is held back. What cannot be found out about the transactions is said in words.

    The high watermarks were asked for before the last stable offsets.
    """
    try:
        return _held_back(settings, lsos, high_watermarks, deadline)
    except EosError as error:
        return unknown(lsos, high_watermarks, error)


def held_back_in(settings: Settings, topics: Collection[str] | None = None) -> tuple[HeldBack, ...]:
    """What is held back of these topics, or of all that may be seen.

    Raises:
        EosError: the ends of their logs, or the transactions, could not be asked for.
    """
    deadline = Deadline(_TIMEOUT_S)
    if topics is None:
        topics = ask(Admin.of(settings).all_topics, timeout_s=deadline.left_s)
    return _held_back(settings, *ends_of(settings, topics, deadline.left_s), deadline)


def _held_back(
    settings: Settings,
    lsos: Mapping[Partition, int],
    high_watermarks: Mapping[Partition, int],
    deadline: Deadline,
) -> tuple[HeldBack, ...]:
    if all(lso >= high_watermarks[partition] for partition, lso in lsos.items()):
        return ()
    timeout_s = max(1.0, min(_TIMEOUT_S, deadline.left_s))
    with TransactionsView(settings, timeout_s=timeout_s) as view:
        return Suspects(settings, view, lsos, high_watermarks, timeout_s).held_back_by(view.lingering())


def ends_of(
    settings: Settings, topics: Collection[str], timeout_s: float
) -> tuple[OffsetVector, OffsetVector]:
    """The last stable offsets, and the high watermarks before, of the partitions of those of these topics that exist.

    Those without a leader are left out.

    Raises:
        EosError: they could not be asked for.
    """
    partitions = ask(lambda s: Admin.of(settings).leaders(topics, s), timeout_s=timeout_s)
    ends, lsos = (
        offsets_at(settings, mark, partitions, timeout_s=timeout_s)
        for mark in (Mark.HIGH_WATERMARK, Mark.LAST_STABLE)
    )
    return lsos, ends


def telling(
    settings: Settings, deadline: Deadline, on_held_back: OnHeldBack
) -> Callable[[Mapping[Partition, int], Mapping[Partition, int]], None]:
    """Calls ``on_held_back`` with what `held_back` finds, given last stable offsets and high watermarks."""

    def tell(lsos: Mapping[Partition, int], high_watermarks: Mapping[Partition, int]) -> None:
        for one in held_back(settings, lsos, high_watermarks, deadline):
            on_held_back(one)

    return tell


def unknown(
    lsos: Mapping[Partition, int], high_watermarks: Mapping[Partition, int], error: EosError
) -> tuple[HeldBack, ...]:
    """What is held back where the transactions could not be asked for."""
    return tuple(
        HeldBack(p, lso, high_watermarks[p], NOT_ASKED.format(error))
        for p, lso in lsos.items()
        if lso < high_watermarks[p]
    )


class Suspects:
    """Partitions that a transaction was open in when their last stable offsets were asked for.

    Made before the coordinators are asked, whose answer then says of each whether it is open still: a transaction that began
    at an offset is the one that holds it back as long as the last stable offset stands there.

    Args:
        settings: how to reach the cluster.
        view: of its transactions.
        lsos: the last stable offsets …
        high_watermarks: … and what was the logs' end before.
        timeout_s: for each question.
    """

    def __init__(
        self,
        settings: Settings,
        view: TransactionsView,
        lsos: Mapping[Partition, int],
        high_watermarks: Mapping[Partition, int],
        timeout_s: float,
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._lsos = {p: lso for p, lso in lsos.items() if lso < high_watermarks[p]}
        self._ends = high_watermarks
        try:
            opened = view.open_producers(self._lsos)
        except ConfigError:  # needs Read on the topics
            self._began_by: dict[Partition, int | None] | None = None
        else:
            self._began_by = {
                p: next((one.producer_id for one in opened[p] if one.start == lso), None)
                for p, lso in self._lsos.items()
            }

    def held_back_by(self, transactions: Iterable[TransactionDescription]) -> tuple[HeldBack, ...]:
        """What is held back, by these transactions or by one that none of the coordinators counts as open.

        Raises:
            EosError: the cluster did not answer in time.
        """
        known = [one for one in transactions if one.is_open]
        named = {p: [one for one in known if self._may_be(one, p)] for p in self._lsos}
        unnamed = [p for p, by in named.items() if not by]
        now = offsets_at(self._settings, Mark.LAST_STABLE, unnamed, timeout_s=self._timeout_s)

        def of(partition: Partition, lso: int) -> HeldBack:
            whose = None if self._began_by is None else self._began_by[partition]
            # The leader has its marker, and the followers not yet: it stands all the same.
            ended = self._began_by is not None and whose is None
            hangs = now.get(partition) == lso and not ended
            if by := ", ".join(map(_described, named[partition])):
                by = f"by the open transaction of {by}"
            else:
                by = not_listed(partition, lso) if hangs else ENDED
            ids = tuple(one.transactional_id for one in named[partition])
            return HeldBack(partition, lso, self._ends[partition], by, hangs, whose, ids)

        return tuple(of(partition, lso) for partition, lso in self._lsos.items())

    def _may_be(self, one: TransactionDescription, partition: Partition) -> bool:
        began_by = one.producer_id if self._began_by is None else self._began_by[partition]
        return partition in one.partitions and one.producer_id == began_by


def not_listed(partition: Partition, lso: int) -> str:
    """Said of a transaction that hangs, or may not be seen."""
    return (
        "by a transaction that no coordinator lists: either this principal may not see it (Describe on its "
        f"TransactionalId), or it hangs: `{how_to_abort(partition, lso)}` shows it. See docs/operations/lso.md, "
        "'The LSO is stuck'"
    )


def how_to_abort(partition: Partition, lso: int) -> str:
    """The command that shows a transaction that began there, and ends it if it hangs."""
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
