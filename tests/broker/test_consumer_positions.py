"""What counts as input, and from where: committed records only, never past a gap, never from a silent reset."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from eos.base.deadline import Deadline
from eos.core.consumer import ShardConsumer
from eos.errors import ConfigError, FencedError, OffsetGapError, UsageError
from eos.events import Lag, PartitionsAssigned, TransactionCommitted
from eos.faces.session import Session
from eos.faces.surroundings import SURROUNDINGS
from eos.offsets import Partition
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.conftest import NewTopic
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    lso,
    produce_plain,
    read_committed,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


@pytest.fixture
def writer(bootstrap: str) -> Iterator[Producer]:
    """Another application that writes to the input in transactions."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("writer"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    yield producer
    producer.purge()


def write(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def offset_of(bootstrap: str, job: FaultJob, partition: int = 0) -> int | None:
    key = (job.inputs[0], partition)
    return committed_offsets(bootstrap, job.group, [key])[key][0]


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(PATIENCE_S)


def test_aborted_input_is_not_there_and_the_offsets_end_behind_the_last_marker(
    bootstrap: str, writer: Producer
) -> None:
    """Control records and aborted records take offsets: gaps are normal, and a run that catches up passes them."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    for name, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
        writer.begin_transaction()
        write(writer, source, f"{name}1", f"{name}2")
        (writer.commit_transaction if commit else writer.abort_transaction)(PATIENCE_S)

    run_to_end(job, settings_for(bootstrap))

    assert job.check(bootstrap).processed == 4
    assert [r.value for r in read_committed(bootstrap, job.audit)] == [
        b"audit a1",
        b"audit a2",
        b"audit c1",
        b"audit c2",
    ]
    assert offset_of(bootstrap, job) == watermarks(bootstrap, source)[0][1] == 12


def test_abort_between_two_transactions_of_ours_goes_back_over_gaps_exactly(
    bootstrap: str, writer: Producer
) -> None:
    job = fault_job(bootstrap, partitions=1)
    for i in range(20):
        writer.begin_transaction()
        write(writer, job.inputs[0], *(f"{i}-{j}" for j in range(5)))
        (writer.abort_transaction if i % 3 == 0 else writer.commit_transaction)(PATIENCE_S)

    run_to_end(
        job, settings_for(bootstrap, transaction__max_records=7, transaction__fence_every="transaction")
    )

    assert job.check(bootstrap).processed == 65


def test_open_transaction_of_another_writer_holds_the_job_back_until_it_ends(
    bootstrap: str, writer: Producer
) -> None:
    """Nothing behind the LSO is read, though it is committed; it comes when the LSO moves on."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, [b"before"])
    writer.begin_transaction()
    write(writer, source, "pending")
    produce_plain(bootstrap, source, [b"behind"])
    with in_thread(job, settings_for(bootstrap)) as run:
        run.told(TransactionCommitted)
        time.sleep(0.5)
        assert lso(bootstrap, source) == {0: 1}
        assert offset_of(bootstrap, job) == 1
        writer.commit_transaction(PATIENCE_S)
        run.told(TransactionCommitted, count=2)
        run.stop()
    assert job.check(bootstrap).processed == 3


def test_input_deleted_before_it_was_processed_is_an_error_and_nothing_is_skipped(bootstrap: str) -> None:
    """auto.offset.reset would jump to the end or the beginning without a word."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, [b"%d" % i for i in range(10)])
    run_to_end(job, settings_for(bootstrap))
    produce_plain(bootstrap, source, [b"new %d" % i for i in range(10)])
    delete_before(bootstrap, source, 15)

    for _ in range(2):
        with pytest.raises(
            OffsetGapError, match=rf"{source}.*the first that is left is 15: up to 5 records are gone"
        ):
            run_to_end(job, settings_for(bootstrap))

    assert offset_of(bootstrap, job) == 10
    assert len(read_committed(bootstrap, job.audit)) == 10


def test_gap_in_one_partition_lets_nothing_of_the_open_transaction_be_seen(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=2)
    source = job.inputs[0]
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % i, partition=i % 2) for i in range(10)])
    run_to_end(job, settings_for(bootstrap))
    produce_plain(bootstrap, source, [PlainRecord(b"new %d" % i, partition=i % 2) for i in range(10)])
    delete_before(bootstrap, source, 8)

    with pytest.raises(OffsetGapError):
        run_to_end(job, settings_for(bootstrap, transaction__interval_ms=5_000))

    # What partition 1 brought may have been committed before the gap was met, but then with its offset.
    assert offset_of(bootstrap, job, 0) == 5
    expected = 10 if offset_of(bootstrap, job, 1) == 5 else 15
    assert len(read_committed(bootstrap, job.audit)) == expected


def test_new_partition_of_a_started_topic_is_read_from_its_beginning(bootstrap: str) -> None:
    """Also under `latest`: that said where the topic started, not where each of its partitions does."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, [b"old"])
    # A static member that comes back at once is given its old partitions, without a look at the topic.
    settings = settings_for(bootstrap, input__start="latest", ownership__static_membership=False)
    run_to_end(job, settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_partitions([NewPartitions(source, 3)]).values():
        future.result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while len(admin.list_topics(source, timeout=PATIENCE_S).topics[source].partitions) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    produce_plain(
        bootstrap, source, [PlainRecord(b"p%d" % p, partition=p) for p in (1, 2)], timeout_s=PATIENCE_S
    )

    run_to_end(job, settings)

    assert sorted(r.value or b"" for r in read_committed(bootstrap, job.audit)) == [b"audit p1", b"audit p2"]
    assert [offset_of(bootstrap, job, p) for p in range(3)] == [1, 1, 1]


def test_lag_counts_to_the_lso_and_from_there_to_the_end(
    bootstrap: str, proxy: HoldProxy, writer: Producer
) -> None:
    """Reported from what the fetches brought: asking the broker would wait behind them."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    settings = settings_for(bootstrap, ownership__static_membership=False)
    run_to_end(job, settings)
    produce_plain(bootstrap, source, [b"%d" % i for i in range(10)])
    writer.begin_transaction()
    write(writer, source, "p1", "p2", "p3")
    proxied = settings_for(proxy.bootstrap_servers, ownership__static_membership=False)
    with ShardConsumer(proxied, job.inputs, group=job.group, surroundings=SURROUNDINGS) as consumer:
        lag = Lag()
        deadline = time.monotonic() + PATIENCE_S
        while not lag.to_lso:
            assert time.monotonic() < deadline, "no lag was reported"
            consumer.fetch(4, 0.2)
            asked = len(proxy.requests(ApiKey.LIST_OFFSETS))
            lag = consumer.lag()
            assert len(proxy.requests(ApiKey.LIST_OFFSETS)) == asked
        (position,) = consumer.positions().values()
        partition = Partition(source, 0)
        assert lag.to_lso == {partition: 10 - position}
        assert lag.lso_to_high_watermark == {partition: 3}
    writer.abort_transaction(PATIENCE_S)


def test_what_a_session_has_read_and_not_committed_still_counts_as_lag(bootstrap: str) -> None:
    """While no transaction could be committed (an output was deleted), a job that had read its input showed no lag."""
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 10, "v", [0])
    partition = Partition(job.inputs[0], 0)
    with Session(settings_for(bootstrap), app=job.name, inputs=job.inputs, outputs=job.outputs) as session:
        batch = session.fetch(100, PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not (lag := session.lag().to_lso):
            assert time.monotonic() < deadline, "no lag was reported"
            assert not session.fetch(100, 0.2)
        assert lag == {partition: 10}
        with session.transaction(batch):
            pass
        assert session.lag().to_lso == {partition: 0}


def test_idle_partition_commits_its_offset_again_before_kafka_forgets_it(bootstrap: str) -> None:
    """Under assign() the group counts as empty, and offsets expire although the job runs (KIP-211)."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"only"])
    settings = settings_for(
        bootstrap,
        ownership__mode="partition",
        ownership__partitions=[f"{job.inputs[0]}:0"],
        input__recommit_idle_after_s=1,
    )
    with in_thread(job, settings) as run:

        def told() -> list[tuple[int, int]]:
            """Records and offset of each transaction; the claim may be renewed before the record comes."""
            events = run.told(TransactionCommitted)
            seen = [(event.records_in, event.offsets[Partition(job.inputs[0], 0)]) for event in events]
            return [one for one, _ in itertools.groupby(seen)]

        assert Deadline(PATIENCE_S).wait_for(lambda: len(told()) > 2), told()
        run.stop()
    assert told() == [(0, 0), (1, 1), (0, 1)]
    assert job.check(bootstrap).processed == 1


def test_consumer_alone_reads_committed_records_and_commits_nothing(
    bootstrap: str, writer: Producer, topic: NewTopic
) -> None:
    source, group = topic("in"), unique("alone")
    writer.begin_transaction()
    write(writer, source, "aborted")
    writer.abort_transaction(PATIENCE_S)
    produce_plain(bootstrap, source, [b"1", b"2"])
    with ShardConsumer(settings_for(bootstrap), [source], group=group, surroundings=SURROUNDINGS) as consumer:
        values: list[bytes | None] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < 2:
            assert time.monotonic() < deadline
            values += consumer.fetch(10, 0.2).values
        assert consumer.assignment == {Partition(source, 0)}
        consumer.rewind()
        while len(values) < 4:
            assert time.monotonic() < deadline
            values += consumer.fetch(10, 0.2).values
    assert values == [b"1", b"2", b"1", b"2"]
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 0  # the start policy's


def test_consumer_that_is_not_open_says_so(bootstrap: str) -> None:
    consumer = ShardConsumer(settings_for(bootstrap), ["any"], group="any", surroundings=SURROUNDINGS)
    with pytest.raises(UsageError, match="not open"):
        consumer.fetch(1, 0.1)


def test_missing_topic_is_named(bootstrap: str, topic: NewTopic) -> None:
    there = topic()
    consumer = ShardConsumer(
        settings_for(bootstrap), [there, "not-there"], group=unique("g"), surroundings=SURROUNDINGS
    )
    with pytest.raises(ConfigError, match="'not-there' does not exist"):
        consumer.open()


def test_two_members_under_one_instance_id_end_the_older_one(bootstrap: str) -> None:
    """Static membership: a replacement takes the member's place, and the member learns that it is out."""
    job = fault_job(bootstrap)
    settings = settings_for(bootstrap, ownership__session_timeout_ms=6_000)
    with in_thread(job, settings) as older:
        older.told(PartitionsAssigned)
        with in_thread(job, settings) as newer:
            newer.told(PartitionsAssigned)
            produce_plain(bootstrap, job.inputs[0], [b"1", b"2", b"3"])
            newer.told(TransactionCommitted)
            with pytest.raises(FencedError):
                older.wait(PATIENCE_S)
            newer.stop()
    assert job.check(bootstrap).processed == 3
