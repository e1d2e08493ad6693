"""Records arrive as they were given: fields, partitions, and order across the ways to produce them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos import OutputBatch, OutputRecord, RecordRefusedError, UsageError
from eos.core.producer import ShardProducer
from eos.shards import OrdinalShard
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

A_TIME_MS = 1_700_000_000_123


@pytest.fixture
def producer(bootstrap: str) -> Iterator[ShardProducer]:
    with ShardProducer(settings_of(bootstrap), OrdinalShard(unique("records"), "group", 0)) as one:
        yield one


def test_tombstones_null_keys_headers_timestamps_and_partitions_arrive(
    producer: ShardProducer, bootstrap: str, topic: NewTopic
) -> None:
    out = topic(partitions=2)
    headers = [("h", b"v"), ("none", None), ("h", b"again")]
    with producer.transaction() as txn:
        txn.produce(out, None, key=b"k", partition=0)
        txn.produce(out, b"no key", partition=0)
        txn.produce(out, b"", key=b"", partition=0, headers=headers, timestamp_ms=A_TIME_MS)
        txn.produce(out, "text", key="ké", partition=1, headers={"m": b"1"})
    seen = read_committed(bootstrap, out)
    assert [(r.partition, r.key, r.value) for r in seen] == [
        (0, b"k", None),
        (0, None, b"no key"),
        (0, b"", b""),
        (1, "ké".encode(), b"text"),
    ]
    assert seen[2].headers == tuple(headers)
    assert seen[2].timestamp_ms == A_TIME_MS
    assert seen[3].headers == (("m", b"1"),)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("timestamp_ms", 0, "timestamp 0 cannot be written"),
        ("timestamp_ms", -1, "timestamp -1 cannot be written"),
        ("partition", -1, "partition -1 does not exist"),
    ],
)
@pytest.mark.parametrize("how", ["produce", "produce_batch", "produce_records"])
def test_value_that_the_client_takes_for_none_is_refused_and_not_replaced(
    producer: ShardProducer,
    bootstrap: str,
    topic: NewTopic,
    how: str,
    field: str,
    value: int,
    says: str,
) -> None:
    out = topic(partitions=2)
    with (
        pytest.raises(RecordRefusedError, match=rf"{out}: record \d of \d: {says}.*Fix: "),
        producer.transaction() as txn,
    ):
        if how == "produce":
            txn.produce(out, b"v", key=b"k", **{field: value})  # type: ignore[arg-type] # one of two names
        elif how == "produce_batch":
            txn.produce_batch(out, [{"value": b"first"}, {"value": b"v", field: value}])
        else:
            one = OutputRecord(out, b"v", **{field: value})  # type: ignore[arg-type] # as above
            txn.produce_records([OutputRecord(out, b"first"), one])
    with producer.transaction() as txn:
        txn.produce(out, b"next", timestamp_ms=1, partition=0)
    (seen,) = read_committed(bootstrap, out)
    assert (seen.value, seen.partition, seen.timestamp_ms) == (b"next", 0, 1)


def test_batch_of_dicts_and_output_batch_arrive_alike(
    producer: ShardProducer, bootstrap: str, topic: NewTopic
) -> None:
    first, second = topic(partitions=4), topic(partitions=4)
    keys: list[bytes | None] = [b"a", b"b", b"c", b"d"]
    values: list[bytes | None] = [b"1", None, b"3", b""]
    with producer.transaction() as txn:
        txn.produce_batch(first, [{"value": v, "key": k} for v, k in zip(values, keys, strict=True)])
        txn.produce_batch(second, OutputBatch(second, values, keys))
    assert txn._begun().records_out == 8
    one, other = (
        [(r.partition, r.key, r.value) for r in read_committed(bootstrap, t)] for t in (first, second)
    )
    assert one == other
    assert {(k, v) for _, k, v in one} == set(zip(keys, values, strict=True))


def test_output_batch_with_partitions_lands_on_them(
    producer: ShardProducer, bootstrap: str, topic: NewTopic
) -> None:
    """The client's batch call ignores partitions, though it documents them: such records go one by one."""
    out = topic(partitions=3)
    with producer.transaction() as txn:
        txn.produce_batch(out, OutputBatch(out, [b"2", b"0", b"1"], [b"k"] * 3, partitions=[2, 0, 1]))
        txn.produce_records([OutputRecord(out, b"%d" % n, b"k", partition=n) for n in (1, 2, 0)])
    assert [(r.partition, r.value) for r in read_committed(bootstrap, out)] == [
        (n, b"%d" % n) for n in (0, 0, 1, 1, 2, 2)
    ]


