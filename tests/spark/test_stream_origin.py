"""The sink writes what is made of the batch that runs: another frame would be written as this batch, whose rows were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import UsageError
from tests.support.observer import read_committed
from tests.support.stream_copy import PER_BATCH, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

ANOTHER, UNSEEN = "reads another batch", "does not read batch 1"


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    return Copy(spark, settled(), bootstrap, tmp_path)


def queried(frame: DataFrame, text: str) -> DataFrame:
    frame.createOrReplaceTempView("rows_now")
    return frame.sparkSession.sql(text)


def refusal(sink: Callable[[DataFrame, int], None], frame: DataFrame, batch: int) -> str:
    """What a call is refused with; "" if it is not.

    The failure of `pytest.raises` is no Exception: the JVM would wait for the function's answer for ever.
    """
    try:
        sink(frame, batch)
    except UsageError as error:
        return str(error)
    return ""


def from_rows(frame: DataFrame, rows: object) -> DataFrame:
    return frame.sparkSession.createDataFrame(rows, frame.schema)


# From the frame of batch 0, which is kept, and that of batch 1.
FOREIGN: dict[str, tuple[str, Callable[[DataFrame, DataFrame], DataFrame]]] = {
    "kept": (ANOTHER, lambda kept, _: kept),
    "cached when it was kept": (ANOTHER, lambda kept, _: kept.filter("true").cache()),
    "beside this batch": (ANOTHER, lambda kept, now: now.union(kept)),
    "joined": (ANOTHER, lambda kept, now: now.join(kept.select("key"), "key", "left_semi")),
    "a global view": (ANOTHER, lambda _, now: now.sparkSession.table("global_temp.rows_of_the_first")),
    "a view": (ANOTHER, lambda _, now: now.sparkSession.table("rows_of_the_first")),
    "another session": (
        ANOTHER,
        lambda _, now: now.sparkSession.newSession().table("global_temp.rows_of_the_first"),
    ),
    "a subquery": (
        ANOTHER,
        lambda _, now: queried(
            now, "SELECT * FROM rows_now WHERE key IN (SELECT key FROM rows_of_the_first)"
        ),
    ),
    "a common table expression": (
        ANOTHER,
        lambda _, now: queried(
            now,
            "WITH old AS (SELECT * FROM rows_of_the_first) SELECT * FROM rows_now UNION ALL SELECT * FROM old",
        ),
    ),
    "checkpointed": (UNSEEN, lambda kept, _: kept.localCheckpoint()),
    "an RDD": (UNSEEN, lambda kept, now: from_rows(now, kept.rdd)),
    "collected": (UNSEEN, lambda kept, now: from_rows(now, kept.collect())),
    "nothing, not made of the batch": (UNSEEN, lambda _, now: from_rows(now, [])),
    "this batch without its origin": (UNSEEN, lambda _, now: now.localCheckpoint()),
}


def test_frame_that_is_not_made_of_the_running_batch_is_refused_and_no_row_of_the_batch_is_lost(
    copy: Copy,
) -> None:
    copy.load(2 * PER_BATCH)
    sink, kept, said = copy.sink(), list["DataFrame"](), dict[str, str]()
    before = list[int | None]()

    def write(frame: DataFrame, batch: int) -> None:
        if not kept:
            frame.createOrReplaceTempView("rows_of_the_first")
            frame.createOrReplaceGlobalTempView("rows_of_the_first")
            kept.append(frame)
        for name, (_, make) in FOREIGN.items() if batch == 1 else ():
            said[name] = refusal(sink, make(kept[0], frame), batch)
        if batch == 1:
            before.extend(copy.next_batches())
        sink(frame, batch)

    copy.run(write)
    assert {
        name: text for name, text in said.items() if FOREIGN[name][0] not in text or "Fix:" not in text
    } == {}
    assert said.keys() == FOREIGN.keys()
    assert before == [1, 1, 1]
    copy.expect_exactly_once()


def test_frame_of_the_same_batch_of_an_earlier_run_is_refused(copy: Copy) -> None:
    """Its input is read by another execution, so what it was made of is not shown to be this batch's."""
    copy.load(PER_BATCH)
    sink, kept, said = copy.sink(), list["DataFrame"](), list[str]()

    def fails(frame: DataFrame, _: int) -> None:
        kept.append(frame)
        raise RuntimeError("an accident")

    def write(frame: DataFrame, batch: int) -> None:
        said.append(refusal(sink, kept[0], batch))
        sink(frame, batch)

    with pytest.raises(Exception, match="an accident"):
        copy.run(fails)
    copy.run(write)
    assert [ANOTHER in text for text in said] == [True]
    copy.expect_exactly_once()


