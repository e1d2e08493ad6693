"""A model of a session in a group: whatever comes, in whatever order, the output is f(input up to the committed offsets).

Session, consumer, producer, transaction and ownership are real; the two clients below them are fakes that follow
librdkafka's rules, and brokers, group and the other members are a few lines of state. The commit's helper thread is
played too: it runs when the model says so, or when the session waits for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eos.core.owner import ShardOwner
from eos.core.pipeline import Pipeline
from eos.core.producer import ProducerState
from eos.core.surroundings import Entered
from eos.crashes.search import Search
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
    UnprovenFenceError,
    UsageError,
)
from eos.events import ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.group.fenced_member import FENCED_MEMBER
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Mark, TopicShape
from eos.kafka.consumer import Fetched, RebalanceListener
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.groups import GroupShape, Member
from eos.kafka.late_copies import FenceDoubt, ProducerIdentity
from eos.offsets import OffsetVector, Partition
from eos.records import GivenMessage, OutputBatch
from eos.shards import OrdinalShard
from tests.model.patches import new_patch
from tests.support.sessions import producer_of
from tests.support.settings import settings_of

PARTITIONS = [Partition("in", number) for number in range(3)]
LENGTH = 1_000  # of each input partition; its records are the numbers from 0
SHARD = OrdinalShard("app", "g", 0)
SETTINGS = settings_of(
    "nowhere:1",
    group="g",
    transaction__timeout_ms=5000,
    input__start="earliest",
    input__stall_timeout_ms=2_000_000_000,  # no real client is made to ask
)
SOME = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True)
NO_GENERATION = -1
# What the metadata of an evicted member says until its next poll: librdkafka has not heard of it, or forgets the generation, or the
# member's name too (see `GroupMetadata`).
UNHEARD, WITHOUT_GENERATION, WITHOUT_A_NAME = "unheard", "without generation", "without a name"
EVICTED = st.sampled_from([UNHEARD, WITHOUT_GENERATION, WITHOUT_A_NAME])
FAULTS_OF_OFFSETS = ["rebalanced", "abortable", "abortable, the abort fails", "reopen"]
FAULTS_OF_COMMIT = ["abortable", "abortable, happened", "unknown, happened", "unknown, did not"]


class Made(NamedTuple):
    """An output record: which input record it was made from."""

    partition: int
    offset: int


@dataclass
class World:
    """The brokers, the clock, the group as its coordinator sees it, and what comes next."""

    now_s: float = 1000.0
    epoch: int = 0
    generation: int = 0
    stored: dict[Partition, Committed] = field(default_factory=dict)
    visible: list[Made] = field(default_factory=list)
    events: list[tuple[str, list[Partition]]] = field(default_factory=list)  # not served yet
    violations: list[str] = field(default_factory=list)
    next_offsets_meet: str = ""
    next_commit_meets: str = ""
    interrupts_in_commit: list[str] = field(default_factory=list)  # "before" or "after" it happens
    next_question_fails: bool = False  # for the committed offsets
    helper: tuple[Future[None], Callable[[], None]] | None = None
    living: frozenset[str] = frozenset()
    member: FakeConsumer | None = None  # the one that has joined
    evicted: str = ""  # what its metadata says since the group has dropped it; "" while it is a member
    producer: FakeProducer | None = None
    away: set[Partition] = field(default_factory=set)  # assigned to other members

    def start(self) -> Entered:
        """What the start policy does at the group's first start: every partition has an offset from then on."""
        metadata = OffsetMetadata(
            OwnershipMode.GROUP, "start", started_partitions=len(PARTITIONS), app=SHARD.app, topic="id"
        )
        self.stored = {p: Committed(0, str(metadata)) for p in PARTITIONS} | self.stored
        return Entered(PARTITIONS, dict(self.stored))

    def committed(self, partition: Partition) -> int:
        return self.stored[partition].offset if partition in self.stored else 0

    def commit(self, made: Iterable[Made], offsets: Mapping[Partition, Committed]) -> None:
        self.visible += made
        self.stored |= offsets

    def others_process(self, partition: Partition, count: int, shard: str = "#7") -> None:
        """Another member, to which the group has given the partition, goes on from where the group stands."""
        start = self.committed(partition)
        made = [Made(partition.number, offset) for offset in range(start, start + count)]
        self.commit(
            made, {partition: Committed(start + count, str(OffsetMetadata(OwnershipMode.GROUP, shard)))}
        )

    # As the executor's thread: it runs when it is waited for, or when the model says so.

    def submit(self, function: Callable[[], None]) -> Future[None]:
        assert self.helper is None
        future: Future[None] = Future()
        self.helper = (future, function)
        return future

    def run_helper(self) -> None:
        if self.helper is None:
            return
        future, function = self.helper
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            self.helper = None
            future.set_exception(error)
        else:
            self.helper = None
            future.set_result(None)

    def shutdown(self) -> None:
        if self.helper is not None:
            self.violations.append("the session is closed over a commit in flight")

    def wait(self, futures: Sequence[Future[None]], timeout_s: float | None = None) -> Any:
        if timeout_s is None:
            self.run_helper()
        else:
            self.now_s += timeout_s
        return type("Done", (), {"done": {f for f in futures if f.done()}})

    # As the module ``time``.

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def time(self) -> float:
        return self.now_s

    # As the admin client.

    @property
    def groups(self) -> Self:
        return self

    def stable_assignment(self, *_: object) -> dict[str, frozenset[Partition]]:
        return {}  # partitions without an owner: tests/unit/watches/test_unowned.py

    def members(self, group: str, timeout_s: float) -> list[Member]:
        return [Member("client", name, "host", ()) for name in self.living]

    def topics(self, names: Iterable[str], timeout_s: float) -> dict[str, TopicShape]:
        return dict.fromkeys(names, TopicShape(len(PARTITIONS), 1, "id"))

    def offsets_at(self, mark: Mark, partitions: Iterable[Partition], timeout_s: float) -> OffsetVector:
        return OffsetVector(dict.fromkeys(partitions, 0 if mark is Mark.START else LENGTH))

    def shape(self, group: str, timeout_s: float) -> GroupShape:
        return GroupShape(sorted(self.living), is_classic=True)