def test_output_batch_with_headers_and_timestamps_keeps_both(
    producer: ShardProducer, bootstrap: str, topic: NewTopic
) -> None:
    out = topic()
    batch = OutputBatch(
        out,
        [b"1", b"2", None],
        headers=[(("h", b"v"),), (), (("n", None),)],
        timestamps_ms=[A_TIME_MS, None, A_TIME_MS + 1],
    )
    with producer.transaction() as txn:
        txn.produce_batch(out, batch)
    seen = read_committed(bootstrap, out)
    assert [(r.value, r.headers) for r in seen] == [
        (b"1", (("h", b"v"),)),
        (b"2", ()),
        (None, (("n", None),)),
    ]
    assert [seen[0].timestamp_ms, seen[2].timestamp_ms] == [A_TIME_MS, A_TIME_MS + 1]


def test_batch_of_dicts_keeps_everything_and_refuses_what_nobody_knows(
    producer: ShardProducer, bootstrap: str, topic: NewTopic
) -> None:
    """The client's own batch call drops headers and partitions without a word; ours must not."""
    out = topic(partitions=2)
    with producer.transaction() as txn:
        with pytest.raises(UsageError, match="produce_batch takes dicts with"):
            txn.produce_batch(out, [{"value": b"a"}, {"value": b"b", "heders": []}])
        with pytest.raises(UsageError, match="was given a batch for"):
            txn.produce_batch(out, OutputBatch("other", [b"a"]))
        txn.produce_batch(out, [])
        txn.produce_batch(out, OutputBatch(out, []))
        txn.produce_batch(
            out,
            [
                {"value": b"a", "partition": 1},
                {"value": b"b", "partition": 0, "headers": {"h": b"v"}, "timestamp_ms": A_TIME_MS},
            ],
        )
    first, second = read_committed(bootstrap, out)
    assert (first.partition, first.value, first.headers, first.timestamp_ms) == (
        0,
        b"b",
        (("h", b"v"),),
        A_TIME_MS,
    )
    assert (second.partition, second.value, second.headers) == (1, b"a", ())


def test_order_per_partition_holds_across_every_way_to_produce(
    bootstrap: str, producer: ShardProducer
) -> None:
    """The first records go out before the client knows the topic's partitions: they must not be overtaken."""
    out = unique("order")
    create_topics(bootstrap, {out: 3})
    number = 0

    def numbers(count: int) -> list[int]:
        nonlocal number
        number += count
        return list(range(number - count, number))

    def key(n: int) -> bytes:
        return b"k%d" % (n % 7)

    for _ in range(3):
        with producer.transaction() as txn:
            for _ in range(40):
                for n in numbers(1):
                    txn.produce(out, b"%d" % n, key=key(n))
                txn.produce_batch(out, [{"value": b"%d" % n, "key": key(n)} for n in numbers(20)])
                some = numbers(5)
                txn.produce_batch(out, OutputBatch(out, [b"%d" % n for n in some], [key(n) for n in some]))
                txn.produce_records(
                    OutputRecord(
                        out,
                        b"%d" % n,
                        key(n),
                        headers=(("h", b"v"),) if n % 3 else (),
                        timestamp_ms=A_TIME_MS if n % 5 else None,
                    )
                    for n in numbers(9)
                )
                for n in numbers(2):
                    txn.produce(out, b"%d" % n, key=key(n), headers=[("h", b"v")])
    by_partition: dict[int, list[int]] = {}
    for record in read_committed(bootstrap, out):
        by_partition.setdefault(record.partition, []).append(int(record.value or b"-1"))
    assert sum(map(len, by_partition.values())) == number
    assert all(found == sorted(found) for found in by_partition.values())
    assert len(by_partition) > 1


def test_transactional_and_plain_writers_interleave_and_both_arrive_in_order(
    bootstrap: str, topic: NewTopic, producer: ShardProducer
) -> None:
    out = topic()
    for turn in range(3):
        with producer.transaction() as txn:
            txn.produce(out, b"t%d" % (2 * turn))
            produce_plain(bootstrap, out, [PlainRecord(b"p%d" % turn)])
            txn.produce(out, b"t%d" % (2 * turn + 1))
    seen = [record.value or b"" for record in read_committed(bootstrap, out)]
    assert [v for v in seen if v.startswith(b"t")] == [b"t%d" % n for n in range(6)]
    assert [v for v in seen if v.startswith(b"p")] == [b"p0", b"p1", b"p2"]


def test_keys_and_topics_mixed_in_one_batch_of_records_go_where_they_belong(
    bootstrap: str, topic: NewTopic, producer: ShardProducer
) -> None:
    first, second = topic("first"), topic("second")
    records = [
        OutputRecord((first, second)[n % 2], b"%d" % n, headers=(("h", b"v"),) if n % 5 == 0 else ())
        for n in range(100)
    ]
    with producer.transaction() as txn:
        txn.produce_records(records)
    for out, parity in ((first, 0), (second, 1)):
        assert [r.value for r in read_committed(bootstrap, out)] == [b"%d" % n for n in range(parity, 100, 2)]