def test_batch_is_refused_under_the_number_of_another(copy: Copy) -> None:
    copy.load(2 * PER_BATCH)
    sink, said = copy.sink(), list[str]()

    def write(frame: DataFrame, batch: int) -> None:
        said.extend(refusal(sink, frame, other) for other in (batch - 1, batch + 1))
        sink(frame, batch)

    copy.run(write)
    assert [text.partition(":")[0] for text in said] == [
        f"the sink was called for batch {other}, and batch {batch} runs"
        for batch in range(len(said) // 2)
        for other in (batch - 1, batch + 1)
    ]
    assert len(said) >= 4
    copy.expect_exactly_once()


def lookup(frame: DataFrame) -> DataFrame:
    rows = [(bytearray(b"k%d" % i), i) for i in range(11)]
    return frame.sparkSession.createDataFrame(rows, "key BINARY, number INT")


WAYS: list[Callable[[DataFrame], DataFrame]] = [
    lambda df: df.persist(),  # stays cached over the next batches
    lambda df: df.filter("true").cache(),
    lambda df: df.localCheckpoint(eager=False),
    lambda df: from_rows(df, df.rdd.filter(bool)),
    lambda df: df.join(F.broadcast(lookup(df)), "key", "left").drop("number"),
    lambda df: df.union(from_rows(df, [])).union(
        lookup(df).localCheckpoint().select(*[F.lit(None).cast(f.dataType) for f in df.schema]).limit(0)
    ),
    lambda df: df.filter("key IS NULL").union(df.filter("key IS NOT NULL")),
    lambda df: queried(df, "WITH ours AS (SELECT * FROM rows_now) SELECT * FROM ours"),
    lambda df: queried(df, "SELECT * FROM rows_now WHERE value IN (SELECT value FROM rows_now)"),
    lambda df: df.mapInArrow(lambda batches: batches, df.schema),
    lambda df: df.groupBy("value").agg(
        *[F.first(name).alias(name) for name in ("key", "headers", "timestamp")]
    ),
    lambda df: df.observe("counted", F.count(F.lit(1)).alias("rows")).repartition(3),
]


@pytest.mark.slow
def test_frame_that_is_made_of_the_batch_is_written_whatever_the_way(copy: Copy) -> None:
    copy.load(len(WAYS) * PER_BATCH)
    sink, used = copy.sink(), set[int]()

    def write(frame: DataFrame, batch: int) -> None:
        used.add(batch % len(WAYS))
        sink(WAYS[batch % len(WAYS)](frame), batch)

    copy.run(write, wait_s=270)
    assert used == set(range(len(WAYS)))
    wanted, found = (
        Counter((r.key, r.value, r.timestamp_ms) for r in read_committed(copy.bootstrap, topic))
        for topic in (copy.source, copy.output)
    )
    assert found == wanted


def test_limit_of_0_writes_nothing_of_a_batch(copy: Copy) -> None:
    copy.load(3 * PER_BATCH)
    sink, rows = copy.sink(), dict[int, int]()

    def write(frame: DataFrame, batch: int) -> None:
        rows[batch] = frame.count()
        sink(frame if batch == 1 else frame.limit(0), batch)

    copy.run(write)
    assert copy.next_batches() == [len(rows)] * 3
    assert len(read_committed(copy.bootstrap, copy.output)) == rows[1] > 0
