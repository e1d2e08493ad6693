"""Kills: processes that get SIGKILL, at a request, at a statement of a database, or between two."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from eos.prove.coordinators import Coordinators
from eos.prove.database_faults import DatabaseFaults
from eos.prove.database_proxy import Statement
from eos.prove.faults import Fault
from eos.prove.fleet import Fleet
from eos.prove.instance import Worker
from eos.prove.request_watch import RequestWatch, now_ms
from eos.testing.proxy import ApiKey, Edge, Frame, HoldProxy

_DIES_S = 10.0


class Kills:
    """Kills a process, and says by the logs, and by the database, whether it was inside a transaction.

    Args:
        fleet: the job's processes.
        watch: their requests.
        proxies: where those come by.
        coordinators: whose log says what became of transactions.
        shown: whether what was done at a request was done in the transaction that it is of.
        database: the faults of that, if there is one.
    """

    def __init__(
        self,
        fleet: Fleet,
        watch: RequestWatch,
        proxies: Sequence[HoldProxy],
        coordinators: Coordinators,
        *,
        shown: Callable[[bool, str, tuple[Frame, int] | None], tuple[bool, str]],
        database: DatabaseFaults | None,
    ) -> None:
        self._fleet, self._watch, self._proxies = fleet, watch, proxies
        self._coordinators, self._shown, self._database = coordinators, shown, database

    def kill(self, fault: Fault) -> tuple[bool, str]:
        """Where the fault says."""
        if fault.api is None:
            return self._between(fault.share)
        if isinstance(fault.api, ApiKey):
            return self._at_request(fault.api, fault.edge, fault.share)
        return self._at_statement(fault.api, fault.edge)

    def _between(self, share: float) -> tuple[bool, str]:
        worker = self._fleet.chosen(share)
        ids = self._watch.ids_of(worker) if worker is not None else frozenset[str]()
        at_ms = now_ms()
        # The database forgets a connection that is gone, so the process stands still until it is asked.
        is_open = (
            worker is not None
            and self._database is not None
            and worker.pause()
            and self._database.holds_open(worker)
        )
        if worker is None or not worker.send(signal.SIGKILL):
            return False, "no worker ran"
        self._coordinators.looked(ids)
        where = "inside" if is_open or self._coordinators.inside(ids, at_ms) else "outside"
        return self._dies(worker), f"{worker}, {where} a transaction"

    def _at_request(self, api: ApiKey, edge: Edge, share: float) -> tuple[bool, str]:
        """The process that sends the next such request; its connection is reset at this edge of it."""
        killed: list[tuple[Worker, Frame, int]] = []

        def then(frame: Frame) -> None:
            if (found := self._watch.behind(frame)) is None:
                return
            instance, worker = found
            victim = instance.chosen(instance.workers, share, worker)
            if victim is not None and victim.send(signal.SIGKILL):
                killed.append((victim, frame, now_ms()))

        for proxy in self._proxies:
            proxy.cut(api, edge, where=self._watch.is_ours, then=then)
        self._watch.make_it_come(api, 0.0)
        self._fleet.wait(self._watch.happens_s(api), lambda: bool(killed))
        if not killed:
            return False, "no such request came"
        victim, frame, at_ms = killed[0]
        return self._shown(self._dies(victim), str(victim), (frame, at_ms))

    def _at_statement(self, statement: Statement, edge: Edge) -> tuple[bool, str]:
        if self._database is None:
            return False, "there is no database"
        return self._database.kill_at(statement, edge)

    def _dies(self, worker: Worker) -> bool:
        return self._fleet.wait(_DIES_S, lambda: not worker.alive)
