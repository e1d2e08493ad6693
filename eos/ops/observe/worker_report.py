"""Worker report: the whole state of a worker for its parent, as one typed record; the next one replaces one that was lost."""

from __future__ import annotations

import pickle
import zlib
from typing import NamedTuple

from prometheus_client import Metric

from eos.ops.observe.event_texts import DeadLetter, Note


class Counts(NamedTuple):
    """What transactions have done."""

    records_in: float = 0.0
    records_out: float = 0.0
    commits: float = 0.0
    aborts: float = 0.0  # or ended without a known outcome

    def since(self, earlier: Counts) -> Counts:
        return Counts(*(mine - its for mine, its in zip(self, earlier, strict=True)))

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(self, other, strict=True)))


class PartitionReport(NamedTuple):
    """How far a partition is.

    Attributes:
        committed: the next offset to process; None if the worker does not own it, or no more.
        age_s: how long ago this process committed it; None: it has not yet.
        measured_s: how long ago the lag was measured, which a loop that stands still does not do; None: not yet.
        lag: offsets from what is committed to the last stable offset; None: not known.
        lso_distance: offsets from there to the high watermark.
        stalled_s: for how long it has brought no record although it holds some; None: it brings them.
    """

    topic: str
    partition: int
    committed: int | None
    age_s: float | None
    measured_s: float | None
    lag: int | None
    lso_distance: int | None
    stalled_s: float | None

    @property
    def name(self) -> tuple[str, int]:
        return self.topic, self.partition


class LongTransform(NamedTuple):
    """A transform that takes long: on which record, and where its code stands."""

    records: str
    seconds: float
    place: str


class WorkerReport(NamedTuple):
    """Picklable. Ages are of the moment it was made: they need no clock that two processes share."""

    process: str  # differs from that of any other process under the ordinal
    pid: int
    ended: bool  # whether it is the last one: the process ends by itself
    silent_s: float  # of the shard that is silent longest
    sessions_open: int
    sessions_expected: int  # how many readiness asks for
    counts: Counts
    partitions: tuple[PartitionReport, ...]
    open_s: tuple[float, ...]  # of each transaction that is open
    committed_s: float | None  # since the last commit
    outside_s: float  # since the coordinator of its group was reached
    at_work: tuple[LongTransform, ...]
    strangers: tuple[str, ...]  # in the group: members that are no instances of the job
    notes: tuple[Note, ...]  # since the last report, as the dead letters
    dead_letters: tuple[DeadLetter, ...]
    families: tuple[Metric, ...]  # for Prometheus

    @property
    def owned(self) -> dict[tuple[str, int], PartitionReport]:
        """The partitions whose committed offset the worker knows."""
        return {one.name: one for one in self.partitions if one.committed is not None}


def packed(report: WorkerReport) -> bytes:
    """A report for the pipe.

    Compressed, because a message that fits into the pipe is written whole: a worker that is stopped in the
    middle of a longer one would hold up the parent that reads it.
    """
    return zlib.compress(pickle.dumps(report), level=1)


def unpacked(message: bytes) -> WorkerReport:
    """What :func:`packed` was given; the parent's own child made it."""
    report = pickle.loads(zlib.decompress(message))  # noqa: S301 - multiprocessing's pipes unpickle as well
    if not isinstance(report, WorkerReport):
        msg = f"a message holds {type(report).__name__}, not a worker's report"
        raise TypeError(msg)
    return report
