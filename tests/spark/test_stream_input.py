"""A streaming query whose input topic is created anew, or whose log is truncated: nothing of the new one is skipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException

from eos.errors import ConfigError, OffsetGapError, UsageError
from eos.kafka.admin import Admin
from eos.local import LocalKafka
from eos.settings import Settings
from eos.spark.jobs import StreamJob
from eos.spark.running import RunOptions, run, start_stream
from eos.spark.stream.log_entry import LogEntry
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.micro_batch import write_batch
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.faults.test_truncated_input import Truncated
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    delete_topic,
    produce_plain,
    read_committed,
    recreate_topic,
    unique,
)
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S
from tests.support.stream_copy import SHARDS, Copy, by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker

FORMER, NEW = 30, 75


class OnePartition(Copy):
    """A query that copies a topic of one partition."""

    def __init__(self, spark: SparkSession, settings: Settings, bootstrap: str, directory: Path) -> None:
        super().__init__(spark, settings, bootstrap, directory)
        self.source = unique("one")
        create_topics(bootstrap, {self.source: 1})

    def give(self, count: int, prefix: str) -> None:
        records = [PlainRecord(b"%s%d" % (prefix.encode(), n), b"k%d" % n) for n in range(count)]
        produce_plain(self.bootstrap, self.source, records)

    def of(self, *inputs: str, **given: Any) -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings,
            name=self.name,
            outputs=[self.output],
            inputs=inputs,
            shards=SHARDS,
            listener=self.events.append,
            **given,
        )

    def written(self) -> list[bytes]:
        return sorted(r.value or b"" for r in read_committed(self.bootstrap, self.output))

    def marks(self, *numbers: int) -> list[int | None]:
        partitions = [(self.source, number) for number in numbers]
        found = committed_offsets(self.bootstrap, f"{self.name}.ledger.0", partitions)
        return [found[partition][0] for partition in partitions]

    def stream_job(self, *more_inputs: str) -> StreamJob:
        return StreamJob(
            name=self.name,
            inputs=[self.source, *more_inputs],
            outputs=[self.output],
            transform=lambda frame: frame.select("key", "value"),
        )

    def job(self, *more_inputs: str, skip_deleted: bool = False, adopt: str | None = None) -> None:
        how = RunOptions(
            checkpoint=str(self.checkpoint), until_caught_up=True, skip_deleted=skip_deleted, adopt=adopt
        )
        run(self.stream_job(*more_inputs), self.spark, self.settings, how)


def values(count: int, prefix: str) -> list[bytes]:
    return sorted(b"%s%d" % (prefix.encode(), n) for n in range(count))


@pytest.fixture
def copy(
    spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path
) -> OnePartition:
    return OnePartition(spark, settled(), bootstrap, tmp_path)


def delete_head(copy: OnePartition, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": copy.bootstrap, "log_level": 0})
    for deleted in admin.delete_records([TopicPartition(copy.source, partition, offset)]).values():
        deleted.result(PATIENCE_S)


def add_partition(copy: OnePartition) -> None:
    admin = AdminClient({"bootstrap.servers": copy.bootstrap, "log_level": 0})
    for added in admin.create_partitions([NewPartitions(copy.source, 2)]).values():
        added.result(PATIENCE_S)


def expect_gap_and_go_on_behind_it(copy: OnePartition, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(OffsetGapError, match=rf"{reason}.*Nothing is skipped.*--skip-deleted"):
            copy.job()
    assert copy.written() == values(FORMER, "former")
    copy.job(skip_deleted=True)
    assert copy.written() == sorted([*values(FORMER, "former"), *(b"new%d" % n for n in range(5, NEW))])
    copy.give(3, "last")
    copy.job()
    assert len(copy.written()) == FORMER + NEW - 5 + 3


@pytest.mark.slow
def test_input_that_was_deleted_before_it_was_read_is_a_gap_until_a_person_skips_it(
    copy: OnePartition,
) -> None:
    copy.give(FORMER, "former")
    copy.job()
    copy.give(NEW, "new")
    delete_head(copy, 0, FORMER + 5)
    expect_gap_and_go_on_behind_it(copy, r"Could not read records in offset \[30, 105\)")


def test_added_partition_whose_beginning_was_deleted_is_a_gap_until_a_person_skips_it(
    copy: OnePartition,
) -> None:
    """Spark finds it while it plans the batch, so the sink is never called."""
    copy.give(FORMER, "former")
    copy.job()
    add_partition(copy)
    records = [PlainRecord(b"new%d" % n, b"k%d" % n, 1) for n in range(NEW)]
    produce_plain(copy.bootstrap, copy.source, records)
    delete_head(copy, 1, 5)
    expect_gap_and_go_on_behind_it(copy, "Added partition .*-1 starts from 5 instead of 0")


def test_topic_that_was_created_anew_between_two_starts_is_refused_until_a_person_decides(
    copy: OnePartition,
) -> None:
    copy.give(FORMER, "former")
    copy.run()
    assert copy.marks(0) == [FORMER]
    recreate_topic(copy.bootstrap, copy.source)
    copy.give(NEW, "new")
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="created anew"):
        copy.run(sink)
    assert isinstance(sink.failure, OffsetGapError)
    assert f"{copy.source}[0]" in str(sink.failure)
    assert copy.written() == values(FORMER, "former")

    token = str(sink.failure).partition("adopt='")[2].partition("'")[0]
    copy.run(copy.of(copy.source, adopt=token))
    copy.give(1, "last")
    copy.run()
    behind = sorted(b"new%d" % n for n in range(FORMER, NEW))
    assert copy.written() == sorted([*values(FORMER, "former"), *behind, b"last0"])


def test_topic_that_was_created_anew_and_ends_where_it_ended_does_not_count_as_processed(
    copy: OnePartition,
) -> None:
    """Spark finds nothing new in it and plans no batch, so the sink is never called."""
    copy.give(FORMER, "former")
    copy.job()
    recreate_topic(copy.bootstrap, copy.source)
    copy.give(FORMER, "new")
    said = f"{copy.source}.*created anew.*--start earliest.*--adopt"
    with pytest.raises(OffsetGapError, match=said):
        copy.job()
    with pytest.raises(OffsetGapError, match=said) as caught:
        copy.job()
    token = str(caught.value).partition("adopt='")[2].partition("'")[0]
    copy.job(adopt=token)
    copy.give(2, "last")
    copy.job(adopt=token)
    copy.job()
    assert copy.written() == sorted([*values(FORMER, "former"), *values(2, "last")])


def test_input_topic_that_was_deleted_is_named_and_no_broker_is_blamed(copy: OnePartition) -> None:
    """While the query has nothing to do, Spark asks for its end before it plans a batch, so the sink is never called."""
    copy.give(FORMER, "former")
    copy.job()
    names_it = pytest.raises(ConfigError, match=f"{copy.source}.*does not exist")
    run = start_stream(copy.stream_job(), copy.spark, copy.settings, checkpoint=str(copy.checkpoint))
    try:
        delete_topic(copy.bootstrap, copy.source)
        with names_it:
            run.wait()
    finally:
        run.query.stop()
    with names_it:
        copy.job()
    assert copy.written() == values(FORMER, "former")


def test_input_topic_that_is_deleted_behind_the_plan_of_a_batch_is_named_with_what_a_query_may_do(
    copy: OnePartition,
) -> None:
    """A group's job would start with input.start again; a query has a checkpoint."""
    copy.give(FORMER, "former")
    copy.run()
    copy.give(NEW, "more")
    sink = copy.sink()

    def late(frame: Any, batch: int) -> None:
        delete_topic(copy.bootstrap, copy.source)
        sink(frame, batch)

    with pytest.raises(StreamingQueryException):
        copy.run(late)
    assert isinstance(sink.failure, ConfigError)
    assert re.search(f"{copy.source} does not exist.*a new checkpoint", str(sink.failure))
    assert copy.written() == values(FORMER, "former")


