"""An output topic that does not exist, or goes away while Spark writes: the topic is named, and no record."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.base.deadline import Deadline
from eos.errors import AbortableError, ConfigError
from eos.offsets import OffsetVector
from eos.spark.batch.planning import plan_input
from eos.spark.batch.range_record import RangeRecord
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.division import DIGEST
from eos.spark.stream.log_entry import LogEntry
from eos.spark.stream.log_rules import BatchPlan, LedgerError
from eos.spark.stream.micro_batch import EntryRecord
from eos.spark.stream.sink import exactly_once_sink
from eos.spark.write.output import OutputColumns
from eos.spark.write.writer import ShardWriter
from tests.spark.conftest import Settled
from tests.support import observer
from tests.support.batch_input import BatchRuns
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of
from tests.support.sink_faults import Accident, with_accident
from tests.support.spark_faults import LONG_TRANSACTIONS, Copy, copied, make_sleepy
from tests.support.stream_copy import PER_BATCH, SHARDS
from tests.support.stream_copy import Copy as StreamCopy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit

pytestmark = pytest.mark.broker

RECORDS = 200


def suppressed(call: Callable[[], None]) -> None:
    with suppress(StreamingQueryException):
        call()


def wait_for(*flags: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(flag.exists() for flag in flags):
        assert time.monotonic() < deadline, flags
        time.sleep(0.05)


@pytest.mark.parametrize("commit", ["partition", "batch"])
@pytest.mark.parametrize("when", ["before", "while planned"])
def test_batch_whose_output_does_not_exist_names_the_topic(
    spark: SparkSession, bootstrap: str, when: str, commit: Commit
) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(10)

    def transform(frame: DataFrame) -> DataFrame:
        if when == "while planned":
            observer.delete_topic(bootstrap, runs.output)
        return frame.select("shard", "key", "value")

    if when == "before":
        observer.delete_topic(bootstrap, runs.output)
    with pytest.raises(ConfigError, match=rf"{runs.output}\S* does not exist") as caught:
        runs.run(transform, commit)
    assert "record " not in str(caught.value)
    # Where it was there to begin with, the group has got its first offsets.
    assert runs.committed() == ([None, None] if when == "before" else [0, 0])


def test_stream_whose_output_goes_between_two_batches_names_the_topic(
    spark: SparkSession, settled: Settled, bootstrap: str, tmp_path: Path
) -> None:
    copy = StreamCopy(spark, settled(), bootstrap, tmp_path)
    copy.load(PER_BATCH + 10)
    other = observer.unique("other")
    observer.create_topics(bootstrap, {other: 1})
    sink = exactly_once_sink(
        copy.settings, name=copy.name, outputs=[copy.output, other], inputs=[copy.source], shards=1
    )

    def writing(frame: DataFrame, batch: int) -> None:
        if batch:
            observer.delete_topic(bootstrap, other)
        sink(frame.withColumn("topic", F.lit(other)), batch)

    with pytest.raises(StreamingQueryException):
        copy.run(writing)
    assert isinstance(sink.failure, ConfigError), sink.failure
    assert re.search(rf"{other}\S* does not exist", str(sink.failure))


def test_output_that_is_created_anew_within_a_tasks_write_aborts_and_names_the_topic(bootstrap: str) -> None:
    runs = BatchRuns(None, bootstrap, partitions=1)  # type: ignore[arg-type] # the writer is called by the test
    runs.fill(10)
    plan = plan_input(runs.settings, [runs.input], app=runs.name, commit="partition")
    done = RangeRecord(runs.settings, plan)
    writer = ShardWriter(runs.settings, done.in_task(0, 0), OutputColumns((runs.output,), ("value",)))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"before"] * 5})
        observer.recreate_topic(bootstrap, runs.output, 1)
        yield pa.RecordBatch.from_pydict({"value": [b"behind"] * 5})

    with pytest.raises(
        AbortableError, match=rf"{runs.output}: the output topic was deleted and created anew"
    ):
        writer.write(rows())
    assert (runs.records(), runs.committed()) == ([], [0])


def test_output_that_is_created_anew_before_a_shards_first_record_is_refused_by_what_its_ledger_counts_in(
    bootstrap: str,
) -> None:
    """The ledger was read before Kafka dropped it, and the topic's id was asked for after that: the shard was written alone."""
    out = observer.unique("out")
    observer.create_topics(bootstrap, {out: 1})
    log = CommitLog(settings_of(bootstrap), observer.unique("sink"), observer.unique("group"), out)
    begun = log.entries({0: log.replace(0, None, LogEntry(0, "query", 1))})
    record = EntryRecord(log, BatchPlan("query", 0, 1, entries=begun), OffsetVector())

    def rows() -> Iterator[pa.RecordBatch]:
        observer.recreate_topic(bootstrap, out, 1)
        yield pa.RecordBatch.from_pydict({"value": [b"behind"] * 5, DIGEST: [1] * 5})

    writer = ShardWriter(log.settings, record.in_task(0, 0), OutputColumns((out,), ("value",)))
    with pytest.raises(LedgerError, match=f"its ledger is gone.*{out} was deleted"):
        writer.write(rows())
    assert observer.read_committed(bootstrap, out) == []


