"""A transactional.id that was not used for days is forgotten by its coordinator, and with it who its owner is.

A producer of output alone has no committed offsets to compare: whoever opened the id last before it was forgotten looks like
one that opened it since. librdkafka's abort then initialised the id anew, which fenced the rightful owner (KAFKA-18019).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eos import AbortTransaction, ReopenError, TransactionalProducer
from eos.base.deadline import Deadline
from eos.local import QUICK_START, LocalKafka
from eos.ops.check.transactions import TransactionsView
from eos.testing.proxy import ApiKey, HoldProxy
from tests.conftest import NewTopic
from tests.support.observer import create_topics, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker

_INVALID_PRODUCER_ID_MAPPING = 49
_JARS = Path(__file__).parents[2] / ".eos/jars"


def write(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    with producer.transaction() as txn:
        txn.produce(topic, value)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Its coordinator forgets what was not used for a second."""
    times = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with LocalKafka(
        tmp_path_factory.mktemp("forgetful"),
        heap_mb=512,
        jars=_JARS,
        jvm_options=QUICK_START,
        properties=times,
    ) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("raised", [False, True], ids=["commit", "the block raises"])
def test_zombie_of_an_id_that_was_forgotten_does_not_take_it_back_from_its_owner(
    forgetful: LocalKafka, *, raised: bool
) -> None:
    bootstrap, out, app = forgetful.bootstrap_servers, unique("out"), unique("idle")
    create_topics(bootstrap, {out: 1})
    settings = settings_of(bootstrap)
    with TransactionalProducer(settings, app=app) as zombie:
        write(zombie, out, b"before")
        with TransactionsView(settings) as view:
            name = zombie.transactional_id
            assert Deadline(PATIENCE_S).wait_for(lambda: name not in view.describe([name]))
        with TransactionalProducer(settings, app=app) as owner:
            write(owner, out, b"owner")
            if raised:
                with zombie.transaction() as txn:
                    txn.produce(out, b"never")
                    raise AbortTransaction
            else:
                with pytest.raises(ReopenError, match="has forgotten this transactional"):
                    write(zombie, out, b"never")
            write(owner, out, b"still")
            with pytest.raises(ReopenError):
                write(zombie, out, b"never")
            write(owner, out, b"and still")
    assert [record.value for record in read_committed(bootstrap, out)] == [
        b"before",
        b"owner",
        b"still",
        b"and still",
    ]


def test_id_that_was_forgotten_ends_its_producer_without_another_init(
    bootstrap: str, proxy: HoldProxy, topic: NewTopic
) -> None:
    out = topic("out")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("idle")) as producer:
        write(producer, out, b"before")
        inits = len(proxy.requests(ApiKey.INIT_PRODUCER_ID))
        proxy.refuse(ApiKey.ADD_PARTITIONS_TO_TXN, _INVALID_PRODUCER_ID_MAPPING)
        with pytest.raises(ReopenError, match="has forgotten this transactional"):
            write(producer, out, b"never")
        with pytest.raises(ReopenError, match="nothing shows whether another owner came"):
            write(producer, out, b"never")
        assert len(proxy.requests(ApiKey.INIT_PRODUCER_ID)) == inits
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before"]
