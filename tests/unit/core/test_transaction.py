"""A transaction whose commit or abort does not come back as it should: what its caller is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from eos.core.topics_used import TopicsUsed
from eos.core.transaction import ShardTransaction, TransactionState
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    EosError,
    RetriableError,
    UnclassifiedError,
)
from eos.kafka.producer import TransactionalClient
from tests.support.settings import settings_of


class Client:
    """What a librdkafka instance answers."""

    commit_called = False
    commit_sent_again = False
    flush_answers: EosError | None = None
    commit_answers: EosError | None = None
    abort_answers: EosError | None = None

    def begin(self) -> None: ...
    def poll(self) -> None: ...

    def commit(self, _seconds: float, last_look: Callable[[], None]) -> None:
        if self.flush_answers is not None:
            raise self.flush_answers
        last_look()
        self.commit_called = True
        if self.commit_answers is not None:
            raise self.commit_answers

    def abort(self, _seconds: float) -> None:
        if self.abort_answers is not None:
            raise self.abort_answers


class Owner:
    """A producer that notes how its transaction ended."""

    timeout_s = commit_timeout_s = abort_timeout_s = 5.0

    def __init__(self) -> None:
        self.topics = TopicsUsed(settings_of())
        self.told: list[TransactionState] = []

    def begins(self, transaction: ShardTransaction) -> None: ...
    def on_retry(self, *_: object) -> None: ...
    def given_up(self) -> bool:
        return False

    def ended(self, transaction: ShardTransaction, *_: BaseException) -> None:
        self.told.append(transaction.state)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def transaction(client: Client, owner: Owner) -> ShardTransaction:
    made = ShardTransaction(cast("TransactionalClient", client), cast("Any", owner))
    made.begin()
    return made


def test_commit_that_was_answered_by_an_error_and_cannot_be_aborted_may_have_happened(
    transaction: ShardTransaction, client: Client
) -> None:
    """A broker that answers UNKNOWN may have carried it out. Told that it was aborted, the caller would produce it again."""
    client.commit_answers, client.abort_answers = AbortableError("unknown"), UnclassifiedError("fatal state")
    with pytest.raises(CommitOutcomeUnknownError):
        transaction.commit()
    assert transaction.state is TransactionState.UNRESOLVED


def test_commit_that_was_answered_by_an_error_and_is_aborted_has_not_happened(
    transaction: ShardTransaction, client: Client
) -> None:
    client.commit_answers = AbortableError("a record failed")
    with pytest.raises(AbortableError, match="a record failed"):
        transaction.commit()
    assert transaction.state is TransactionState.ABORTED


def test_commit_that_was_refused_before_it_was_sent_has_not_happened(
    transaction: ShardTransaction, client: Client, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses() -> None:
        raise AbortableError("another topic of this name")

    monkeypatch.setattr(owner.topics, "last_look", refuses)
    client.abort_answers = UnclassifiedError("fatal state")
    with pytest.raises(AbortableError, match="another topic"):
        transaction.commit()


def test_commit_whose_records_are_not_written_in_time_was_not_sent_and_is_aborted(
    transaction: ShardTransaction, client: Client, owner: Owner
) -> None:
    """Its outcome is known, also without offsets: the producer goes on."""
    owner.commit_timeout_s = 0.1
    client.flush_answers = RetriableError("1 records are not written yet", code="_TIMED_OUT")
    with pytest.raises(AbortableError, match=r"1 records are not written yet.*No commit was sent"):
        transaction.commit()
    assert owner.told == [TransactionState.ABORTED]


def test_signal_while_records_are_waited_for_aborts_a_commit_that_was_not_sent(
    transaction: ShardTransaction, client: Client, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transaction.commit()
    assert owner.told == [TransactionState.ABORTED]


def test_abort_that_an_exception_has_left_is_not_taken_for_one_that_was_answered(
    transaction: ShardTransaction, owner: Owner
) -> None:
    """Only a reopen knows what the coordinator has of it."""
    transaction._move(TransactionState.ABORTING)
    transaction.settle(KeyboardInterrupt())
    assert transaction.state is TransactionState.UNRESOLVED
    assert owner.told == [TransactionState.UNRESOLVED]
