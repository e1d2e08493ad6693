"""The same model for a loop of one's own: `Session` decides what an error means, and the output is f(input up to the offsets)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from eos.core.ledger import _MAX_REFUSALS
from eos.core.owner import ShardOwner
from eos.errors import AbortTransaction, Action, EosError, FencedError, UsageError
from eos.faces.session import Session
from eos.offsets import Partition
from eos.records import InputBatch
from tests.model.test_session_model import EVICTED, SETTINGS, SOME, SessionMachine, World
from tests.support.sessions import producer_of


class _Stop:
    """As threading.Event: a wait moves the model's clock on."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wait(self, timeout_s: float) -> bool:
        self._world.now_s += timeout_s
        return False

    def is_set(self) -> bool:
        return False


class BlockError(Exception):
    """Raised by the caller's code."""


class OwnLoopMachine(SessionMachine):
    """Batches are fetched, put into a block each, dropped, or kept for later."""

    def open(self) -> None:
        stop: object = _Stop(self.world)
        self.own = self.session = Session(  # type: ignore[assignment]
            SETTINGS,
            app="app",
            inputs=["in"],
            outputs=["out"],
            stop=stop,  # type: ignore[arg-type]
        )
        self.kept = InputBatch([])
        self.world.next_offsets_meet = self.world.next_commit_meets = ""
        self.session.open()
        self.over = self.rival = False
        self.rewound = False

    @property
    def owner(self) -> ShardOwner:
        return self.own._owner

    @property
    def idle(self) -> bool:
        return self.owner.committer.idle

    def _try(self, step: Callable[[], object], *expected: type[BaseException]) -> None:
        """What the session raises is final: another owner, or the last try."""
        try:
            step()
        except expected:
            pass
        except FencedError:
            assert self.rival
            self._end()
        except EosError as error:
            # The third batch in a row that is out of order: the caller's code has to change.
            out_of_order = isinstance(error, UsageError) and self.owner.ledger._refused >= _MAX_REFUSALS
            if not out_of_order and (error.action is Action.STOP or self.owner._tries._attempts._failed < 5):
                raise
            self._end()
        else:
            assert self.owner.committer.idle

    def _fetch(self, count: int, meanwhile: Callable[[], None] = lambda: None, *, late: bool = False) -> None:
        """``late``: a batch that was kept is used, or this one is kept for later."""
        batch = self.own.fetch(count, 0.0)
        if late:
            self.kept, batch = batch, self.kept
        self._block(batch, meanwhile)

    def _block(self, batch: InputBatch, meanwhile: Callable[[], None]) -> None:
        before = [self.world.committed(p) for p in self.own.committed_offsets]
        with self.own.transaction(batch) as txn:
            for record in batch:
                txn.produce("out", record.value)
            meanwhile()
        if batch and txn.committed:
            assert before != [self.world.committed(p) for p in self.own.committed_offsets]

    # What only a pipeline has.
    produce = commit_soon = join = helper_runs = client_resends = None  # type: ignore[assignment]
    commit_passed_markers = renew_offsets_if_due = None  # type: ignore[assignment]
    partitions_are_revoked_with_a_transaction_open = None  # type: ignore[assignment]
    records_are_staged_while_a_transaction_commits = None  # type: ignore[assignment]

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), says=EVICTED)
    def member_is_evicted_with_a_transaction_open(self, count: int, says: str) -> None:
        """And does not know it yet when the block ends."""
        self._try(lambda: self._fetch(count, lambda: self._lose(says)))

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9), quietly=st.booleans())
    def block_raises(self, count: int, quietly: bool) -> None:
        kind = AbortTransaction if quietly else BlockError

        def fails() -> None:
            raise kind

        self._try(lambda: self._fetch(count, fails), BlockError)

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9))
    def block_hides_what_produce_raised(self, count: int) -> None:
        def step() -> None:
            batch = self.own.fetch(count, 0.0)
            with self.own.transaction(batch) as txn:
                for record in batch:
                    try:
                        txn.produce("out", record.value)
                    except EosError:
                        return

        self._try(step)

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9))
    def client_resends_inside_a_block(self, count: int) -> None:
        def suspect() -> None:
            client: object = producer_of(self.owner)._client
            if client is not None:
                client.suspicion = "REQTMOUT"  # type: ignore[attr-defined]

        self._try(lambda: self._fetch(count, suspect))

    @precondition(lambda self: not self.over)
    @rule(
        count=st.integers(1, 9), where=st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=2)
    )
    def commit_is_interrupted(self, count: int, where: list[str]) -> None:
        """By the exception of a signal handler, once or twice; the same session is used on."""

        def armed() -> None:
            self.world.interrupts_in_commit = list(where)

        self._try(lambda: self._fetch(count, armed), KeyboardInterrupt)
        self.world.interrupts_in_commit = []

    @precondition(lambda self: not self.over)
    @rule(count=st.integers(1, 9))
    def batch_is_dropped(self, count: int) -> None:
        self._try(lambda: self.own.fetch(count, 0.0))

    @precondition(lambda self: not self.over)
    @rule(days=st.sampled_from([0, 2]), count=st.integers(1, 3))
    def time_passes(self, days: int, count: int) -> None:
        self.world.now_s += 10 + days * 86_400
        self._try(lambda: self._fetch(count))

    @precondition(lambda self: not self.over)
    @rule(partitions=SOME)
    def partitions_are_revoked_and_served(self, partitions: list[Partition]) -> None:
        self._revoke(partitions)
        self._try(lambda: self._fetch(3))


OwnLoopMachine.TestCase.settings = settings(SessionMachine.TestCase.settings, max_examples=200)
TestOwnLoop = OwnLoopMachine.TestCase


class _LongWalks(OwnLoopMachine):
    """The same, longer than every run can wait for."""


_LongWalks.TestCase.settings = settings(OwnLoopMachine.TestCase.settings, max_examples=3_000)
TestOwnLoopForLong = pytest.mark.timeout(3600)(pytest.mark.slow(_LongWalks.TestCase))


def test_seek_that_a_former_membership_refused_does_not_count_against_the_next_one() -> None:
    """A seek is refused for 5 s before it is an error; the first refusal may be long ago, of a member that was fenced."""
    machine = OwnLoopMachine()
    machine.first_session()
    machine.block_raises(count=1, quietly=False)
    machine.member_is_fenced_while_a_fetch_returns(count=1)
    machine.block_raises(count=1, quietly=False)
    machine.time_passes(count=1, days=0)
    machine.fetch_is_interrupted(count=1, where="polled")
    machine.member_is_fenced_while_a_fetch_returns(count=1)
    machine.teardown()


@pytest.mark.parametrize("quietly", [False, True])
def test_exception_of_the_block_goes_on_untouched_although_the_reopen_finds_a_partition_with_another_member(
    *, quietly: bool
) -> None:
    machine = OwnLoopMachine()
    machine.first_session()
    machine.fetch_and_stage(count=1, late=False)
    machine.fetch_is_interrupted(count=1, where="polled")
    machine.next_commit_meets(commit="abortable, happened", offsets="")
    machine.group_moves_on_while_records_are_transformed(
        count=1, how="lost", late=False, partitions=[Partition("in", 0)]
    )
    machine.block_raises(count=1, quietly=quietly)
    machine.teardown()
