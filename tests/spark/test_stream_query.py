"""Streaming queries through the exactly-once sink: killed, restarted, with checkpoints that are not theirs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from eos.errors import ConfigError
from eos.spark.events import BatchResumed, LedgerRefreshed, LedgerSharded
from eos.spark.source import read_stream
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.sink import ExactlyOnceSink
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S
from tests.support.stream_copy import PER_BATCH, SHARDS, Copy, by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    return Copy(spark, settled(), bootstrap, tmp_path)


@pytest.mark.slow
def test_query_goes_on_from_its_checkpoint(copy: Copy) -> None:
    copy.load(100)
    copy.run()
    copy.load(50, 100)
    sink = copy.sink()
    copy.run(sink)
    copy.expect_exactly_once()
    before = copy.next_batches()
    copy.run(sink)  # nothing new: no batch, so the entries would expire some day
    sink.refresh()
    assert copy.next_batches() == before
    assert [event.batch for event in copy.events if isinstance(event, LedgerRefreshed)] == [before[0]]
    copy.load(10, 150)
    copy.run(sink)
    copy.expect_exactly_once()


@pytest.mark.parametrize("in_place", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_query_killed_with_some_shards_of_a_batch_written_goes_on_with_the_others(
    copy: Copy, connector_jars: list[Path], tmp_path: Path, in_place: bool
) -> None:
    """SIGKILL of driver and JVM. The paused task's process outlives them: a zombie with an open transaction."""
    copy.load(100)
    flag = tmp_path / "pause"
    with copy.in_a_process(connector_jars, flag, in_place=in_place) as child:
        child.wait_line("batch 0 done", PATIENCE_S)
        _wait_until(lambda: copy.next_batches()[:2] == [2, 2] and Path(f"{flag}.{SHARDS - 1}").exists())
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(PATIENCE_S)
    assert copy.next_batches() == [2, 2, 1]
    sink = copy.sink()
    try:
        copy.run(sink if in_place else by_key(sink))
    finally:
        Path(f"{flag}.go").touch()
    copy.expect_exactly_once()
    assert [(e.batch, e.written) for e in copy.events if isinstance(e, BatchResumed)] == [(1, [0, 1])]
    assert sink.lastProgress is not None
    assert sink.lastProgress["sink"]["placement"].startswith("in place") is in_place


def test_deleted_checkpoint_is_refused(copy: Copy) -> None:
    copy.load(60)
    copy.run()
    shutil.rmtree(copy.checkpoint)
    sink = copy.sink()
    with pytest.raises(StreamingQueryException, match="The checkpoint was deleted"):
        copy.run(sink)
    assert isinstance(sink.failure, LedgerError)
    copy.expect_exactly_once()


@pytest.mark.slow
def test_foreign_checkpoint_is_refused(copy: Copy, tmp_path: Path) -> None:
    """Of a query that is as far as this one, so that numbers alone would not tell."""
    copy.load(60)
    copy.run()
    other = tmp_path / "other"
    copy.run(replaced(copy.sink(), unique("other")), other)
    copy.load(20, 60)
    with pytest.raises(StreamingQueryException, match=r"the sink 'other-[^']*' writes to"):
        copy.run(copy.sink(), other)
    for note in other.glob("eos-ledger-other*"):
        note.unlink()
    with pytest.raises(StreamingQueryException, match="another one"):
        copy.run(copy.sink(), other)


def test_checkpoint_restored_without_its_last_batch_is_refused(copy: Copy, tmp_path: Path) -> None:
    """Spark would plan that batch anew, with what has come since; its number is the same, its rows are not."""
    copy.load(PER_BATCH)
    copy.run()
    backup = tmp_path / "backup"
    shutil.copytree(copy.checkpoint, backup)
    copy.load(10, PER_BATCH)
    copy.run()
    copy.load(10, PER_BATCH + 10)
    with pytest.raises(StreamingQueryException, match="batch 1 was written up to"):
        copy.run(copy.sink(), backup)
    copy.run()
    copy.expect_exactly_once()


@pytest.mark.slow
def test_number_of_shards_changes_with_a_restart(copy: Copy) -> None:
    copy.load(60)
    copy.run(by_key(copy.sink()))
    copy.load(60, 60)
    copy.run(by_key(copy.sink(shards=SHARDS + 2)))
    copy.expect_exactly_once()
    sharded = [(event.was, event.shards) for event in copy.events if isinstance(event, LedgerSharded)]
    assert sharded == [(0, SHARDS), (SHARDS, SHARDS + 2)]


def test_first_start_without_a_start_policy_is_refused(
    spark: SparkSession, settled: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = settled(input__start="fail")
    with pytest.raises(ConfigError, match="--start earliest"):
        read_stream(spark, settings, ["in"], checkpoint=str(tmp_path / "none"))


def replaced(sink: ExactlyOnceSink, name: str) -> ExactlyOnceSink:
    """The sink under another name."""
    sink._log.store = replace(sink._log.store, app=name, group=name)
    return sink


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(TimeoutError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)
