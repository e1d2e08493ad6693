"""A query without new input: Spark plans no batch that would show what is wrong, and its input would count as processed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import ANY, Mock

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import EosError, OffsetGapError
from eos.events import Event, ignore_event
from eos.spark.events import LedgerRefreshed
from eos.spark.running import start_stream
from eos.spark.source import read_stream
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.query import StreamRun, write_stream
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import alter_offsets, delete_groups, read_committed, recreate_topic, unique
from tests.support.stream_roles import ROWS, Roles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker


@pytest.fixture
def query(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Roles:
    """One batch of it is written, and there is nothing new."""
    query = Roles(spark, settled(), bootstrap, tmp_path)
    query.give(query.source)
    query.run([query.source], [query.output])
    return query


def lose_the_ledger(query: Roles) -> None:
    delete_groups(query.bootstrap, f"{query.name}.ledger.0")


def process_anew(query: Roles) -> None:
    """The input is created anew, with as many records as before: Spark sees no difference."""
    recreate_topic(query.bootstrap, query.source)
    query.give(query.source)


def start(query: Roles, *outputs: str, on_event: Callable[[Event], None] = ignore_event) -> StreamRun:
    """To go on until it is stopped."""
    job = query.job([query.source], outputs)
    return start_stream(job, query.spark, query.settings, checkpoint=query.checkpoint, listener=on_event)


def test_lost_ledger_is_refused_and_goes_on_once_a_person_has_said_so(query: Roles) -> None:
    """It ended with exit 0, also where the input was created anew: its records were never processed."""
    source, output = query.source, query.output
    lose_the_ledger(query)
    token = query.refused([source], [output], "was begun before|no entry of shard 0 says")
    query.run([source], [output], token)
    assert query.refused([source], [output], "no entry of shard 0 says") == token, "nothing was written yet"
    query.give(source)
    query.run([source], [output], token)
    query.run([source], [output])
    query.expect()


def test_ledger_that_went_with_its_topic_is_refused(query: Roles) -> None:
    """Nothing of the input was in the output any more, and the query ended with exit 0."""
    recreate_topic(query.bootstrap, query.output)
    query.refused([query.source], [query.output], "no entry of shard 0 says")


def test_new_name_is_refused_and_the_refusal_says_that_the_input_is_another_one(query: Roles) -> None:
    """The token had waived both, and had spoken of the name alone: no record of the new input was ever processed."""
    query.name = unique("renamed")
    says_nothing_of_it = query.refused([query.source], [query.output], r"writes to .* too.*any more$")
    process_anew(query)
    why = rf"writes to .* too.*And {query.source}\[0\] was deleted and created anew"
    assert query.refused([query.source], [query.output], why) == says_nothing_of_it
    query.give(query.source)
    query.run([query.source], [query.output], says_nothing_of_it)
    assert len(read_committed(query.bootstrap, query.output)) == 2 * ROWS, "as the refusal said"


def test_query_that_goes_on_is_refused_before_its_first_batch(query: Roles) -> None:
    """It ran on without a word, until it had new input."""
    with pytest.raises(LedgerError, match=f"stands on {query.output}"):
        start(query, query.changing)
    process_anew(query)
    with pytest.raises(OffsetGapError, match=rf"{query.source}.*created anew.*Fix: "):
        start(query, query.output)


def shorten(query: Roles, file: str) -> None:
    """As a disk that was full leaves it: without its last bytes, and without its checksum."""
    path = Path(query.checkpoint, file)
    path.write_bytes(path.read_bytes()[:2])
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def test_lost_ledger_is_refused_beside_an_old_file_that_spark_does_not_read(query: Roles) -> None:
    """For such a file, nothing was compared, with exit 0."""
    query.give(query.source)
    query.run([query.source], [query.output])
    shorten(query, "commits/0")
    query.run([query.source], [query.output])
    lose_the_ledger(query)
    query.refused([query.source], [query.output], "no entry of shard 0 says")


def test_ledger_that_is_behind_the_checkpoint_is_refused(query: Roles) -> None:
    """As where a foreachBatch function has not called its sink for a batch, which Spark counts as done."""
    log = CommitLog(query.settings, query.name, query.name, query.output, (query.source,))
    stored = log.read([0])
    log.replace(0, stored[0], replace(log.entries(stored)[0], next_batch=0))
    query.refused([query.source], [query.output], "this is batch 1, but the next batch of shard 0 is 0")


def test_refusals_of_an_input_that_is_another_one_lead_out_where_a_batch_is_to_be_run_again(
    query: Roles,
) -> None:
    """The start wanted the token of the next batch, and the batch its own: with either of them nothing could be done any more."""
    source, output = query.source, query.output
    query.give(source)
    query.run([source], [output])
    for name in ("1", ".1.crc"):
        Path(query.checkpoint, "commits", name).unlink()
    recreate_topic(query.bootstrap, source)
    for _ in range(3):
        query.give(source)
    token: str | None = None
    tokens: list[str] = []
    for _ in range(3):
        try:
            query.run([source], [output], token)
            break
        except (LedgerError, OffsetGapError) as refusal:
            token = str(refusal).partition("adopt='")[2].partition("'")[0]
            tokens.append(token.rpartition(":")[2])
    assert tokens == ["1", "2"]
    query.run([source], [output])


def test_batch_that_is_written_whole_before_spark_has_counted_it_is_gone_on_from(query: Roles) -> None:
    """Its entry is of the run that wrote it. The run's end took that for another driver's, and the start failed."""
    for name in ("0", ".0.crc"):
        Path(query.checkpoint, "commits", name).unlink(missing_ok=True)
    query.run([query.source], [query.output])
    query.give(query.source)
    query.run([query.source], [query.output])
    query.expect()


def test_strangers_offset_in_the_place_of_a_mark_is_no_place_of_the_query(query: Roles) -> None:
    """It was believed: without new input not seen, else told as two drivers, with a fix that wrote a part of the batch twice."""
    source, output, group = query.source, query.output, f"{query.name}.ledger.0"
    alter_offsets(query.bootstrap, group, {(source, 0): ROWS - 2})
    why = f"another program has committed in the group {group}"
    with pytest.raises(OffsetGapError, match=why):
        query.run([source], [output])
    query.give(source)
    with pytest.raises(OffsetGapError, match=why) as refusal:
        query.run([source], [output])
    query.run([source], [output], str(refusal.value).partition("adopt='")[2].partition("'")[0])
    query.run([source], [output])
    query.expect()


def test_sink_that_is_told_of_another_topic_of_its_query_takes_it_for_no_other_one(
    query: Roles, spark: SparkSession, tmp_path: Path
) -> None:
    frame = read_stream(
        spark, query.settings, [query.source, query.changing], checkpoint=str(tmp_path / "two")
    )
    for inputs in ([query.source], [query.changing]):
        rows = frame.select("key", "value")
        writer = write_stream(rows, query.settings, name="two", inputs=inputs, outputs=[query.output])
        writer.start(str(tmp_path / "two"), available_now=True).wait()


def test_refresh_behind_a_batch_that_failed_takes_its_own_entries_for_no_other_drivers(query: Roles) -> None:
    """They were rewritten for the batch, by the run that failed of it: it was told to stop one of two drivers."""
    query.give(query.source)
    sinks: list[ExactlyOnceSink] = []

    def failing(frame: DataFrame, batch: int) -> None:
        rows = frame.select("key", F.raise_error(F.lit("a row")).cast("string").alias("value"))
        sinks[0](rows, batch)

    frame = read_stream(query.spark, query.settings, [query.source], checkpoint=query.checkpoint)
    sinks.append(
        exactly_once_sink(query.settings, name=query.name, outputs=[query.output], inputs=[query.source])
    )
    sinks[0].starts(query.checkpoint, spark=query.spark)
    run = frame.writeStream.foreachBatch(failing).option("checkpointLocation", query.checkpoint).start()
    with pytest.raises(EosError, match="a row could not be computed"):
        StreamRun(run, sinks[0]).wait()
    sinks[0].refresh()
    query.run([query.source], [query.output])
    query.expect()


class Timers:
    """In place of `threading.Timer`: nothing goes off by itself."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[float, Callable[[], None]]] = {}
        self.started = 0

    def __call__(self, after_s: float, call: Callable[[], None]) -> Mock:
        self.started += 1
        number, timer = self.started, Mock()
        timer.start = lambda: self.running.update({number: (after_s, call)})
        timer.cancel = lambda: self.running.pop(number, None)
        return timer


