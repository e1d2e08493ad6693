"""Relay: sends a worker's figures and signs of life to the parent, never from the loop's thread.

Why not prometheus_client's own multiprocess mode: it writes a file per process and metric kind into a
directory that must be named in the environment before the import, keeps a dead worker's gauges until
somebody calls mark_process_dead, names workers by pid (a restarted worker is a new series, and files pile
up), and carries no signs of life, for which a pipe would be needed anyway.

Why a thread: a pipe that is full blocks its writer in the middle of a message, and a non-blocking write
would leave half a message in it. In a thread of its own the send may block; the reports of that time are
not made, so nothing queues up.
"""

from __future__ import annotations

import atexit
import os
import pickle
import threading
import time
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from eos.events import Event, SessionClosed
from eos.observe.metrics import MetricsListener

INTERVAL_S = 1.0
_CLOSE_WAIT_S = 2.0  # for the last report: a parent that does not read must not hold up the worker's end


class Series(NamedTuple):
    """One sample: its name, its labels in a fixed order, its value."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(NamedTuple):
    """A metric with its samples."""

    name: str
    kind: str  # counter, gauge, histogram
    help: str
    series: tuple[Series, ...]


class Snapshot(NamedTuple):
    """All that the parent learns of a worker, whole: a lost one is made good by the next."""

    process: str  # differs from that of any other process under the ordinal
    silent_s: (
        float  # of the shard that has been silent longest; an age needs no clock that two processes share
    )
    sessions_open: int
    sessions_expected: int
    ended: bool  # the last one: the process ends by itself
    families: tuple[Family, ...]


class Relay:
    """A worker's listener for the parent: counts, and sends a report about once a second, and at its end.

    Every event is a sign of life of its shard, not LoopTurned alone: all of them come from the threads that
    drive the transactions, and a commit may retry for a while inside one turn. A shard counts as expected
    to be open from its first event until its session is closed.

    Args:
        connection: the sending end of a pipe; the relay closes it. It carries ``bytes``, for ``Board.take``.
        ordinal: of this worker.
        expected_sessions: the least number of sessions that must be open for readiness.
        metrics: counts the events; one of its own by default.
        interval_s: seconds between reports.
    """

    def __init__(
        self,
        connection: Connection,
        ordinal: int,
        *,
        expected_sessions: int = 1,
        metrics: MetricsListener | None = None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = metrics or MetricsListener()
        self._connection = connection
        self._expected_sessions = expected_sessions
        self._process = f"{os.getpid()}-{time.time_ns()}"
        self._interval_s = interval_s
        self._clock = clock
        self._heard_at: dict[str, float] = {}  # by shard
        self._nothing_since = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"eos-relay-{ordinal}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self._heard_at[event.shard] = now
        if isinstance(event, SessionClosed):
            self._nothing_since = now
            del self._heard_at[event.shard]
        self.metrics(event)

    def close(self) -> None:
        """Send the last report, within two seconds, and end. Called at the process's exit if not before."""
        atexit.unregister(self.close)
        self._stop.set()
        self._thread.join(_CLOSE_WAIT_S)

    def snapshot(self, *, ended: bool = False) -> Snapshot:
        """What would be reported now."""
        heard_at = self._heard_at.copy()  # in one step: the loop goes on beside this thread
        return Snapshot(
            process=self._process,
            silent_s=self._clock() - min(heard_at.values(), default=self._nothing_since),
            sessions_open=len(self.metrics.open_sessions),
            sessions_expected=max(self._expected_sessions, len(heard_at)),
            ended=ended,
            families=families_of(self.metrics.registry),
        )

    def _send_all(self) -> None:
        with self._connection:
            ended = False
            while not ended:
                ended = self._stop.wait(self._interval_s)
                try:
                    self._connection.send(packed(self.snapshot(ended=ended)))
                except OSError:
                    return  # the parent is gone; whoever started this process notices that elsewhere


def families_of(registry: CollectorRegistry) -> tuple[Family, ...]:
    """The registry's present figures, picklable."""
    return tuple(
        Family(
            family.name,
            family.type,
            family.documentation,
            tuple(
                Series(sample.name, tuple(sample.labels.items()), sample.value)
                for sample in family.samples
                # When a series was created says nothing once workers are restarted and added up.
                if not sample.name.endswith("_created")
            ),
        )
        for family in registry.collect()
    )


def packed(snapshot: Snapshot) -> bytes:
    """A snapshot for the pipe.

    Compressed, because a message that fits into the pipe is written whole: a worker that is stopped in the
    middle of a longer one would hold up the parent that reads it.
    """
    return zlib.compress(pickle.dumps(snapshot), level=1)


def unpacked(report: bytes) -> Snapshot:
    """What :func:`packed` was given; the parent's own child made it."""
    snapshot = pickle.loads(zlib.decompress(report))  # noqa: S301 - multiprocessing's pipes unpickle as well
    if not isinstance(snapshot, Snapshot):
        msg = f"a report holds {type(snapshot).__name__}, not a snapshot"
        raise TypeError(msg)
    return snapshot