class FakeProducer:
    """TransactionalClient on the world."""

    forgets_offsets = False  # of brokers before 4.0: tests/faults/test_forgotten_offsets.py
    commit_called = False
    commit_sent_again = False

    def __init__(self, world: World, doubt: FenceDoubt) -> None:
        self._world = world
        self._doubt = doubt
        self._state = "new"
        self._epoch = -1
        self._made: list[Made] = []
        self._offsets: dict[Partition, Committed] = {}
        self.suspicion = ""
        self.expired = False
        self._happened = False
        world.producer = self

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open that has neither committed nor aborted, nor failed."""
        return self._state == "open" and bool(self._made)

    def init(self, timeout_s: float) -> None:
        self._allowed("init", "new")
        self._world.epoch += 1
        self._epoch = self._world.epoch
        self._state = "ready"

    def begin(self) -> None:
        self._allowed("begin", "ready")
        if self.suspicion:
            self._world.violations.append("a transaction begins on a suspect instance")
        self._state = "open"
        self._made, self._offsets = [], {}
        self.commit_called = False

    def produce(self, topic: str, values: Sequence[Any], *others: Any, **more: Any) -> None:
        if self._world.helper is not None:
            self._world.violations.append("something is produced before the last commit has returned")
        self._allowed("produce", "open")
        self._made += [Made(*map(int, value.split(b":"))) for value in values]

    def poll(self) -> None:
        pass

    poll_now_and_then = poll

    def check_deliveries(self) -> None:
        pass

    def send_offsets(
        self, offsets: Mapping[Partition, Committed], group: GroupMetadata, timeout_s: float
    ) -> None:
        self._allowed("send_offsets", "open")
        world = self._world
        self._fence("send_offsets")
        assigned = world.member.assigned if world.member is not None else set()
        if foreign := offsets.keys() - assigned:
            world.violations.append(f"offsets of {sorted(foreign)}, which are not assigned")
        fault, world.next_offsets_meet = world.next_offsets_meet, ""
        # KIP-447: a member of an older generation is refused. What names no generation or no member is accepted from any client:
        # by a classic group, and while that is empty.
        names_none = [metadata_of(n, "") for n in range(NO_GENERATION, world.generation + 1)]
        if group.opaque not in (metadata_of(world.generation), metadata_of(NO_GENERATION), *names_none):
            fault = "rebalanced"
        self._offsets = dict(offsets)
        if fault == "reopen":
            self._state = "fatal"
            raise ReopenError("send_offsets: over")
        if fault:
            self._state = "fatal" if "the abort fails" in fault else "failed"
            raise (RebalancedError if fault == "rebalanced" else AbortableError)(f"send_offsets: {fault}")

    def refused_whole(self, error: BaseException) -> bool:
        return False

    def prepare_commit(self, last_look: Callable[[], None], over: Callable[[], bool]) -> None:
        last_look()

    def commit(self, timeout_s: float, last_look: Callable[[], None] | None = None) -> None:
        self._allowed("commit", "open")
        if last_look is not None and not self._happened:
            last_look()
        self.commit_called = True
        if self._happened:  # and is resumed after an interrupt
            self._happened = False
            self._state = "ready"
            return
        self._fence("commit")
        if self._world.interrupts_in_commit:
            if self._world.interrupts_in_commit.pop(0) == "after":
                self._world.commit(self._made, self._offsets)
                self._happened = True
            raise KeyboardInterrupt
        fault, self._world.next_commit_meets = self._world.next_commit_meets, ""
        if fault == "abortable":
            self._state = "failed"
            raise AbortableError("commit: failed")
        if self._made and not self._offsets:
            self._world.violations.append("output is committed without the offsets of its input")
        if fault != "unknown, did not":
            self._world.commit(self._made, self._offsets)
        if fault == "abortable, happened":  # the broker's answer -1 says nothing; the abort is refused then
            self._state = "fatal"
            raise AbortableError("commit: UNKNOWN")
        if fault:
            self._state = "fatal"
            raise CommitOutcomeUnknownError(fault)
        self._state = "ready"

    def abort(self, timeout_s: float) -> None:
        self._allowed("abort", "open", "failed", "fatal")
        self._fence("abort")
        if self._state == "fatal":
            raise ReopenError("abort: fatal")
        self._state = "ready"

    def identity(self, timeout_s: float) -> ProducerIdentity | None:
        return ProducerIdentity(1, self._epoch)

    def close(self) -> None:
        self._state = "closed"

    def _allowed(self, call: str, *states: str) -> None:
        if self._state not in states:
            self._world.violations.append(f"{call} while the instance is {self._state}")
            raise UsageError("_STATE")

    def _fence(self, call: str) -> None:
        if self._epoch < self._world.epoch:
            self._state = "fatal"
            kind = UnprovenFenceError if self._doubt.reason else FencedError
            raise kind(f"{call}: fenced", code="_FENCED")


class FakeReader:
    """ConsumerClient on the world, as far as offsets are read."""

    def __init__(self, world: World, *, stable: bool = True) -> None:
        self._world = world
        self._stable = stable
        self.group_id = "g"

    def committed(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, Committed]:
        if self._stable and self._world.helper is not None:
            raise RetriableError("a transaction is pending on the offsets", code="_TIMED_OUT")
        if self._world.next_question_fails:
            self._world.next_question_fails = False
            raise RebalancedError("the group moved on")
        return {p: self._world.stored[p] for p in partitions if p in self._world.stored}

    def partitions_of(self, topics: Iterable[str], timeout_s: float) -> list[Partition]:
        return list(PARTITIONS)

    def close(self) -> None:
        pass


class FakeConsumer(FakeReader):
    """ConsumerClient on the world: a member of the group, whose rebalances are served inside consume."""

    topic_ids: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.owned: dict[Partition, int] = {}  # next offset to fetch
        self.assigned: set[Partition] = set()  # what the session has been told of
        self._read: set[Partition] = set()  # those that position() knows
        self._listener: RebalanceListener | None = None
        self.broken: FencedError | None = None
        self.fenced_in_consume = False  # in the background, once the records are taken
        self.interrupt = ""  # where the exception of a signal handler leaves the next consume

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._listener = listener
        self._world.member = self
        self._world.generation += 1
        self._world.evicted = ""
        self._world.away = set()  # this is the group's only member then, whatever the last one had given up
        self._world.events = [("assigned", list(PARTITIONS))]

    def raise_event(self) -> None:
        if self.broken is not None:
            raise self.broken

    def forget_former_ids(self) -> None:
        pass  # no topic of this world is created anew

    def consume(self, max_records: int, timeout_s: float, linger_s: float) -> Fetched:
        self.raise_event()
        self._world.now_s += 0.001
        messages = self._take(max_records // 2)  # a rebalance may come in the middle of a fetch
        while self._world.events:
            kind, partitions = self._world.events.pop(0)
            assert self._listener is not None
            if self.interrupt != "callback":
                getattr(self._listener, kind)(partitions)
                self._is_given_up(kind)
            else:
                self._rebalance_by_itself(kind, partitions)
            if kind == "lost":
                self._world.evicted = ""  # it knows now, and joins again
            self._interrupted("callback")
        messages += self._take(max_records - len(messages))
        self._interrupted("polled")
        if self.fenced_in_consume:
            self.fenced_in_consume = False
            self._world.generation += 1
            self.break_by_fence()
        return Fetched(messages, [p for p, offset in self.owned.items() if offset >= LENGTH])

    def _interrupted(self, where: str) -> None:
        if self.interrupt == where:
            self.interrupt = ""
            raise KeyboardInterrupt

    def _is_given_up(self, kind: str) -> None:
        """What was made of partitions has an end before they go."""
        producer = self._world.producer
        open_still = (producer is not None and producer.is_open) or self._world.helper is not None
        if kind != "assigned" and open_still:
            self._world.violations.append(f"partitions are {kind} with a transaction open")

    def _rebalance_by_itself(self, kind: str, partitions: list[Partition]) -> None:
        """As confluent-kafka does where a callback was left before it could say anything."""
        if kind == "assigned":
            self.incremental_assign({p: self._world.committed(p) for p in partitions})
        else:
            self.incremental_unassign(partitions)

    def _take(self, count: int) -> list[Any]:
        taken: list[Any] = []
        for partition in sorted(self.owned):
            for _ in range(-(-count // len(self.owned))):
                offset = self.owned[partition]
                if offset < LENGTH and len(taken) < count:
                    value = b"%d:%d" % (partition.number, offset)
                    taken.append(GivenMessage(*partition, offset, None, value, (), None))
                    self.owned[partition] += 1
                    self._read.add(partition)
        return taken

    def assignment(self) -> frozenset[Partition]:
        return frozenset(self.owned)

    def incremental_assign(self, positions: Mapping[Partition, int]) -> None:
        if self.owned.keys() & positions.keys():
            self._world.violations.append(f"assigned again: {sorted(self.owned.keys() & positions.keys())}")
        self.owned |= positions
        self.assigned |= positions.keys()
        self._read -= positions.keys()

    def incremental_unassign(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if partition not in self.owned and self.broken is None:
                self._world.violations.append(f"not assigned: {partition}")
            self.owned.pop(partition, None)
            self.assigned.discard(partition)
            self._read.discard(partition)

    def break_by_fence(self) -> None:
        """A fatal error takes the assignment back at once; only the next consume tells."""
        self.broken = FencedError("fenced", code=FENCED_MEMBER)
        self.owned, self._read = {}, set()

    def positions(
        self, partitions: Iterable[Partition], topic_ids: Mapping[str, str] | None = None
    ) -> OffsetVector:
        read = {p: self.owned[p] for p in partitions if p in self._read}
        return OffsetVector(read, topic_ids=topic_ids)

    def seek(self, positions: Mapping[Partition, int]) -> None:
        if not positions.keys() <= self.owned.keys():
            raise UsageError("_STATE")
        self.owned |= positions
        self._read -= positions.keys()

    def group_metadata(self) -> GroupMetadata:
        self._interrupted("commit")
        generation, name = self._world.generation, "member"
        if self.broken is not None:
            generation, name = NO_GENERATION, ""
        elif self._world.evicted == WITHOUT_GENERATION:
            generation = NO_GENERATION
        elif self._world.evicted:
            generation, name = generation - 1, "member" if self._world.evicted == UNHEARD else ""
        return GroupMetadata("g", metadata_of(generation, name))

    def watermarks(self, partition: Partition) -> None:
        return None

    disconnected_s = outside_s = 0.0

    some_wait = False

    def is_away(self, partition: Partition) -> bool:
        return self.unreached_s(partition) > 0

    def unreached_s(self, partition: Partition) -> float:
        del partition
        return 0.0

    def queue_length(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        if self._world.member is self:
            self._world.member = None
            self._world.evicted = ""
            self._world.events = []


def metadata_of(generation: int, member: str = "member") -> bytes:
    """As librdkafka writes it, of a member, or of a client that is none any more."""
    return b"CGMDv2:" + struct.pack("=i", generation) + b"g\0" + member.encode() + b"\0\1"


class SessionMachine(RuleBasedStateMachine):
    """One session, the other members of its group, and replacements of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        patch = self.patch = new_patch()
        patch.setattr(
            "eos.core.producer.TransactionalClient",
            lambda *_, doubt, **__: FakeProducer(self.world, doubt),
        )
        patch.setattr(
            "eos.group.committed.lone_reader", lambda *_, stable: FakeReader(self.world, stable=stable)
        )
        patch.setattr("eos.core.consumer.ConsumerClient", lambda *_, **__: FakeConsumer(self.world))
        self.surroundings = replace(SURROUNDINGS, enter=lambda *_: self.world.start())
        patch.setattr("eos.faces.session.SURROUNDINGS", self.surroundings)
        patch.setattr("eos.kafka.admin.Admin.of", lambda *_: self.world)
        patch.setattr("eos.group.committed.shared_admin", lambda *_: self.world)
        patch.setattr("eos.group.topics.shared_admin", lambda *_: self.world)
        patch.setattr("eos.watches.stalls.shared_admin", lambda *_: self.world)
        patch.setattr("eos.core.committer.ThreadPoolExecutor", lambda **_: self.world)
        patch.setattr("eos.core.overtime.Overtime.watch", lambda _: None)  # it looks when the model says so
        patch.setattr("eos.core.committer.wait", self.world.wait)
        for module in (
            "core.producer",
            "core.own_offsets",
            "base.deadline",
            "retry",
            "core.transaction",
            "core.consumer",
            "watches.unreached",
            "watches.input_topics",
            "core.ledger",
            "core.owner",
            "core.tries",
            "core.membership",
            "group.fenced_member",
            "group.metadata",
            "group.expiry",
            "kafka.late_copies",
            "core.overtime",
        ):
            patch.setattr(f"eos.{module}.time", self.world)
        patch.setattr("tenacity.nap.time", self.world)
        self.session: Pipeline
        self.over = True
        self.rewound = False  # since something was fetched
        self.rival = False

    def teardown(self) -> None:
        try:
            if not self.over:
                self.session.close()
            self.output_is_the_input_up_to_the_committed_offsets()
            self.clients_are_used_by_their_rules()
        finally:
            self.patch.undo()

    @property
    def owner(self) -> ShardOwner:
        return self.session.owner

    @property
    def idle(self) -> bool:
        return self.session.idle

    @property
    def member(self) -> FakeConsumer:
        assert self.world.member is not None
        return self.world.member

    def _try(self, step: Callable[[], object], *expected: type[BaseException]) -> None:
        """A step as the loop makes it: an error is recovered from, or ends the session."""
        try:
            step()
        except expected:
            pass
        except EosError as error:
            try:
                self.owner.recover(error)
            except FencedError:
                assert self.rival
                self._end()
            except RebalancedError:  # the loop counts it, and fetches
                assert self.session.idle
                assert self.owner.consumer.rewind_due
            else:
                assert self.session.idle
                self.rewound = True

    def _end(self) -> None:
        self.session.close()
        self.over = True

    # --- life --------------------------------------------------------------------------------------

    @initialize()
    def first_session(self) -> None:
        self.open()

    @precondition(lambda self: self.over)
    @rule()
    def next_session(self) -> None:
        self.open()

    def open(self) -> None:
        owner = ShardOwner(
            SETTINGS,
            app="app",
            inputs=["in"],
            outputs=["out"],
            listener=ignore_event,
            surroundings=self.surroundings,
        )
        self.session = Pipeline(owner, Search)
        self.world.next_offsets_meet = self.world.next_commit_meets = ""
        self.session.open()
        self.over = self.rival = False
        self.rewound = False

    @precondition(lambda self: not self.over)
    @rule(often=st.integers(0, 4))
    def close(self, often: int) -> None:
        if not often:
            self._end()

    # --- the loop's steps ----------------------------------------------------------------------------

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), late=st.booleans())
    def fetch_and_stage(self, count: int, late: bool = False) -> None:
        self._try(lambda: self._fetch(count, late=late))

    @precondition(lambda self: not self.over)
    @rule(
        count=st.integers(1, 9),
        partitions=SOME,
        how=st.sampled_from(["fenced", "lost", "revoked"]),
        late=st.booleans(),
        says=EVICTED,
    )
    def group_moves_on_while_records_are_transformed(
        self,
        count: int,
        partitions: list[Partition],
        how: str,
        late: bool = False,
        says: str = WITHOUT_GENERATION,
    ) -> None:
        def moving() -> None:
            if how == "fenced":
                self._fence_the_member()
            elif how == "lost":
                self._lose(says)
            else:
                self._revoke(partitions)

        self._try(lambda: self._fetch(count, moving, late=late))

    def _fetch(self, count: int, meanwhile: Callable[[], None] = lambda: None, *, late: bool = False) -> None:
        """``late``: what is open is committed while these records are transformed."""
        batch = self.session.fetch(count, 0.0, 0.0)
        if self.world.member is not None and self.rewound and not batch and not self.rival:
            self._is_where_the_group_stands()
        self.rewound = False
        if batch:
            try:
                with self.session.committing_at(self.world.now_s):
                    meanwhile()
                    if late:
                        self.session._overtime.look()
            except KeyboardInterrupt:  # the loop has these records, and ends
                self._end()
                raise
            self.session.stage(batch, [OutputBatch("out", batch.values)])

    def _is_where_the_group_stands(self) -> None:
        if self.member.broken is None and not self.owner.consumer.rewind_due:
            assert self.member.owned == {p: self.world.committed(p) for p in self.member.owned}

    @precondition(lambda self: not self.over)
    @rule()
    def produce(self) -> None:
        if self.owner.committer.committing:
            with pytest.raises(UsageError, match="before the last commit"):
                self.session.produce()
        else:
            self._try(self.session.produce)

    @precondition(lambda self: not self.over and not self.owner.committer.committing)
    @rule()
    def commit_soon(self) -> None:
        self._try(self.owner.committer.commit_soon)

    @precondition(lambda self: not self.over)
    @rule(patient=st.booleans())
    def join(self, patient: bool) -> None:
        self._try(lambda: self.owner.committer.join(None if patient else 0.0))

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), where=st.sampled_from(["polled", "callback", "commit"]))
    def fetch_is_interrupted(self, count: int, where: str) -> None:
        """By the exception of a signal handler; the same objects are used on. ``commit``: that of a revoke, before it is sent."""
        member = self.world.member
        if member is None or member.broken is not None or (where == "callback" and not self.idle):
            return
        member.interrupt = where
        self._try(lambda: self._fetch(count, late=False), KeyboardInterrupt)
        member.interrupt = ""

    @precondition(lambda self: not self.over)
    @rule()
    def assign_callback_fails(self) -> None:
        if self._is_quiet() and self.world.away and not self.world.next_question_fails:
            self.partitions_come_back(1)
            self.world.next_question_fails = True

    @precondition(lambda self: not self.over)
    @rule()
    def commit_passed_markers(self) -> None:
        self._try(lambda: self.owner.commit_offsets_alone(at_once=True))

    @precondition(lambda self: not self.over and self.idle)
    @rule(days=st.sampled_from([0, 2]))
    def renew_offsets_if_due(self, days: int) -> None:
        self.world.now_s += days * 86_400
        self._try(self.owner.commit_offsets_alone)

    @precondition(lambda self: self.world.helper is not None)
    @rule()
    def helper_runs(self) -> None:
        self.world.run_helper()

    # --- accidents -------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.helper is None)
    @rule(offsets=st.sampled_from(["", *FAULTS_OF_OFFSETS]), commit=st.sampled_from(["", *FAULTS_OF_COMMIT]))
    def next_commit_meets(self, offsets: str, commit: str) -> None:
        self.world.next_offsets_meet, self.world.next_commit_meets = offsets, commit

    @precondition(lambda self: not self.over and self.owner.committer.filling)
    @rule()
    def client_resends(self) -> None:
        client: Any = producer_of(self.owner)._client
        client.suspicion = "REQTMOUT"

    @precondition(lambda self: not self.over and self.world.helper is None)
    @rule(rarely=st.integers(0, 3))
    def copy_of_an_init_arrives_late(self, rarely: int) -> None:
        """Nobody owns the epoch that it makes."""
        if not rarely:
            self.world.now_s += 700  # the last one is long ago
            self.world.epoch += 1

    @precondition(lambda self: not self.over)
    @rule(partitions=SOME)
    def partitions_are_revoked(self, partitions: list[Partition]) -> None:
        self._revoke(partitions)

    @precondition(lambda self: not self.over)
    @rule(
        count=st.integers(1, 9),
        partitions=SOME,
        interrupted=st.booleans(),
        back=st.sampled_from([None, 0, 2]),
        meets=st.sampled_from(["", *FAULTS_OF_OFFSETS]),
    )
    def partitions_are_revoked_with_a_transaction_open(
        self, count: int, partitions: list[Partition], interrupted: bool, back: int | None, meets: str
    ) -> None:
        """What the other rules come to a few times in 200 examples only. ``back``: what others have processed meanwhile."""
        self._with_a_transaction_open(count)
        if self.over or not self.owner.committer.filling:
            return
        self.world.next_offsets_meet = meets
        self._revoke(partitions)
        if interrupted:
            self.fetch_is_interrupted(1, "commit")
        else:
            self.fetch_and_stage(1)
        if not self.over and back is not None:
            self.partitions_come_back(back)
            self.fetch_and_stage(1)
        self._commit_what_is_open()

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), says=EVICTED)
    def member_is_evicted_with_a_transaction_open(self, count: int, says: str) -> None:
        """And does not know it yet when it commits."""
        self._with_a_transaction_open(count)
        if not self.over and self.owner.committer.filling:
            self._lose(says)
            self._commit_what_is_open()

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), more=st.integers(1, 9))
    def records_are_staged_while_a_transaction_commits(self, count: int, more: int) -> None:
        """What the loop does all the time."""
        self._with_a_transaction_open(count)
        if not self.over and not self.owner.committer.committing:
            self.commit_soon()
        if not self.over:
            self.fetch_and_stage(more)
        if not self.over:
            self.produce()

    def _with_a_transaction_open(self, count: int) -> None:
        self.join(True)
        if not self.over:
            self.fetch_and_stage(count)
        if not self.over:
            self.produce()

    def _commit_what_is_open(self) -> None:
        if not self.over and not self.owner.committer.committing:
            self.commit_soon()
        if not self.over:
            self.join(True)

    def _revoke(self, partitions: list[Partition]) -> None:
        if self._is_quiet():
            going = [p for p in partitions if p in self.member.owned]
            if going:
                self.world.events.append(("revoked", going))
                self.world.away |= set(going)

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(0, 3))
    def partitions_come_back(self, count: int) -> None:
        """After others have worked on them."""
        if self._is_quiet() and self.world.away:
            self.world.generation += 1
            for partition in self.world.away:
                self.world.others_process(partition, count)
            self.world.events.append(("assigned", sorted(self.world.away)))
            self.world.away = set()

    @precondition(lambda self: not self.over)
    @rule(says=EVICTED)
    def partitions_are_lost(self, says: str = WITHOUT_GENERATION) -> None:
        self._lose(says)

    def _lose(self, says: str = WITHOUT_GENERATION) -> None:
        """The member is out, nobody has asked it, and others work on its partitions already. Its next poll says so."""
        if self._is_quiet() and self.member.owned and self.world.helper is None:
            going = sorted(self.member.owned)
            self.world.generation += 1
            self.world.evicted = says
            self.world.events.append(("lost", going))
            self.world.away |= set(going)
            for partition in going[:2]:
                self.world.others_process(partition, 2)

    @precondition(lambda self: not self.over)
    @rule(rarely=st.integers(0, 3))
    def member_is_fenced_without_a_rival(self, rarely: int) -> None:
        if not rarely:
            self._fence_the_member()

    def _fence_the_member(self) -> None:
        if self._is_quiet():
            self.world.now_s += 700  # the last fence is long ago
            self.world.generation += 1
            self.member.break_by_fence()

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9))
    def member_is_fenced_while_a_fetch_returns(self, count: int) -> None:
        """The records are handed over, and their partitions have no positions any more."""
        if self._is_quiet():
            self.world.now_s += 700  # the last fence is long ago
            self.member.fenced_in_consume = True
            self._try(lambda: self._fetch(count))

    @precondition(lambda self: not self.over)
    @rule(rarely=st.integers(0, 9), count=st.integers(1, 3))
    def replacement_opens_and_commits(self, rarely: int, count: int) -> None:
        """A process under the same ordinal: our own transactions are fenced from now on."""
        if rarely or not self._is_quiet() or self.world.helper is not None or not self.member.owned:
            return
        self.rival = True
        self.world.epoch += 1
        self.world.generation += 1
        for partition in self.member.owned:
            self.world.others_process(partition, count, str(SHARD))

    def _is_quiet(self) -> bool:
        member = self.world.member
        return member is not None and member.broken is None and not self.world.events

    # --- what always holds -----------------------------------------------------------------------------

    @invariant()
    def output_is_the_input_up_to_the_committed_offsets(self) -> None:
        """Nothing lost, nothing doubled, nothing torn, in order: whoever committed what."""
        for partition in PARTITIONS:
            made = [m.offset for m in self.world.visible if m.partition == partition.number]
            assert made == list(range(self.world.committed(partition)))

    @invariant()
    def clients_are_used_by_their_rules(self) -> None:
        assert self.world.violations == []

    @invariant()
    def nobody_is_accused_of_being_a_rival_without_one(self) -> None:
        assert self.over or self.rival or producer_of(self.owner).state is not ProducerState.FENCED


SessionMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestSession = SessionMachine.TestCase


# --- walks that chance takes too rarely ------------------------------------------------------------------


@pytest.fixture
def machine() -> Iterator[SessionMachine]:
    """A session that has committed some records of all partitions."""
    machine = SessionMachine()
    try:
        machine.open()
        machine.fetch_and_stage(1)
        machine.fetch_and_stage(6)
        machine.produce()
        machine.commit_soon()
        machine.join(True)
        assert [machine.world.committed(p) for p in PARTITIONS] == [3, 2, 2]
        yield machine
    finally:
        machine.teardown()


@pytest.mark.parametrize("how", ["fenced", "lost", "revoked"])
def test_what_was_read_before_the_group_moved_on_is_never_committed_without_its_offsets(
    machine: SessionMachine, how: str
) -> None:
    machine.group_moves_on_while_records_are_transformed(6, PARTITIONS[:2], how)
    machine.produce()
    machine.commit_soon()
    machine.join(True)
    for _ in range(8):
        machine.world.now_s += 1
        machine.fetch_and_stage(6)
        machine.partitions_come_back(1)
    machine.produce()
    machine.commit_soon()
    machine.join(True)
    assert not machine.over
    assert sum(machine.world.committed(p) for p in PARTITIONS) > 7


def test_fenced_member_without_a_rival_joins_again_and_goes_on(machine: SessionMachine) -> None:
    before = machine.member
    machine.member_is_fenced_without_a_rival(0)
    for _ in range(4):
        machine.world.now_s += 1
        machine.fetch_and_stage(6)
    assert machine.member is not before
    machine.produce()
    machine.commit_soon()
    machine.join(True)
    assert sum(machine.world.committed(p) for p in PARTITIONS) > 7


