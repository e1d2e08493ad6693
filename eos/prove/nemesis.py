"""Nemesis: carries out the faults, and says of each whether it really happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eos.deadline import Deadline
from eos.errors import ConfigError
from eos.local import LocalKafka
from eos.local.process import Identity, pause, send
from eos.prove.faults import Fault, Kind
from eos.prove.fleet import Fleet
from eos.shards import OrdinalShard, parse_transactional_id
from eos.testing.proxy import ApiKey, Edge, Frame, Hold, HoldProxy, Outcome

_HAPPENS_S = 10.0  # for a request to come at which the fault happens
_ANSWER_S = 30.0
_POLL_S = 0.05
_DROPPED = {
    "request lost": Outcome.CUT_BEFORE,
    "reset before": Outcome.CUT_BEFORE,
    "reset after": Outcome.CUT_AFTER,
    "answer lost": Outcome.REPLY_DROPPED,
    "doubled": Outcome.DUPLICATED,
}


@dataclass(frozen=True, slots=True)
class Injected:
    """What became of a fault. Times in seconds since the trial began."""

    fault: Fault
    began_s: float
    ended_s: float
    happened: bool
    detail: str


class Nemesis:
    """Injects one fault after the other.

    Args:
        cluster: whose brokers fail.
        proxies: those between the job and each broker.
        fleet: the job's processes.
        transaction_timeout_s: of the job's transactions.
    """

    def __init__(
        self, cluster: LocalKafka, proxies: Sequence[HoldProxy], fleet: Fleet, transaction_timeout_s: float
    ) -> None:
        self._cluster = cluster
        self._proxies = proxies
        self._fleet = fleet
        self._timeout_s = transaction_timeout_s
        self._began = time.monotonic()
        self._observer: Callable[[Frame, Edge], None] | None = None
        for proxy in proxies:
            proxy.on_frame(self._observe)
        self._faults: dict[Kind, Callable[[Fault], tuple[bool, str]]] = {
            Kind.KILL: self._kill,
            Kind.PAUSE: self._pause,
            Kind.LATE: self._late,
            Kind.DROP: self._drop,
            Kind.BROKER: self._broker,
            Kind.REBALANCE: self._rebalance,
            Kind.EXPIRY: self._expiry,
        }

    def inject(self, fault: Fault) -> Injected:
        """Let one accident happen, and undo what can be undone. The cluster is whole afterwards."""
        began = self._now()
        happened, detail = self._faults[fault.kind](fault)
        for proxy in self._proxies:
            proxy.clear_rules()
        return Injected(fault, began, self._now(), happened, detail)

    def _now(self) -> float:
        return time.monotonic() - self._began

    # -- the kinds

    def _kill(self, fault: Fault) -> tuple[bool, str]:
        if fault.api is None:
            worker = self._chosen(fault.share)
            killed = worker is not None and send(worker, signal.SIGKILL)
            return killed, f"process {worker.pid}" if worker is not None else "no worker ran"
        return self._at_request(fault.api, fault.edge, lambda worker: send(worker, signal.SIGKILL))

    def _pause(self, fault: Fault) -> tuple[bool, str]:
        worker = self._chosen(fault.share)
        if worker is None or not pause(worker):
            return False, "no worker ran"
        time.sleep(fault.seconds)
        resumed = send(worker, signal.SIGCONT)
        return True, f"process {worker.pid} for {fault.seconds:.1f} s" + ("" if resumed else ", then gone")

    def _expiry(self, fault: Fault) -> tuple[bool, str]:
        paused: list[Identity] = []

        def stop(frame: Frame, edge: Edge) -> None:
            if frame.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and edge is Edge.REPLY and not paused:
                worker = self._fleet.workers().get(self._ordinal(frame, -1))
                if worker is not None and send(worker, signal.SIGSTOP):
                    paused.append(worker)

        self._observer = stop
        happened = Deadline(_HAPPENS_S).wait_for(lambda: bool(paused))
        self._observer = None
        seconds = self._timeout_s + fault.seconds
        if happened:
            time.sleep(seconds)
        for worker in paused:
            send(worker, signal.SIGCONT)
        return happened, f"process {paused[0].pid} for {seconds:.1f} s" if paused else "no transaction began"

    def _late(self, fault: Fault) -> tuple[bool, str]:
        api = fault.api or ApiKey.END_TXN
        holds = [proxy.hold(api, where=self._is_ours, reset_client=True) for proxy in self._proxies]
        self._make_it_come(api, fault.share)
        held = self._first(holds)
        if held is None:
            for hold in holds:
                hold.release()
            return False, "no such request came"
        time.sleep(fault.seconds)
        for hold in holds:
            hold.release()
        try:
            held.wait_answer(_ANSWER_S)
        except TimeoutError:
            return True, f"held for {fault.seconds:.2f} s; the broker did not answer it"
        return True, f"held for {fault.seconds:.2f} s; the broker answered it"

    def _drop(self, fault: Fault) -> tuple[bool, str]:
        api, outcome = fault.api or ApiKey.END_TXN, _DROPPED[fault.way]
        before = self._count(outcome)
        for proxy in self._proxies:
            if outcome is Outcome.CUT_BEFORE:
                proxy.cut(api, Edge.REQUEST, where=self._is_ours)
            elif outcome is Outcome.CUT_AFTER:
                proxy.cut(api, Edge.REPLY, where=self._is_ours)
            elif outcome is Outcome.REPLY_DROPPED:
                proxy.drop_reply(api, where=self._is_ours)
            else:
                proxy.duplicate(api, where=self._is_ours)
        self._make_it_come(api, fault.share)
        happened = Deadline(_HAPPENS_S).wait_for(lambda: self._count(outcome) > before)
        return happened, f"{self._count(outcome) - before} request(s)"

    def _broker(self, fault: Fault) -> tuple[bool, str]:
        broker = self._cluster.brokers[int(fault.share * len(self._cluster.brokers))]
        what = f"broker {broker.id} for {fault.seconds:.1f} s"
        if fault.way == "paused":
            self._cluster.pause_broker(broker.id)
            time.sleep(fault.seconds)
            self._cluster.resume_broker(broker.id)
            return True, what
        if fault.way == "killed":
            self._cluster.kill_broker(broker.id)
        else:
            self._cluster.stop_broker(broker.id)
        time.sleep(fault.seconds)
        self._cluster.restart_broker(broker.id)
        return True, what

    def _rebalance(self, fault: Fault) -> tuple[bool, str]:
        ordinal = max((one.ordinal for one in self._fleet.instances), default=0) + 1
        joiner = self._fleet.start(ordinal)
        joined = Deadline(_HAPPENS_S * 2).wait_for(lambda: _has_partitions(joiner.read()))
        time.sleep(fault.seconds)
        if fault.way == "killed":
            joiner.kill()
        else:
            joiner.ask_to_end()
            joiner.wait(_ANSWER_S)
            joiner.kill()
        self._fleet.forget(joiner)
        return joined, f"instance {ordinal} for {fault.seconds:.1f} s"

    # -- inside

    def _chosen(self, share: float) -> Identity | None:
        workers = [worker for _, worker in sorted(self._fleet.workers().items())]
        return workers[int(share * len(workers))] if workers else None

    def _observe(self, frame: Frame, edge: Edge) -> None:
        if self._observer is not None:
            self._observer(frame, edge)

    def _is_ours(self, frame: Frame) -> bool:
        return self._ordinal(frame, -1) >= 0

    @staticmethod
    def _ordinal(frame: Frame, default: int) -> int:
        """Of the worker that sends this request."""
        try:
            shard = parse_transactional_id(frame.transactional_id or "")
        except ConfigError:
            return default
        return shard.ordinal if isinstance(shard, OrdinalShard) else default

    def _at_request(self, api: ApiKey, edge: Edge, act: Callable[[Identity], bool]) -> tuple[bool, str]:
        """Act on the process that sends the next such request; its connection is reset at this edge of it."""
        acted: list[str] = []

        def then(frame: Frame) -> None:
            ordinal = self._ordinal(frame, -1)
            worker = self._fleet.workers().get(ordinal)
            if worker is not None and act(worker):
                acted.append(f"process {worker.pid}, ordinal {ordinal}")

        for proxy in self._proxies:
            proxy.cut(api, edge, where=self._is_ours, then=then)
        self._make_it_come(api, 0.0)
        Deadline(_HAPPENS_S).wait_for(lambda: bool(acted))
        return bool(acted), acted[0] if acted else "no such request came"

    def _make_it_come(self, api: ApiKey, share: float) -> None:
        """Only an open sends InitProducerId: a worker is killed, and its replacement opens."""
        if api is ApiKey.INIT_PRODUCER_ID and (worker := self._chosen(share)) is not None:
            send(worker, signal.SIGKILL)

    def _first(self, holds: Sequence[Hold]) -> Hold | None:
        deadline = Deadline(_HAPPENS_S)
        while not deadline.passed:
            for hold in holds:
                if hold.is_held:
                    return hold
            time.sleep(_POLL_S)
        return None

    def _count(self, outcome: Outcome) -> int:
        return sum(1 for proxy in self._proxies for seen in proxy.frames if seen.outcome is outcome)


def _has_partitions(entries: Sequence[dict[str, object]]) -> bool:
    return any(one.get("event") == "partitions assigned" and one.get("positions") for one in entries)
