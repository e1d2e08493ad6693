"""The supports on a real broker: what the observer sees is what Kafka holds, and it fails when it should."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.testing import GuaranteeViolated
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Edge, HoldProxy
from tests.support import observer
from tests.support.dump_log import EntryKind, dump_log
from tests.support.exactly_once import Output, SeenRecord
from tests.support.observer import (
    PlainRecord,
    assert_exactly_once,
    committed_offsets,
    lso,
    produce_plain,
    read_committed,
    read_uncommitted,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S
from tests.support.processes import running

if TYPE_CHECKING:
    from eos.local import LocalKafka
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "client.id": transactional_id,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    client = transactional(bootstrap, unique("supports"))
    yield client
    client.purge()


def write(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def send_offset(producer: Producer, bootstrap: str, group: str, topic: str, offset: int) -> None:
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        position = TopicPartition(topic, 0, offset, metadata="token")
        producer.send_offsets_to_transaction([position], member.consumer_group_metadata(), PATIENCE_S)
    finally:
        member.close()


def values(records: Iterable[SeenRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_committed_is_seen_aborted_is_not_and_markers_count(
    bootstrap: str, topic: NewTopic, producer: Producer
) -> None:
    out = topic(partitions=2)
    producer.begin_transaction()
    write(producer, out, "a", "b")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    write(producer, out, "x")
    producer.abort_transaction(PATIENCE_S)
    assert values(read_committed(bootstrap, out)) == [b"a", b"b"]
    assert values(read_uncommitted(bootstrap, out)) == [b"a", b"b", b"x"]
    assert watermarks(bootstrap, out) == {0: (0, 5), 1: (0, 0)}
    assert lso(bootstrap, out) == {0: 5, 1: 0}


def test_open_transaction_is_not_settled_and_the_partition_is_named(
    bootstrap: str, topic: NewTopic, producer: Producer
) -> None:
    out = topic(partitions=2)
    produce_plain(bootstrap, out, [PlainRecord(b"before", partition=1)])
    producer.begin_transaction()
    write(producer, out, "open", partition=1)
    with pytest.raises(TimeoutError, match=rf"{out}\[1\] is not settled: LSO 1, high watermark 2"):
        read_committed(bootstrap, out, timeout_s=5)
    assert values(read_committed(bootstrap, out, settled=False)) == [b"before"]
    producer.abort_transaction(PATIENCE_S)
    assert values(read_committed(bootstrap, out)) == [b"before"]


def test_plain_records_keep_order_key_headers_and_partition(bootstrap: str, topic: NewTopic) -> None:
    out = topic(partitions=3)
    many = [PlainRecord(b"%d" % i, b"k", 2, (("h", b"v"), ("n", None))) for i in range(2500)]
    delivered = produce_plain(bootstrap, out, many)
    seen = read_committed(bootstrap, out)
    assert seen == delivered
    assert [(r.value, r.key, r.partition, r.headers) for r in seen] == many
    assert [record.offset for record in seen] == list(range(2500))


def test_key_lands_where_java_puts_it(bootstrap: str, topic: NewTopic) -> None:
    # murmur2 of "key-1" as in org.apache.kafka.common.utils.Utils: toPositive(hash) mod 5.
    out = topic(partitions=5)
    (record,) = produce_plain(bootstrap, out, [PlainRecord(b"v", b"key-1")])
    assert record.partition == (_murmur2(b"key-1") & 0x7FFFFFFF) % 5


def test_offsets_are_none_then_pending_then_known(
    bootstrap: str, topic: NewTopic, producer: Producer
) -> None:
    source, group = topic(), unique("group")
    wanted = [(source, 0)]
    assert committed_offsets(bootstrap, group, wanted) == {(source, 0): (None, "")}
    producer.begin_transaction()
    write(producer, source, "x")
    send_offset(producer, bootstrap, group, source, 7)
    with pytest.raises(TimeoutError, match="are not stable"):
        committed_offsets(bootstrap, group, wanted, timeout_s=5)
    commit = threading.Timer(0.5, producer.commit_transaction, [PATIENCE_S])
    commit.start()
    assert committed_offsets(bootstrap, group, wanted) == {(source, 0): (7, "token")}
    commit.join(PATIENCE_S)


def test_exactly_once_is_told_from_every_other_outcome(
    bootstrap: str, topic: NewTopic, producer: Producer
) -> None:
    source, out, group = topic("in"), topic("out", 2), unique("group")
    produce_plain(bootstrap, source, [b"1", b"2", b"3"])

    def transform(record: SeenRecord) -> list[Output]:
        return [(out, None, record.value)]

    def check() -> int:
        return assert_exactly_once(bootstrap, group, [source], [out], transform).processed

    assert check() == 0
    producer.begin_transaction()
    write(producer, out, "1", "2", partition=1)
    send_offset(producer, bootstrap, group, source, 2)
    producer.commit_transaction(PATIENCE_S)
    assert check() == 2
    produce_plain(bootstrap, out, [b"2"])
    with pytest.raises(GuaranteeViolated, match="surplus: 1"):
        check()
    producer.begin_transaction()
    send_offset(producer, bootstrap, group, source, 3)
    producer.commit_transaction(PATIENCE_S)
    with pytest.raises(GuaranteeViolated, match="lost: 1"):
        check()


@pytest.mark.parametrize("commits", [1, 1_000], ids=["then it rests", "it never rests"])
def test_job_that_commits_between_two_looks_is_no_violation(
    bootstrap: str, topic: NewTopic, producer: Producer, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Its output was read before its offsets: it would lack what was written in between."""
    source, out, group = topic("in"), topic("out"), unique("group")
    produce_plain(bootstrap, source, [b"%d" % number for number in range(2_000)])
    done = 0

    def read_then_committed(*arguments: Any, **named: Any) -> list[SeenRecord]:
        nonlocal done
        seen = read_committed(*arguments, **named)
        if out in arguments and done < commits:
            producer.begin_transaction()
            write(producer, out, str(done))
            done += 1
            send_offset(producer, bootstrap, group, source, done)
            producer.commit_transaction(PATIENCE_S)
        return seen

    monkeypatch.setattr(observer, "read_committed", read_then_committed)

    def check() -> int:
        whole = partial(assert_exactly_once, bootstrap, group, [source], [out])
        return whole(
            lambda record: [(out, None, record.value)], timeout_s=2 if commits > 1 else PATIENCE_S
        ).processed

    if commits == 1:
        assert check() == 1
    else:
        with pytest.raises(TimeoutError):
            check()