def test_topic_whose_id_is_another_one_is_refused(
    copy: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks outlive a topic when the group's coordinator was down while it was deleted: then the ids differ."""
    copy.give(FORMER, "former")
    copy.run()
    copy.give(1, "more")
    topics = Admin.topics

    def other_ids(admin: Admin, names: Any, timeout_s: float, **more: Any) -> Any:
        found = topics(admin, names, timeout_s, **more)
        return {
            n: shape._replace(topic_id="AAAAAAAAAAAAAAAAAAAAAQ") if n == copy.source else shape
            for n, shape in found.items()
        }

    monkeypatch.setattr(Admin, "topics", other_ids)
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="created anew"):
        copy.run(sink)
    assert isinstance(sink.failure, OffsetGapError)
    assert copy.written() == values(FORMER, "former")


def test_mark_that_has_outlived_its_topic_is_refused_until_a_person_goes_on_from_the_checkpoint(
    copy: OnePartition,
) -> None:
    """Kafka keeps it where the coordinator was down while the topic was deleted; here its id is another one's."""
    copy.give(FORMER, "former")
    copy.run()
    group = f"{copy.name}.ledger.0"
    ((offset, metadata),) = committed_offsets(copy.bootstrap, group, [(copy.source, 0)]).values()
    assert offset == FORMER
    of_deleted = re.sub(r"topic=\S+", "topic=AAAAAAAAAAAAAAAAAAAAAQ", metadata)
    assert of_deleted != metadata
    outside = Consumer({"bootstrap.servers": copy.bootstrap, "group.id": group})
    outside.commit(offsets=[TopicPartition(copy.source, 0, offset, of_deleted)], asynchronous=False)
    outside.close()
    with pytest.raises(OffsetGapError, match="created anew"):
        copy.sink().refresh()
    copy.give(2, "more")
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="created anew"):
        copy.run(sink)
    assert "AAAAAAAAAAAAAAAAAAAAAQ" in str(sink.failure)
    assert copy.written() == values(FORMER, "former")

    token = str(sink.failure).partition("adopt='")[2].partition("'")[0]
    copy.run(copy.of(copy.source, adopt=token))
    copy.give(1, "last")
    copy.run()
    assert copy.written() == sorted([*values(FORMER, "former"), *values(2, "more"), b"last0"])


