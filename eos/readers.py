"""Readers: clients that ask what a group has committed and where its input stands, without joining it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from eos import retry
from eos.calls import Call
from eos.kafka.consumer import Committed, ConsumerClient, offsets_reader
from eos.offsets import Partition
from eos.settings import Settings

_CALL_S = 5.0


@contextmanager
def fresh_reader(settings: Settings, group: str, *, stable: bool) -> Iterator[ConsumerClient]:
    """A client for this block alone; ``stable``: it waits for transactions that are pending on the offsets.

    Not to be kept for a later decision: a client asks for the group's coordinator every 10 minutes only, and one that stood still
    meanwhile answers with what was committed before another took over (a stable read is served from memory).
    """
    reader = offsets_reader(settings.client_config(), group, stable=stable)
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
    return retry.ask(lambda slice_s: reader.partitions_of(topics, slice_s), within_s=timeout_s)


def log_span(reader: ConsumerClient, partition: Partition, *, timeout_s: float) -> tuple[int, int]:
    """The partition's log start offset and its last stable offset.

    Raises:
        ConfigError: the topic does not exist.
        UnavailableError: no answer in ``timeout_s``.
    """
    return retry.ask(lambda slice_s: reader.stable_watermarks(partition, slice_s), within_s=timeout_s)


def committed_offsets(
    reader: ConsumerClient,
    partitions: Iterable[Partition],
    *,
    timeout_s: float,
    tell: retry.Tell | None = None,
) -> dict[Partition, Committed]:
    """What the reader's group has stored; partitions without an offset are left out.

    Raises:
        UnavailableError: no answer in ``timeout_s``; for a stable reader also: a transaction stayed pending.
        EosError: an error that no retry helps against.
    """
    wanted = tuple(partitions)
    return retry.resume(
        Call.COMMITTED,
        lambda slice_s: reader.committed(wanted, slice_s),
        deadline=time.monotonic() + timeout_s,
        slice_s=_CALL_S,
        tell=tell,
    )
