"""A transactional.id that was not used for days is forgotten by its coordinator, and with it who its owner is.

A producer of output alone has no committed offsets to compare: whoever opened the id last before it was forgotten looks like
one that opened it since. librdkafka's abort then initialised the id anew, which fenced the rightful owner (KAFKA-18019).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest

from eos import AbortTransaction, FencedError, ReopenError, TransactionalProducer
from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.group.committed import fresh_reader
from eos.kafka.group_offsets import GroupMetadata
from eos.local import LocalKafka
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionsView
from eos.shards import OrdinalShard
from eos.testing.proxy import ApiKey, HoldProxy
from tests.conftest import NewTopic
from tests.support.observer import committed_offsets, create_topics, read_committed, unique
from tests.support.one_shard import OneShard
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S
from tests.support.sessions import wait_delivered
from tests.support.settings import settings_of

pytestmark = pytest.mark.broker

_INVALID_PRODUCER_ID_MAPPING = 49


def write(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    with producer.transaction() as txn:
        txn.produce(topic, value)


def wait_until_it_is_forgotten(producer: TransactionalProducer | ShardProducer, bootstrap: str) -> None:
    """Its transactional.id, which nobody uses meanwhile."""
    name = producer.transactional_id
    with TransactionsView(settings_of(bootstrap)) as view:
        assert Deadline(PATIENCE_S).wait_for(lambda: name not in view.describe([name]))


def block(
    producer: TransactionalProducer,
    out: str,
    values: Iterable[bytes],
    offsets: Mapping[Partition, int],
    group: GroupMetadata,
) -> None:
    with producer.transaction() as txn:
        for value in values:
            txn.produce(out, value)
        txn.add_offsets(OffsetVector(offsets), group)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Its coordinator forgets what was not used for a second."""
    times = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with own_broker(tmp_path_factory.mktemp("forgetful"), properties=times) as cluster:
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
        wait_until_it_is_forgotten(zombie, bootstrap)
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


@pytest.mark.slow
@pytest.mark.parametrize("had_output", [False, True])
def test_zombie_that_had_committed_no_offsets_takes_nothing_of_its_successors_for_its_own(
    forgetful: LocalKafka, *, had_output: bool
) -> None:
    """What it read right before its first send was the successor's: it put the offset back, and doubled records."""
    bootstrap, out, source, app = forgetful.bootstrap_servers, unique("out"), unique("in"), unique("idle")
    create_topics(bootstrap, {out: 1, source: 1})
    settings, partition = settings_of(bootstrap, group=app), Partition(source, 0)
    with fresh_reader(settings, app, stable=False) as reader:
        no_member = reader.group_metadata()

        with TransactionalProducer(settings, app=app) as zombie:
            zombie.open()
            if had_output:
                write(zombie, out, b"before")
            wait_until_it_is_forgotten(zombie, bootstrap)
            with TransactionalProducer(settings, app=app) as owner:
                block(owner, out, [b"0", b"1", b"2"], {partition: 3}, no_member)
                for _ in range(2):
                    with pytest.raises(ReopenError):
                        block(zombie, out, [b"0", b"1"], {partition: 2}, no_member)
                block(owner, out, [b"3"], {partition: 4}, no_member)
    values = [record.value for record in read_committed(bootstrap, out)]
    assert values == [*([b"before"] if had_output else []), b"0", b"1", b"2", b"3"]
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == 4


@pytest.mark.slow
def test_zombie_that_finds_its_successors_offset_in_its_first_commit_does_not_take_it_for_its_own_start(
    forgetful: LocalKafka,
) -> None:
    """A producer without a session, whose offsets were not taken over behind its init: it doubled records, and put the offset back."""
    bootstrap, out, source, app = forgetful.bootstrap_servers, unique("out"), unique("in"), unique("idle")
    create_topics(bootstrap, {out: 1, source: 1})
    with OneShard(bootstrap, source, out, OrdinalShard(app, app, 0)) as shard:
        zombie = shard.open()
        wait_until_it_is_forgotten(zombie, bootstrap)
        owner = shard.open()
        for offset in (1, 2, 3):
            shard.commit(owner, b"%d" % offset, offset)
        for _ in range(2):
            with pytest.raises(ReopenError):
                shard.commit(zombie, b"1", 2)
        assert shard.visible == [b"1", b"2", b"3"]
        assert shard.offset == 3


