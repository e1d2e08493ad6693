"""Two drivers have planned one batch of a query, and the checkpoint keeps the later one's plan.

Spark writes a batch's file as "look, then rename". On an object store that is no step of its own (and on a local disk once in
some hundred times), so the plan of a driver that goes on writing may be replaced by that of another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from eos.spark.stream.log_rules import LedgerChangedError, LedgerError
from tests.support.observer import PlainRecord, create_topics, produce_plain, unique
from tests.support.sink_faults import Accident, with_accident
from tests.support.stream_copy import PER_BATCH, Copy, by_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

MORE = 10


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    one = Copy(spark, settled(), bootstrap, tmp_path)
    one.source = unique("one")
    create_topics(bootstrap, {one.source: 1})
    return one


def planned(copy: Copy, batch: int) -> tuple[Path, list[str]]:
    file = copy.checkpoint / "offsets" / str(batch)
    return file, file.read_text().splitlines()


def replan(copy: Copy, batch: int, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
    """The batch's file as another driver's plan."""
    file, lines = planned(copy, batch)
    name, brace, ends = lines[-1].partition("{")
    read = json.loads(brace + ends)
    lines[-1] = name + json.dumps({copy.source: change(read[copy.source])})
    rewrite(file, lines)


def rewrite(file: Path, lines: list[str]) -> None:
    file.write_text("\n".join(lines))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def further(ends: dict[str, int]) -> dict[str, int]:
    return {number: end + MORE for number, end in ends.items()}


def test_a_batch_whose_plan_was_replaced_before_it_was_written_is_refused_and_goes_on_at_the_next_start(
    copy: Copy,
) -> None:
    copy.load(3 * PER_BATCH)
    sink = copy.sink()

    def replaced(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            replan(copy, batch, further)
        sink(frame, batch)

    with pytest.raises(StreamingQueryException):
        copy.run(replaced)
    assert isinstance(sink.failure, LedgerChangedError)
    assert "another driver works with this checkpoint" in str(sink.failure)
    assert copy.next_batches() == [1]  # nothing of batch 1 was written
    copy.run()
    copy.expect_exactly_once()


def test_a_batch_whose_plan_was_replaced_after_it_was_written_is_refused_until_the_checkpoint_is_put_right(
    copy: Copy,
) -> None:
    """What lies between the two plans' ends would never be processed."""
    copy.load(PER_BATCH)
    copy.run()
    copy.load(PER_BATCH, PER_BATCH)
    replan(copy, 0, further)
    sink = copy.sink()
    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            copy.run(sink)
        assert isinstance(sink.failure, LedgerError)
        assert "batch 0 was written up to" in str(sink.failure)
        assert "would be skipped" in str(sink.failure)
    put_right(copy, str(sink.failure))
    copy.run()
    copy.expect_exactly_once()


def test_a_batch_that_is_written_and_comes_again_with_another_end_is_refused(copy: Copy) -> None:
    """The driver of the replaced plan was killed before Spark counted the batch as done."""
    copy.load(PER_BATCH)
    copy.run()
    for done in (copy.checkpoint / "commits").iterdir():
        done.unlink()
    copy.load(PER_BATCH, PER_BATCH)
    replan(copy, 0, further)
    sink = copy.sink()
    with pytest.raises(StreamingQueryException):
        copy.run(sink)
    assert isinstance(sink.failure, LedgerError)
    put_right(copy, str(sink.failure))
    copy.run()
    copy.expect_exactly_once()


def test_a_checkpoint_of_named_sources_is_read(copy: Copy, spark: SparkSession) -> None:
    """Its offset log has format 2: the name of the source stands before its offsets."""
    if not hasattr(spark.readStream, "name"):
        pytest.skip(f"sources have no names in Spark {spark.version}")
    wanted = {
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    }
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        for start in (0, 1):
            copy.load(PER_BATCH, start * PER_BATCH)
            frame = (
                spark.readStream.name("copied")
                .format("kafka")
                .options(**{"kafka.bootstrap.servers": copy.bootstrap, "subscribe": copy.source})
                .options(startingOffsets="earliest", includeHeaders="true")
                .load()
            )
            writer = frame.select("key", "value", "headers", "timestamp").writeStream.foreachBatch(
                copy.sink()
            )
            writer = writer.option("checkpointLocation", str(copy.checkpoint)).trigger(availableNow=True)
            assert writer.start().awaitTermination(90)
        _, lines = planned(copy, 1)
        assert (lines[0], lines[-1].partition(":")[0]) == ("v2", "copied")
        copy.expect_exactly_once()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def put_right(copy: Copy, said: str) -> None:
    """As the refusal says."""
    found = re.search(r"offsets/(\d+) right, whose last lines are to say (\{.*\}), and remove", said)
    assert found is not None, said
    batch, ends = int(found[1]), found[2]
    file, lines = planned(copy, batch)
    rewrite(file, [*lines[:-1], ends])
    for later in file.parent.iterdir():
        if later.name.isdigit() and int(later.name) > batch:
            later.unlink()
            (file.parent / f".{later.name}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_written_in_part_is_refused_where_it_comes_again_with_another_beginning(
    copy: Copy,
) -> None:
    """Its first shard's marks say the new end by then; the rows between the two beginnings are of another shard alone."""
    copy.load(PER_BATCH)
    copy.run(by_key(copy.sink()))
    produce_plain(copy.bootstrap, copy.source, [PlainRecord(b"lost?", b"k0")])
    copy.load(PER_BATCH - 1, PER_BATCH)
    failing = with_accident(copy.sink(), Accident.BEFORE_COMMIT, 1, 2, tries=9, batch=1)
    with pytest.raises(StreamingQueryException):
        copy.run(by_key(failing))
    assert copy.next_batches()[0] == 2
    replan(copy, 0, lambda ends: {number: end + 1 for number, end in ends.items()})
    sink = copy.sink()
    with pytest.raises(StreamingQueryException):
        copy.run(by_key(sink))
    assert isinstance(sink.failure, LedgerError)
    assert "reads another part of the input" in str(sink.failure)
    assert copy.next_batches() == [2, 1, 1]
    replan(copy, 0, lambda ends: {number: end - 1 for number, end in ends.items()})
    copy.run(by_key(copy.sink()))
    copy.expect_exactly_once()