def test_output_that_is_created_anew_while_a_driver_takes_the_ledger_over_gets_no_entry(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of the deleted topic was read, and written to the new one: 20 of 60 rows were there, and every run was content."""
    out = observer.unique("out")
    observer.create_topics(bootstrap, {out: 1})
    log = CommitLog(settings_of(bootstrap), observer.unique("sink"), observer.unique("group"), out)
    held = log.replace(0, None, LogEntry(1, "query", 1))
    behind_the_look = CommitLog.offsets

    def recreated(log: CommitLog, entry: LogEntry) -> OffsetVector:
        observer.recreate_topic(bootstrap, out, 1)
        return behind_the_look(log, entry)

    monkeypatch.setattr(CommitLog, "offsets", recreated)
    with pytest.raises(LedgerError, match=f"its ledger is gone.*{out} was deleted"):
        log.replace(0, held, LogEntry(1, "query", 1))
    assert Deadline(PATIENCE_S).wait_for(lambda: not log.read([0]))


def test_output_that_is_created_anew_within_a_batchs_write_gets_all_of_it(
    spark: SparkSession,
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_batches: None,
) -> None:
    """Half of the rows are written when the topic goes: the next try of the task writes all of them to the new one."""
    runs = BatchRuns(spark, bootstrap, partitions=1, overrides=dict(LONG_TRANSACTIONS))
    runs.fill(RECORDS)
    flag, ended = tmp_path / "flag", []
    run = threading.Thread(target=lambda: ended.append(runs.run(Copy())), daemon=True)
    with monkeypatch.context() as patch:
        make_sleepy(patch, flag, shard=0)
        run.start()
        wait_for(tmp_path / "flag.asleep")
    observer.recreate_topic(bootstrap, runs.output, 1)
    (tmp_path / "flag.go").touch()
    run.join(PATIENCE_S)
    assert len(ended) == 1
    outcome = runs.assert_exactly_once(lambda record: copied(runs.output, record))
    assert (outcome.processed, outcome.produced) == (RECORDS, RECORDS)


def test_output_that_is_created_anew_within_a_streams_write_is_never_written_in_part(
    spark: SparkSession, settled: Settled, bootstrap: str, tmp_path: Path
) -> None:
    copy = StreamCopy(spark, settled(**LONG_TRANSACTIONS), bootstrap, tmp_path)
    copy.load(30)
    flag = tmp_path / "flag"
    sink = with_accident(copy.sink(), Accident.PAUSED, *range(SHARDS), tries=1, flag=str(flag))
    thread = threading.Thread(target=lambda: suppressed(lambda: copy.run(sink)), daemon=True)
    thread.start()
    # Whichever task comes first: in place, Spark chooses.
    assert Deadline(PATIENCE_S).wait_for(lambda: any(tmp_path.glob("flag.*")))
    observer.recreate_topic(bootstrap, copy.output, 2)
    (tmp_path / "flag.go").touch()
    thread.join(PATIENCE_S)
    assert isinstance(sink.failure, LedgerError), sink.failure
    assert f"{copy.output} was deleted" in str(sink.failure)
    assert observer.read_committed(bootstrap, copy.output) == []
