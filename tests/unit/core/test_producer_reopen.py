"""What a producer knows of itself once it was opened again, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from eos.core.ledger import Ledger, Outcome
from eos.core.producer import ProducerState, ShardProducer, _follows
from eos.core.transaction import TransactionState
from eos.errors import (
    CommitOutcomeUnknownError,
    FencedError,
    ReopenError,
    UnavailableError,
    UnprovenFenceError,
    UsageError,
)
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.late_copies import ProducerIdentity
from eos.offsets import OffsetVector, Partition
from eos.shards import OrdinalShard
from tests.support.settings import settings_of

INPUT = Partition("in", 0)


class Ended:
    """A transaction that has ended."""

    state = TransactionState.UNRESOLVED
    commit_sent = True
    offsets = OffsetVector()
    group = None
    records_in = records_out = 0
    seconds = commit_seconds = 0.0


class Known:
    """A client whose epoch is known."""

    suspicion = ""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def identity(self, _: float) -> ProducerIdentity:
        return ProducerIdentity(1, self.epoch)

    def close(self) -> None: ...


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(OffsetMetadata(OwnershipMode.GROUP, "app.g.i.0"))


@pytest.fixture
def producer(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> ShardProducer:
    """Open; its inits are answered at once, and there is no other owner."""
    made = ShardProducer(settings_of(), OrdinalShard("app", "g", 0), ledger=ledger)

    def init(_reason: str) -> None:
        made._state = ProducerState.READY

    monkeypatch.setattr(made, "_init", init)
    monkeypatch.setattr(made._offsets, "look_for_rival", lambda *_, **__: None)
    monkeypatch.setattr(made._offsets, "compare", lambda _: Outcome.ABORTED)
    made.open()
    return made


def unresolved(producer: ShardProducer, **differs: Any) -> None:
    ended = Ended()
    vars(ended).update(differs)
    producer.ended(ended, CommitOutcomeUnknownError("no answer"))  # type: ignore[arg-type] # the part of it that is looked at


def test_producer_that_could_not_compare_is_opened_again_before_its_next_transaction(
    producer: ShardProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its init has fenced any other owner; whether there was one is not known yet."""

    def no_answer(_: str) -> Outcome:
        raise UnavailableError("no answer")

    unresolved(producer)
    with monkeypatch.context() as patched:
        patched.setattr(producer._offsets, "compare", no_answer)
        with pytest.raises(UnavailableError):
            producer.reopen()
        assert producer.is_over
    producer.reopen()
    assert producer.state is ProducerState.READY


@pytest.mark.parametrize(
    ("differs", "outcome"),
    [
        ({}, Outcome.UNKNOWN),
        ({"offsets": OffsetVector({INPUT: 1})}, Outcome.ABORTED),
        ({"commit_sent": False}, Outcome.ABORTED),
    ],
    ids=["without offsets", "with offsets", "not sent"],
)
def test_outcome_of_a_commit_that_nothing_stored_shows_is_not_guessed(
    producer: ShardProducer, differs: dict[str, Any], outcome: Outcome
) -> None:
    unresolved(producer, **differs)
    assert producer.reopen() is outcome
    assert producer.reopen() is Outcome.ABORTED  # nothing was sent since


def test_comparison_behind_an_init_proves_the_shard(producer: ShardProducer, ledger: Ledger) -> None:
    """What was lost before it is another member's affair from then on."""
    ledger.taken_over({INPUT: None}, OffsetVector({INPUT: 0}))
    ledger.lose([INPUT])
    assert ledger.lost
    producer.reopen()
    assert not ledger.lost


def test_commit_that_was_accepted_proves_the_shard(producer: ShardProducer, ledger: Ledger) -> None:
    ledger.taken_over({INPUT: None}, OffsetVector({INPUT: 0}))
    ledger.lose([INPUT])
    unresolved(producer, state=TransactionState.COMMITTED)
    assert not ledger.lost


def test_fence_that_may_be_none_gives_a_rival_time_to_show_itself(
    producer: ShardProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(
        producer._offsets, "look_for_rival", lambda _, *, after_a_fence: waited.append(after_a_fence)
    )
    producer.reopen()
    producer.ended(Ended(), UnprovenFenceError("or a late copy"))  # type: ignore[arg-type] # as above
    producer.reopen()
    assert waited == [False, True]


def test_producer_without_offsets_whose_transaction_was_cut_off_has_nothing_to_go_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The abort of an expired transaction raises the epoch as a rival's init does."""
    made = ShardProducer(settings_of(), OrdinalShard("app", "g", 0))
    made._state = ProducerState.OVER
    monkeypatch.setattr(made, "_client", Known(1))
    with pytest.raises(ReopenError, match="nothing shows whether another owner came"):
        made.reopen()
    assert made.state is ProducerState.CLOSED


@pytest.mark.parametrize(
    ("before", "after", "follows"),
    [
        ((1, 5), (1, 6), True),
        ((1, 5), (1, 7), False),
        ((1, 5), (1, 5), False),
        ((1, 5), (2, 0), False),
        ((1, 32_766), (2, 0), True),
    ],
)
def test_one_init_raises_the_epoch_by_one(
    before: tuple[int, int], after: tuple[int, int], follows: bool
) -> None:
    assert _follows(ProducerIdentity(*before), ProducerIdentity(*after)) is follows


def test_only_the_last_transaction_that_was_made_may_begin(
    producer: ShardProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads, each with one, would write into one transaction of the client."""
    monkeypatch.setattr(producer, "_client", object())
    first, second = producer.new_transaction(), producer.new_transaction()
    with pytest.raises(UsageError, match="another transaction of it was made since this one"):
        producer.begins(first)
    producer.begins(second)


@pytest.mark.parametrize("epoch", [2, 3])
def test_producer_without_offsets_is_fenced_where_its_epoch_rose_by_more_than_its_own_init(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    made = ShardProducer(settings_of(), OrdinalShard("app", "g", 0))
    made._state = ProducerState.SUSPECT
    monkeypatch.setattr(made, "_client", Known(1))
    monkeypatch.setattr(made, "_init", lambda _: monkeypatch.setattr(made, "_client", Known(epoch)))
    if epoch == 2:
        assert made.reopen() is Outcome.ABORTED
    else:
        with pytest.raises(FencedError):
            made.reopen()
