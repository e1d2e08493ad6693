"""Pauses: processes that stand still, for a while or until another owner or the coordinator has gone on without them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from eos.base.deadline import Deadline
from eos.prove.coordinators import Coordinators, LoggedTransaction
from eos.prove.database_faults import DatabaseFaults
from eos.prove.faults import Fault
from eos.prove.fleet import Fleet
from eos.prove.instance import Instance
from eos.prove.request_watch import RequestWatch, now_ms
from eos.testing.proxy import ApiKey, Edge, Frame

_TAKES_OVER_S = 20.0  # for a new process's first commit, once no transaction holds it back
_ZOMBIE_S = 3.0  # that a zombie has for what it does
_ZOMBIE_ENDS_S = 15.0  # beyond that, for a transaction of a database that it has open
_ABORTED_S = 15.0  # beyond the transaction's timeout, until the coordinator has aborted it
_TRIES = 3  # at finding a worker inside a transaction
_LOOK_EVERY_S = 0.5
# Until a process stands still, and once it runs again, a request that was on its way may be decided.
_ON_ITS_WAY_MS = 500


class Pauses:
    """Lets processes stand still, and says by the coordinators' log what came of it.

    Args:
        fleet: the job's processes.
        watch: their requests.
        coordinators: whose log says what happened to their transactions.
        end: ends an instance that has left.
        database: the faults of that, if there is one.
    """

    def __init__(
        self,
        fleet: Fleet,
        watch: RequestWatch,
        coordinators: Coordinators,
        end: Callable[[Instance], None],
        database: DatabaseFaults | None = None,
    ) -> None:
        self._fleet, self._watch, self._coordinators, self._end = fleet, watch, coordinators, end
        self._database = database

    def pause(self, fault: Fault) -> tuple[bool, str]:
        """A worker stands still: it commits nothing meanwhile."""
        worker = self._fleet.chosen(fault.share)
        ids = self._watch.ids_of(worker) if worker is not None else frozenset[str]()
        if worker is None or not worker.pause():
            return False, "no worker ran"
        stopped_ms = now_ms()
        is_open = self._database is not None and self._database.holds_open(worker)
        self._fleet.wait(fault.seconds)
        woken_ms = now_ms()
        if not worker.send(signal.SIGCONT):
            return False, f"{worker} was gone before {fault.seconds:.1f} s were over"
        within = [
            one
            for one in self._coordinators.looked(ids)
            if one.committed
            and stopped_ms + _ON_ITS_WAY_MS < (one.decided_ms or 0) < woken_ms - _ON_ITS_WAY_MS
        ]
        if within:
            return False, f"{worker} did not stand still: {within[0].transactional_id} committed meanwhile"
        where = "inside" if is_open or self._coordinators.inside(ids, stopped_ms) else "outside"
        return True, f"{worker} for {fault.seconds:.1f} s, {where} a transaction"

    def expiry(self, fault: Fault) -> tuple[bool, str]:
        """A worker stands still inside a transaction until the coordinator has aborted that."""
        detail = "no transaction began"
        for _ in range(_TRIES):
            met = self._watch.met_at(
                self._watch.played_by(ApiKey.ADD_PARTITIONS_TO_TXN),
                Edge.REPLY,
                lambda _, worker: worker.send(signal.SIGSTOP),
                where=lambda frame: frame.transactional_id is not None,
            )
            if met is None:
                return False, detail
            name = met.frame.transactional_id if met.frame is not None else None
            ids, stopped_ms = frozenset([name or ""]), now_ms()
            self._coordinators.looked(ids)
            transaction = self._coordinators.inside(ids, stopped_ms)
            if transaction is not None:
                break
            met.worker.send(signal.SIGCONT)
            detail = f"{met.worker} stood outside of a transaction"
        else:
            return False, detail
        left_s = max(0.0, transaction.expires_ms - stopped_ms) / 1000
        self._until(left_s + _ABORTED_S, lambda: _decided(self._coordinators.looked(ids), transaction))
        self._fleet.wait(fault.seconds)
        woken_ms = now_ms()
        met.worker.send(signal.SIGCONT)
        seconds = (woken_ms - stopped_ms) / 1000
        ended = _decided(self._coordinators.of(ids), transaction)
        if ended is None or not ended.expired or (ended.decided_ms or 0) > woken_ms:
            return False, f"{met.worker} for {seconds:.1f} s: its transaction did not expire"
        return (
            True,
            f"{met.worker} for {seconds:.1f} s: its transaction of {transaction.timeout_ms} ms expired",
        )

    def zombie(self, fault: Fault) -> tuple[bool, str]:
        """An instance stands still, another one of its ordinal commits, and then it wakes."""
        instance: Instance | None = None
        if fault.api is not None:
            met = self._watch.met_at(fault.api, fault.edge, lambda one, _: one.whole.send(signal.SIGSTOP))
            instance = met and met.instance
        if instance is None and (ran := self._fleet.instances):
            instance = ran[int(fault.share * len(ran))]
        ids = self._watch.ids_of(instance) if instance is not None else frozenset[str]()
        if instance is None or not instance.whole.pause():
            return False, "no instance ran"
        stopped_ms = now_ms()
        self._fleet.leave(instance)
        successor = self._fleet.start(instance.ordinal)
        took_over = self._takes_over(successor, ids, stopped_ms)
        self._fleet.wait(fault.seconds)
        woken = instance.whole.send(signal.SIGCONT)
        self._fleet.wait(_ZOMBIE_S)
        if (database := self._database) is not None:
            self._until(_ZOMBIE_ENDS_S, lambda: not database.holds_open(instance.whole))
        self._end(instance)
        what = "until another one had committed" if took_over else "while another one committed nothing"
        text = f"instance {instance.ordinal} stood still {what}, and {fault.seconds:.1f} s more"
        return took_over and woken, text

    def _takes_over(self, successor: Instance, ids: Collection[str], stopped_ms: int) -> bool:
        """Whether the successor commits. A transaction that the other one has left open may hold it back until it expires."""
        self._coordinators.looked(ids)
        open_ = [one for one in self._coordinators.of(ids) if one.open_at(stopped_ms)]
        held_back_s = max((one.expires_ms - stopped_ms for one in open_), default=0) / 1000
        plainly: list[Frame] = []  # without a transaction; its coordinators know nothing of it

        def look(frame: Frame, edge: Edge) -> None:
            if edge is Edge.REPLY and frame.api_key == ApiKey.OFFSET_COMMIT:
                found = self._watch.behind(frame)
                if found is not None and found[0] is successor:
                    plainly.append(frame)

        def committed() -> bool:
            mine = self._coordinators.looked(self._watch.ids_of(successor))
            return bool(plainly) or any(
                one.committed and (one.decided_ms or 0) >= stopped_ms and one.began_ms >= stopped_ms
                for one in mine
            )

        self._watch.observer = look
        try:
            return bool(self._until(_TAKES_OVER_S + max(0.0, held_back_s), committed))
        finally:
            self._watch.observer = None

    def _until(self, seconds: float, shown: Callable[[], object]) -> object:
        """Wait until the log shows something, and no longer than this."""
        deadline = Deadline(seconds)
        while not (found := shown()) and not deadline.passed:
            self._fleet.wait(min(_LOOK_EVERY_S, deadline.left_s))
        return found


def _decided(
    transactions: Collection[LoggedTransaction], which: LoggedTransaction
) -> LoggedTransaction | None:
    """That transaction, once its end is decided."""
    same = (
        one
        for one in transactions
        if (one.transactional_id, one.began_ms) == (which.transactional_id, which.began_ms)
    )
    return next((one for one in same if one.decided_ms is not None), None)
