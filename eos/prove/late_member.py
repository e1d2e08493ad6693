"""A member of a group that is late: it stands still inside a transaction when the group has just been divided anew."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial

from eos.prove.instance import Worker
from eos.prove.request_watch import RequestWatch
from eos.testing.proxy import ApiKey, Edge, Frame, Hold, HoldProxy

_LATE_S = 1.5  # below any session timeout


class LateMember:
    """The first member that shares the new division and has a transaction open from before.

    A member learns of a rebalance by the answer to a heartbeat, and gives its partitions up when it polls next. So that it does that
    inside a transaction, the heartbeat waits for the beginning of one. When it has sent its SyncGroup it knows the new generation,
    and stands still while others begin with what it has lost: of that, nothing may be committed when it wakes.

    Args:
        watch: the requests of the job.
        proxies: where its heartbeats come by.
        members: those that the group has already.
    """

    def __init__(self, watch: RequestWatch, proxies: Sequence[HoldProxy], members: Sequence[Worker]) -> None:
        self.worker: Worker | None = None
        self.divided = False
        self._watch = watch
        self._changes = False
        self._looking = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._holds: list[tuple[Worker, Hold]] = []
        for member in members:
            for proxy in proxies:
                hold = proxy.hold(ApiKey.HEARTBEAT, where=partial(self._is_to_wait, member))
                self._holds.append((member, hold))

    def look(self, frame: Frame, edge: Edge) -> None:
        """At a request of the job."""
        if frame.api_key in (ApiKey.JOIN_GROUP, ApiKey.LEAVE_GROUP):
            self._changes = True
        elif frame.api_key == ApiKey.SYNC_GROUP:
            self._shares(frame, edge)
        elif edge is Edge.REQUEST and frame.api_key == self._watch.played_by(ApiKey.ADD_PARTITIONS_TO_TXN):
            found = self._watch.behind(frame)
            for member, hold in self._holds:
                if found is not None and member == found[1] and hold.is_held:
                    hold.release()

    def join(self) -> str:
        """Until nothing of it is left; what there is to say of it, if there was one."""
        for _, hold in self._holds:
            hold.release()
        with self._looking:
            timers, self._timers = self._timers, []
        for timer in timers:
            timer.join()
        return (
            f"; {self.worker} was late for {_LATE_S} s, in a transaction" if self.worker is not None else ""
        )

    def _is_to_wait(self, member: Worker, frame: Frame) -> bool:
        found = self._watch.behind(frame) if self._changes else None
        if found is None or found[1] != member:
            return False
        self._after([hold.release for whose, hold in self._holds if whose == member])
        return True

    def _shares(self, frame: Frame, edge: Edge) -> None:
        if edge is Edge.REPLY:
            self.divided = True
            return
        with self._looking:
            found = self._watch.behind(frame) if self.worker is None else None
            if found is None or not self._watch.is_inside(found[1]) or not found[1].send(signal.SIGSTOP):
                return
            self.worker = found[1]
        self._after([partial(found[1].send, signal.SIGCONT)])

    def _after(self, deeds: Sequence[Callable[[], object]]) -> None:
        with self._looking:
            for deed in deeds:
                self._timers.append(threading.Timer(_LATE_S, deed))
                self._timers[-1].start()