def test_replacement_ends_the_session_at_its_next_commit(machine: SessionMachine) -> None:
    machine.fetch_and_stage(6)
    machine.replacement_opens_and_commits(0, 1)
    machine.produce()
    machine.commit_soon()
    machine.join(True)
    assert machine.over


def test_commit_that_fails_in_a_rebalance_takes_what_was_staged_behind_it_along(
    machine: SessionMachine,
) -> None:
    """Its input is read again, so the records behind it must not be produced before it."""
    machine.partitions_are_revoked(PARTITIONS[2:])
    machine.fetch_and_stage(6)
    machine.fetch_and_stage(6)
    machine.produce()
    machine.commit_soon()
    machine.fetch_and_stage(6)
    assert machine.owner.committer.committing
    machine.partitions_come_back(1)
    for _ in range(3):
        machine.fetch_and_stage(6)
        machine.join(True)
        machine.produce()
        machine.commit_soon()
    machine.join(True)
    assert not machine.over
    assert sum(machine.world.committed(p) for p in PARTITIONS) > 8


def test_what_a_rewind_will_read_again_is_not_committed_as_passed_markers(machine: SessionMachine) -> None:
    """A commit that fails inside a fetch leaves the positions behind its records until the next fetch rewinds."""
    committed = [machine.world.committed(p) for p in PARTITIONS]
    machine.fetch_and_stage(1)
    machine.next_commit_meets(offsets="rebalanced", commit="")
    machine.produce()
    machine.commit_soon()
    machine.join(True)
    machine.commit_passed_markers()
    assert [machine.world.committed(p) for p in PARTITIONS] == committed
    machine.output_is_the_input_up_to_the_committed_offsets()


