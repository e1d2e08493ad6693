"""Sinks of one query, or of one group, under several names: each has a ledger of its own, and no topic is written twice."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eos.base.deadline import Deadline
from eos.errors import EosError, FencedError
from eos.kafka.group_offsets import Committed
from eos.spark.analysis.query_tasks import QueryTasks
from eos.spark.session.checkpoint import Checkpoint, RunningQuery
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_entry import Division
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import committed_offsets, create_topics, delete_groups, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.sink_faults import Accident, with_accident

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

SHARDS = 2


@dataclass
class Query:
    """A query's checkpoint, and sinks that are called as foreachBatch calls them."""

    spark: SparkSession
    settings: Settings
    bootstrap: str
    checkpoint: Path
    now: list[RunningQuery]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    first: str = field(default_factory=lambda: unique("first"))
    second: str = field(default_factory=lambda: unique("second"))

    def __post_init__(self) -> None:
        self.checkpoint.mkdir(exist_ok=True)
        create_topics(self.bootstrap, {self.first: 1, self.second: 1})

    def sink(self, name: str, *outputs: str, adopt: str | None = None) -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings, name=name, outputs=outputs, inputs=[], shards=SHARDS, adopt=adopt
        )

    def write(self, sink: ExactlyOnceSink, batch: int, topic: str) -> None:
        self.now[:] = [
            RunningQuery(self.id, str(uuid.uuid4()), Checkpoint(self.spark, str(self.checkpoint)), None)
        ]
        rows = [(topic, b"b%d v%d" % (batch, n)) for n in range(20)]
        sink(self.spark.createDataFrame(rows, "topic string, value binary"), batch)

    def expect(self, topic: str, *batches: int) -> None:
        wanted = Counter(b"b%d v%d" % (batch, n) for batch in batches for n in range(20))
        assert Counter(r.value for r in read_committed(self.bootstrap, topic)) == wanted

    def token(self, batch: int) -> str:
        return f"{self.id}:{batch}"

    def next_batch(self, group: str, topic: str) -> int | None:
        return committed_offsets(self.bootstrap, group, [(topic, 0)])[topic, 0][0]


