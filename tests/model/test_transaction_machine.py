"""A model of a shard: whatever fails, in whatever order, the output is f(input up to the committed offset).

The producer and its transactions are real; the client below them is a fake that follows librdkafka's
rules, and the broker behind it is a dozen lines of state. A rule of librdkafka that eos breaks (abort after
a commit was sent, offsets sent twice, a begin on a suspect instance …) is a violation, whatever comes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eos.base.calls import Call
from eos.core.block import Transaction
from eos.core.ledger import Outcome
from eos.core.producer import ProducerState, ShardProducer
from eos.core.transaction import TransactionState
from eos.errors import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
    UsageError,
)
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import TopicShape
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.late_copies import ProducerIdentity
from eos.offsets import OffsetVector, Partition
from eos.shards import OrdinalShard
from tests.model.patches import new_patch
from tests.support.settings import settings_of

INPUT = Partition("in", 0)
GROUP = GroupMetadata("g", b"")
SHARD = OrdinalShard("app", "g", 0)
FINAL = {TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.UNRESOLVED}
SETTINGS = settings_of("nowhere:1", transaction__timeout_ms=5000)


class Signal(BaseException):
    """Stands in for a KeyboardInterrupt between two slices of a call; a real one would end the test run."""


# What a call may meet besides success. "silent" gives no answer until the deadline, "interrupt" is a signal.
FAULTS: dict[Call, list[str]] = {
    Call.INIT: ["slow", "silent", "interrupt"],
    Call.PRODUCE: ["abortable", "reopen"],
    Call.SEND_OFFSETS: ["abortable", "rebalanced", "reopen"],
    Call.COMMIT: ["slow", "silent", "abortable", "unknown, happened", "unknown, did not", "interrupt"],
    Call.ABORT: ["slow", "silent", "reopen", "interrupt"],
    Call.COMMITTED: ["slow", "silent", "interrupt"],
}


def faults(*calls: Call) -> st.SearchStrategy[Mapping[Call, list[str]]]:
    """What these calls meet, mostly nothing."""
    some = {call: st.lists(st.sampled_from(FAULTS[call]), min_size=1, max_size=3) for call in calls}
    return st.one_of(st.just({}), st.fixed_dictionaries({}, optional=some))


@dataclass
class World:
    """The broker, the clock, and the faults to come."""

    now_s: float = 1000.0
    epoch: int = 0
    stored: Committed | None = None
    visible: list[int] = field(default_factory=list)
    faults: dict[Call, deque[str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    clients: int = 0
    # Until its marker is written, which comes behind the coordinator's answer (measured: up to 100 ms), a commit's offsets are
    # pending: who does not wait for stable ones reads those before it.
    before: Committed | None = None
    pending_until_s: float = 0.0
    happened: bool = False  # whether the commit of the last transaction that was begun did
    before_init: Callable[[], None] | None = None

    @property
    def committed(self) -> int:
        return self.stored.offset if self.stored is not None else 0

    def will_meet(self, coming: Mapping[Call, list[str]]) -> None:
        self.faults = {call: deque(kinds) for call, kinds in coming.items()}

    def topics(self, names: Iterable[str], timeout_s: float) -> dict[str, TopicShape]:
        """As the admin client."""
        return {name: TopicShape(1, 1, f"id-of-{name}") for name in names}

    def commit(self, records: list[int], offsets: Mapping[Partition, Committed]) -> None:
        self.visible += records
        if offsets:
            self.before, self.stored = self.stored, offsets[INPUT]

    def meet(self, call: Call, timeout_s: float = 0.0) -> str:
        """The fault that a call meets, if any; no answer costs it its timeout."""
        coming = self.faults.get(call)
        if not coming:
            return ""
        fault = coming[0]
        if fault != "silent":
            coming.popleft()
        if fault in ("slow", "silent"):
            self.now_s += timeout_s
        return fault

    # As the module ``time``.

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeClient:
    """TransactionalClient on the world, with librdkafka's states."""

    forgets_offsets = False  # of brokers before 4.0: tests/faults/test_forgotten_offsets.py
    commit_called = False
    commit_sent_again = False

    def __init__(self, world: World) -> None:
        world.clients += 1
        self._world = world
        self._state = "new"
        self._epoch = -1
        self._records: list[int] = []
        self._offsets: dict[Partition, Committed] = {}
        self._failure: EosError | None = None
        self.suspicion = ""
        self._late_offsets = ""

    @property
    def expired(self) -> bool:
        return False

    def init(self, timeout_s: float) -> None:
        self._allowed(Call.INIT, "new")
        self._unanswered(Call.INIT, self._world.meet(Call.INIT, timeout_s))
        if self._world.before_init is not None:
            self._world.before_init()
            self._world.before_init = None
        self._world.epoch += 1
        self._epoch = self._world.epoch
        self._state = "ready"

    def begin(self) -> None:
        self._allowed(Call.BEGIN, "ready")
        if unfit := self.suspicion or self._late_offsets:
            self._violated(f"a transaction begins on an instance that is not fit for it: {unfit}")
        self._state = "open"
        self._records, self._offsets = [], {}
        self.commit_called = False
        self._world.happened = False

    def produce(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None = None, **others: Any
    ) -> None:
        self.check_deliveries()
        self._allowed(Call.PRODUCE, "open")
        self._failing(Call.PRODUCE, self._world.meet(Call.PRODUCE))
        self._records += [int(value) for value in values]

    def poll(self) -> None:
        self.check_deliveries()

    poll_now_and_then = poll

    def check_deliveries(self) -> None:
        if self._failure is not None:
            raise self._failure

    def send_offsets(
        self, offsets: Mapping[Partition, Committed], group: GroupMetadata, timeout_s: float
    ) -> None:
        self._allowed(Call.SEND_OFFSETS, "open")
        if self._offsets:
            self._violated("offsets are sent twice")
        self._offsets = dict(offsets)
        self._fence(Call.SEND_OFFSETS)
        self._failing(Call.SEND_OFFSETS, self._world.meet(Call.SEND_OFFSETS))

    def refused_whole(self, error: BaseException) -> bool:
        return False

    def prepare_commit(self, last_look: Callable[[], None], over: Callable[[], bool]) -> None:
        self.check_deliveries()
        last_look()

    def commit(self, timeout_s: float, last_look: Callable[[], None] | None = None) -> None:
        self._allowed(Call.COMMIT, "open", "committing")
        self.check_deliveries()
        if last_look is not None and self._state == "open":
            last_look()
        self.commit_called = True
        self._fence(Call.COMMIT)
        self._state = "committing"
        fault = self._world.meet(Call.COMMIT, timeout_s)
        self._world.happened = fault in ("", "unknown, happened")
        if fault.startswith("unknown"):
            self._state = "fatal"
            if fault == "unknown, happened":
                self._world.commit(self._records, self._offsets)
            raise CommitOutcomeUnknownError(fault)
        if fault == "abortable":
            self._state = "failed"
        self._unanswered(Call.COMMIT, fault)
        self._failing(Call.COMMIT, fault)
        self._world.commit(self._records, self._offsets)
        self._state = "ready"

    def abort(self, timeout_s: float) -> None:
        self._allowed(Call.ABORT, "open", "failed", "aborting", "fatal")
        self._fence(Call.ABORT)
        if self._state == "fatal":
            raise ReopenError("fatal", code="INVALID_TXN_STATE")
        self._state = "aborting"
        fault = self._world.meet(Call.ABORT, timeout_s)
        self._unanswered(Call.ABORT, fault)
        self._failing(Call.ABORT, fault)
        self._state = "ready"
        if self._offsets:
            self._late_offsets = "offsets of an aborted transaction may be on their way"
        if self._failure is not None:
            self.suspicion = self.suspicion or "a record was not delivered"
            self._failure = None

    def identity(self, timeout_s: float) -> ProducerIdentity | None:
        return ProducerIdentity(1, self._epoch)

    def close(self) -> None:
        self._state = "closed"

    def _allowed(self, call: Call, *states: str) -> None:
        if self._state not in states:
            self._violated(f"{call} while the instance is {self._state}")
            raise UsageError("_STATE")

    def _violated(self, what: str) -> None:
        self._world.violations.append(what)

    def _fence(self, call: Call) -> None:
        if self._epoch < self._world.epoch:
            self._state = "fatal"
            raise FencedError(f"{call}: fenced", code="_FENCED")

    def _unanswered(self, call: Call, fault: str) -> None:
        if fault in ("slow", "silent"):
            raise RetriableError(f"{call}: no answer", code="_TIMED_OUT")
        if fault == "interrupt":
            raise Signal

    def _failing(self, call: Call, fault: str) -> None:
        if fault == "reopen":
            self._state = "fatal"
            raise ReopenError(f"{call}: over")
        if fault in ("abortable", "rebalanced"):
            error = (AbortableError if fault == "abortable" else RebalancedError)(f"{call}: failed")
            if call is Call.PRODUCE:
                self._failure = error
            if self._state == "open":
                self._state = "failed" if call is not Call.PRODUCE else "open"
            raise error


