"""First starts of a streaming query that failed: what was written before, and where the input begins, is not forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from eos.errors import ConfigError
from eos.spark.jobs import StreamJob
from eos.spark.running import start_stream
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import (
    PlainRecord,
    create_topics,
    delete_groups,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.stream_copy import PER_BATCH, SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    return Copy(spark, settled(), bootstrap, tmp_path)


def sink_of(copy: Copy, *outputs: str) -> ExactlyOnceSink:
    return exactly_once_sink(
        copy.settings, name=copy.name, outputs=outputs, shards=SHARDS, listener=copy.events.append
    )


def written_but_not_noted(copy: Copy) -> None:
    """Batch 0 is written, and the driver dies before Spark notes it."""
    copy.load(PER_BATCH)
    sink = _to_last(copy.sink(), copy.output)

    def dies(frame: DataFrame, batch: int) -> None:
        sink(frame, batch)
        raise RuntimeError("an accident behind the sink")

    with pytest.raises(StreamingQueryException, match="an accident"):
        copy.run(dies)
    copy.expect_exactly_once()


def forget_ledger(copy: Copy) -> None:
    delete_groups(copy.bootstrap, *(f"{copy.name}.ledger.{shard}" for shard in range(SHARDS)))


def test_first_batch_that_was_written_is_refused_when_its_ledger_is_gone(copy: Copy) -> None:
    written_but_not_noted(copy)
    forget_ledger(copy)
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="was begun before"):
        copy.run(sink)
    assert isinstance(sink.failure, LedgerError)
    assert f"{copy.name}.ledger.0" in str(sink.failure)
    assert str(copy.checkpoint) in str(sink.failure)
    copy.expect_exactly_once()


def test_first_batch_is_finished_when_an_output_was_added_in_front_of_the_ledgers(copy: Copy) -> None:
    written_but_not_noted(copy)
    added = unique("added")
    create_topics(copy.bootstrap, {added: 2})
    copy.run(_to_last(sink_of(copy, added, copy.output), copy.output))
    copy.expect_exactly_once()
    assert copy.next_batches() == [1] * SHARDS


def test_query_goes_on_when_an_output_was_added_in_front_of_the_ledgers(copy: Copy) -> None:
    copy.load(PER_BATCH)
    copy.run()
    copy.load(PER_BATCH, PER_BATCH)
    added = unique("added")
    create_topics(copy.bootstrap, {added: 2})
    sink = sink_of(copy, added, copy.output)
    copy.run(_to_last(sink, copy.output))
    sink.refresh()
    copy.expect_exactly_once()
    assert copy.next_batches() == [2] * SHARDS
    assert not read_committed(copy.bootstrap, added)


def test_output_that_the_ledger_stands_on_and_that_is_no_longer_declared_is_named(copy: Copy) -> None:
    copy.load(PER_BATCH)
    copy.run()
    copy.load(PER_BATCH, PER_BATCH)
    other = unique("other")
    create_topics(copy.bootstrap, {other: 2})
    sink = sink_of(copy, other)
    with pytest.raises(StreamingQueryException, match=f"the ledger stands on {copy.output}.*name it again"):
        copy.run(sink)
    assert isinstance(sink.failure, LedgerError)
    assert not read_committed(copy.bootstrap, other)


def test_first_start_that_failed_before_anything_was_written_needs_no_decision(copy: Copy) -> None:
    """Spark has noted batch 0 by then, and the output topic does not exist."""
    copy.load(PER_BATCH)
    output, copy.output = copy.output, unique("late")
    with pytest.raises(StreamingQueryException, match="does not exist"):
        copy.run()
    create_topics(copy.bootstrap, {copy.output: 2})
    copy.run()
    copy.expect_exactly_once()
    assert not read_committed(copy.bootstrap, output)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_start_policy_of_a_first_start_that_failed_has_to_be_stated_again(
    copy: Copy, settled: Callable[..., Settings], start: str
) -> None:
    """Spark writes the query's id before it looks for the input; until the first batch is planned, nothing says where."""
    source = unique("late")
    job = StreamJob(
        name=copy.name,
        inputs=[source],
        outputs=[copy.output],
        transform=lambda frame: frame.select("key", "value"),
    )

    def run(policy: str) -> None:
        start_stream(
            job,
            copy.spark,
            settled(input__start=policy),
            checkpoint=str(copy.checkpoint),
            available_now=True,
        ).wait()

    with pytest.raises(ConfigError, match=rf"topic '{source}' does not exist"):
        run(start)
    assert (copy.checkpoint / "metadata").exists()
    create_topics(copy.bootstrap, {source: 1})
    produce_plain(copy.bootstrap, source, [PlainRecord(b"before")])
    with pytest.raises(ConfigError, match="--start latest"):
        run("fail")
    run(start)
    produce_plain(copy.bootstrap, source, [PlainRecord(b"behind")])
    run("fail")
    found = [record.value or b"" for record in read_committed(copy.bootstrap, copy.output)]
    assert sorted(found) == ([b"before", b"behind"] if start == "earliest" else [b"behind"])


def _to_last(sink: ExactlyOnceSink, topic: str) -> Callable[[DataFrame, int], None]:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return lambda frame, batch: sink(frame.withColumn("topic", F.lit(topic)), batch)
