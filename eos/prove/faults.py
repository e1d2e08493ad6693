"""Faults: a sequence of accidents that a seed decides, each with all that it needs to be made again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from random import Random

from eos.prove.database_proxy import Statement
from eos.prove.inputs import WAYS
from eos.testing.proxy import ApiKey, Edge


class FaultKind(StrEnum):
    """What happens to the job or its cluster."""

    KILL = "kill"  # a worker gets SIGKILL, at the edge of a request or between two
    TERM = "term"  # a worker, or all of an instance, gets SIGTERM, at a request or between two, and is started again
    PAUSE = (
        "pause"  # a worker gets SIGSTOP, and SIGCONT later: a zombie, if its group has given it up meanwhile
    )
    LATE = "late"  # a request is sent again by the client, and its first copy arrives in a later transaction
    DROP = "drop"  # a request or its answer is lost, doubled, or its connection is reset
    ERROR = "error"  # a request is answered with an error; the broker has done what it says, or has not
    ZOMBIE = "zombie"  # an instance stands still, another one of its ordinal takes over and commits, and then it wakes
    INPUT = "input"  # an input topic changes: records deleted, foreign transactions, partitions added
    BROKER = "broker"  # a broker is killed, stopped in order, or paused
    REBALANCE = "rebalance"  # further workers join the group and leave it
    EXPIRY = "expiry"  # a worker is paused inside a transaction until the coordinator has aborted it
    DATABASE = "database"  # its server is killed or paused, its connections end, a COMMIT or the answer to one is lost or late


# A session's requests about its transaction, which name it: so a fault knows whose process stands behind them.
TRANSACTIONAL = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
# Error codes (Kafka's protocol guide) that brokers answer with while all is well with the job: it has to live with each of
# them. Left out are those that tell a person to do something: access refused, a record too large, input deleted.
_COORDINATOR = (14, 15, 16)  # loading, not available, moved
_OWNER = (47, 49, 90)  # INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED
_STATE = (48, 51, 120)  # INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE
ERRORS = {
    ApiKey.INIT_PRODUCER_ID: (*_COORDINATOR, 51),
    ApiKey.ADD_PARTITIONS_TO_TXN: (*_COORDINATOR, *_OWNER, *_STATE),
    # NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS, … after append, OUT_OF_ORDER_SEQUENCE_NUMBER,
    # KAFKA_STORAGE_ERROR, UNKNOWN_PRODUCER_ID
    ApiKey.PRODUCE: (6, 7, 19, 20, 45, 47, 48, 56, 59, 120),
    ApiKey.ADD_OFFSETS_TO_TXN: (*_COORDINATOR, *_OWNER, *_STATE),
    # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID
    ApiKey.TXN_OFFSET_COMMIT: (*_COORDINATOR, 22, 25, 47, 49, 120),
    ApiKey.END_TXN: (*_COORDINATOR, *_OWNER, *_STATE),
    # NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
    # OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID
    ApiKey.FETCH: (6, 9, 56, 74, 75, 78, 100),
    ApiKey.OFFSET_FETCH: (*_COORDINATOR, 88),  # UNSTABLE_OFFSET_COMMIT
    # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS
    ApiKey.HEARTBEAT: (*_COORDINATOR, 22, 25, 27),
}
_ENDED_AT_AN_EDGE = 2 / 3
_QUIET_S = (0.5, 3.0)
_LONG_QUIET_S = 8.0  # every fourth time: the job comes to rest, as it would between real accidents
_LONG_QUIET = 1 / 4
_SECONDS = {
    FaultKind.PAUSE: (0.5, 9.0),  # below and above the session timeout of the group
    FaultKind.LATE: (0.05, 4.0),
    FaultKind.ZOMBIE: (0.5, 3.0),
    FaultKind.INPUT: (1.0, 8.0),
    FaultKind.BROKER: (0.5, 6.0),
    FaultKind.REBALANCE: (2.0, 8.0),
    FaultKind.EXPIRY: (1.0, 4.0),  # beyond the transaction's timeout
    FaultKind.DATABASE: (0.5, 6.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One accident.

    Attributes:
        number: its place in the sequence, from 1.
        kind: what happens.
        quiet_s: seconds without a fault before it.
        seconds: how long it lasts, where that means anything.
        share: which of the workers or brokers, from 0 to 1.
        api: the request, or the statement of a database, at which it happens; None: between those.
        edge: before the broker has seen that request, or when it has done it and the client does not know.
        way: which of the kind's ways.
        error: the code of an edited answer.
    """

    number: int
    kind: FaultKind
    quiet_s: float
    seconds: float
    share: float
    api: ApiKey | Statement | None
    edge: Edge
    way: str
    error: int = 0

    def __str__(self) -> str:
        edge = f" ({self.edge.value})" if self.kind in _AT_AN_EDGE else ""
        edge = f" (code {self.error})" if self.error else edge
        at = f" at {self.api.name}{edge}" if self.api is not None else ""
        way = f", {self.way}" if self.way else ""
        return f"{self.kind}{way}{at}"