@pytest.mark.slow
def test_zombie_whose_successor_went_on_in_another_partition_does_not_take_its_own_offsets_for_a_proof(
    forgetful: LocalKafka,
) -> None:
    """They were as it had left them; it committed its successor's input a second time, and put that offset back."""
    bootstrap, out, source, app = forgetful.bootstrap_servers, unique("out"), unique("in"), unique("idle")
    create_topics(bootstrap, {out: 1, source: 2})
    settings, first, second = settings_of(bootstrap, group=app), Partition(source, 0), Partition(source, 1)
    with fresh_reader(settings, app, stable=False) as reader:
        no_member = reader.group_metadata()
        with TransactionalProducer(settings, app=app) as zombie:
            block(zombie, out, [b"before"], {first: 1}, no_member)
            wait_until_it_is_forgotten(zombie, bootstrap)
            with TransactionalProducer(settings, app=app) as owner:
                block(owner, out, [b"0", b"1", b"2"], {second: 3}, no_member)
                for _ in range(2):
                    with pytest.raises(ReopenError):
                        block(zombie, out, [b"0", b"1"], {second: 2}, no_member)
                block(owner, out, [b"3"], {second: 4}, no_member)
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before", b"0", b"1", b"2", b"3"]
    assert committed_offsets(bootstrap, app, [(source, 1)])[source, 1][0] == 4


@pytest.mark.parametrize("successors", ["offsets", "output"])
def test_zombie_that_rebuilds_its_client_commits_nothing_beside_a_successor_that_went_on_elsewhere(
    bootstrap: str, topic: NewTopic, successors: str
) -> None:
    """Its rebuild ends the successor too, which shows: what was silent is that both had committed."""
    out, source, app = topic("out"), unique("in"), unique("idle")
    create_topics(bootstrap, {source: 2})
    settings = settings_of(bootstrap, group=app, transaction__fence_every="transaction")
    first, second = Partition(source, 0), Partition(source, 1)
    with (
        fresh_reader(settings, app, stable=False) as reader,
        TransactionalProducer(settings, app=app) as zombie,
    ):
        no_member = reader.group_metadata()
        block(zombie, out, [b"before"], {first: 1}, no_member)
        with TransactionalProducer(settings, app=app) as owner:
            if successors == "offsets":
                block(owner, out, [b"0"], {second: 3}, no_member)
            else:
                write(owner, out, b"0")
            for _ in range(2):
                with pytest.raises(FencedError):
                    block(zombie, out, [b"0"], {second: 2}, no_member)
            with pytest.raises(FencedError):
                write(owner, out, b"1")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before", b"0"]
    after = committed_offsets(bootstrap, app, [(source, 1)])[source, 1][0]
    assert after == (3 if successors == "offsets" else None)


@pytest.mark.slow
def test_abort_for_which_librdkafka_initialises_the_id_anew_ends_its_producer(forgetful: LocalKafka) -> None:
    """The coordinator has ended the transaction after its timeout, and forgotten the id; that of the successor it has forgotten too."""
    bootstrap, out, app = forgetful.bootstrap_servers, unique("out"), unique("idle")
    create_topics(bootstrap, {out: 1})
    settings = settings_of(bootstrap, transaction__timeout_ms=6_000)
    with TransactionalProducer(settings, app=app) as zombie:
        write(zombie, out, b"before")
        with zombie.transaction() as txn:
            txn.produce(out, b"never")
            wait_delivered(zombie._producer._client)
            wait_until_it_is_forgotten(zombie, bootstrap)
            with TransactionalProducer(settings, app=app) as owner:
                write(owner, out, b"owner")
                wait_until_it_is_forgotten(zombie, bootstrap)
            raise AbortTransaction
        with pytest.raises(ReopenError):
            write(zombie, out, b"never")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before", b"owner"]


@pytest.mark.slow
def test_owner_of_an_id_that_was_forgotten_is_told_so_and_not_of_another_owner(forgetful: LocalKafka) -> None:
    """It opens anew before each transaction, and gets a new producer id: whether another owner came since does not show."""
    bootstrap, out, app = forgetful.bootstrap_servers, unique("out"), unique("idle")
    create_topics(bootstrap, {out: 1})
    settings = settings_of(bootstrap, transaction__fence_every="transaction")
    with TransactionalProducer(settings, app=app) as producer:
        write(producer, out, b"before")
        wait_until_it_is_forgotten(producer, bootstrap)
        with pytest.raises(ReopenError, match="has forgotten this transactional"):
            write(producer, out, b"never")
    with TransactionalProducer(settings, app=app) as producer:
        write(producer, out, b"after")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"before", b"after"]


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
