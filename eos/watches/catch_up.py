"""CatchUp: whether a group has processed everything that was in its input when the loop began."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.core.surroundings import Seat
from eos.errors import EosError, FencedError, RetriableError, UnavailableError
from eos.group.committed import OffsetStore, offsets_at, partitions_of
from eos.group.log_end import refuse_beyond_the_end
from eos.group.others import of_others, refuse_others
from eos.kafka.admin import Mark, shared_admin
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_ASK_EVERY_S = 0.3
_ASK_AGAIN_S = 0.02  # behind a commit of the caller's own, which is answered before it is visible; doubles up to the above
_SET_BACK_S = 5.0
_CALL_S = 5.0


class _Stand(NamedTuple):
    """Where the last stable offset of a partition was seen, and since when (time.monotonic())."""

    lso: int
    since: float


class CatchUp:
    """The high watermark of each input partition as of its making, compared with the group's committed offsets.

    The high watermark, and not the last stable offset: records may be committed behind a transaction that is still open.
    Offsets of control records and of aborted records count like any other, since positions move past them.

    An instance cannot judge by its own partitions: in a rebalance it has none for a moment, and if it left
    then, a static member's partitions would wait for its session timeout.

    Args:
        settings: how to reach the cluster.
        group: whose offsets count.
        topics: the input topics, all partitions of which count …
        only: … or just these.
        store: where the offsets of a group's client are.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Sequence[str],
        only: Sequence[Partition] | None = None,
        *,
        store: Callable[[ConsumerClient], OffsetStore] = lambda reader: reader,
    ) -> None:
        self._settings = settings
        self._group = group
        self._timeout_s = settings.held_back_timeout_s
        self._admin = shared_admin(settings)
        # A client of its own: on the loop's, the questions would wait behind its fetches.
        self._client = lone_reader(settings, group, stable=True)
        self._store = store(self._client)
        deadline = Deadline(settings.open_timeout_s)
        try:
            if only is None:
                only = partitions_of(self._client, topics, timeout_s=deadline.left_s)
            self._ends = offsets_at(
                settings, Mark.HIGH_WATERMARK, only, admin=self._admin, timeout_s=deadline.left_s
            )
        except BaseException:
            self._client.close()
            raise
        # Where nothing was ever written there is nothing to process, and a group new to it may never commit an offset. Where all
        # was deleted, its owner refuses the gap.
        self._empty = {p for p, end in self._ends.items() if not end}
        self._stands: dict[Partition, _Stand] = {}
        self._set_back_at: dict[Partition, float] = {}
        self._of_others_since: dict[Partition, float] = {}
        self._reached = False
        self._asked_at = 0.0
        self._pause_s = _ASK_AGAIN_S
        self._mine = OffsetVector()  # when the pause was short the last time …
        self._moved_at = 0.0  # … which was then
        self._answered_at = time.monotonic()
        self._unanswered_s = settings.input.offline_timeout_s

    @classmethod
    def of(cls, seat: Seat) -> CatchUp:
        """The goal of one owner's run."""
        return cls(seat.settings, seat.group, seat.topics, seat.given, store=seat.destination.store)

    @property
    def ends(self) -> OffsetVector:
        """The high watermarks as of the making."""
        return self._ends

    def close(self) -> None:
        """Close the client that reads the offsets."""
        self._client.close()

    def reached(self, mine: OffsetVector) -> bool:
        """Whether all of it is committed. Asks the cluster a few times per second at most.

        Args:
            mine: what the caller has committed last, per partition that it owns.

        Raises:
            UnavailableError: a transaction of another writer has held some of it back for too long, or nothing was answered for
                ``input.offline_timeout_ms``.
            FencedError: the offset of an own partition was set back from outside.
            ConfigError: another program has committed, and no owner has committed there since.
            OffsetGapError: an offset is beyond the end of its log.
        """
        now = time.monotonic()
        # Not at each move: input that goes on coming moves it for ever.
        if mine != self._mine and now - self._moved_at >= _ASK_EVERY_S:
            self._mine, self._moved_at, self._pause_s = mine, now, _ASK_AGAIN_S
        if not self._reached and now - self._asked_at >= self._pause_s:
            self._asked_at, self._pause_s = now, min(2 * self._pause_s, _ASK_EVERY_S)
            try:
                stored = self._store.committed(self._ends, _CALL_S)
                # What another program has committed says nothing of what the job has processed.
                others = of_others(stored)
                behind = [
                    partition
                    for partition, end in self._ends.items()
                    if partition in others
                    or (
                        stored[partition].offset < end
                        if partition in stored
                        else partition not in self._empty
                    )
                ]
                stable = self._admin.offsets_at(Mark.LAST_STABLE, behind, _CALL_S)
                if not behind:
                    self._refuse_beyond_the_end(stored)
            except (
                RetriableError,
                UnavailableError,
            ) as error:  # also while a transaction is pending on the offsets
                self._refuse_no_answer(now, error)
                return False
            self._answered_at = now
            self._reached = not behind
            self._refuse_set_back({p: stored[p].offset if p in stored else None for p in behind}, mine)
            self._refuse_others(others)
            self._look_for_what_is_held_back(stable)
        return self._reached

    def _refuse_no_answer(self, now: float, error: EosError) -> None:
        if now - self._answered_at > self._unanswered_s:
            raise UnavailableError(
                f"for {now - self._answered_at:.0f} s (input.offline_timeout_ms) the cluster has not said how far the group is, so "
                f"whether all input is processed is not known; the last answer: {error}. Nothing is lost. Fix: look at the "
                "brokers, and run again",
                code=error.code,
            ) from error

    def _refuse_beyond_the_end(self, stored: Mapping[Partition, Committed]) -> None:
        """The owner of such a partition refuses it at its takeover. An instance that has none of it, or not yet, would end as if it were processed."""
        passed = {
            p: stored[p].offset for p, end in self._ends.items() if p in stored and stored[p].offset > end
        }
        refuse_beyond_the_end(self._settings, passed, timeout_s=_CALL_S)

    def _refuse_others(self, others: Mapping[Partition, Committed]) -> None:
        """An owner's next commit takes the place of such an offset; one that is at its end commits none."""
        now = time.monotonic()
        self._of_others_since = {p: self._of_others_since.get(p, now) for p in others}
        old = {p: one for p, one in others.items() if now - self._of_others_since[p] > _SET_BACK_S}
        refuse_others(self._settings, self._group, old)

    def _refuse_set_back(self, behind: Mapping[Partition, int | None], mine: OffsetVector) -> None:
        """The caller reads on from its own commit, so input before that would never be processed."""
        now = time.monotonic()
        # A commit is answered before it is visible, so this is so for a moment after each.
        set_back = {p: offset for p, offset in behind.items() if p in mine and (offset or 0) < mine[p]}
        self._set_back_at = {p: self._set_back_at.get(p, now) for p in set_back}
        for partition, since in self._set_back_at.items():
            if now - since > _SET_BACK_S:
                raise FencedError(
                    f"{partition}: the group has stored {_shown(set_back[partition])}, and this instance has committed "
                    f"{mine[partition]}: the offset was set back, or deleted, while the job runs. Fix: stop every instance before "
                    "offsets are set"
                )

    def _look_for_what_is_held_back(self, stable: Mapping[Partition, int]) -> None:
        """Records behind the last stable offset can't be read before the transaction that begins there has ended.

        Its writer has its transaction's timeout for that, and then the coordinator ends it; each such wait is bounded.
        """
        now = time.monotonic()
        held_back = {p: lso for p, lso in stable.items() if lso < self._ends[p]}
        self._stands = {
            p: self._stands[p] if p in self._stands and self._stands[p].lso == lso else _Stand(lso, now)
            for p, lso in held_back.items()
        }
        for partition, (lso, since) in self._stands.items():
            if now - since > self._timeout_s:
                end = self._ends[partition]
                raise UnavailableError(
                    f"{partition}: {end - lso} offsets are held back. The last stable offset has stood at {lso} for "
                    f"{now - since:.0f} s, and the input ended at {end} when this run began: a transaction that is still "
                    "open on that partition is in the way. What is committed behind it was not processed. Fix: let its "
                    "writer commit or abort it (docs/operations/lso.md, 'The LSO is stuck', says how to find it) and run again, "
                    "or wait for longer (input.held_back_deadline_ms)"
                )


def _shown(offset: int | None) -> str:
    return "no offset" if offset is None else f"offset {offset}"
