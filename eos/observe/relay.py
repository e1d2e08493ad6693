"""Relay: sends a worker's figures and signs of life to the parent, never from the loop's thread.

Why not prometheus_client's own multiprocess mode: docs/DESIGN.md, "Decisions".

Why a thread: a full pipe blocks its writer in the middle of a message, and a non-blocking write would leave half a
message in it. In a thread of its own the send may block; no report is made during that time, so nothing queues up.
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

from prometheus_client import Metric

from eos.events import Event, SessionClosed, ShardsOwned, TransformAtWork
from eos.observe.metrics import MetricsListener
from eos.observe.worker_state import State, WorkerState

INTERVAL_S = 1.0
_CLOSE_WAIT_S = 2.0  # for the last report: a parent that does not read must not hold up the worker's end


class Snapshot(NamedTuple):
    """The whole state of a worker for the parent: the next one replaces one that was lost."""

    process: str  # differs from that of any other process under the ordinal
    silent_s: float  # of the shard that is silent longest; an age needs no clock that two processes share
    sessions_open: int
    sessions_expected: int  # how many readiness asks for
    at_work: str  # what a transform has been at work on for long, and for how long; "" if none is
    ended: bool  # whether it is the last one: the process ends by itself
    families: tuple[Metric, ...]
    state: State | None = None  # for the job's page


class Relay:
    """A worker's listener for the parent: counts, and sends a report about once a second, and at its end.

    Every event is a sign of life of its shard, not LoopTurned alone: all of them come from the threads that
    drive the transactions, and a commit may retry for a while inside one turn. Expected to be open, and to show signs
    of life, are the shards that the process owns (ShardsOwned), whether or not anything came from them.

    Args:
        connection: the sending end of a pipe; the relay closes it. It carries ``bytes``, for ``Board.take``.
        ordinal: of this worker.
        expected_sessions: the least number of sessions that must be open for readiness, until the owned shards are known.
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
        self._state = WorkerState(clock=clock)
        self._process = f"{os.getpid()}-{time.time_ns()}"
        self._interval_s = interval_s
        self._clock = clock
        self._owned: frozenset[str] | None = None  # not known yet
        self._last_sign: dict[str, float] = {}  # by shard
        self._idle_since = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"eos-relay-{ordinal}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self._state(event)
        if isinstance(event, TransformAtWork):  # no sign of life: another thread has looked
            return
        if isinstance(event, ShardsOwned):
            self._own(frozenset(event.transactional_ids), now)
        else:
            self._last_sign[event.shard] = now
        if isinstance(event, SessionClosed) and event.shard not in (self._owned or ()):
            self._idle_since = now
            del self._last_sign[event.shard]
        self.metrics(event)

    def _own(self, owned: frozenset[str], now: float) -> None:
        """A shard that is new here has as much time as a worker to show its first sign of life."""
        before, self._owned = self._owned or frozenset(), owned
        self._expected_sessions = 0
        self._idle_since = now
        for shard in before - owned:
            self._last_sign.pop(shard, None)
        for shard in owned:
            self._last_sign.setdefault(shard, now)

    def close(self) -> None:
        """Send the last report, within two seconds, and end. Called at the process's exit if not before."""
        atexit.unregister(self.close)
        self._stop.set()
        self._thread.join(_CLOSE_WAIT_S)

    def snapshot(self, *, ended: bool = False) -> Snapshot:
        """What is to be reported now; events are in one report only."""
        last_sign = self._last_sign.copy()  # in one step: the loop goes on beside this thread
        state = self._state.state()
        return Snapshot(
            process=self._process,
            silent_s=self._clock() - min(last_sign.values(), default=self._idle_since),
            sessions_open=len(self.metrics.open_sessions),
            sessions_expected=max(self._expected_sessions, len(last_sign)),
            at_work="; ".join(f"{one.records} for {one.seconds:.0f} s" for one in state.at_work),
            ended=ended,
            families=tuple(self.metrics.registry.collect()),
            state=state,
        )

    def _send_all(self) -> None:
        with self._connection:
            ended = False
            while not ended:
                ended = self._stop.wait(self._interval_s)
                try:
                    self._connection.send(packed(self.snapshot(ended=ended)))
                except OSError:
                    return  # the parent is gone: the supervisor's lifeline notices that


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