@pytest.mark.slow
def test_topic_that_is_created_anew_before_the_batch_is_read_is_refused(
    copy: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has compared the ids by then; the tasks do so again before they commit."""
    copy.give(FORMER, "former")
    copy.run()
    copy.give(FORMER, "more")

    def late(*arguments: Any, **others: Any) -> None:
        recreate_topic(copy.bootstrap, copy.source)
        copy.give(NEW, "new")
        write_batch(*arguments, **others)

    monkeypatch.setattr("eos.spark.stream.sink.write_batch", late)
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="created anew"):
        copy.run(sink)
    assert isinstance(sink.failure, OffsetGapError)
    assert copy.written() == values(FORMER, "former")


def test_ledger_without_marks_gets_them_with_its_next_batch(copy: OnePartition) -> None:
    """As the version before left it, or a sink that was not given its inputs."""
    copy.give(FORMER, "a")
    copy.run(copy.of())
    assert copy.marks(0) == [None]
    copy.give(FORMER, "b")
    copy.run()
    assert copy.marks(0) == [2 * FORMER]
    assert copy.written() == sorted(values(FORMER, "a") + values(FORMER, "b"))


def test_marks_are_kept_by_a_refresh_and_a_change_of_the_shards(copy: OnePartition) -> None:
    copy.give(FORMER, "a")
    sink = copy.sink()
    copy.run(sink)
    sink.refresh()
    assert copy.marks(0) == [FORMER]
    copy.give(FORMER, "b")
    copy.run(by_key(copy.sink(shards=SHARDS + 1)))
    assert copy.marks(0) == [2 * FORMER]
    found = committed_offsets(copy.bootstrap, f"{copy.name}.ledger.0", [(copy.output, 0)])
    offset, metadata = found[copy.output, 0]
    entry = LogEntry.parse(offset or 0, metadata or "")
    assert entry is not None
    assert (entry.marks, entry.shards) == (1, SHARDS + 1)


def test_refresh_does_not_forget_the_marks_of_a_topic_that_is_gone(copy: OnePartition) -> None:
    copy.give(FORMER, "former")
    sink = copy.sink()
    copy.run(sink)
    recreate_topic(copy.bootstrap, copy.source)
    with pytest.raises(OffsetGapError, match="created anew"):
        sink.refresh()
    copy.give(NEW, "new")
    with pytest.raises(StreamingQueryException, match="created anew"):
        copy.run(sink)
    assert copy.written() == values(FORMER, "former")


def test_partition_that_was_added_to_the_input_is_read_on(copy: OnePartition) -> None:
    copy.give(FORMER, "a")
    copy.run()
    admin = AdminClient({"bootstrap.servers": copy.bootstrap})
    for done in admin.create_partitions([NewPartitions(copy.source, 2)]).values():
        done.result(PATIENCE_S)
    copy.give(FORMER, "b")
    copy.run()
    assert sum(mark or 0 for mark in copy.marks(0, 1)) == 2 * FORMER
    copy.give(FORMER, "c")
    copy.run()
    assert copy.written() == sorted([*values(FORMER, "a"), *values(FORMER, "b"), *values(FORMER, "c")])


def test_input_that_the_query_does_not_read_is_named(copy: OnePartition) -> None:
    copy.give(FORMER, "a")
    sink = copy.of(copy.source, "elsewhere")
    with pytest.raises(StreamingQueryException, match="elsewhere"):
        copy.run(sink)
    assert isinstance(sink.failure, UsageError)


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker whose files the tests change."""
    with own_broker(tmp_path_factory.mktemp("kafka"), heap_mb=384) as cluster:
        yield cluster


@pytest.mark.slow
def test_log_that_was_truncated_between_two_starts_is_refused(
    breakable: LocalKafka, spark: SparkSession, settled: Callable[..., Settings], tmp_path: Path
) -> None:
    bootstrap = breakable.bootstrap_servers
    copy = OnePartition(spark, settled(kafka__bootstrap_servers=bootstrap), bootstrap, tmp_path)
    log = Truncated(breakable, copy.source, tmp_path / "kept")
    copy.give(FORMER, "a")
    log.keep()
    copy.run()
    copy.give(FORMER, "lost")
    copy.run()
    assert copy.marks(0) == [2 * FORMER]
    log.put_back()
    copy.give(NEW, "after")
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="truncat"):
        copy.run(sink)
    assert isinstance(sink.failure, OffsetGapError)
    assert copy.written() == sorted([*values(FORMER, "a"), *values(FORMER, "lost")])


def test_an_input_topic_is_added_taken_out_and_not_read_again_when_it_is_back(copy: OnePartition) -> None:
    """Spark reads a topic that the batch before has not from its beginning."""
    copy.give(FORMER, "former")
    copy.job()
    more = unique("more")
    create_topics(copy.bootstrap, {more: 1})
    produce_plain(copy.bootstrap, more, [PlainRecord(b"more%d" % n) for n in range(NEW)])
    copy.job(more)
    assert copy.written() == sorted([*values(FORMER, "former"), *values(NEW, "more")])
    copy.give(NEW, "new")
    copy.job(skip_deleted=True)  # for Spark the other topic is deleted
    everything = sorted([*values(FORMER, "former"), *values(NEW, "more"), *values(NEW, "new")])
    assert copy.written() == everything
    copy.give(1, "last")
    with pytest.raises(LedgerError, match=rf"{more}\[0\] offset {NEW}, .* up to 0: .* would be repeated"):
        copy.job(more)
    assert copy.written() == everything