CRASHING = """
import sys
from confluent_kafka import Producer
bootstrap, topic, name = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "client.id": name})
producer.init_transactions(60)
producer.begin_transaction()
producer.produce(topic, "from the dead", partition=0)
producer.commit_transaction(60)
print("unexpected: committed")
"""


@pytest.mark.parametrize(("edge", "visible"), [(Edge.REQUEST, False), (Edge.REPLY, True)])
def test_process_can_be_killed_at_either_edge_of_a_request(
    kafka: LocalKafka, bootstrap: str, proxy: HoldProxy, topic: NewTopic, edge: Edge, *, visible: bool
) -> None:
    out, name = topic(), unique("crash")
    killed = threading.Event()
    with running(CRASHING, proxy.bootstrap_servers, out, name) as child:

        def kill(_: object) -> None:
            child.signal(signal.SIGKILL)
            killed.set()

        proxy.cut(ApiKey.END_TXN, edge, client_id=name, then=kill)
        assert killed.wait(PATIENCE_S)
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
        assert child.lines == []
    successor = transactional(bootstrap, name)  # ends what the dead one left
    assert values(read_committed(bootstrap, out)) == ([b"from the dead"] if visible else [])
    successor.begin_transaction()
    write(successor, out, "from the heir")
    successor.commit_transaction(PATIENCE_S)

    log = dump_log(kafka.tool, kafka.data_dir(1), (out, 0))
    ended = EntryKind.COMMIT_MARKER if visible else EntryKind.ABORT_MARKER
    assert [entry.kind for entry in log] == [EntryKind.DATA, ended, EntryKind.DATA, EntryKind.COMMIT_MARKER]
    epochs = [entry.producer_epoch for entry in log]
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[2]


def _murmur2(data: bytes) -> int:
    """The 32 bit MurmurHash2 of Kafka's Java client, written down independently of any client."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)
