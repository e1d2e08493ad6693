"""Request watch: the requests of the job, as the proxies see them, and the processes that send them."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from eos.prove.database_proxy import DatabaseProxy, Statement
from eos.prove.fleet import Fleet
from eos.prove.instance import Instance, Worker
from eos.testing.proxy import ApiKey, Edge, Frame, HoldProxy

_HAPPENS_S = 10.0  # for a request to come at which a fault happens
_UNSEEN_S = 3.0  # if none of its kind has come yet: a program need not use transactions
_STARTS_S = 20.0  # for one that only a new process sends
_SHORT_TURN_S = 3.0  # of a job whose transactions are as short as they should be
_LONGEST_TURN_S = 120.0
_SLOWEST = 4  # times as long as usual: of several workers, each ends fewer
_SENT_AT_THE_START = {ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FETCH}
# Of transactions V2 (KIP-890, Java clients): requests that are not sent any more, and those that do the same on the way.
_V2_FROM = 5  # version of EndTxn
_IN_V2 = {
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN: ApiKey.TXN_OFFSET_COMMIT,
}
_PORTS = 4  # of an id, that are remembered: of its coordinator and of the leaders of its partitions


def now_ms() -> int:
    """The time in milliseconds since the epoch, by the clock that the brokers have too."""
    return int(time.time() * 1000)


class Met(NamedTuple):
    """A request at which something was done to who had sent it."""

    frame: Frame | None  # none of a statement
    instance: Instance
    worker: Worker


class RequestWatch:
    """Looks at each request.

    Attributes:
        observer: is shown each request, at each edge of it, if there is one.
        written: how many requests so far brought records.
    """

    def __init__(
        self, proxies: Sequence[HoldProxy], fleet: Fleet, statements: DatabaseProxy | None = None
    ) -> None:
        self.observer: Callable[[Frame, Edge], None] | None = None
        self.written = 0
        self._proxies, self._statements = proxies, statements
        self._fleet = fleet
        self._known: dict[int, tuple[Instance, Worker]] = {}  # by the port that its connection comes from
        self._ports = defaultdict[str, deque[int]](lambda: deque(maxlen=_PORTS))  # by transactional.id
        self._open = set[str]()  # transactional.ids that have written and have not ended that
        self._in_v2 = False
        for proxy in proxies:
            proxy.on_frame(self._observe)

    def wait_for_work(self) -> None:
        """Until a driver that was started again has tasks that write: what hits it before would show little."""
        if (request_s := self._fleet.runtime.request_s) is not None:
            written = self.written
            self._fleet.wait(request_s, lambda: self.written > written)

    def behind(self, frame: Frame) -> tuple[Instance, Worker] | None:
        """Who has sent this request; None for the parent of an `eos run`, and for an instance that leaves."""
        return self._behind(frame.client_port)

    def _behind(self, port: int) -> tuple[Instance, Worker] | None:
        known = self._known.get(port)
        if known is None or known[0] not in self._fleet.instances or not known[1].alive:
            known = self._fleet.behind(port)
            if known is not None:
                self._known[port] = known
        return known

    def is_ours(self, frame: Frame) -> bool:
        """Whether the job has sent it."""
        return self.behind(frame) is not None

    def ids_of(self, whose: Instance | Worker) -> frozenset[str]:
        """The transactional.ids of this instance, or of this worker, while it is alive and has not been told to leave."""
        found = set()
        for name, ports in list(self._ports.items()):
            behind = next(filter(None, map(self._behind, reversed(list(ports)))), None)
            if behind is not None and whose in (behind[0], behind[1]):
                found.add(name)
        return frozenset(found)

    def is_inside(self, worker: Worker) -> bool:
        """Whether this worker has written in a transaction that it has not ended yet."""
        return not self._open.isdisjoint(self.ids_of(worker))

    def played_by(self, api: ApiKey) -> ApiKey:
        """The request that does what this one does, in the version of transactions that the job's clients speak."""
        return _IN_V2.get(api, api) if self._in_v2 else api

    def met_at(
        self,
        api: ApiKey | Statement,
        edge: Edge,
        act: Callable[[Instance, Worker], bool],
        *,
        where: Callable[[Frame], bool] = lambda _: True,
    ) -> Met | None:
        """Act on who sends the next such request, at this edge of it, and on nobody else; None: none came."""
        met: list[Met | None] = []
        one_at_a_time = (
            threading.Lock()
        )  # each broker's proxy has a thread, and two requests may come at once

        def meet(port: int, frame: Frame | None) -> None:
            with one_at_a_time:
                if not met and (found := self._behind(port)) is not None and act(*found):
                    met.append(Met(frame, *found))

        def look(frame: Frame, at: Edge) -> None:
            if frame.api_key == api and at is edge and where(frame):
                meet(frame.client_port, frame)

        def look_at(statement: Statement, port: int, at: Edge) -> None:
            if statement is api and at is edge:
                meet(port, None)

        self.observer = look
        if self._statements is not None:
            self._statements.observer = look_at
        self._fleet.wait(self.happens_s(api), lambda: bool(met))
        self.observer = None
        if self._statements is not None:
            self._statements.observer = None
        with one_at_a_time:
            met.append(None)  # a look that goes on finds that it is too late
        return met[0]

    def make_it_come(self, api: ApiKey | Statement, share: float) -> None:
        """Only an open sends it: a worker is killed, and its replacement opens."""
        opens = self._fleet.runtime.request_s is not None  # each task does
        if not opens and api in _SENT_AT_THE_START and (worker := self._fleet.chosen(share)) is not None:
            worker.send(signal.SIGKILL)

    def happens_s(self, api: ApiKey | Statement) -> float:
        """Seconds in which the next such request comes, if any comes."""
        if isinstance(api, Statement):
            return _HAPPENS_S + self.turn_s
        if (request_s := self._fleet.runtime.request_s) is not None:
            return request_s
        if api in _SENT_AT_THE_START:
            return _STARTS_S + self.turn_s
        if not any(proxy.requests(api) for proxy in self._proxies):
            return _UNSEEN_S + self.turn_s
        return _HAPPENS_S + self.turn_s

    @property
    def turn_s(self) -> float:
        """How long a turn of the job may take, from one end of a transaction (or commit of offsets) to the next.

        0 for a job whose turns are as short as they should be.
        """
        ends = sorted(
            seen.at
            for proxy in self._proxies
            for api in (ApiKey.END_TXN, ApiKey.OFFSET_COMMIT)
            for seen in proxy.requests(api)
        )
        usual_s = median(after - before for before, after in pairwise(ends)) if len(ends) > 1 else 0.0
        turn_s = _SLOWEST * usual_s
        return min(turn_s, _LONGEST_TURN_S) if turn_s > _SHORT_TURN_S else 0.0

    def _observe(self, frame: Frame, edge: Edge) -> None:
        if edge is Edge.REQUEST:
            self.written += frame.api_key == ApiKey.PRODUCE
            self._in_v2 = self._in_v2 or (frame.api_key == ApiKey.END_TXN and frame.api_version >= _V2_FROM)
            if (name := frame.transactional_id) is not None:
                self._note(name, frame)
        if (observer := self.observer) is not None:
            observer(frame, edge)

    def _note(self, transactional_id: str, frame: Frame) -> None:
        if frame.client_port not in (ports := self._ports[transactional_id]):
            ports.append(frame.client_port)
        if frame.api_key in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE):
            self._open.add(transactional_id)
        elif frame.api_key in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID):
            self._open.discard(transactional_id)
