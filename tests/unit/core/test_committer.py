"""What goes with a transaction when it ends, without a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from eos.core.committer import Committer
from eos.core.ledger import Ledger
from eos.core.transaction import TransactionState
from eos.errors import RebalancedError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.offsets import OffsetVector, Partition

INPUT = Partition("in", 0)


class Transaction:
    """An open one, and what was done to it."""

    records_in = 1
    commit_seconds = 0.0

    def __init__(self) -> None:
        self.state = TransactionState.OPEN
        self.offsets = OffsetVector()
        self.group: object = None

    def begin(self) -> None: ...
    def add_offsets(self, offsets: OffsetVector, group: object) -> None:
        self.offsets, self.group = offsets, group

    def commit(self) -> None:
        self.state = TransactionState.COMMITTED

    def abort(self, _: BaseException) -> None:
        self.state = TransactionState.ABORTED


class Writer:
    is_over = False

    def new_transaction(self) -> Transaction:
        return Transaction()

    def given_up(self) -> bool:
        return False

    def close(self) -> None: ...


class Consumer:
    """A member whose generation is a number."""

    generation = 1

    def group_metadata(self) -> int:
        return self.generation

    def settle(self) -> None: ...


class Tries:
    def succeeded(self) -> None: ...


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(OffsetMetadata(OwnershipMode.GROUP, "app.g.i.0"))
    made.taken_over({INPUT: None}, OffsetVector({INPUT: 5}))
    return made


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def committer(ledger: Ledger, consumer: Consumer) -> Committer:
    return Committer(cast("Any", Writer()), cast("Any", consumer), ledger, cast("Any", Tries()))


@pytest.mark.parametrize(
    "claimed", [OffsetVector(), OffsetVector({INPUT: 5})], ids=["none", "committed already"]
)
def test_what_was_made_of_records_is_not_committed_without_their_offsets(
    committer: Committer, ledger: Ledger, claimed: OffsetVector
) -> None:
    """They would be read again, and written twice."""
    transaction = committer.begin()
    ledger.claim(claimed)
    with pytest.raises(RebalancedError):
        committer.commit()
    assert transaction.state is TransactionState.ABORTED


def test_commit_beside_a_transform_is_in_the_name_that_the_member_has_after_a_rebalance(
    committer: Committer, ledger: Ledger, consumer: Consumer
) -> None:
    transaction = committer.begin()
    ledger.claim(OffsetVector({INPUT: 6}))
    assert committer.prepared_commit() is not None  # and not used
    consumer.generation = 2
    committer.group_changes()
    commit = committer.prepared_commit()
    assert commit is not None
    commit()
    committer.join()
    committer.close()
    assert cast("Any", transaction).group == 2