@pytest.mark.parametrize(
    ("offsets", "commit"),
    [
        ("", "abortable, happened"),
        ("abortable, the abort fails", ""),
        ("reopen", ""),
        ("", "unknown, happened"),
    ],
)
def test_commit_that_fails_for_good_in_a_rebalance_is_settled_before_the_partitions_go(
    machine: SessionMachine, offsets: str, commit: str
) -> None:
    """Else what is retained would be read again from before it, though it may have happened.

    Or the next comparison looks for offsets of partitions that others work on by then.
    """
    machine.fetch_and_stage(6)
    machine.produce()
    machine.commit_soon()
    machine.world.next_offsets_meet, machine.world.next_commit_meets = offsets, commit
    machine.partitions_are_revoked(PARTITIONS[2:])
    machine.fetch_and_stage(6)
    machine.world.others_process(PARTITIONS[2], 2)
    for _ in range(3):
        machine.fetch_and_stage(6)
        machine.produce()
        machine.commit_soon()
        machine.join(True)
    assert not machine.over
    assert machine.world.committed(PARTITIONS[0]) > 3


def test_offsets_that_are_due_wait_for_the_fetch_that_tells_which_partitions_are_gone(
    machine: SessionMachine,
) -> None:
    """A reopen finds out first that the group has moved them: asking again before the fetch would never end."""
    machine.partitions_are_lost()
    machine.copy_of_an_init_arrives_late(0)
    machine.renew_offsets_if_due(2)
    assert machine.owner.consumer.rewind_due
    machine.renew_offsets_if_due(0)  # not due: it would meet the same
    machine.fetch_and_stage(1)
    assert not machine.over
    assert not machine.owner.consumer.assignment