class FakeReader:
    """ConsumerClient on the world, as far as a reopen or a takeover asks it."""

    def __init__(self, world: World, *, stable: bool = True) -> None:
        self._world = world
        self._stable = stable

    def committed(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, Committed]:
        fault = self._world.meet(Call.COMMITTED, timeout_s)
        if fault == "interrupt":
            raise Signal
        if fault:
            raise RetriableError("no answer", code="_TIMED_OUT")
        stored = self._world.stored
        if self._world.now_s < self._world.pending_until_s:
            if self._stable:
                self._world.now_s += timeout_s
                raise RetriableError("a transaction is pending on the offsets", code="_TIMED_OUT")
            stored = self._world.before
        return {} if stored is None or INPUT not in set(partitions) else {INPUT: stored}

    def close(self) -> None:
        pass


class ShardMachine(RuleBasedStateMachine):
    """One owner of a shard that reads one partition, and rivals that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        patch = self.patch = new_patch()
        patch.setattr("eos.core.producer.TransactionalClient", lambda *_, **__: FakeClient(self.world))
        patch.setattr(
            "eos.group.committed.lone_reader", lambda *_, stable: FakeReader(self.world, stable=stable)
        )
        patch.setattr("eos.group.topics.shared_admin", lambda *_: self.world)
        for module in (
            "eos.core.producer",
            "eos.core.own_offsets",
            "eos.base.deadline",
            "eos.retry",
            "eos.core.transaction",
            "tenacity.nap",
        ):
            patch.setattr(f"{module}.time", self.world)
        self.producer: ShardProducer
        self.block: Transaction | None = None
        self.finished: Transaction | None = None
        self.filled: list[int] = []
        self.rival: OffsetMetadata | None = None
        self.rival_epoch = -1
        self.position = 0  # what the owner believes
        self.clients = 0
        self.in_doubt = False
        self.threatened = False  # a rival has been there since the owner last proved the shard to be its own

    def teardown(self) -> None:
        try:
            self.world.faults.clear()
            self.producer.close()
        finally:
            self.patch.undo()

    # --- the owner's life ------------------------------------------------------------------------------

    @initialize()
    def first_owner(self) -> None:
        self._new_owner()

    @precondition(
        lambda self: (
            self.block is None and self.producer.state in (ProducerState.FENCED, ProducerState.CLOSED)
        )
    )
    @rule(marker_is_late=st.booleans())
    def next_owner_takes_over(self, marker_is_late: bool = False) -> None:
        with pytest.raises((FencedError, UsageError)):
            self.producer.transaction()
        self.producer.close()
        if marker_is_late:
            self.world.pending_until_s = self.world.now_s + 0.1
        self._new_owner()

    @precondition(lambda self: self.block is None and self.producer.state is ProducerState.READY)
    @rule(marker_is_late=st.booleans())
    def owner_closes_and_the_next_one_takes_over(self, marker_is_late: bool) -> None:
        self.producer.close()
        self.next_owner_takes_over(marker_is_late)

    def _new_owner(self) -> None:
        self.world.faults.clear()
        self.world.before_init = None
        self.producer = ShardProducer(SETTINGS, SHARD, started_partitions={INPUT.topic: 1})
        self.producer.open()
        self.producer.take_over("g", [INPUT])
        self._rewound()
        found = self.producer.ledger_of("g").stored_of([INPUT])[INPUT]
        self.position = 0 if found is None else found.offset  # as an owner does, which knows nothing else

    def _rewound(self) -> None:
        self.position = self.world.committed
        self.clients = self.world.clients
        self.in_doubt = False
        self.threatened = False

    @precondition(lambda self: self.block is None and self.producer.state is not ProducerState.CLOSED)
    @rule(coming=faults(Call.INIT, Call.COMMITTED))
    def begin(self, coming: Mapping[Call, list[str]]) -> None:
        self.world.will_meet(coming)
        was, was_in_doubt = self.producer.state, self.in_doubt
        clients = self.world.clients
        try:
            block = self.producer.transaction()
        except (EosError, Signal) as error:
            # Only a reopen can fail here, and only for a reason.
            assert was is not ProducerState.READY
            if isinstance(error, FencedError):
                assert self.producer.state is ProducerState.FENCED
            if isinstance(error, UsageError):  # an unanswered commit that has happened is never passed over
                assert self.in_doubt
                assert self.world.happened
                assert self.world.committed >= self.position
                with pytest.raises(UsageError, match="has happened"):  # … nor when it is asked for again
                    self.producer.transaction()
                assert self.producer.reopen() is Outcome.COMMITTED
                self._rewound()
                self.begin({})
            return
        assert was in (ProducerState.READY, ProducerState.SUSPECT, ProducerState.OVER)
        # A producer that is not fit begins on an instance of its own, and one that is keeps its instance.
        assert (self.world.clients > clients) == (was is not ProducerState.READY)
        if self.world.clients > self.clients:
            self._rewound()
        assert not was_in_doubt or not self.world.happened, "a commit that has happened counts as aborted"
        assert not self.in_doubt
        assert block.__enter__() is block
        assert block.state is TransactionState.OPEN
        self.block = block
        self.filled = []

    # --- inside a block --------------------------------------------------------------------------------

    @precondition(lambda self: self.block is not None)
    @rule(count=st.integers(1, 3), batch=st.booleans(), coming=faults(Call.PRODUCE, Call.ABORT))
    def produce(self, count: int, batch: bool, coming: Mapping[Call, list[str]]) -> None:
        assert self.block is not None
        self.world.will_meet(coming)
        start = self.position + len(self.filled)
        values = [b"%d" % number for number in range(start, start + count)]
        try:
            if batch:
                self.block.produce_batch("out", [{"value": value} for value in values])
            else:
                for value in values:
                    self.block.produce("out", value)
        except EosError as error:
            self._leave(error)
            return
        self.filled += range(start, start + count)

    @precondition(lambda self: self.block is not None)
    @rule()
    def blocks_do_not_nest(self) -> None:
        with pytest.raises(UsageError, match="nest"):
            self.producer.transaction()
        with pytest.raises(UsageError):
            self.producer.reopen()

    @precondition(lambda self: self.block is not None)
    @rule()
    def add_offsets_twice(self) -> None:
        assert self.block is not None
        self._add_offsets()
        with pytest.raises(UsageError, match="once per transaction"):
            self.block.add_offsets(OffsetVector({INPUT: 0}), GROUP)
        self._leave_normally()

    @precondition(lambda self: self.block is not None)
    @rule(coming=faults(Call.SEND_OFFSETS, Call.COMMIT, Call.ABORT))
    def commit(self, coming: Mapping[Call, list[str]]) -> None:
        self.world.will_meet(coming)
        self._add_offsets()
        self._leave_normally()

    @precondition(lambda self: self.block is not None)
    @rule(
        kind=st.sampled_from([ValueError, KeyboardInterrupt, GeneratorExit, SystemExit, AbortTransaction]),
        coming=faults(Call.ABORT),
    )
    def raise_inside(self, kind: type[BaseException], coming: Mapping[Call, list[str]]) -> None:
        self.world.will_meet(coming)
        self._leave(kind("from inside"))

    @precondition(lambda self: self.block is None and self.producer.state is ProducerState.READY)
    @rule(count=st.integers(0, 2), answer=st.sampled_from(["unknown, happened", "unknown, did not"]))
    def commit_twice_and_the_second_is_in_doubt(self, count: int, answer: str) -> None:
        """A fence or a suspicion in between ends it; ``count`` 0: the offsets stay the same."""
        for records, meets in ((1, {}), (count, {Call.COMMIT: [answer]})):
            if self.block is None and self.producer.state is not ProducerState.FENCED:
                self.begin({})
            if self.block is not None and records:
                self.produce(records, False, {})
            if self.block is not None:
                self.commit(meets)
        if self.producer.state is ProducerState.OVER:
            self.begin({})

    def _add_offsets(self) -> None:
        assert self.block is not None
        self.block.add_offsets(OffsetVector({INPUT: self.position + len(self.filled)}), GROUP)

    def _leave_normally(self) -> None:
        block = self.block
        assert block is not None
        raised: BaseException | None = None
        try:
            assert block.__exit__(None, None, None) is False
        except (EosError, Signal) as error:
            raised = error
        if raised is None:
            assert block.state is TransactionState.COMMITTED
        elif block.state is TransactionState.COMMITTED:
            assert isinstance(raised, Signal)  # a signal came, and the commit was seen through
        elif isinstance(raised, FencedError):
            assert self.producer.state is ProducerState.FENCED
        self._ended()

    def _leave(self, error: BaseException) -> None:
        """Leave the block as an exception does, which goes on untouched (or is the caller's quiet abort)."""
        block = self.block
        assert block is not None
        try:
            swallowed = block.__exit__(type(error), error, None)
        except Signal:
            assert block.state is TransactionState.UNRESOLVED  # a second signal, inside the abort
        else:
            assert swallowed is isinstance(error, AbortTransaction)
        assert block.state in (TransactionState.ABORTED, TransactionState.UNRESOLVED)
        self._ended()

    def _ended(self) -> None:
        block = self.finished = self.block
        assert block is not None
        assert block.state in FINAL
        self.block = None
        if block.state is TransactionState.COMMITTED:
            self.position += len(self.filled)
        elif block.state is TransactionState.UNRESOLVED:
            assert self.producer.state in (ProducerState.OVER, ProducerState.FENCED)
            self.in_doubt = self.producer.state is ProducerState.OVER

    @precondition(lambda self: self.finished is not None)
    @rule()
    def reuse_a_block(self) -> None:
        block = self.finished
        assert block is not None
        for use in (
            block.__enter__,
            block._begun().commit,
            block._begun().abort,
            lambda: block.produce("out", b"0"),
            lambda: block.produce_batch("out", [{"value": b"0"}]),
            lambda: block.add_offsets(OffsetVector(), GROUP),
        ):
            with pytest.raises(UsageError):
                use()
        assert block.state in FINAL

    # --- accidents -------------------------------------------------------------------------------------

    @precondition(lambda self: self.block is not None)
    @rule()
    def client_resends(self) -> None:
        client: Any = self.producer._client
        client.suspicion = "REQTMOUT"

    @rule(rarely=st.integers(0, 5))
    def rival_opens(self, rarely: int) -> None:
        if rarely:
            return
        self.world.epoch += 1
        self.rival_epoch = self.world.epoch
        self.rival = OffsetMetadata(OwnershipMode.GROUP, str(SHARD))
        self.threatened = True

    @precondition(lambda self: self.rival is not None and self.rival_epoch == self.world.epoch)
    @rule(count=st.integers(0, 2))
    def rival_commits(self, count: int) -> None:
        """It goes on from where the group stands, as a rightful owner does."""
        self._commit_of_the_rival(count)

    @precondition(
        lambda self: self.threatened and self.rival_epoch == self.world.epoch and self.block is None
    )
    @rule(count=st.integers(0, 2))
    def rival_commits_right_before_the_next_init(self, count: int) -> None:
        """Between the comparison before the init, which spares a rightful owner, and the one after it."""
        self.world.before_init = lambda: self._commit_of_the_rival(count)

    def _commit_of_the_rival(self, count: int) -> None:
        start = self.world.committed
        self.world.commit(
            list(range(start, start + count)), {INPUT: Committed(start + count, str(self.rival))}
        )

    # --- what always holds -----------------------------------------------------------------------------

    @invariant()
    def output_is_the_input_up_to_the_committed_offset(self) -> None:
        """Nothing lost, nothing doubled, nothing torn, in order: whoever committed what."""
        assert self.world.visible == list(range(self.world.committed))

    @invariant()
    def nobody_is_accused_of_being_a_rival_without_one(self) -> None:
        assert self.producer.state is not ProducerState.FENCED or self.threatened

    @invariant()
    def client_is_used_by_its_rules(self) -> None:
        assert self.world.violations == []


ShardMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestShard = ShardMachine.TestCase


# --- walks that chance takes too rarely ------------------------------------------------------------------


@pytest.fixture
def machine() -> Iterator[ShardMachine]:
    """An owner that has committed two records."""
    machine = ShardMachine()
    machine.first_owner()
    machine.begin({})
    machine.produce(2, False, {})
    machine.commit({})
    assert machine.world.committed == 2
    yield machine
    machine.output_is_the_input_up_to_the_committed_offset()
    machine.client_is_used_by_its_rules()
    machine.teardown()


def test_zombie_that_reopens_is_fenced_before_it_fences_the_rightful_owner(machine: ShardMachine) -> None:
    machine.begin({})
    machine.client_resends()
    machine.commit({})
    machine.rival_opens(0)
    machine.rival_commits(1)
    machine.begin({})
    assert machine.producer.state is ProducerState.FENCED
    assert machine.world.epoch == machine.rival_epoch


def test_zombie_that_could_not_know_finds_out_before_it_begins(machine: ShardMachine) -> None:
    """The rightful owner commits between the comparison before the init and the init itself."""
    machine.begin({})
    machine.client_resends()
    machine.commit({})
    machine.rival_opens(0)
    machine.rival_commits_right_before_the_next_init(1)
    machine.begin({})
    assert machine.producer.state is ProducerState.FENCED
    assert machine.block is None


@pytest.mark.parametrize("answered", ["unknown, happened", "unknown, did not"])
@pytest.mark.parametrize("trouble", [[], ["slow"], ["interrupt"]])
def test_unanswered_commit_is_settled_by_what_is_stored(
    answered: str, trouble: list[str], machine: ShardMachine
) -> None:
    machine.begin({})
    machine.produce(2, True, {})
    machine.commit({Call.COMMIT: [answered]})
    assert machine.producer.state is ProducerState.OVER
    machine.begin({Call.COMMITTED: trouble})
    if machine.block is None:  # interrupted: the next begin tries again
        machine.begin({})
    assert machine.position == (4 if answered == "unknown, happened" else 2)
    machine.produce(1, False, {})
    machine.commit({})
    assert machine.world.committed == machine.position


def test_next_owner_waits_for_the_marker_of_the_last_commit(machine: ShardMachine) -> None:
    """The coordinator answers before it has written the marker: unstable offsets are those before, and make duplicates."""
    machine.owner_closes_and_the_next_one_takes_over(marker_is_late=True)
    assert machine.position == 2
    machine.begin({})
    machine.produce(1, False, {})
    machine.commit({})
    assert machine.world.committed == 3


def test_commit_of_unchanged_offsets_that_has_happened_is_reported_as_such(machine: ShardMachine) -> None:
    machine.begin({})
    machine.commit({Call.COMMIT: ["unknown, happened"]})
    assert machine.in_doubt
    with pytest.raises(UsageError, match="has happened"):
        machine.producer.transaction()


def test_signal_in_a_commit_sees_the_commit_through(machine: ShardMachine) -> None:
    machine.begin({})
    machine.produce(1, False, {})
    machine.commit({Call.COMMIT: ["interrupt"]})
    assert machine.finished is not None
    assert machine.finished.state is TransactionState.COMMITTED
    assert machine.world.committed == 3


def test_second_signal_in_a_commit_leaves_it_to_the_next_begin(machine: ShardMachine) -> None:
    machine.begin({})
    machine.produce(1, False, {})
    machine.commit({Call.COMMIT: ["interrupt", "interrupt"]})
    assert machine.finished is not None
    assert machine.finished.state is TransactionState.UNRESOLVED
    machine.begin({})
    assert machine.block is not None


def test_offsets_of_an_aborted_transaction_never_meet_the_next_one(machine: ShardMachine) -> None:
    machine.begin({})
    machine.produce(1, False, {})
    machine.commit({Call.COMMIT: ["abortable"]})
    assert machine.producer.state is ProducerState.SUSPECT
    clients = machine.world.clients
    machine.begin({})
    assert machine.world.clients == clients + 1


def test_the_model_notices_a_client_that_is_used_against_its_rules() -> None:
    """The machine is only worth what its fake can see."""
    world = World()
    client = FakeClient(world)
    client.init(1.0)
    client.begin()
    world.faults[Call.COMMIT] = deque(["slow"])
    with pytest.raises(RetriableError):
        client.commit(1.0)
    with pytest.raises(UsageError):
        client.abort(1.0)
    assert world.violations == ["abort while the instance is committing"]
