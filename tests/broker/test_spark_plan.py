"""What a Spark run plans to read: from the committed offsets to the LSO, or a clear refusal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from eos.core.producer import ShardProducer
from eos.errors import ConfigError, OffsetGapError
from eos.events import Event, StartPolicyApplied
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.consumer import lone_reader
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.spark.batch.planning import plan_input
from eos.spark.events import InputPlanned
from eos.spark.plan import Commit, InputPlan, OffsetRange
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.conftest import NewTopic
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    produce_plain,
    recreate_topic,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


def plan(settings: Settings, *topics: str, app: str, commit: Commit = "partition", **rest: Any) -> InputPlan:
    return plan_input(settings, topics, app=app, commit=commit, **rest)


def ranges(found: InputPlan) -> dict[int, tuple[int, int]]:
    return {one.partition.number: (one.start, one.end) for one in found}


def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> list[int | None]:
    found = committed_offsets(bootstrap, group, [(topic, p) for p in range(partitions)])
    return [offset for offset, _ in found.values()]


def commit_in_mode(
    settings: Settings, app: str, mode: OwnershipMode, partition: Partition, offset: int
) -> None:
    """As a run of that mode does, without any output."""
    shard = BatchShard(app, app) if mode is OwnershipMode.BATCH else PartitionShard(app, app, partition)
    with ShardProducer(settings, shard, metadata=OffsetMetadata(mode, str(shard))) as producer:
        producer.take_over(app, [partition])
        reader = lone_reader(settings, app, stable=True)
        with producer.transaction() as txn:
            txn.add_offsets(OffsetVector({partition: offset}), reader.group_metadata())
        reader.close()


@contextmanager
def open_transaction(bootstrap: str, topic: str) -> Iterator[Producer]:
    """One record in a transaction that is still open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("open"), "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"pending", partition=0)
    producer.flush(PATIENCE_S)
    yield producer
    producer.abort_transaction(PATIENCE_S)


@pytest.fixture
def app(names: Callable[[str], str]) -> str:
    return names("app")


