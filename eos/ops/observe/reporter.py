"""Reporter: sends a worker's figures and signs of life to the parent, never from the loop's thread.

Why not prometheus_client's own multiprocess mode: docs/DESIGN.md, "Decisions".

Why a thread: a full pipe blocks its writer in the middle of a message, and a non-blocking write would leave half a
message in it. In a thread of its own the send may block; no report is made during that time, so nothing queues up.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from eos.events import Event, SessionClosed, ShardsOwned, TransformAtWork
from eos.ops.observe.worker_report import WorkerReport, packed
from eos.ops.observe.worker_state import WorkerState

INTERVAL_S = 1.0
_CLOSE_WAIT_S = 2.0  # for the last report: a parent that does not read must not hold up the worker's end


class Reporter:
    """A worker's listener for the parent: counts, and sends a report about once a second, and at its end.

    Every event is a sign of life of its shard, not Sampled alone: all of them come from the threads that
    drive the transactions, and a commit may retry for a while inside one turn. Expected to be open, and to show signs
    of life, are the shards that the process owns (ShardsOwned), whether or not anything came from them.

    Attributes:
        state: what the events have said so far.

    Args:
        connection: the sending end of a pipe; the reporter closes it. It carries ``bytes``, for ``Aggregator.take``.
        ordinal: of this worker.
        expected_sessions: the least number of sessions that must be open for readiness, until the owned shards are known.
        interval_s: seconds between reports.
    """

    def __init__(
        self,
        connection: Connection,
        ordinal: int,
        *,
        expected_sessions: int = 1,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = WorkerState(clock=clock)
        self._connection = connection
        self._expected_sessions = expected_sessions
        self._process = f"{os.getpid()}-{time.time_ns()}"
        self._interval_s = interval_s
        self._clock = clock
        self._owned: frozenset[str] | None = None  # not known yet
        self._last_sign: dict[str, float] = {}  # by shard
        self._idle_since = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name=f"eos-reporter-{ordinal}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self.state(event)
        if isinstance(event, TransformAtWork):  # no sign of life: another thread has looked
            return
        if isinstance(event, ShardsOwned):
            self._own(frozenset(event.transactional_ids), now)
        else:
            self._last_sign[event.shard] = now
        if isinstance(event, SessionClosed) and event.shard not in (self._owned or ()):
            self._idle_since = now
            del self._last_sign[event.shard]

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

    def report(self, *, ended: bool = False) -> WorkerReport:
        """What is to be reported now; events are in one report only."""
        last_sign = self._last_sign.copy()  # in one step: the loop goes on beside this thread
        return self.state.report(
            process=self._process,
            ended=ended,
            silent_s=self._clock() - min(last_sign.values(), default=self._idle_since),
            sessions_expected=max(self._expected_sessions, len(last_sign)),
        )

    def _send_all(self) -> None:
        with self._connection:
            ended = False
            while not ended:
                ended = self._stop.wait(self._interval_s)
                try:
                    self._connection.send(packed(self.report(ended=ended)))
                except OSError:
                    return  # the parent is gone: the supervisor's lifeline notices that
