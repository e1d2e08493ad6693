"""Read what a group has committed, and how far its input reaches, without joining the group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.kafka.admin import Admin, Mark, shared_admin
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_CALL_S = 5.0


class OffsetStore(Protocol):
    """Where committed offsets are. A client is one: Kafka keeps them for its group; a database keeps them in a table."""

    def committed(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, Committed]:
        """What is stored; partitions without an offset are left out. Asks once.

        Raises:
            RetriableError: no answer yet.
        """
        ...


@contextmanager
def fresh_reader(settings: Settings, group: str, *, stable: bool) -> Iterator[ConsumerClient]:
    """A client for this block. With ``stable`` it waits for transactions that are pending on the offsets.

    Each decision needs a new client: a client looks up the group's coordinator only every 10 minutes, and a coordinator that was
    paused meanwhile answers with offsets from before another broker took over (a stable read is served from memory).
    """
    reader = lone_reader(settings, group, stable=stable)
    try:
        yield reader
    finally:
        reader.close()


def partitions_of(reader: ConsumerClient, topics: Sequence[str], *, timeout_s: float) -> list[Partition]:
    """All partitions of the topics.

    Raises:
        ConfigError: a topic does not exist.
        UnavailableError: no answer in ``timeout_s``.
    """
    return retry.ask(lambda slice_s: reader.partitions_of(topics, slice_s), timeout_s=timeout_s)


def committed_elsewhere(
    settings: Settings, group: str, places: Collection[Partition]
) -> dict[Partition, Committed]:
    """What a group has stored of other partitions than these, of whichever topics; without what is pending.

    Raises:
        UnavailableError: no answer in time.
    """
    admin = Admin.of(settings)
    found = retry.ask(lambda slice_s: admin.groups.offsets(group, slice_s), timeout_s=settings.open_timeout_s)
    return {partition: one for partition, one in found.items() if partition not in places}


def offsets_at(
    settings: Settings,
    mark: Mark,
    partitions: Iterable[Partition],
    *,
    admin: Admin | None = None,
    timeout_s: float | None = None,
) -> OffsetVector:
    """Where a mark stands in each of these partitions; the epochs are those of `Admin.offsets_at`.

    Not asked by a consumer: where its question for a log's start is answered by an error, such as NOT_LEADER_OR_FOLLOWER, and
    the one for the end is not, librdkafka returns the end as the start, without an error (measured with 2.16).

    Args:
        settings: how to reach the cluster.
        mark: the place in the log.
        partitions: whose.
        admin: the client that asks; by default the one that the process shares.
        timeout_s: by default ``open_timeout_s`` of the settings.

    Raises:
        UnavailableError: no answer in time.
    """
    wanted = tuple(partitions)
    if not wanted:
        return OffsetVector()
    asked = admin or shared_admin(settings)
    timeout_s = settings.open_timeout_s if timeout_s is None else timeout_s
    return retry.ask(lambda slice_s: asked.offsets_at(mark, wanted, slice_s), timeout_s=timeout_s)


def committed_offsets(
    store: OffsetStore,
    partitions: Iterable[Partition],
    *,
    timeout_s: float,
    on_retry: retry.OnRetry | None = None,
) -> dict[Partition, Committed]:
    """What is stored; partitions without an offset are left out.

    Raises:
        UnavailableError: no answer in ``timeout_s``; for a stable reader of a group also: a transaction is still pending.
        EosError: an error that no retry resolves.
    """
    wanted = tuple(partitions)
    return retry.resume(
        Call.COMMITTED,
        lambda slice_s: store.committed(wanted, slice_s),
        deadline=Deadline(timeout_s),
        slice_s=_CALL_S,
        on_retry=on_retry,
    )
