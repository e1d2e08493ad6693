"""ReadCommittedConsumer: reading alone, for code that commits nothing."""

from __future__ import annotations

from collections.abc import Sequence

from eos.base.opened import Opened
from eos.core.consumer import ShardConsumer
from eos.errors import UsageError
from eos.events import Lag, Listener, guarded, ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.home import Home, end_elsewhere, refuse_elsewhere
from eos.offsets import Partition
from eos.records import InputBatch
from eos.settings import Settings


class ReadCommittedConsumer(Opened):
    """Reads committed records from the committed offsets of a group. To process them exactly once, use :class:`eos.Session`.

    >>> with ReadCommittedConsumer(settings, ["settlements"], group="audit") as consumer:  # doctest: +SKIP
    ...     batch = consumer.fetch(1000, timeout_s=1.0)

    Fetch from it, or close it: what librdkafka tells of itself every two seconds waits in memory until the next fetch.

    It has no auto.offset.reset: a group without offsets starts as ``input.start`` says, once. It commits nothing, so the
    next start begins at the committed offsets again.

    Args:
        settings: how to reach the cluster, ownership, start policy.
        topics: the topics to read.
        group: the consumer group.
        partitions: read exactly these, without a membership; otherwise the group assigns.
        listener: called with each event (``eos.events``).

    Raises:
        ConfigError: a topic is missing, nothing says where to start, or the group belongs to the other mode of ownership.
        OffsetGapError: the group's offset is no longer in the log.
        UnavailableError: the cluster did not answer in time.
        UsageError: it is open already; or a call inside a fetch: by a listener, a signal handler or another thread.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        *,
        group: str,
        partitions: Sequence[Partition] | None = None,
        listener: Listener = ignore_event,
    ) -> None:
        self._consumer = ShardConsumer(
            settings,
            topics,
            group=group,
            partitions=partitions,
            ordinal=settings.ownership.ordinal,
            listener=guarded(listener),
            surroundings=SURROUNDINGS,
        )
        self._home = Home.here
        self._fetching = False

    def __exit__(self, *_: object) -> None:
        end_elsewhere(self._home)
        self.close()

    def open(self) -> None:
        """Check the group, apply the start policy if it has no offsets, and begin to read."""
        self._refuse_inside_fetch("open")
        self._consumer.open()

    def close(self) -> None:
        """Stop reading, and leave the group."""
        self._refuse_inside_fetch("close")
        self._consumer.close()

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are read now."""
        return self._consumer.assignment

    def fetch(self, max_records: int, timeout_s: float, linger_s: float = 0.0) -> InputBatch:
        """Up to ``max_records`` records; waits ``timeout_s`` for the first one and ``linger_s`` for more.

        While brokers are away it returns nothing, and the client reconnects by itself. An exception of a signal handler may
        leave it: the next call goes on with the first record that was not returned.

        Raises:
            OffsetGapError: a position is no longer in the log.
            FencedError: another member took over this group.instance.id.
            ConfigError: access was refused, or a topic was deleted.
            UnavailableError: a partition holds records and brings none, for ``input.stall_timeout_ms``.
        """
        self._refuse_inside_fetch("fetch")
        try:
            self._fetching = True
            return self._consumer.fetch(max_records, timeout_s, linger_s)
        finally:
            self._fetching = False

    def rewind(self) -> None:
        """Go back to the committed offsets."""
        self._refuse_inside_fetch("rewind")
        self._consumer.rewind()

    def lag(self) -> Lag:
        """How far behind the reading is, per partition, as of the last fetches."""
        return self._consumer.lag()

    def _refuse_inside_fetch(self, what: str) -> None:
        """By a listener, a signal handler or another thread: see `BlockSession`; or in a fork."""
        refuse_elsewhere(self._home, f"{what}()")
        if self._fetching:
            raise UsageError(
                f"{what}(): a fetch of this consumer is at work (a listener calls it?). Fix: leave the loop first"
            )
