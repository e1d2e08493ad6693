"""Events: immutable facts that a listener is called with (logs, metrics, tests).

The core never imports a listener. A listener must not raise and must not block: it is called from the
thread that drives the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from eos.errors import EosError
from eos.home import Home, end_elsewhere
from eos.offsets import OffsetVector, Partition


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a shard. ``shard`` is its transactional.id."""

    shard: str


@dataclass(frozen=True, slots=True)
class ShardsOwned(Event):
    """From now on the process runs a session for each of these shards, and for no other.

    Sent at the start, when partitions were added, when the loop of a shard has ended in order, and now and then in
    between. ``shard``: how the transactional.ids begin.
    """

    transactional_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class SessionOpened(Event):
    """The shard's session is open: older owners are fenced, positions are known."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SessionClosed(Event):
    """The shard's session ended; ``reason`` is "" for a normal end."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOpened(Event):
    """init_transactions succeeded: every older producer of this transactional.id is fenced."""

    seconds: float
    rebuilt_because: str = ""  # empty for the first open


@dataclass(frozen=True, slots=True)
class ProducerSuspect(Event):
    """A resend by the client cannot be excluded: the producer is rebuilt before the next begin."""

    reason: str


@dataclass(frozen=True, slots=True)
class InputTaken(Event):
    """Input records belong to the open transaction from now on: [begins, ends) of these partitions.

    ``traceparents``: W3C trace contexts that the records' headers name; empty unless a listener has asked for them
    (`eos.headers.TraceContexts`).
    """

    records: int
    begins: OffsetVector
    ends: OffsetVector
    traceparents: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TransactionCommitted(Event):
    """One transaction's outputs and input offsets became visible, all of them."""

    records_in: int  # as the loop counts; 0 for a producer by itself and in Spark, which reads by itself
    records_out: int
    offsets: OffsetVector
    seconds: float  # from begin to the commit's answer
    commit_seconds: float  # send_offsets and commit alone


@dataclass(frozen=True, slots=True)
class TransactionEnded(Event):
    """One transaction has ended without the answer to a commit.

    ``outcome``: "aborted" (its outputs and offsets will never be visible), "expired" (it outlived transaction.timeout.ms) or
    "unresolved" (its outcome is not known). What became of the last two is known once the producer is reopened.
    """

    outcome: Literal["aborted", "expired", "unresolved"]
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Fenced(Event):
    """Another owner has the shard; this one stops."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallRetried(Event):
    """A call is made again, as the retry policy says."""

    call: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The session waits for something outside, and goes on by itself: a broker, a place in the group, a rebalance.

    ``call``: what it will call again.
    """

    call: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionsAssigned(Event):
    """Input partitions were assigned to this session, which reads them from these positions."""

    positions: OffsetVector


@dataclass(frozen=True, slots=True)
class PartitionsRevoked(Event):
    """Input partitions were taken from this session. ``lost``: without a callback before; another owner may have them."""

    partitions: Sequence[Partition]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Rewound(Event):
    """After an abort the positions went back to the committed offsets."""

    positions: OffsetVector


@dataclass(frozen=True, slots=True)
class StartPolicyApplied(Event):
    """Partitions without a committed offset got their first one, committed before the first read.

    Attributes:
        set_by: the source that gave ``input.start``; one that stays would also begin a group anew whose offsets are gone.
    """

    positions: OffsetVector
    policy: str
    set_by: str = ""


@dataclass(frozen=True, slots=True)
class OffsetsAdopted(Event):
    """A start has committed another program's offsets again as eos's, because ``ownership.adopt_offsets`` says so."""

    positions: OffsetVector


@dataclass(frozen=True, slots=True)
class RecordDeadLettered(Event):
    """A record that could not be processed went to the dead-letter topic (or was skipped)."""

    partition: Partition
    offset: int
    error: str
    skipped: bool = False
    deaths: int = 0  # of processes in a row that were alone with it; 0 where its transform has raised


@dataclass(frozen=True, slots=True)
class Lag:
    """Per partition: offsets from what a session has committed (a reader: its position) to the LSO, and from there to the high watermark.

    ``outside_s``: seconds for which the coordinator of the session's group has not been reached.
    """

    to_lso: dict[Partition, int] = field(default_factory=dict)
    lso_to_high_watermark: dict[Partition, int] = field(default_factory=dict)
    outside_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    """The loop is alive, and so it stands: no event, sent once per turn, also when idle or while the cluster is away.

    ``open_s``: for how long its oldest transaction has been open, or committing; 0 if there is none. ``lag``: every few seconds.
    """

    open_s: float = 0.0
    lag: Lag | None = None


@dataclass(frozen=True, slots=True)
class TransformAtWork(Event):
    """A transform has been at work for so long. Sent after 10 s and then every 30 s, from a thread that only watches.

    ``seconds`` is 0 when it has returned. ``records``: the record, or all that a batch function was given. ``stack``: where
    its code stands, the innermost call last.
    """

    records: str
    seconds: float
    stack: Sequence[str]


@dataclass(frozen=True, slots=True)
class StrangersInGroup(Event):
    """The group has members that are no instances of the job, or has none of them any more.

    Attributes:
        group: the group.
        members: ``client id @ host`` of each; empty: they have gone.
    """

    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionStalled(Event):
    """An input partition holds records up to ``lso`` and has brought none for so long, though it is fetched.

    ``seconds`` is 0 when it moves again. ``error``: the last error of a fetch, if librdkafka has reported one.
    """

    partition: Partition
    position: int
    lso: int
    seconds: float
    error: str = ""


class Listener(Protocol):
    """Anything that takes events."""

    def __call__(self, event: Event, /) -> None: ...


def ignore_event(event: Event) -> None:
    """The listener that does nothing."""


class ListenerError(RuntimeError):
    """A listener has raised an error of eos, which would be taken for that of the call that it heard of: a commit, say."""


class _Guarded:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __call__(self, event: Event, /) -> None:
        home = Home.here
        try:
            self._listener(event)
        except EosError as error:
            raise ListenerError(f"a listener raised at {event}: {error}. Fix: it must not raise") from error
        finally:
            end_elsewhere(home)


def guarded(listener: Listener) -> Listener:
    """The listener, with a ListenerError in the place of an error of eos that it raises.

    Every way in that takes a listener of the user's passes it through here, once: what is below calls it as it is.
    """
    return listener if listener is ignore_event or isinstance(listener, _Guarded) else _Guarded(listener)


def send_to_all(*listeners: Listener) -> Listener:
    """One listener that passes every event on to each of these, in order."""

    def send(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return send
