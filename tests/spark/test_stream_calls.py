"""What a function given to foreachBatch may do with the sink: one call per batch, each sink under a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import UsageError
from eos.spark.events import BatchResumed
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique
from tests.support.stream_copy import Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

COUNT = 30


class FanOut(Copy):
    """A query whose records go to two topics: the first output and another one."""

    def __init__(self, spark: SparkSession, settings: Settings, bootstrap: str, directory: Path) -> None:
        super().__init__(spark, settings, bootstrap, directory)
        self.other = unique("other")
        create_topics(bootstrap, {self.other: 2})

    def of(self, *outputs: str, name: str = "") -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings,
            name=name or self.name,
            outputs=list(outputs),
            shards=2,
            listener=self.events.append,
        )

    def written(self, topic: str) -> Counter[bytes | None]:
        return Counter(record.value for record in read_committed(self.bootstrap, topic))

    def all(self) -> Counter[bytes | None]:
        return self.written(self.source)


@pytest.fixture
def fan_out(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> FanOut:
    query = FanOut(spark, settled(), bootstrap, tmp_path)
    produce_plain(bootstrap, query.source, [PlainRecord(b"v%d" % i, b"k%d" % i) for i in range(COUNT)])
    return query


def to(topic: str, frame: DataFrame) -> DataFrame:
    return frame.withColumn("topic", F.lit(topic))


def test_second_call_for_a_batch_is_refused_and_a_sink_of_its_own_writes_what_it_held(
    fan_out: FanOut,
) -> None:
    first, second = fan_out.output, fan_out.other
    sink = fan_out.of(first, second)

    def twice(frame: DataFrame, batch: int) -> None:
        sink(to(first, frame), batch)
        sink(to(second, frame), batch)

    with pytest.raises(StreamingQueryException, match="second call of this sink for batch 0"):
        fan_out.run(twice)
    assert isinstance(sink.failure, UsageError)
    assert (fan_out.written(first), fan_out.written(second)) == (fan_out.all(), Counter())

    ours = fan_out.of(first)
    theirs = fan_out.of(second, name=unique("own"))

    def both(frame: DataFrame, batch: int) -> None:
        ours(to(first, frame), batch)
        theirs(frame, batch)

    fan_out.run(both)
    assert fan_out.written(first) == fan_out.written(second) == fan_out.all()


def test_second_call_by_a_sink_that_is_made_anew_is_refused(fan_out: FanOut) -> None:
    """It does not know of the first call; the content of what is written shows it."""
    first, second = fan_out.output, fan_out.other

    def twice(frame: DataFrame, batch: int) -> None:
        for topic in (first, second):
            fan_out.of(first, second)(to(topic, frame), batch)

    with pytest.raises(StreamingQueryException, match="gives other rows"):
        fan_out.run(twice)
    assert (fan_out.written(first), fan_out.written(second)) == (fan_out.all(), Counter())


def test_second_sink_of_the_same_name_for_another_topic_is_refused(fan_out: FanOut) -> None:
    first, second = fan_out.output, fan_out.other
    ours, theirs = fan_out.of(first), fan_out.of(second)

    def both(frame: DataFrame, batch: int) -> None:
        ours(frame, batch)
        theirs(frame, batch)

    with pytest.raises(StreamingQueryException, match=rf"the ledger stands on {first}"):
        fan_out.run(both)
    assert (fan_out.written(first), fan_out.written(second)) == (fan_out.all(), Counter())


def test_one_call_writes_to_several_topics_by_the_topic_column(fan_out: FanOut) -> None:
    first, second = fan_out.output, fan_out.other
    sink = fan_out.of(first, second)
    fan_out.run(lambda frame, batch: sink(to(first, frame).unionByName(to(second, frame)), batch))
    assert fan_out.written(first) == fan_out.written(second) == fan_out.all()


def test_call_that_failed_may_be_repeated(fan_out: FanOut) -> None:
    sink = fan_out.of(fan_out.output)
    refused: list[str] = []

    def repeated(frame: DataFrame, batch: int) -> None:
        try:
            sink(frame.withColumn("value", F.lit(1)), batch)
        except UsageError as error:
            refused.append(str(error))
            sink(frame, batch)

    fan_out.run(repeated)
    assert len(refused) == 1
    assert fan_out.written(fan_out.output) == fan_out.all()


def test_batch_is_written_once_when_the_query_starts_again_in_the_same_process(fan_out: FanOut) -> None:
    """Spark runs the batch again, through the same sink: another run, so it is no second call."""
    sink = fan_out.of(fan_out.output)

    def fails_behind_it(frame: DataFrame, batch: int) -> None:
        sink(frame, batch)
        raise RuntimeError("an accident behind the sink")

    with pytest.raises(StreamingQueryException, match="an accident"):
        fan_out.run(fails_behind_it)
    fan_out.run(sink)
    assert fan_out.written(fan_out.output) == fan_out.all()
    assert [event.batch for event in fan_out.events if isinstance(event, BatchResumed)] == [0]
