"""A query without new input: Spark plans no batch that would show what is wrong, and its input would count as processed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from confluent_kafka.admin import AdminClient

from eos.errors import OffsetGapError
from eos.events import Event, ignore_event
from eos.spark.events import LedgerRefreshed
from eos.spark.running import start_stream
from eos.spark.stream.log_rules import LedgerError
from tests.support.observer import read_committed, recreate_topic, unique
from tests.support.patience import PATIENCE_S
from tests.support.stream_roles import ROWS, Roles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings
    from eos.spark.stream.query import StreamRun

pytestmark = pytest.mark.broker


@pytest.fixture
def query(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Roles:
    """One batch of it is written, and there is nothing new."""
    query = Roles(spark, settled(), bootstrap, tmp_path)
    query.give(query.source)
    query.run([query.source], [query.output])
    return query


def lose_the_ledger(query: Roles) -> None:
    admin = AdminClient({"bootstrap.servers": query.bootstrap})
    admin.delete_consumer_groups([group := f"{query.name}.ledger.0"])[group].result(PATIENCE_S)


def process_anew(query: Roles) -> None:
    """The input is created anew, with as many records as before: Spark sees no difference."""
    recreate_topic(query.bootstrap, query.source)
    query.give(query.source)


def start(query: Roles, *outputs: str, on_event: Callable[[Event], None] = ignore_event) -> StreamRun:
    """To go on until it is stopped."""
    job = query.job([query.source], outputs)
    return start_stream(job, query.spark, query.settings, checkpoint=query.checkpoint, listener=on_event)


def test_lost_ledger_is_refused_and_goes_on_once_a_person_has_said_so(query: Roles) -> None:
    """It ended with exit 0, also where the input was created anew: its records were processed by nobody."""
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
    """The token had waived both, and had spoken of the name alone: all records of the new input were processed by nobody."""
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


class Timers:
    """In place of `threading.Timer`: nothing goes off by itself."""

    def __init__(self) -> None:
        self.started: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, after_s: float, call: Callable[[], None]) -> Mock:
        timer = Mock()
        timer.start = lambda: self.started.append((after_s, call))
        return timer


def test_query_that_goes_on_keeps_its_ledger_from_its_start_on(
    query: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did so behind its first batch alone: after a restart, an idle query let it expire."""
    timers, events = Timers(), list[Event]()
    monkeypatch.setattr("eos.spark.stream.sink.Timer", timers)
    run = start(query, query.output, on_event=events.append)
    try:
        [(after_s, refresh)] = timers.started
        assert after_s == query.settings.input.recommit_idle_after_s
        refresh()
        assert [event.batch for event in events if isinstance(event, LedgerRefreshed)] == [1]
        monkeypatch.setattr(
            run.sink, "refresh", Mock(side_effect=RuntimeError("… after interpreter shutdown"))
        )
        refresh()  # it printed a traceback, as its process ended
        assert len(timers.started) == 2, "one behind the refresh, and none in a process that ends"
    finally:
        run.query.stop()
