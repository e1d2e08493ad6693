"""A member of a group that is late: it stands still inside a transaction when the group has just been divided anew."""

from __future__ import annotations

import signal
import threading

from eos.prove.instance import Worker
from eos.prove.watch import Watch
from eos.testing.proxy import ApiKey, Edge, Frame

_LATE_MEMBER_S = 1.5  # below any session timeout


class LateMember:
    """The first member that shares the new division and has a transaction open from before.

    It has sent its SyncGroup, so it knows the new generation; the partitions that it has lost are begun by others meanwhile. What its
    transaction holds of them must not be committed when it wakes.
    """

    def __init__(self, watch: Watch) -> None:
        self.worker: Worker | None = None
        self._watch = watch
        self._looking = threading.Lock()
        self._wakes: threading.Timer | None = None

    def look(self, frame: Frame, edge: Edge) -> None:
        """At a request of a member."""
        if frame.api_key != ApiKey.SYNC_GROUP or edge is not Edge.REQUEST:
            return
        with self._looking:
            found = self._watch.behind(frame) if self.worker is None else None
            if found is None or not self._watch.is_inside(found[1]) or not found[1].send(signal.SIGSTOP):
                return
            self.worker = found[1]
            self._wakes = threading.Timer(_LATE_MEMBER_S, found[1].send, [signal.SIGCONT])
            self._wakes.start()

    def join(self) -> str:
        """Until it has been woken; what there is to say of it, if there was one."""
        with self._looking:
            if self._wakes is None:
                return ""
            self._wakes.join()
            return (
                f"; {self.worker} stood still for {_LATE_MEMBER_S} s in a transaction with what it had before"
            )
