"""Read what a group has committed, and how far its input reaches, without joining the group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from eos import retry
from eos.calls import Call
from eos.deadline import Deadline
from eos.errors import RetriableError, UnavailableError
from eos.kafka.admin import Admin, Mark, shared_admin
from eos.kafka.consumer import ConsumerClient, Fetched, lone_reader
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_CALL_S = 5.0
_PROBE_S = 0.5
_PROBED_RECORDS = 1_000
# For a client that reads a record or the end of each partition it is assigned.
_PROBE: Mapping[str, Any] = {
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.message.max.bytes": 1,  # the broker sends one batch all the same
    "fetch.wait.max.ms": 10,
    "queued.min.messages": 1,
    # A queue of one is full by any event in it, and a full one postpones the next fetch by 1,000 ms if not said
    # otherwise: members that took partitions over answered 1 to 3 s later (measured with 2.16).
    "fetch.queue.backoff.ms": 2,
}


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


def refuse_truncated(settings: Settings, group: str, positions: OffsetVector, *, timeout_s: float) -> None:
    """Refuse positions in logs that were truncated below them and may have grown past them again (KIP-320).

    A separate client reads from each position until the leader has confirmed its epoch. The reading client cannot be relied
    on: librdkafka validates a position when it seeks and when it learns of a new leader, but not when it is assigned a
    partition whose leader it knows already (measured with 2.16), and Spark's Java source uses offsets only. Positions without
    an epoch are not checked.

    Raises:
        OffsetGapError: names the position.
        UnavailableError: no answer in ``timeout_s``.
    """
    known = positions.only(p for p in positions if positions.epoch_of(p) is not None)
    if not known:
        return
    prober = lone_reader(settings, group, stable=False, options=_PROBE)
    try:
        answered = list(_answered(prober, known, _PROBED_RECORDS, timeout_s))
    finally:
        prober.close()
    if silent := sorted(set(known).difference(*answered)):
        raise UnavailableError(
            f"{', '.join(map(str, silent))}: no answer in {timeout_s:.1f} s to whether the log was truncated"
        )


def epochs_before(
    settings: Settings, group: str, positions: Mapping[Partition, int], *, timeout_s: float
) -> dict[Partition, int]:
    """The leader epoch of what stands right before each of these positions, where the log still holds it.

    With it a position is refused once the log has been truncated below it (`refuse_truncated`), also one that was chosen and
    not read up to. What is not found out in ``timeout_s`` is left out: such a position is accepted.
    """
    starts = offsets_at(settings, Mark.START, positions)
    before = {p: offset - 1 for p, offset in positions.items() if starts[p] < offset}
    found: dict[Partition, int] = {}
    prober = lone_reader(settings, group, stable=False, options=_PROBE)
    try:
        for reached in _answered(prober, OffsetVector(before), 1, timeout_s):
            behind = prober.positions(reached)
            for partition, offset in behind.items():
                epoch = behind.epoch_of(partition)
                if offset == positions[partition] and epoch is not None:
                    found[partition] = epoch
    finally:
        prober.close()
    return found


def _answered(
    prober: ConsumerClient, positions: OffsetVector, records: int, timeout_s: float
) -> Iterator[set[Partition]]:
    """Read from these positions, and yield partitions that a record or the end has come of, while they are still assigned.

    It ends when all have answered, or the time is over.
    """
    prober.incremental_assign(positions)
    waiting, deadline = set(positions), Deadline(timeout_s)
    while waiting:
        try:
            fetched = prober.consume(records, _PROBE_S)
        except RetriableError:
            fetched = Fetched([], [])
        answered = waiting & {
            *fetched.ends,
            *(Partition(str(m.topic()), int(m.partition() or 0)) for m in fetched.messages),
        }
        yield answered
        # A broker sends one batch however small the limits are, of the first partition that has one (KIP-74): one with
        # a backlog that stayed assigned would be that one each time, and no other ever answered (measured with 4.3).
        prober.incremental_unassign(answered)
        waiting -= answered
        if deadline.passed:
            return


def committed_offsets(
    reader: ConsumerClient,
    partitions: Iterable[Partition],
    *,
    timeout_s: float,
    on_retry: retry.OnRetry | None = None,
) -> dict[Partition, Committed]:
    """What the reader's group has stored; partitions without an offset are left out.

    Raises:
        UnavailableError: no answer in ``timeout_s``; for a stable reader also: a transaction is still pending.
        EosError: an error that no retry resolves.
    """
    wanted = tuple(partitions)
    return retry.resume(
        Call.COMMITTED,
        lambda slice_s: reader.committed(wanted, slice_s),
        deadline=Deadline(timeout_s),
        slice_s=_CALL_S,
        on_retry=on_retry,
    )