NOT_DONE = "not done"
COMMIT_LOST = "COMMIT lost"
ANSWER_LOST = "answer to COMMIT lost"
COMMIT_LATE = "COMMIT late"  # its connection is cut for the client, and it reaches the server afterwards
COMMIT_DELAYED = "COMMIT delayed"  # the client waits for it
BETWEEN = "between transactions"  # its last commit is done, and its next one is of input that another one has processed meanwhile
WAYS_OF = {
    FaultKind.TERM: ("worker", "instance"),
    FaultKind.LATE: ("held", "done, and again"),
    FaultKind.DROP: ("request lost", "answer lost", "reset before", "reset after", "doubled"),
    # Most stand outside: one that stands inside a transaction has that ended by another one's init, or by the coordinator.
    FaultKind.ZOMBIE: ("", BETWEEN, BETWEEN, BETWEEN),
    FaultKind.INPUT: WAYS,
    FaultKind.BROKER: ("killed", "stopped", "paused"),
    FaultKind.REBALANCE: ("leave in order", "killed"),
    FaultKind.DATABASE: (
        "killed",
        "paused",
        "backends terminated",
        "connections cut",
        COMMIT_LOST,
        ANSWER_LOST,
        COMMIT_LATE,
        COMMIT_DELAYED,
    ),
}
_ERROR_WAYS = ("done", NOT_DONE)  # drawn last: what is drawn before is that of older versions
_OF_KAFKA = {FaultKind.LATE, FaultKind.DROP}
_AT_A_REQUEST = {*_OF_KAFKA, FaultKind.ZOMBIE}
_ENDED = {FaultKind.KILL, FaultKind.TERM}
_AT_AN_EDGE = {*_ENDED, FaultKind.ZOMBIE}


def faults(
    seed: int,
    kinds: Sequence[FaultKind],
    ways: Mapping[FaultKind, Collection[str]] | None = None,
    *,
    quiet: float = 1.0,
    requests: Sequence[ApiKey | Statement] = TRANSACTIONAL,
    errors: Sequence[ApiKey] = tuple(ERRORS),
) -> Iterator[Fault]:
    """The faults of a seed, without end. Each depends on the seed, its number and the kinds alone.

    Args:
        seed: decides them.
        kinds: which ones.
        ways: of a kind in it, only these of its ways; the faults of the others are left out.
        quiet: the times without a fault, by this factor.
        requests: at which a process can be met; behind the last one nothing of a transaction is left to do.
        errors: those that are answered by errors.
    """
    for number in count(1):
        random = Random(f"{seed}/{number}")  # noqa: S311 - reproducible, no secret
        kind = random.choice(kinds)
        quiet_s = _LONG_QUIET_S if random.random() < _LONG_QUIET else random.uniform(*_QUIET_S)
        at_a_request = kind in _AT_A_REQUEST or (kind in _ENDED and random.random() < _ENDED_AT_AN_EDGE)
        possible = requests if kind not in _OF_KAFKA else [one for one in requests if isinstance(one, ApiKey)]
        api = random.choice(possible) if at_a_request else None
        if kind is FaultKind.ERROR:
            api = random.choice(errors)
        fault = Fault(
            number,
            kind,
            quiet_s * quiet,
            random.uniform(*_SECONDS.get(kind, (0.0, 0.0))),
            random.random(),
            api,
            random.choice(list(Edge)),
            random.choice(WAYS_OF.get(kind, ("",))),
            random.choice(ERRORS[api]) if kind is FaultKind.ERROR and isinstance(api, ApiKey) else 0,
        )
        if fault.way == BETWEEN:
            fault = replace(fault, api=requests[-1], edge=Edge.REPLY)
        if kind is FaultKind.ERROR and api in TRANSACTIONAL:
            fault = replace(fault, way=random.choice(_ERROR_WAYS))
        if fault.way in (ways or {}).get(kind, (fault.way,)):
            yield fault
