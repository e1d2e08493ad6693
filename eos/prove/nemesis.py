"""Nemesis: carries out the faults, and says of each whether it really happened.

What a fault does to a transaction is taken from the coordinators' log: a request that was met is no transaction yet.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from eos.base.listing import counted
from eos.errors import EosError
from eos.kafka.topics import elect_preferred_leaders
from eos.local import LocalKafka
from eos.prove.coordinators import Coordinators
from eos.prove.database_faults import DatabaseFaults
from eos.prove.faults import ERRORS, NOT_DONE, TRANSACTIONAL, Fault, FaultKind
from eos.prove.fleet import Fleet
from eos.prove.inputs import Inputs
from eos.prove.instance import Instance, Worker
from eos.prove.kills import Kills
from eos.prove.late_member import LateMember
from eos.prove.pauses import Pauses
from eos.prove.request_watch import RequestWatch, now_ms
from eos.prove.trial_database import TrialDatabase
from eos.testing.proxy import ApiKey, Edge, Frame, HoldProxy

_STARTS_S = 20.0  # for a new process's first request
_ANSWER_S = 30.0
_ENDS_S = 90.0  # after SIGTERM: a transaction that is open is committed or aborted before
_IN_SYNC_S = 10.0
_DIVIDED_S = 8.0  # until a group knows that a member is gone: a heartbeat, or a trial's session timeout
_JUST_DECIDED_MS = 10_000  # before a request, or its answer, was met: by that request
# They begin a transaction, or none: what stands in front of them, or behind them, says nothing.
_BEGIN = {ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN}
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
        coordinators: whose log says what became of transactions.
        config: of a client, at the brokers' own addresses.
        database: that stands at one end of the job.
    """

    def __init__(
        self,
        cluster: LocalKafka,
        proxies: Sequence[HoldProxy],
        fleet: Fleet,
        inputs: Inputs,
        coordinators: Coordinators,
        *,
        config: Mapping[str, object],
        database: TrialDatabase | None = None,
    ) -> None:
        self._cluster = cluster
        self._proxies = proxies
        self._fleet = fleet
        self._inputs = inputs
        self._config = config
        self._coordinators = coordinators
        self._began = time.monotonic()
        self._watch = RequestWatch(proxies, fleet, None if database is None else database.proxy)
        self._database = None if database is None else DatabaseFaults(database, fleet)
        self._pauses = Pauses(fleet, self._watch, coordinators, self._end, self._database)
        self._kills = Kills(
            fleet, self._watch, proxies, coordinators, shown=self._shown, database=self._database
        )
        self._faults: dict[FaultKind, Callable[[Fault], tuple[bool, str]]] = {
            FaultKind.KILL: self._kills.kill,
            FaultKind.TERM: self._term,
            FaultKind.PAUSE: self._pauses.pause,
            FaultKind.LATE: self._late,
            FaultKind.DROP: self._drop,
            FaultKind.ERROR: self._error,
            FaultKind.ZOMBIE: self._pauses.zombie,
            FaultKind.INPUT: self._input,
            FaultKind.BROKER: self._broker,
            FaultKind.REBALANCE: self._rebalance,
            FaultKind.EXPIRY: self._pauses.expiry,
        }
        if self._database is not None:
            self._faults[FaultKind.DATABASE] = self._database.inject

    def inject(self, fault: Fault) -> Injected:
        """Let one accident happen, and undo what can be undone. The cluster is whole afterwards."""
        self._watch.wait_for_work()
        fault = self._spoken(fault)
        began = self._now()
        happened, detail = self._faults[fault.kind](fault)
        for proxy in self._proxies:
            proxy.clear_rules()
        return Injected(fault, began, self._now(), happened, detail)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _spoken(self, fault: Fault) -> Fault:
        """The fault at a request that the job's clients send: transactions V2 leave two of them out."""
        if not isinstance(fault.api, ApiKey) or (api := self._watch.played_by(fault.api)) is fault.api:
            return fault
        codes = ERRORS[api]
        return replace(fault, api=api, error=fault.error and codes[fault.error % len(codes)])

    # -- the kinds

    def _in_transaction(self, frame: Frame, at_ms: int) -> bool:
        """Whether that request was one of a transaction that had begun: by the log, it was open, or had just been ended."""
        if frame.transactional_id is None or frame.api_key not in TRANSACTIONAL or frame.api_key in _BEGIN:
            return True  # it has nothing to do with a transaction that is there
        begun = [one for one in self._coordinators.looked([frame.transactional_id]) if one.began_ms <= at_ms]
        if not begun:  # in transactions V2 the first records begin it
            return self._watch.played_by(ApiKey.ADD_PARTITIONS_TO_TXN) == frame.api_key
        return begun[-1].decided_ms is None or begun[-1].decided_ms >= at_ms - _JUST_DECIDED_MS

    def _shown(self, happened: bool, detail: str, at: tuple[Frame, int] | None) -> tuple[bool, str]:
        """What was done at a request, less what was done outside of the transaction that the request is of."""
        if happened and at is not None and not self._in_transaction(*at):
            return (
                False,
                f"{detail}; no transaction of {at[0].transactional_id} was open in the coordinators' log",
            )
        return happened, detail

    def _term(self, fault: Fault) -> tuple[bool, str]:
        """A worker is replaced by its parent; another instance is started in the place of one, as a rolling restart does."""
        whole = fault.way == "instance" or not self._fleet.runtime.has_workers

        def act(instance: Instance, worker: Worker) -> bool:
            if not whole:
                return worker.send(signal.SIGTERM)
            self._fleet.leave(instance)  # that it ends now is no accident
            instance.ask_to_end()
            return True

        found: tuple[Instance, Worker] | None = None
        at: tuple[Frame, int] | None = None
        if fault.api is not None:
            self._watch.make_it_come(fault.api, fault.share)
            if (met := self._watch.met_at(fault.api, fault.edge, act)) is not None:
                found = met.instance, met.worker
                at = None if met.frame is None else (met.frame, now_ms())
        elif (worker := self._fleet.chosen(fault.share)) is not None:
            whose = [one for one in self._fleet.instances if worker in one.workers]
            found = (whose[0], worker) if whose and act(whose[0], worker) else None
        if found is None:
            return False, "no such request came" if fault.api is not None else "no worker ran"
        instance, worker = found
        if not whole:
            ended = self._fleet.wait(_ENDS_S, lambda: not worker.alive)
            return self._shown(ended, str(worker) + ("" if ended else " did not end"), at)
        self._fleet.wait(_ENDS_S, lambda: instance.code is not None)
        code = instance.code
        if self._fleet.runtime.has_workers and code != 0:
            self._fleet.ended_for_good.append(f"instance {instance.ordinal}: exit code {code} after SIGTERM")
        self._fleet.forget(instance)
        self._fleet.start(instance.ordinal)
        return self._shown(code is not None, f"instance {instance.ordinal}, exit code {code}", at)

    def _late(self, fault: Fault) -> tuple[bool, str]:
        api = _request(fault)
        ours = self._watch.is_ours
        holds = [
            (proxy.hold if fault.way == "held" else proxy.copy)(api, where=ours, reset_client=True)
            for proxy in self._proxies
        ]
        self._watch.make_it_come(api, fault.share)
        self._fleet.wait(self._watch.happens_s(api), lambda: any(hold.is_held for hold in holds))
        held = next((hold for hold in holds if hold.is_held), None)
        at_ms = now_ms()
        if held is not None:
            self._fleet.wait(fault.seconds)
        for hold in holds:
            hold.release()
        if held is None:
            return False, "no such request came"
        frame, text = held.wait_held(0), f"held for {fault.seconds:.2f} s"
        try:
            held.wait_answer(_ANSWER_S)
        except TimeoutError:
            return False, f"{text}; the broker did not answer it"
        return self._shown(True, f"{text}; {self._where(frame, at_ms)}", (frame, at_ms))

    def _where(self, frame: Frame, at_ms: int) -> str:
        """What had become of the transaction of a request when its late copy was answered."""
        if (name := frame.transactional_id) is None:
            return "the broker answered it"
        transactions = self._coordinators.looked([name])
        if any(one.began_ms > at_ms for one in transactions):
            return "the broker answered it in a later transaction"
        still = any(one.decided_ms is None for one in transactions)
        return f"the broker answered it {'in its own transaction' if still else 'after its transaction'}"

    def _drop(self, fault: Fault) -> tuple[bool, str]:
        api, done = _request(fault), list[tuple[Frame, int]]()

        def note(frame: Frame) -> None:
            done.append((frame, now_ms()))

        def ours(frame: Frame) -> bool:  # of the others, the proxy does not say when it acts
            if (found := self._watch.is_ours(frame)) and fault.way in ("request lost", "doubled"):
                note(frame)
            return found

        for proxy in self._proxies:
            match fault.way:
                case "request lost":
                    proxy.swallow(api, where=ours)
                case "reset before":
                    proxy.cut(api, Edge.REQUEST, where=ours, then=note)
                case "reset after":
                    proxy.cut(api, Edge.REPLY, where=ours, then=note)
                case "answer lost":
                    proxy.drop_reply(api, where=ours, then=note)
                case _:
                    proxy.duplicate(api, where=ours)
        self._watch.make_it_come(api, fault.share)
        self._fleet.wait(self._watch.happens_s(api), lambda: bool(done))
        for proxy in self._proxies:
            proxy.clear_rules()
        return self._shown(bool(done), counted(len(done), "request"), done[0] if done else None)

    def _error(self, fault: Fault) -> tuple[bool, str]:
        api, told = _request(fault), list[tuple[Frame, int]]()

        def note(frame: Frame) -> None:
            told.append((frame, now_ms()))

        def edit(frame: Frame, answer: bytes) -> bytes:
            edited = frame.with_error(answer, fault.error)
            note(frame)
            return edited

        for proxy in self._proxies:
            if fault.way == NOT_DONE:
                proxy.refuse(api, fault.error, where=self._watch.is_ours, then=note, after_s=_OTHERS_FOLLOW_S)
            else:
                proxy.edit_reply(api, edit, where=self._watch.is_ours)
        self._watch.make_it_come(api, fault.share)
        self._fleet.wait(self._watch.happens_s(api), lambda: bool(told))
        return self._shown(bool(told), counted(len(told), "answer"), told[0] if told else None)

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
            what += f"; {counted(self._moved_back(), 'partition')} given back to it"
        return True, what

    def _moved_back(self) -> int:
        try:
            return elect_preferred_leaders(self._config, timeout_s=_IN_SYNC_S)
        except EosError:  # no answer: whatever leads now goes on
            return 0

    def _rebalance(self, fault: Fault) -> tuple[bool, str]:
        """An instance joins, and leaves. At either, one member may stand still where it had to give up its transaction."""
        ordinal = max((one.ordinal for one in self._fleet.instances), default=0) + 1
        fetches = list[Frame]()
        members = self._fleet.workers()
        at_joining = LateMember(self._watch, self._proxies, members)

        def look(frame: Frame, edge: Edge) -> None:
            at_joining.look(frame, edge)
            if frame.api_key == ApiKey.FETCH and (found := self._watch.behind(frame)) and found[0] is joiner:
                fetches.append(frame)

        joiner = self._fleet.start(ordinal)
        self._watch.observer = look
        joined = self._fleet.wait(
            _STARTS_S + self._watch.turn_s,
            # A consumer without partitions fetches nothing.
            lambda: _has_partitions(joiner.read()) if self._fleet.runtime.has_workers else bool(fetches),
        )
        late = at_joining.join()
        for proxy in self._proxies:
            proxy.clear_rules()
        self._fleet.wait(fault.seconds)
        at_leaving = LateMember(self._watch, self._proxies, members)
        self._watch.observer = at_leaving.look
        self._end(joiner, in_order=fault.way != "killed")
        self._fleet.wait(_DIVIDED_S, lambda: at_leaving.divided)
        self._watch.observer = None
        late += at_leaving.join()
        return joined, f"instance {ordinal} for {fault.seconds:.1f} s{late}"

    # -- inside

    def _end(self, leaving: Instance, *, in_order: bool = True) -> None:
        self._fleet.leave(leaving)
        if in_order:
            leaving.ask_to_end()
            leaving.wait(_ANSWER_S)
        self._fleet.forget(leaving)


def _request(fault: Fault) -> ApiKey:
    """At which it happens; what hits requests is not drawn at a statement."""
    return fault.api if isinstance(fault.api, ApiKey) else ApiKey.END_TXN


def _has_partitions(entries: Sequence[dict[str, object]]) -> bool:
    return any(one.get("event") == "partitions assigned" and one.get("positions") for one in entries)