@pytest.fixture
def query(
    spark: SparkSession,
    settled: Callable[..., Settings],
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Query:
    now: list[RunningQuery] = []
    monkeypatch.setattr("eos.spark.stream.sink.running_query", lambda _: now[0])
    monkeypatch.setattr(
        "eos.spark.stream.sink.require_running_batch", lambda *_: None
    )  # no query runs one here
    monkeypatch.setattr("eos.spark.stream.division.tasks_of", lambda _: QueryTasks("a test's own frame"))
    settings = settled(group=unique("group"), spark__twin_wait_ms=10_000)
    return Query(spark, settings, bootstrap, tmp_path / "checkpoint", now)


def delete_ledger(query: Query, name: str) -> None:
    groups = (f"{query.settings.group}.{name}.ledger.{shard}" for shard in range(SHARDS))
    delete_groups(query.bootstrap, *groups)


def test_a_fan_out_by_two_sinks_in_one_group_keeps_two_ledgers(query: Query) -> None:
    loud, quiet = query.sink("loud", query.first), query.sink("quiet", query.second)
    for batch in (0, 1):
        query.write(loud, batch, query.first)
        query.write(quiet, batch, query.second)
    # as after a restart
    query.write(query.sink("loud", query.first), 2, query.first)
    query.write(query.sink("quiet", query.second), 2, query.second)
    query.expect(query.first, 0, 1, 2)
    query.expect(query.second, 0, 1, 2)
    group = query.settings.group
    for name, topic in (("loud", query.first), ("quiet", query.second)):
        assert query.next_batch(f"{group}.{name}.ledger.0", topic) == 3


@pytest.mark.parametrize("batch", [0, 1])
def test_a_second_name_for_the_same_query_and_topic_is_refused_and_writes_nothing(
    query: Query, batch: int
) -> None:
    """Its ledger is empty, so each row would be written a second time; and no fence stands between two names."""
    before = query.sink("before", query.first)
    for number in range(batch + 1):
        query.write(before, number, query.first)
    for _ in range(2):
        with pytest.raises(LedgerError, match=rf"the sink 'before' of .* writes to {query.first} too"):
            query.write(query.sink("after", query.second, query.first), batch, query.first)
    query.expect(query.first, *range(batch + 1))
    query.write(before, batch + 1, query.first)
    query.write(query.sink("before", query.first), batch + 2, query.first)
    query.expect(query.first, *range(batch + 3))


def test_of_two_names_that_begin_at_once_at_most_one_writes(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has noted that it begins."""
    from eos.spark.stream.begun import BegunNote

    rivals, looked = BegunNote.rivals, []

    def first_none(note: BegunNote) -> object:
        looked.append(note.name)
        if len(looked) == 1:
            query.write(query.sink("other", query.first), 0, query.first)
            return {}
        return rivals(note)

    monkeypatch.setattr(BegunNote, "rivals", first_none)
    with pytest.raises(LedgerError, match=r"the sink 'other' of .* writes to"):
        query.write(query.sink("one", query.first), 0, query.first)
    query.expect(query.first, 0)
    query.write(query.sink("other", query.first), 1, query.first)
    query.expect(query.first, 0, 1)


def test_a_sink_that_was_renamed_for_good_goes_on_once_a_person_has_said_so(query: Query) -> None:
    query.write(query.sink("before", query.first), 0, query.first)
    adopting = query.sink("after", query.first, adopt=query.token(1))
    query.write(adopting, 1, query.first)
    query.write(adopting, 2, query.first)
    query.write(query.sink("after", query.first), 3, query.first)  # without it from then on
    query.expect(query.first, 0, 1, 2, 3)
    with pytest.raises(LedgerError, match=f"the sink 'after' of the group .* writes to {query.first} too"):
        query.write(query.sink("before", query.first), 4, query.first)
    query.expect(query.first, 0, 1, 2, 3)


def test_a_rename_that_is_undone_is_refused_and_goes_on_once_a_person_has_said_so(query: Query) -> None:
    """Spark runs the batch again that was written last, because its driver was killed before it was counted as done."""
    query.write(query.sink("before", query.first), 0, query.first)
    query.write(query.sink("after", query.first, adopt=query.token(1)), 1, query.first)
    with pytest.raises(LedgerError, match="the sink 'after' of the group"):
        query.write(query.sink("before", query.first), 1, query.first)
    with pytest.raises(LedgerError, match=r"'after' batch 1 is written already, of its shards \[0, 1\]"):
        query.write(query.sink("before", query.first, adopt=query.token(1)), 1, query.first)
    query.expect(query.first, 0, 1)
    query.write(query.sink("after", query.first), 1, query.first)  # what was refused left nothing behind
    query.write(query.sink("before", query.first, adopt=query.token(2)), 2, query.first)
    query.write(query.sink("before", query.first), 3, query.first)
    query.expect(query.first, 0, 1, 2, 3)


def test_a_batch_that_was_written_in_part_under_the_former_name_is_not_taken_over(query: Query) -> None:
    failing = with_accident(query.sink("before", query.first), Accident.BEFORE_COMMIT, 1, tries=9)
    with pytest.raises(EosError, match="an accident"):
        query.write(failing, 0, query.first)
    with pytest.raises(LedgerError, match=r"'before' batch 0 is written already, of its shards \[0\]"):
        query.write(query.sink("after", query.first, adopt=query.token(0)), 0, query.first)
    query.write(query.sink("before", query.first), 0, query.first)
    query.expect(query.first, 0)


def test_a_batch_that_spark_counts_as_done_and_the_former_name_has_not_written_is_not_left_behind(
    query: Query,
) -> None:
    """A foreachBatch function has caught the error: the rows of shard 0 were lost, without a word."""
    query.write(query.sink("before", query.first), 0, query.first)
    failing = with_accident(query.sink("before", query.first), Accident.BEFORE_COMMIT, 0, tries=9, batch=1)
    with pytest.raises(EosError, match="an accident"):
        query.write(failing, 1, query.first)
    with pytest.raises(LedgerError, match=r"'before' batch 1 is not written, of its shards \[0\]"):
        query.write(query.sink("after", query.first, adopt=query.token(2)), 2, query.first)
    query.write(query.sink("before", query.first), 1, query.first)
    query.write(query.sink("after", query.first, adopt=query.token(2)), 2, query.first)
    query.expect(query.first, 0, 1, 2)


def test_a_former_name_whose_ledger_is_lost_is_not_taken_for_one_that_has_written_nothing(
    query: Query,
) -> None:
    query.write(query.sink("before", query.first), 0, query.first)
    delete_ledger(query, "before")
    with pytest.raises(LedgerError, match="'before' nothing says any more which batches are written"):
        query.write(query.sink("after", query.first, adopt=query.token(0)), 0, query.first)
    query.expect(query.first, 0)
    for note in query.checkpoint.glob("*before*begun"):
        note.unlink()
    query.write(query.sink("after", query.first, adopt=query.token(1)), 1, query.first)
    query.expect(query.first, 0, 1)


def test_former_name_whose_ledger_is_another_querys_is_not_given_up(query: Query) -> None:
    """That it has no entry of this query's batch passed for "not written": half a batch was written twice."""
    query.write(query.sink("before", query.first), 0, query.first)
    another = str(uuid.uuid4())
    taken = query.sink("before", query.first, adopt=f"{another}:5")
    taken._log.plan(5, another, str(uuid.uuid4()), Division(SHARDS))
    with pytest.raises(LedgerError, match=r"'before' nothing says any more .*another query's"):
        query.write(query.sink("after", query.first, adopt=query.token(0)), 0, query.first)
    query.expect(query.first, 0)


def test_a_driver_that_runs_on_under_a_name_that_was_given_up_writes_nothing_more(query: Query) -> None:
    hung = query.sink("before", query.first)
    query.write(hung, 0, query.first)
    query.write(query.sink("after", query.first, adopt=query.token(1)), 1, query.first)
    for batch in (1, 2):
        with pytest.raises(LedgerError, match="given-up-for:after"):
            query.write(hung, batch, query.first)
    query.expect(query.first, 0, 1)


def test_a_name_is_not_given_up_in_part_where_its_driver_commits_a_shard_meanwhile(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then neither name could go on: of the one a shard was given up, of the other one is written."""
    query.write(query.sink("before", query.first), 0, query.first)
    flag = tmp_path / "pause"
    running = with_accident(
        query.sink("before", query.first), Accident.PAUSED, *range(SHARDS), batch=1, flag=str(flag)
    )
    replace = CommitLog.replace

    def beside(log: CommitLog, shard: int, *others: Any, **more: Any) -> Committed:
        if log.app == "before" and shard == 1 and not Path(f"{flag}.go").exists():
            Path(f"{flag}.go").touch()
            group = f"{query.settings.group}.before.ledger.1"
            Deadline(PATIENCE_S).wait_for(lambda: query.next_batch(group, query.first) == 2)
        return replace(log, shard, *others, **more)

    with ThreadPoolExecutor(1) as pool:
        former = pool.submit(query.write, running, 1, query.first)
        assert Deadline(PATIENCE_S).wait_for(lambda: all(Path(f"{flag}.{k}").exists() for k in range(SHARDS)))
        monkeypatch.setattr(CommitLog, "replace", beside)
        with pytest.raises(FencedError):
            query.write(query.sink("after", query.first, adopt=query.token(1)), 1, query.first)
        former.exception(PATIENCE_S)
    query.write(query.sink("before", query.first), 1, query.first)
    query.write(query.sink("after", query.first, adopt=query.token(2)), 2, query.first)
    query.expect(query.first, 0, 1, 2)


def test_a_first_batch_whose_ledger_and_note_are_both_lost_is_not_written_again(query: Query) -> None:
    query.write(query.sink("only", query.first), 0, query.first)
    for note in query.checkpoint.glob("*begun"):
        note.unlink()
    for note in query.checkpoint.glob(".*begun.crc"):
        note.unlink()
    delete_ledger(query, "only")
    with pytest.raises(LedgerError, match=r"was begun before .*only.* is committed"):
        query.write(query.sink("only", query.first), 0, query.first)
    query.expect(query.first, 0)
