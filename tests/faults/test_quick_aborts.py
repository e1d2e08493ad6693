"""A transaction is aborted before librdkafka knows that its first partition belongs to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from eos import AbortTransaction, OutputBatch, TransactionalProducer
from eos.core.transaction import TransactionState
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.ops.check.transactions import TransactionsView
from eos.testing.proxy import ApiKey, Frame, HoldProxy
from tests.support.observer import read_committed, unique
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

_CONCURRENT_TRANSACTIONS = 51
_UNDER_WAY_S = 0.01
_LATE_S = 0.15
_MANY = 100_000  # to purge as many takes longer than that


def late(frame: Frame, answer: bytes) -> bytes:
    del frame
    time.sleep(_LATE_S)
    return answer


@pytest.mark.parametrize("way", ["late", "while the queue is purged", "the last transaction is not over yet"])
def test_transaction_aborted_right_after_its_first_record_is_over_at_the_coordinator_and_its_producer_goes_on(
    bootstrap: str, proxy: HoldProxy, topic: NewTopic, way: str
) -> None:
    """The ways: how, or when, the request for its first partition is answered."""
    out, told = topic("out"), list[Event]()
    with TransactionalProducer(
        settings_of(proxy.bootstrap_servers), app=unique("quick"), listener=told.append
    ) as producer:
        with producer.transaction() as first:
            first.produce(out, b"first")
        if way == "the last transaction is not over yet":
            proxy.refuse(ApiKey.ADD_PARTITIONS_TO_TXN, _CONCURRENT_TRANSACTIONS)
        else:
            proxy.edit_reply(ApiKey.ADD_PARTITIONS_TO_TXN, late)
        with producer.transaction() as aborted:
            aborted.produce_batch(out, OutputBatch(out, [b"never"] * (_MANY if "purged" in way else 1)))
            time.sleep(_UNDER_WAY_S)
            raise AbortTransaction
        assert aborted.state is TransactionState.ABORTED
        name = told[0].shard
        with TransactionsView(settings_of(bootstrap)) as view:
            # The abort is answered before its markers are written.
            assert view.describe([name])[name].state in ("PrepareAbort", "CompleteAbort")
        with producer.transaction() as second:
            second.produce(out, b"second")
        doubts = [one.reason for one in told if isinstance(one, ProducerSuspect)]
        # On a busy machine the purge alone can take longer than the time after which librdkafka may have sent again.
        assert not [reason for reason in doubts if not reason.startswith("abort took")]
        assert len([one for one in told if isinstance(one, ProducerOpened)]) == 1 + len(doubts)
    assert [record.value for record in read_committed(bootstrap, out)] == [b"first", b"second"]