def test_query_that_goes_on_keeps_its_ledger_from_its_start_to_its_end(
    query: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did so behind its first batch alone: after a restart, an idle query let it expire. And what had ended went on to fence what had not."""
    timers, events = Timers(), list[Event]()
    monkeypatch.setattr("eos.spark.stream.sink.Timer", timers)
    run = start(query, query.output, on_event=events.append)
    [(after_s, refresh)] = timers.running.values()
    assert after_s == query.settings.input.recommit_idle_after_s
    refresh()
    assert [event.batch for event in events if isinstance(event, LedgerRefreshed)] == [1]
    assert timers.started == 2
    monkeypatch.setattr(run.sink, "refresh", Mock(side_effect=RuntimeError("… after interpreter shutdown")))
    refresh()  # it printed a traceback, as its process ended
    monkeypatch.undo()
    run.query.stop()
    run.wait()
    assert timers.running == {}
    refresh()  # that has gone off a moment before
    assert timers.started == 2


def test_what_is_left_of_a_former_run_does_not_write_over_what_the_next_one_has_taken_over(
    query: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries say the same of batches then. It wrote them again, and the next run's tasks took that for another driver."""
    timers, events = Timers(), list[Event]()
    monkeypatch.setattr("eos.spark.stream.sink.Timer", timers)
    run = start(query, query.output, on_event=events.append)
    [(_, refresh)] = timers.running.values()
    run.query.stop()  # without a wait
    log = CommitLog(query.settings, query.name, query.name, query.output, (query.source,))
    stored = log.read([0])
    taken_over = log.replace(0, stored[0], replace(log.entries(stored)[0], run=str(uuid.uuid4())))
    refresh()
    assert "another driver has gone on" in [e.failed for e in events if isinstance(e, LedgerRefreshed)][-1]
    assert log.read([0])[0] == taken_over
    assert timers.running == {1: ANY}, "it has gone off, and none came after it"


def test_query_that_has_nothing_to_keep_disturbs_nobody(
    query: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink had no entry to compare with, and committed those of the rightful driver again, which ended it."""
    timers = Timers()
    monkeypatch.setattr("eos.spark.stream.sink.Timer", timers)
    query.checkpoint += "-another"
    with suppress(EosError):
        run = start(query, query.output)
        run.query.stop()
    assert timers.started == 0
