"""Database faults: what happens to a job's database, to its connections, and to the processes that stand inside its transactions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from eos.base.listing import counted
from eos.errors import EosError
from eos.local.process import connects_from
from eos.prove.database_proxy import Deed, Statement
from eos.prove.faults import ANSWER_LOST, COMMIT_DELAYED, COMMIT_LATE, COMMIT_LOST, Fault
from eos.prove.fleet import Fleet
from eos.prove.instance import Worker
from eos.prove.trial_database import TrialDatabase
from eos.testing.proxy import Edge

_HAPPENS_S = 15.0  # for a statement to come at which a fault happens
_ANSWER_S = 30.0
_DIES_S = 10.0
_COMMIT: Mapping[
    str, tuple[Edge | None, bool]
] = {  # where the client's connection is cut; whether the server gets it
    COMMIT_LOST: (Edge.REQUEST, False),
    ANSWER_LOST: (Edge.REPLY, True),
    COMMIT_LATE: (Edge.REQUEST, True),
    COMMIT_DELAYED: (None, True),
}


class DatabaseFaults:
    """Carries them out, and says of each whether it happened.

    Args:
        database: of the trial.
        fleet: the job's processes.
    """

    def __init__(self, database: TrialDatabase, fleet: Fleet) -> None:
        self._database, self._fleet = database, fleet
        self._ways: dict[str, Callable[[Fault], tuple[bool, str]]] = {
            "killed": self._kill,
            "paused": self._pause,
            "backends terminated": self._terminate,
            "connections cut": self._cut,
        }

    def inject(self, fault: Fault) -> tuple[bool, str]:
        """Let one happen, and undo what can be undone."""
        try:
            return self._ways.get(fault.way, self._at_commit)(fault)
        except EosError as error:
            return False, str(error)

    def kill_at(self, statement: Statement, edge: Edge) -> tuple[bool, str]:
        """Kill the process that sends the next such statement, before the server has seen that or when it has done it."""
        killed: list[Worker] = []

        def then(port: int) -> None:
            if (found := self._fleet.behind(port)) is not None and found[1].send(signal.SIGKILL):
                killed.append(found[1])

        deed = Deed(statement, self._is_ours, edge, then, reaches=edge is Edge.REPLY)
        with self._database.proxy.doing(deed):
            self._fleet.wait(_HAPPENS_S, deed.done.is_set)
        if not killed:
            return False, "no such statement came"
        return self._fleet.wait(_DIES_S, lambda: not killed[0].alive), str(killed[0])

    def holds_open(self, worker: Worker) -> bool:
        """Whether a process, or one that it has started, is inside a transaction of the database."""
        try:
            connections = self._database.connections()
        except EosError:
            return False
        return any(inside and connects_from(worker.identity, port) for port, inside in connections.items())

    # -- the ways

    def _kill(self, fault: Fault) -> tuple[bool, str]:
        server, text = self._database.server, self._connected()
        server.kill()
        self._fleet.wait(fault.seconds)
        server.start()
        return True, f"for {fault.seconds:.1f} s; {text}"

    def _pause(self, fault: Fault) -> tuple[bool, str]:
        server, text = self._database.server, self._connected()
        still = server.pause()
        self._fleet.wait(fault.seconds)
        server.resume()
        return still, f"for {fault.seconds:.1f} s; {text}"

    def _terminate(self, _: Fault) -> tuple[bool, str]:
        text, ports = self._connected(), self._database.connections()
        return self._database.terminate(ports) > 0, text

    def _cut(self, _: Fault) -> tuple[bool, str]:
        text = self._connected()
        return self._database.proxy.cut_all() > 0, text

    def _connected(self) -> str:
        connections = self._database.connections()
        return f"{counted(len(connections), 'connection')} of the job, {sum(connections.values())} inside a transaction"

    def _at_commit(self, fault: Fault) -> tuple[bool, str]:
        cut, reaches = _COMMIT[fault.way]
        late = fault.way in (COMMIT_LATE, COMMIT_DELAYED)
        after_s = fault.seconds if late else 0.0
        deed = Deed(Statement.COMMIT, self._is_ours, cut, reaches=reaches, after_s=after_s)
        met: list[int] = []
        deed.then = met.append
        with self._database.proxy.doing(deed):
            self._fleet.wait(_HAPPENS_S, lambda: deed.done.is_set() or bool(met))
        self._fleet.wait(after_s + _ANSWER_S, deed.done.is_set)
        if not deed.done.is_set():
            return False, "no COMMIT was answered" if met else "no COMMIT came"
        what = f"it came {after_s:.1f} s later; " if late else ""
        return True, what + (
            f"the server answered {deed.answer or 'nothing'}" if reaches else "the server has not seen it"
        )

    def _is_ours(self, port: int) -> bool:
        return self._fleet.behind(port) is not None
