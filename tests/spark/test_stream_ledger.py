"""The streaming sink, batch by batch: its ledger, accidents of its tasks, drivers against each other.

The sink is called as foreachBatch calls it, with what it would find of the query that runs.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.deadletter import ERROR_HEADER
from eos.errors import ConfigError, EosError, UsageError
from eos.events import Event, TransactionCommitted
from eos.spark.analysis.query_tasks import QueryTasks
from eos.spark.events import BatchResumed, LedgerSharded
from eos.spark.session.checkpoint import Checkpoint, RunningQuery
from eos.spark.stream.log_entry import Division, LogEntry
from eos.spark.stream.log_rules import LedgerChangedError, LedgerError
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import (
    committed_offsets,
    create_topics,
    delete_groups,
    read_committed,
    read_uncommitted,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.sink_faults import Accident, with_accident

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

SHARDS = 3
_query: ContextVar[RunningQuery] = ContextVar("query")


@dataclass
class Stream:
    """A sink's topic, its rows per batch, and what reached the topic."""

    spark: SparkSession
    settings: Settings
    bootstrap: str
    directory: Path
    topic: str = field(default_factory=lambda: unique("out"))
    name: str = field(default_factory=lambda: unique("sink"))
    query: str = field(default_factory=lambda: str(uuid.uuid4()))
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        create_topics(self.bootstrap, {self.topic: 2})

    def sink(
        self, shards: int = SHARDS, adopt: str | None = None, outputs: Sequence[str] = ()
    ) -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings,
            name=self.name,
            outputs=[*outputs, self.topic],
            shards=shards,
            adopt=adopt,
            listener=self.events.append,
        )

    def rows(self, batch: int, count: int = 40) -> list[tuple[bytes, bytes]]:
        return [(b"k%d" % (i % 9), b"b%d v%d" % (batch, i)) for i in range(count)]

    def frame(self, rows: Sequence[tuple[bytes | None, bytes | None]]) -> DataFrame:
        frame = self.spark.createDataFrame(list(rows), "key binary, value binary").repartition(2)
        return frame.withColumn("topic", F.lit(self.topic))

    def write(self, sink: ExactlyOnceSink, batch: int, *, query: str | None = None, **kind: Any) -> None:
        """What foreachBatch does, each time in another run of the query."""
        self.write_frame(sink, batch, self.frame(self.rows(batch, **kind)), query or self.query)

    def write_frame(self, sink: ExactlyOnceSink, batch: int, frame: DataFrame, query: str) -> None:
        _query.set(self.running(query))
        sink(frame, batch)

    def running(self, query: str) -> RunningQuery:
        checkpoint = self.directory / query
        checkpoint.mkdir(exist_ok=True)
        return RunningQuery(query, str(uuid.uuid4()), Checkpoint(self.spark, str(checkpoint)), None)

    def records(self) -> Counter[tuple[bytes | None, bytes | None]]:
        return Counter((r.key, r.value) for r in read_committed(self.bootstrap, self.topic))

    def expect(self, *batches: int) -> None:
        """The topic has exactly the rows of these batches, each once."""
        assert self.records() == Counter(row for batch in batches for row in self.rows(batch))

    def entries(self, shards: int = SHARDS) -> list[LogEntry | None]:
        found = []
        for shard in range(shards):
            offsets = committed_offsets(self.bootstrap, f"{self.name}.ledger.{shard}", [(self.topic, 0)])
            offset, metadata = offsets[self.topic, 0]
            found.append(None if offset is None else LogEntry.parse(offset, metadata))
        return found

    def next_batches(self, shards: int = SHARDS) -> list[int | None]:
        return [None if entry is None else entry.next_batch for entry in self.entries(shards)]

    def forget(self, *shards: int) -> None:
        """As if the offsets had expired."""
        delete_groups(self.bootstrap, *(f"{self.name}.ledger.{k}" for k in shards))

    def seen(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def stream(
    spark: SparkSession,
    settled: Callable[..., Settings],
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Stream:
    monkeypatch.setattr("eos.spark.stream.sink.running_query", lambda _: _query.get())
    monkeypatch.setattr(
        "eos.spark.stream.sink.require_running_batch", lambda *_: None
    )  # no query runs one here
    monkeypatch.setattr("eos.spark.stream.division.tasks_of", lambda _: QueryTasks("a test's own frame"))
    return Stream(spark, settled(spark__twin_wait_ms=20_000), bootstrap, tmp_path)


def test_batches_are_written_once_and_a_batch_that_is_run_again_is_not(stream: Stream) -> None:
    sink = stream.sink()
    for batch in (0, 1, 1, 2):
        stream.write(sink, batch)
    stream.expect(0, 1, 2)
    assert stream.next_batches() == [3, 3, 3]
    assert len(stream.seen(TransactionCommitted)) == 3 * SHARDS
    assert [event.written for event in stream.seen(BatchResumed)] == [[0, 1, 2]]
    assert [event.shards for event in stream.seen(LedgerSharded)] == [SHARDS]


def test_empty_batch_moves_every_shard_on(stream: Stream) -> None:
    sink = stream.sink()
    stream.write(sink, 0, count=0)
    stream.write(sink, 1, count=1)
    assert stream.next_batches() == [2, 2, 2]
    assert sum(stream.records().values()) == 1


@pytest.mark.parametrize(
    "accident",
    [
        pytest.param(Accident.BEFORE_COMMIT, marks=pytest.mark.slow),
        Accident.DIES_BEFORE_COMMIT,
        Accident.DIES_AFTER_COMMIT,
        Accident.UNANSWERED,
    ],
    ids=lambda accident: accident.name.lower(),
)
def test_task_that_fails_around_its_commit_is_tried_again_and_writes_once(
    stream: Stream, accident: Accident
) -> None:
    stream.write(with_accident(stream.sink(), accident, 0, 2), 0)
    stream.expect(0)
    assert stream.next_batches() == [1, 1, 1]


def test_batch_that_failed_with_some_shards_written_goes_on_with_the_others(stream: Stream) -> None:
    with pytest.raises(EosError, match="an accident before the commit"):
        stream.write(with_accident(stream.sink(), Accident.BEFORE_COMMIT, 1, tries=9), 0)
    assert stream.next_batches() == [1, 0, 1]
    stream.write(stream.sink(), 0)
    stream.expect(0)
    assert [event.written for event in stream.seen(BatchResumed)] == [[0, 2]]


def test_ledger_is_sharded_once_however_long_each_commit_takes(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry's metadata holds its time: what the next step expects is what was written, not what would be by then."""
    seconds = itertools.count(1_800_000_000)
    monkeypatch.setattr("eos.group.metadata.time", SimpleNamespace(time=lambda: next(seconds)))
    for batch, shards in enumerate((2, 3)):
        stream.write(stream.sink(shards), batch)
    stream.expect(0, 1)
    assert [(event.was, event.shards) for event in stream.seen(LedgerSharded)] == [(0, 2), (2, 3)]


def test_number_of_shards_changes_between_batches(stream: Stream) -> None:
    for batch, shards in enumerate((2, 5, 3, 3)):
        stream.write(stream.sink(shards), batch)
    stream.expect(0, 1, 2, 3)
    assert [(event.was, event.shards) for event in stream.seen(LedgerSharded)] == [(0, 2), (2, 5), (5, 3)]
    assert stream.next_batches(5) == [4, 4, 4, 2, 2]


@pytest.mark.parametrize("other", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_batch_in_the_middle_is_finished_with_the_shards_it_was_begun_with(
    stream: Stream, other: int
) -> None:
    with pytest.raises(EosError):
        stream.write(with_accident(stream.sink(), Accident.BEFORE_COMMIT, 1, tries=9), 0)
    sink = stream.sink(other)
    stream.write(sink, 0)
    assert [entry.shards for entry in stream.entries() if entry] == [SHARDS] * SHARDS
    stream.write(sink, 1)
    stream.expect(0, 1)
    assert stream.next_batches(other) == [2] * other


def test_deleted_checkpoint_is_refused_until_a_person_decides(stream: Stream) -> None:
    stream.write(stream.sink(), 0)
    new = str(uuid.uuid4())
    with pytest.raises(LedgerError, match="The checkpoint was deleted") as refusal:
        stream.write(stream.sink(), 0, query=new)
    assert f"adopt='{new}:0'" in str(refusal.value)
    stream.expect(0)
    decided = stream.sink(adopt=f"{new}:0")
    stream.write(decided, 0, query=new)
    stream.write(decided, 1, query=new)
    assert stream.records() == Counter(2 * stream.rows(0) + stream.rows(1))
    with pytest.raises(LedgerError, match="it is another one"):
        stream.write(decided, 2, query=stream.query)


def test_expired_ledger_is_refused_until_a_person_decides(stream: Stream) -> None:
    stream.write(stream.sink(), 0)
    stream.forget(0, 1, 2)
    with pytest.raises(LedgerError, match="has expired") as refusal:
        stream.write(stream.sink(), 1)
    assert f"adopt='{stream.query}:1'" in str(refusal.value)
    stream.write(stream.sink(adopt=f"{stream.query}:1"), 1)
    stream.expect(0, 1)


def test_ledger_stays_where_it_was_begun_and_no_order_moves_it(stream: Stream) -> None:
    """What it said of half a batch and of the input stayed behind: back from there, a batch was written twice, or its input not compared."""
    first, second = unique("a"), unique("b")
    create_topics(stream.bootstrap, {first: 1, second: 1})
    stream.write(stream.sink(outputs=[first]), 0)
    for adopt in (None, f"{stream.query}:1"):
        moved = stream.sink(outputs=[second], adopt=adopt)
        for _ in range(2):
            with pytest.raises(LedgerError, match=rf"stands on {first}.*name it again"):
                stream.write(moved, 1)
        with pytest.raises(LedgerError, match=f"stands on {first}"):
            moved.refresh()
    stream.expect(0)
    stream.write(stream.sink(outputs=[second, first]), 1)
    stream.expect(0, 1)


@pytest.mark.slow
def test_entry_of_one_shard_that_expired_is_refused(stream: Stream) -> None:
    stream.write(stream.sink(), 0)
    stream.forget(1)
    with pytest.raises(LedgerError, match="entry of shard 1 is missing"):
        stream.write(stream.sink(), 1)


@pytest.mark.parametrize(
    ("batch", "why"), [(0, "goes back"), pytest.param(3, "jumps", marks=pytest.mark.slow)]
)
def test_checkpoint_from_another_time_is_refused(stream: Stream, batch: int, why: str) -> None:
    sink = stream.sink()
    stream.write(sink, 0)
    stream.write(sink, 1)
    with pytest.raises(LedgerError, match=why):
        stream.write(sink, batch)
    stream.expect(0, 1)


def test_batch_that_comes_out_otherwise_when_run_again_is_refused_until_a_person_decides(
    stream: Stream,
) -> None:
    """A checkpoint that was restored without its last batch plans that batch anew, with more input."""
    with pytest.raises(EosError):
        stream.write(with_accident(stream.sink(), Accident.BEFORE_COMMIT, 1, tries=9), 0)
    with pytest.raises(LedgerError, match="gives other rows") as refusal:
        stream.write(stream.sink(), 0, count=60)
    assert f"adopt='{stream.query}:0'" in str(refusal.value)
    stream.write(stream.sink(adopt=f"{stream.query}:0"), 0, count=60)
    assert stream.next_batches() == [1, 1, 1]


_HEADER = "array(struct('n' as key, {} as value))"


@pytest.mark.parametrize(
    ("column", "before", "now"),
    [
        ("value", "'a'", "'b'"),
        pytest.param("value", "''", "cast(null as string)", id="tombstone", marks=pytest.mark.slow),
        pytest.param("headers", _HEADER.format("x'31'"), _HEADER.format("x'32'"), marks=pytest.mark.slow),
        pytest.param(
            "headers",
            _HEADER.format("x''"),
            _HEADER.format("cast(null as binary)"),
            id="header without a value",
        ),
        ("partition", "0", "1"),
        pytest.param("timestamp", "timestamp_millis(1)", "timestamp_millis(2)", marks=pytest.mark.slow),
        ("topic", "'{first}'", "'{other}'"),
    ],
)
def test_half_written_batch_whose_records_come_out_otherwise_is_refused(
    stream: Stream, column: str, before: str, now: str
) -> None:
    """Of the same keys, so that each row comes to the shard that it came to before."""
    first, other = stream.topic, unique("other")
    topics = [first, other]
    create_topics(stream.bootstrap, {other: 2})

    def frame(value: str) -> DataFrame:
        of_first = stream.frame(stream.rows(0)).withColumn("topic", F.lit(first))
        return of_first.withColumn(column, F.expr(value.format(first=first, other=other)))

    def sink() -> ExactlyOnceSink:
        return exactly_once_sink(
            stream.settings, name=stream.name, outputs=topics, shards=SHARDS, listener=stream.events.append
        )

    with pytest.raises(EosError, match="an accident"):
        faulty = with_accident(sink(), Accident.BEFORE_COMMIT, 1, tries=9)
        stream.write_frame(faulty, 0, frame(before), stream.query)
    written = len(read_committed(stream.bootstrap, *topics))
    assert 0 < written < len(stream.rows(0))
    with pytest.raises(LedgerError, match="gives other rows"):
        stream.write_frame(sink(), 0, frame(now), stream.query)
    assert len(read_committed(stream.bootstrap, *topics)) == written, "no other version beside it"
    stream.write_frame(sink(), 0, frame(before), stream.query)
    assert len(read_committed(stream.bootstrap, *topics)) == len(stream.rows(0))


def test_half_written_batch_goes_on_where_only_the_text_of_a_dead_letter_comes_out_otherwise(
    stream: Stream,
) -> None:
    """An error's text may name an object by its address, or a set in the order that its process has: it is no content."""

    def frame(text: str) -> DataFrame:
        place = "struct('eos.deadletter.offset' as key, x'31' as value)"
        error = f"struct('{ERROR_HEADER}' as key, cast('{text}' as binary) as value)"
        return stream.frame(stream.rows(0)).withColumn("headers", F.expr(f"array({place}, {error})"))

    with pytest.raises(EosError, match="an accident"):
        failing = with_accident(stream.sink(), Accident.BEFORE_COMMIT, 1, tries=9)
        stream.write_frame(failing, 0, frame("<object at 0x7f01>"), stream.query)
    stream.write_frame(stream.sink(), 0, frame("<object at 0x7f02>"), stream.query)
    stream.expect(0)


def test_two_drivers_with_one_checkpoint_write_each_batch_once(stream: Stream) -> None:
    """A driver that meets the other one's work is told so, and ends. Where both have met, the next start goes on."""
    stream.write(stream.sink(), 0)

    def run(first: int = 1) -> str:
        sink = stream.sink()
        for batch in range(first, 3):
            try:
                stream.write(sink, batch)
            except (LedgerError, LedgerChangedError) as error:
                return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        drivers = [pool.submit(run) for _ in range(2)]
        outcomes = [driver.result(PATIENCE_S) for driver in drivers]
    # The last: its batch ran, and the other one had gone on to the next by the time it looked.
    met = ("goes back", "stop one", "Fix: stop the other driver")
    assert all(any(one in text for one in met) for text in outcomes if text), outcomes
    if "" not in outcomes:  # each has stopped the other one
        again = run()
        assert not again or ("goes back" in again and not run(first=2)), (outcomes, again)
    stream.expect(0, 1, 2)


def test_zombie_that_wakes_up_after_its_twin_has_written_skips(stream: Stream, tmp_path: Path) -> None:
    """A paused task holds its rows in an open transaction; the twin's init aborts that, and the zombie is fenced."""
    stream.write(stream.sink(), 0)
    flag = tmp_path / "pause"
    zombie = with_accident(stream.sink(), Accident.PAUSED, 1, batch=1, flag=str(flag))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            stream.write(zombie, 1)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        _wait_for(Path(f"{flag}.1").exists)
        stream.write(stream.sink(), 1)
        assert stream.next_batches() == [2, 2, 2]
    finally:
        Path(f"{flag}.go").touch()
        thread.join(PATIENCE_S)
    assert not failed
    stream.expect(0, 1)
    written = Counter(r.value for r in read_uncommitted(stream.bootstrap, stream.topic))
    assert max(written.values()) == 2, "the zombie had written, and what it wrote was aborted"


def test_zombie_of_a_driver_that_knew_another_number_of_shards_is_refused(
    stream: Stream, tmp_path: Path
) -> None:
    stream.write(stream.sink(3), 0)
    flag = tmp_path / "pause"
    zombie = with_accident(stream.sink(3), Accident.PAUSED, 0, 1, 2, batch=1, flag=str(flag))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            stream.write(zombie, 1)
        except EosError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        _wait_for(lambda: any(Path(f"{flag}.{k}").exists() for k in range(3)))
        # Its two open transactions are the only ones: a deal fences them, and the third finds the ledger changed.
        assert stream.sink(5)._log.plan(1, stream.query, str(uuid.uuid4()), Division(5)).shards == 5
    finally:
        Path(f"{flag}.go").touch()
        thread.join(PATIENCE_S)
    assert [type(error) for error in failed] == [LedgerChangedError]
    stream.expect(0)
    stream.write(stream.sink(5), 1)
    stream.expect(0, 1)


def test_group_that_somebody_else_uses_is_refused(stream: Stream) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": stream.bootstrap,
            "group.id": f"{stream.name}.ledger.0",
            "enable.auto.commit": False,
        }
    )
    consumer.commit(offsets=[TopicPartition(stream.topic, 0, 1)], asynchronous=False)
    consumer.close()
    with pytest.raises(ConfigError, match="which no sink has written"):
        stream.write(stream.sink(), 1)


@pytest.mark.parametrize("query", [None, "00000000-0000-4000-8000-000000000000"])
def test_sink_outside_of_a_query_is_refused(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, query: str | None
) -> None:
    """Also in a thread that still has the id of one that has ended."""
    monkeypatch.undo()
    key = "sql.streaming.queryId"
    stream.spark.sparkContext.setLocalProperty(key, query)  # type: ignore[arg-type] # None removes it
    try:
        with pytest.raises(UsageError, match="foreachBatch"):
            stream.sink()(stream.frame([]), 0)
    finally:
        stream.spark.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type] # see above


def test_output_topic_that_does_not_exist_is_named(stream: Stream) -> None:
    sink = exactly_once_sink(stream.settings, name=stream.name, outputs=[unique("none")])
    with pytest.raises(ConfigError, match="does not exist"):
        stream.write(sink, 0)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
