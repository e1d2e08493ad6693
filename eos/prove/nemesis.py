"""Nemesis: carries out the faults, and says of each whether it really happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eos.errors import EosError
from eos.kafka.topics import elect_preferred_leaders
from eos.local import LocalKafka
from eos.prove.faults import NOT_DONE, Fault, Kind
from eos.prove.fleet import Fleet
from eos.prove.inputs import Inputs
from eos.prove.instance import Instance, Worker
from eos.prove.watch import Watch
from eos.testing.proxy import ApiKey, Edge, Frame, HoldProxy, Outcome

_STARTS_S = 20.0  # for a new process's first commit
_ZOMBIE_S = 3.0  # that a zombie has for what it does
_ANSWER_S = 30.0
_ENDS_S = 90.0  # after SIGTERM: a transaction that is open is committed or aborted before
_IN_SYNC_S = 10.0
_OTHERS_FOLLOW_S = 0.1  # until a request is refused: librdkafka sends others behind it, which are not


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
        inputs: its input topics.
        config: of a client, at the brokers' own addresses.
        transaction_timeout_s: of the job's transactions.
    """

    def __init__(
        self,
        cluster: LocalKafka,
        proxies: Sequence[HoldProxy],
        fleet: Fleet,
        inputs: Inputs,
        *,
        config: Mapping[str, object],
        transaction_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._proxies = proxies
        self._fleet = fleet
        self._inputs = inputs
        self._config = config
        self._timeout_s = transaction_timeout_s
        self._began = time.monotonic()
        self._watch = Watch(proxies, fleet)
        self._faults: dict[Kind, Callable[[Fault], tuple[bool, str]]] = {
            Kind.KILL: self._kill,
            Kind.TERM: self._term,
            Kind.PAUSE: self._pause,
            Kind.LATE: self._late,
            Kind.DROP: self._drop,
            Kind.ERROR: self._error,
            Kind.ZOMBIE: self._zombie,
            Kind.INPUT: self._input,
            Kind.BROKER: self._broker,
            Kind.REBALANCE: self._rebalance,
            Kind.EXPIRY: self._expiry,
        }

    def inject(self, fault: Fault) -> Injected:
        """Let one accident happen, and undo what can be undone. The cluster is whole afterwards."""
        self._watch.wait_for_work()
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
            worker = self._fleet.chosen(fault.share)
            return worker is not None and worker.send(signal.SIGKILL), str(worker or "no worker ran")
        return self._at_request(fault.api, fault.edge, fault.share)

    def _term(self, fault: Fault) -> tuple[bool, str]:
        """A worker is replaced by its parent; another instance is started in the place of one, as a rolling restart does."""
        whole = fault.way == "instance" or not self._fleet.has_workers

        def act(instance: Instance, worker: Worker) -> bool:
            if not whole:
                return worker.send(signal.SIGTERM)
            self._fleet.leave(instance)  # that it ends now is no accident
            instance.ask_to_end()
            return True

        found: tuple[Instance, Worker] | None = None
        if fault.api is not None:
            self._watch.make_it_come(fault.api, fault.share)
            found = self._watch.met_at(fault.api, fault.edge, act)
        elif (worker := self._fleet.chosen(fault.share)) is not None:
            whose = [one for one in self._fleet.instances if worker in one.workers]
            found = (whose[0], worker) if whose and act(whose[0], worker) else None
        if found is None:
            return False, "no such request came" if fault.api is not None else "no worker ran"
        instance, worker = found
        if not whole:
            return True, str(worker)
        self._fleet.wait(_ENDS_S, lambda: instance.code is not None)
        code = instance.code
        if self._fleet.has_workers and code != 0:
            self._fleet.ended_for_good.append(f"instance {instance.ordinal}: exit code {code} after SIGTERM")
        self._fleet.forget(instance)
        self._fleet.start(instance.ordinal)
        return True, f"instance {instance.ordinal}, exit code {code}"

    def _pause(self, fault: Fault) -> tuple[bool, str]:
        worker = self._fleet.chosen(fault.share)
        if worker is None or not worker.pause():
            return False, "no worker ran"
        self._fleet.wait(fault.seconds)
        resumed = worker.send(signal.SIGCONT)
        return True, f"{worker} for {fault.seconds:.1f} s" + ("" if resumed else ", then gone")

    def _expiry(self, fault: Fault) -> tuple[bool, str]:
        at = ApiKey.ADD_PARTITIONS_TO_TXN, Edge.REPLY
        met = self._watch.met_at(*at, lambda _, worker: worker.send(signal.SIGSTOP))
        if met is None:
            return False, "no transaction began"
        paused = met[1]
        seconds = self._timeout_s + fault.seconds
        self._fleet.wait(seconds)
        paused.send(signal.SIGCONT)
        return True, f"{paused} for {seconds:.1f} s"

    def _zombie(self, fault: Fault) -> tuple[bool, str]:
        instance: Instance | None = None
        if fault.api is not None:
            met = self._watch.met_at(fault.api, fault.edge, lambda one, _: one.whole.send(signal.SIGSTOP))
            instance = met and met[0]
        if instance is None and (ran := self._fleet.instances):
            instance = ran[int(fault.share * len(ran))]
        if instance is None or not instance.whole.pause():
            return False, "no instance ran"
        self._fleet.leave(instance)
        successor = self._fleet.start(instance.ordinal)
        committed: list[float] = []

        def look(frame: Frame, edge: Edge) -> None:
            end = frame.end_txn()
            if edge is Edge.REPLY and (frame.api_key == ApiKey.OFFSET_COMMIT or (end and end.committed)):
                found = self._watch.behind(frame)
                if found is not None and found[0] is successor:
                    committed.append(self._now())

        self._watch.observer = look
        took_over = self._fleet.wait(_STARTS_S, lambda: bool(committed))
        self._watch.observer = None
        self._fleet.wait(fault.seconds)
        instance.whole.send(signal.SIGCONT)
        self._fleet.wait(_ZOMBIE_S)
        self._end(instance)
        what = "until another one had committed" if took_over else "while another one committed nothing"
        return took_over, f"instance {instance.ordinal} stood still {what}, and {fault.seconds:.1f} s more"

    def _late(self, fault: Fault) -> tuple[bool, str]:
        api = fault.api or ApiKey.END_TXN
        ours = self._watch.is_ours
        holds = [
            (proxy.hold if fault.way == "held" else proxy.copy)(api, where=ours, reset_client=True)
            for proxy in self._proxies
        ]
        self._watch.make_it_come(api, fault.share)
        self._fleet.wait(self._watch.happens_s(api), lambda: any(hold.is_held for hold in holds))
        held = next((hold for hold in holds if hold.is_held), None)
        if held is not None:
            self._fleet.wait(fault.seconds)
        for hold in holds:
            hold.release()
        if held is None:
            return False, "no such request came"
        try:
            held.wait_answer(_ANSWER_S)
        except TimeoutError:
            return True, f"held for {fault.seconds:.2f} s; the broker did not answer it"
        return True, f"held for {fault.seconds:.2f} s; the broker answered it"

    def _drop(self, fault: Fault) -> tuple[bool, str]:
        api, done = fault.api or ApiKey.END_TXN, list[Frame]()
        doubled = self._watch.count(Outcome.DUPLICATED) + self._watch.count(Outcome.SWALLOWED)
        for proxy in self._proxies:
            match fault.way:
                case "request lost":
                    proxy.swallow(api, where=self._watch.is_ours)
                case "reset before":
                    proxy.cut(api, Edge.REQUEST, where=self._watch.is_ours, then=done.append)
                case "reset after":
                    proxy.cut(api, Edge.REPLY, where=self._watch.is_ours, then=done.append)
                case "answer lost":
                    proxy.drop_reply(api, where=self._watch.is_ours, then=done.append)
                case _:
                    proxy.duplicate(api, where=self._watch.is_ours)

        def count() -> int:
            counted = self._watch.count(Outcome.DUPLICATED) + self._watch.count(Outcome.SWALLOWED)
            return len(done) + counted - doubled

        self._watch.make_it_come(api, fault.share)
        return self._fleet.wait(self._watch.happens_s(api), lambda: count() > 0), f"{count()} request(s)"

    def _error(self, fault: Fault) -> tuple[bool, str]:
        api, told = fault.api or ApiKey.END_TXN, list[Frame]()

        def edit(frame: Frame, answer: bytes) -> bytes:
            edited = frame.with_error(answer, fault.error)
            told.append(frame)
            return edited

        for proxy in self._proxies:
            if fault.way == NOT_DONE:
                proxy.refuse(
                    api, fault.error, where=self._watch.is_ours, then=told.append, after_s=_OTHERS_FOLLOW_S
                )
            else:
                proxy.edit_reply(api, edit, where=self._watch.is_ours)
        self._watch.make_it_come(api, fault.share)
        return self._fleet.wait(self._watch.happens_s(api), lambda: bool(told)), f"{len(told)} answer(s)"

    def _input(self, fault: Fault) -> tuple[bool, str]:
        return self._inputs.change(fault.way, fault.share, fault.seconds, self._fleet.wait)

    def _broker(self, fault: Fault) -> tuple[bool, str]:
        broker = self._cluster.brokers[int(fault.share * len(self._cluster.brokers))]
        what = f"broker {broker.id} for {fault.seconds:.1f} s"
        if fault.way == "paused":
            self._cluster.pause_broker(broker.id)
            self._fleet.wait(fault.seconds)
            self._cluster.resume_broker(broker.id)
            return True, what
        if fault.way == "killed":
            self._cluster.kill_broker(broker.id)
        else:
            self._cluster.stop_broker(broker.id)
        self._fleet.wait(fault.seconds)
        self._cluster.restart_broker(broker.id)
        if len(self._cluster.brokers) > 1:  # coordinators move away from brokers that live on
            what += f"; {self._moved_back()} partition(s) were given back to it"
        return True, what

    def _moved_back(self) -> int:
        try:
            return elect_preferred_leaders(self._config, timeout_s=_IN_SYNC_S)
        except EosError:  # no answer: whatever leads now goes on
            return 0

    def _rebalance(self, fault: Fault) -> tuple[bool, str]:
        ordinal = max((one.ordinal for one in self._fleet.instances), default=0) + 1
        joiner, fetches = self._fleet.start(ordinal), list[Frame]()

        def look(frame: Frame, _: Edge) -> None:
            if frame.api_key == ApiKey.FETCH and (found := self._watch.behind(frame)) and found[0] is joiner:
                fetches.append(frame)

        if self._fleet.has_workers:
            joined = self._fleet.wait(_STARTS_S, lambda: _has_partitions(joiner.read()))
        else:  # a consumer without partitions fetches nothing
            self._watch.observer = look
            joined = self._fleet.wait(_STARTS_S, lambda: bool(fetches))
            self._watch.observer = None
        self._fleet.wait(fault.seconds)
        self._end(joiner, in_order=fault.way != "killed")
        return joined, f"instance {ordinal} for {fault.seconds:.1f} s"

    # -- inside

    def _end(self, leaving: Instance, *, in_order: bool = True) -> None:
        self._fleet.leave(leaving)
        if in_order:
            leaving.ask_to_end()
            leaving.wait(_ANSWER_S)
        self._fleet.forget(leaving)

    def _at_request(self, api: ApiKey, edge: Edge, share: float) -> tuple[bool, str]:
        """Kill the process that sends the next such request; its connection is reset at this edge of it."""
        killed: list[str] = []

        def then(frame: Frame) -> None:
            if (found := self._watch.behind(frame)) is None:
                return
            instance, worker = found
            victim = instance.chosen(share, worker)
            if victim is not None and victim.send(signal.SIGKILL):
                killed.append(str(victim))

        for proxy in self._proxies:
            proxy.cut(api, edge, where=self._watch.is_ours, then=then)
        self._watch.make_it_come(api, 0.0)
        self._fleet.wait(self._watch.happens_s(api), lambda: bool(killed))
        return bool(killed), killed[0] if killed else "no such request came"


def _has_partitions(entries: Sequence[dict[str, object]]) -> bool:
    return any(one.get("event") == "partitions assigned" and one.get("positions") for one in entries)