def test_first_run_applies_the_start_policy_and_commits_it_before_anything_is_read(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    source = topic("in", 3)
    produce_plain(bootstrap, source, [PlainRecord(b"v", partition=p) for p in (0, 0, 2)])
    events: list[Event] = []

    found = plan(settings_for(bootstrap), source, app=app, listener=events.append)

    assert found.group == app
    assert found.partitions == tuple(Partition(source, p) for p in range(3))
    assert found.ranges == (OffsetRange(Partition(source, 0), 0, 2), OffsetRange(Partition(source, 2), 0, 1))
    assert [found.shard_of(one.partition) for one in found] == [0, 2]
    assert committed(bootstrap, app, source, 3) == [0, 0, 0]
    start, planned = events
    assert isinstance(start, StartPolicyApplied)
    assert start.policy == "earliest"
    assert planned == InputPlanned(f"{app}.{app}", found.starts, found.ends, found.partitions)
    assert found.table() == [
        ("partition", "start", "end", "offsets"),
        (f"{source}[0]", "0", "2", "2"),
        (f"{source}[2]", "0", "1", "1"),
        ("2 of 3, 1 with nothing new", "", "", "3"),
    ]


def test_policy_latest_reads_only_what_comes_after_it(bootstrap: str, topic: NewTopic, app: str) -> None:
    source = topic("in")
    produce_plain(bootstrap, source, [b"old"])
    settings = settings_for(bootstrap, input__start="latest")
    assert len(plan(settings, source, app=app)) == 0
    produce_plain(bootstrap, source, [b"new"])
    assert ranges(plan(settings, source, app=app)) == {0: (1, 2)}


def test_nothing_says_where_to_start_so_nothing_is_planned_or_committed(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    source = topic("in")
    for preview in (False, True):
        with pytest.raises(ConfigError, match=f"no committed offsets for {source}.*--start earliest"):
            plan(settings_for(bootstrap, input__start="fail"), source, app=app, preview=preview)
    assert committed(bootstrap, app, source) == [None]


def test_preview_shows_the_first_run_and_commits_nothing(bootstrap: str, topic: NewTopic, app: str) -> None:
    source = topic("in")
    produce_plain(bootstrap, source, [b"1", b"2"])
    assert ranges(plan(settings_for(bootstrap), source, app=app, preview=True)) == {0: (0, 2)}
    assert committed(bootstrap, app, source) == [None]


def test_missing_topic_is_named(bootstrap: str, app: str) -> None:
    with pytest.raises(ConfigError, match="'nowhere' does not exist"):
        plan(settings_for(bootstrap), "nowhere", app=app)


def test_a_run_takes_no_more_of_a_partition_than_its_limit(bootstrap: str, topic: NewTopic, app: str) -> None:
    source = topic("in", 2)
    produce_plain(bootstrap, source, [PlainRecord(b"v", partition=i // 5) for i in range(7)])
    settings = settings_for(bootstrap, spark__max_records_per_partition=3)

    found = plan(settings, source, app=app)
    assert ranges(found) == {0: (0, 3), 1: (0, 2)}

    for one in found:
        commit_in_mode(settings, app, OwnershipMode.PARTITION, one.partition, one.end)
    assert ranges(plan(settings, source, app=app)) == {0: (3, 5)}


def test_records_of_an_open_transaction_and_what_follows_them_wait(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    source = topic("in")
    produce_plain(bootstrap, source, [b"before"])
    settings = settings_for(bootstrap)
    with open_transaction(bootstrap, source):
        produce_plain(bootstrap, source, [b"after"])
        assert watermarks(bootstrap, source) == {0: (0, 3)}
        assert ranges(plan(settings, source, app=app)) == {0: (0, 1)}
    assert ranges(plan(settings, source, app=app)) == {0: (0, 4)}  # with the marker of the abort


def test_offset_that_a_plain_client_committed_inside_an_open_transaction_is_no_gap(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    source = topic("in")
    settings = settings_for(bootstrap, ownership__adopt_offsets=True)
    with open_transaction(bootstrap, source):
        plain = Consumer({"bootstrap.servers": bootstrap, "group.id": app, "log_level": 0})
        plain.commit(offsets=[TopicPartition(source, 0, 1)], asynchronous=False)
        plain.close()
        assert len(plan(settings, source, app=app)) == 0
    assert ranges(plan(settings, source, app=app)) == {0: (1, 2)}


def test_input_deleted_before_it_was_processed_is_a_gap_and_not_skipped(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    source = topic("in")
    produce_plain(bootstrap, source, [b"%d" % i for i in range(6)])
    settings = settings_for(bootstrap)
    plan(settings, source, app=app)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(source, 0, 4)]).values():
        done.result(PATIENCE_S)

    with pytest.raises(OffsetGapError, match=r"\[0\]: the committed offset is 0, and the log begins at 4"):
        plan(settings, source, app=app)

    commit_in_mode(settings, app, OwnershipMode.PARTITION, Partition(source, 0), 4)
    assert ranges(plan(settings, source, app=app)) == {0: (4, 6)}


def test_topic_created_anew_under_the_same_name_is_a_gap(bootstrap: str, topic: NewTopic, app: str) -> None:
    source = topic("in")
    settings = settings_for(bootstrap)
    produce_plain(bootstrap, source, [b"1", b"2", b"3"])
    plan(settings, source, app=app)
    commit_in_mode(settings, app, OwnershipMode.PARTITION, Partition(source, 0), 3)
    # Kafka deletes a group's offsets with the topic; tools that restore offsets bring this about.
    recreate_topic(bootstrap, source)
    produce_plain(bootstrap, source, [b"other"])
    commit_in_mode(settings, app, OwnershipMode.PARTITION, Partition(source, 0), 3)

    with pytest.raises(OffsetGapError, match=r"committed offset is 3, and the log ends at 1: .*created anew"):
        plan(settings, source, app=app)


def test_partition_that_is_new_to_a_started_topic_begins_at_its_beginning(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    """Whatever the policy says: `latest` would skip what came between its creation and this run."""
    source = topic("in")
    settings = settings_for(bootstrap, input__start="latest")
    plan(settings, source, app=app)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.create_partitions([NewPartitions(source, 2)], operation_timeout=PATIENCE_S).values():
        done.result(PATIENCE_S)
    produce_plain(bootstrap, source, [PlainRecord(b"early", partition=1)])

    found = plan(settings, source, app=app)

    assert ranges(found) == {1: (0, 1)}
    assert found.partitions == (Partition(source, 0), Partition(source, 1))


def test_offsets_that_a_transaction_is_pending_on_are_waited_for(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    """What a driver that died between its offsets and its commit left behind: the plan must not look past it."""
    source = topic("in")
    settings = settings_for(bootstrap)
    produce_plain(bootstrap, source, [b"1", b"2"])
    plan(settings, source, app=app)
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": app, "log_level": 0})
    pending = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("dead"), "log_level": 0})
    pending.init_transactions(PATIENCE_S)
    pending.begin_transaction()
    pending.send_offsets_to_transaction(
        [TopicPartition(source, 0, 1, str(OffsetMetadata(OwnershipMode.PARTITION, "dead", app=app)))],
        client.consumer_group_metadata(),
        PATIENCE_S,
    )
    later = threading.Timer(2.0, pending.commit_transaction, [PATIENCE_S])
    began = time.monotonic()
    later.start()

    found = plan(settings, source, app=app)

    later.join()
    client.close()
    assert time.monotonic() - began >= 2.0
    assert ranges(found) == {0: (1, 2)}


def test_several_topics_share_one_plan_with_shards_of_their_own(
    bootstrap: str, topic: NewTopic, app: str
) -> None:
    first, second = sorted([topic("in", 2), topic("in", 2)])
    for name in (first, second):
        produce_plain(bootstrap, name, [PlainRecord(b"v", partition=1)])
    found = plan(settings_for(bootstrap), second, first, app=app)
    assert [(str(one.partition), found.shard_of(one.partition)) for one in found] == [
        (f"{first}[1]", 1),
        (f"{second}[1]", 3),
    ]


def test_500_partitions_are_planned_with_few_requests(bootstrap: str, proxy: HoldProxy, app: str) -> None:
    source = unique("wide")
    create_topics(bootstrap, {source: 500}, timeout_s=PATIENCE_S)
    settings = settings_for(proxy.bootstrap_servers)
    assert len(plan(settings, source, app=app)) == 0
    produce_plain(bootstrap, source, [PlainRecord(b"v", partition=p) for p in range(500)])
    before = len(proxy.frames)

    found = plan(settings, source, app=app)

    assert len(found) == 500
    assert len(proxy.frames) - before < 100


def _wait_until(holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
