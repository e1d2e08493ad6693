"""Positions that are not of the log as it is: it was truncated below them, and may have grown past them again. They are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.core.surroundings import TakeOver
from eos.errors import OffsetGapError, RetriableError
from eos.group.committed import offsets_at
from eos.group.deleted_input import naming_what_is_gone
from eos.group.log_end import refuse_beyond_the_end
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient, Fetched, lone_reader
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_PROBE_S = 0.5
_PROBED_RECORDS = 1_000
_PROBER_S = 10.0  # for one client
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


def truncated(settings: Settings, found: TakeOver) -> None:
    """The guard of a takeover: :func:`refuse_truncated`, and where records are gone, an error that says which."""
    try:
        refuse_truncated(settings, found.group, found.positions, timeout_s=settings.open_timeout_s)
    except OffsetGapError as error:
        raise naming_what_is_gone(error, settings, found.positions) from error


def refuse_truncated(settings: Settings, group: str, positions: OffsetVector, *, timeout_s: float) -> None:
    """Refuse positions in logs that were truncated below them and may have grown past them again (KIP-320).

    A separate client reads from each position until the leader has confirmed its epoch. The reading client cannot be relied
    on: librdkafka validates a position when it seeks and when it learns of a new leader, but not when it is assigned a
    partition whose leader it knows already (measured with 2.16), and Spark's Java source uses offsets only. Positions without
    an epoch are only compared with the log's end.

    Raises:
        OffsetGapError: names the position.
        UnavailableError: no answer in ``timeout_s``.
    """
    known = positions.only(p for p in positions if positions.epoch_of(p) is not None)
    refuse_beyond_the_end(settings, positions, timeout_s=timeout_s)
    if not known:
        return
    silent = set(known)

    def ask(slice_s: float) -> None:
        prober = lone_reader(settings, group, stable=False, options=_PROBE)
        try:
            for answered in _answered(prober, known.only(silent), _PROBED_RECORDS, slice_s):
                silent.difference_update(answered)
        finally:
            prober.close()
        if silent:
            raise RetriableError(
                f"{', '.join(map(str, sorted(silent)))}: no answer to whether the log was truncated"
            )

    # Each by a client of its own: one that a broker tells of no brokers, as it may when it goes on after a pause, sends no further request.
    retry.resume(Call.METADATA, ask, deadline=Deadline(timeout_s), slice_s=_PROBER_S)


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
        if deadline.passed or retry.is_given_up():
            return
