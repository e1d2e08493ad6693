"""Watch: the requests of the job, as the proxies see them, and the processes that send them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

from eos.prove.fleet import Fleet
from eos.prove.instance import Instance, Worker
from eos.testing.proxy import ApiKey, Edge, Frame, HoldProxy, Outcome

_HAPPENS_S = 10.0  # for a request to come at which a fault happens
_UNSEEN_S = 3.0  # if none of its kind has come yet: a program need not use transactions
_STARTS_S = 20.0  # for one that only a new process sends
_SPARK_S = 90.0  # a driver that was killed needs a Java machine before it sends anything
_SENT_AT_THE_START = {ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FETCH}


class Watch:
    """Looks at each request.

    Attributes:
        observer: is shown each request, at each edge of it, if there is one.
        written: how many requests so far brought records.
    """

    def __init__(self, proxies: Sequence[HoldProxy], fleet: Fleet) -> None:
        self.observer: Callable[[Frame, Edge], None] | None = None
        self.written = 0
        self._proxies = proxies
        self._fleet = fleet
        self._known: dict[int, tuple[Instance, Worker]] = {}  # by the port that its connection comes from
        for proxy in proxies:
            proxy.on_frame(self._observe)

    def wait_for_work(self) -> None:
        """Until a driver that was started again has tasks that write: what hits it before would show little."""
        if self._fleet.on_spark:
            written = self.written
            self._fleet.wait(_SPARK_S, lambda: self.written > written)

    def behind(self, frame: Frame) -> tuple[Instance, Worker] | None:
        """Who has sent this request; None for the parent of an `eos run`, and for an instance that leaves."""
        known = self._known.get(frame.client_port)
        if known is None or known[0] not in self._fleet.instances or not known[1].alive:
            known = self._fleet.behind(frame.client_port)
            if known is not None:
                self._known[frame.client_port] = known
        return known

    def is_ours(self, frame: Frame) -> bool:
        """Whether the job has sent it."""
        return self.behind(frame) is not None

    def met_at(
        self, api: ApiKey, edge: Edge, act: Callable[[Instance, Worker], bool]
    ) -> tuple[Instance, Worker] | None:
        """Act on who sends the next such request, at this edge of it, and on nobody else; None: none came."""
        met: list[tuple[Instance, Worker] | None] = []
        one_at_a_time = (
            threading.Lock()
        )  # each broker's proxy has a thread, and two requests may come at once

        def look(frame: Frame, at: Edge) -> None:
            if frame.api_key != api or at is not edge:
                return
            with one_at_a_time:
                if not met and (found := self.behind(frame)) is not None and act(*found):
                    met.append(found)

        self.observer = look
        self._fleet.wait(self.happens_s(api), lambda: bool(met))
        self.observer = None
        with one_at_a_time:
            met.append(None)  # a look that goes on finds that it is too late
        return met[0]

    def make_it_come(self, api: ApiKey, share: float) -> None:
        """Only an open sends it: a worker is killed, and its replacement opens."""
        if self._fleet.on_spark:  # each task opens
            return
        if api in _SENT_AT_THE_START and (worker := self._fleet.chosen(share)) is not None:
            worker.send(signal.SIGKILL)

    def happens_s(self, api: ApiKey) -> float:
        """Seconds in which the next such request comes, if any comes."""
        if self._fleet.on_spark:
            return _SPARK_S
        if api in _SENT_AT_THE_START:
            return _STARTS_S
        return _HAPPENS_S if any(proxy.requests(api) for proxy in self._proxies) else _UNSEEN_S

    def count(self, outcome: Outcome) -> int:
        """How many requests so far had this outcome."""
        return sum(1 for proxy in self._proxies for seen in proxy.frames if seen.outcome is outcome)

    def _observe(self, frame: Frame, edge: Edge) -> None:
        self.written += edge is Edge.REQUEST and frame.api_key == ApiKey.PRODUCE
        if (observer := self.observer) is not None:
            observer(frame, edge)