def test_revoke_that_is_interrupted_before_its_commit_leaves_nothing_of_what_was_open_to_a_later_one(
    machine: SessionMachine,
) -> None:
    """The partition is with another member, comes back, and has an older offset in what is still open."""
    machine.partitions_are_revoked_with_a_transaction_open(
        count=3, partitions=PARTITIONS[:1], interrupted=True, back=2, meets=""
    )
    machine.output_is_the_input_up_to_the_committed_offsets()
    machine.clients_are_used_by_their_rules()


def test_offsets_of_a_partition_that_is_gone_are_not_sent_whatever_has_taken_it(
    machine: SessionMachine,
) -> None:
    """The callbacks end what is open; this is the guard behind them. Kafka takes such offsets from any member."""
    committed = [machine.world.committed(p) for p in PARTITIONS]
    machine.fetch_and_stage(6)
    machine.produce()
    machine.member.incremental_unassign(PARTITIONS[:1])
    machine.owner.ledger.revoked(PARTITIONS[:1])
    machine.commit_soon()
    machine.join(True)
    assert [machine.world.committed(p) for p in PARTITIONS] == committed
    machine.clients_are_used_by_their_rules()


def test_session_that_is_closed_behind_an_interrupted_rebalance_takes_no_attempt_back() -> None:
    """The callback was left before it could say anything, so the partitions are another's; their offsets would go back."""
    walk = _LongWalks()
    walk.first_session()
    walk.fetch_and_stage(count=2, late=False)
    walk.produce()
    walk.partitions_are_revoked(partitions=[PARTITIONS[0]])
    walk.fetch_and_stage(count=1, late=False)
    walk.partitions_are_revoked(partitions=list(PARTITIONS[:2]))
    walk.fetch_is_interrupted(count=1, where="callback")
    walk.teardown()


def test_member_that_joins_again_reads_nothing_that_only_its_last_membership_was_assigned(
    machine: SessionMachine,
) -> None:
    """The assign callback failed, and then the group fenced the member: the new one owns what it is assigned, no more."""
    machine.partitions_are_revoked(PARTITIONS)
    machine.fetch_and_stage(1)
    machine.assign_callback_fails()
    machine.fetch_and_stage(1)
    machine.member_is_fenced_without_a_rival(0)
    machine.fetch_and_stage(1)
    for _ in range(4):
        machine.world.now_s += 1
        machine.fetch_and_stage(1)
    assert machine.world.violations == []


class _LongWalks(SessionMachine):
    """The same, longer than every run can wait for."""


_LongWalks.TestCase.settings = settings(SessionMachine.TestCase.settings, max_examples=5_000)
# pytest-timeout raises inside whatever step runs then. hypothesis would take that for a failure of the walk, find that it does
# not come again, and report FlakyStrategyDefinition without a step.
TestSessionForLong = pytest.mark.timeout(3600)(pytest.mark.slow(_LongWalks.TestCase))
