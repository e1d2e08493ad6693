"""Two drivers as two processes, on copies of one checkpoint, plan the same batch with different ends.

Each shard by itself is fenced. What must not happen is that each of them writes *other* shards of the batch: then no range of
input is the one that the batch was written from, and nothing can go on.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from eos.errors import EosError
from eos.spark.stream import micro_batch
from eos.spark.stream.log_rules import LedgerChangedError, LedgerError
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child
from tests.support.sink_faults import Accident
from tests.support.stream_child import PLANNED
from tests.support.stream_copy import PER_BATCH, SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # a driver of its own starts in each

LAST = SHARDS - 1
MOMENTS = {
    "when it has planned": PLANNED,
    "between two commits": Accident.PAUSED,
    "in a commit": Accident.PAUSED_IN_COMMIT,
}


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    """Batch 0 is written, and there is input for two more."""
    one = Copy(spark, settled(spark__twin_wait_ms=20_000), bootstrap, tmp_path)
    one.load(PER_BATCH)
    one.run()
    one.load(2 * PER_BATCH, PER_BATCH)
    return one


def other_driver(
    copy: Copy, jars: list[Path], flag: Path, moment: str = Accident.PAUSED
) -> AbstractContextManager[Child]:
    """It pauses in batch 1 until ``<flag>.go`` exists: when it has planned it, or in its last shard alone."""
    return copy.in_a_process(jars, flag, accident=moment)


class PlannedAlready:
    """A driver of this process, on a copy of the checkpoint: it has planned batch 1, further than the other one will, and waits."""

    def __init__(self, copy: Copy, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.sink = copy.sink()
        self.failure: EosError | None = None
        self._planned, self._go = threading.Event(), threading.Event()
        write = micro_batch.write_batch

        def later(log: Any, plan: Any, *others: Any, **more: Any) -> Any:
            self._planned.set()
            assert self._go.wait(2 * PATIENCE_S)
            return write(log, plan, *others, **more)

        monkeypatch.setattr("eos.spark.stream.sink.write_batch", later)
        shutil.copytree(copy.checkpoint, directory / "copied")
        self._copy, self._checkpoint = copy, directory / "copied"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._planned.wait(PATIENCE_S)

    def go_on(self) -> None:
        self._go.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.failure = self.sink.failure

    def _run(self) -> None:
        with contextlib.suppress(StreamingQueryException):
            self._copy.run(self.sink, self._checkpoint, per_batch=2 * PER_BATCH)


def test_two_drivers_that_have_planned_a_batch_differently_do_not_share_its_shards(
    copy: Copy, connector_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "pause"
    with other_driver(copy, connector_jars, flag) as child:
        late = PlannedAlready(copy, monkeypatch, tmp_path)
        _wait_until(lambda: _is_at(copy, flag, Accident.PAUSED))
        late.go_on()
        assert copy.next_batches() == [2, 2, 1], f"nothing more of it is written: {late.failure}"
        Path(f"{flag}.go").touch()
        child.wait(PATIENCE_S)
    assert isinstance(late.failure, LedgerChangedError)
    monkeypatch.undo()
    copy.run()
    copy.expect_exactly_once()


@pytest.mark.parametrize(
    ("moment", "accident", "checkpoint"),
    [
        pytest.param(moment, accident, checkpoint, id=f"{accident} {name} on {checkpoint}")
        for name, moment in MOMENTS.items()
        for accident, checkpoint in (("stopped", "a copy"), ("killed", "the same"))
    ],
)
def test_driver_that_goes_away_in_a_batch_and_comes_back_writes_nothing_that_another_one_has(
    copy: Copy, connector_jars: list[Path], tmp_path: Path, moment: str, accident: str, checkpoint: str
) -> None:
    """The other driver goes on meanwhile, with longer batches; on a copy of the checkpoint it has planned none of this one's."""
    flag, mine = tmp_path / "pause", copy.checkpoint
    if checkpoint == "a copy":
        mine = tmp_path / "copied"
        shutil.copytree(copy.checkpoint, mine)
    sink = copy.sink()
    with other_driver(copy, connector_jars, flag, moment) as child:
        _wait_until(lambda: _is_at(copy, flag, moment))
        tree = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        for process in tree:
            process.send_signal(signal.SIGKILL if accident == "killed" else signal.SIGSTOP)
        try:
            refused = _refused(lambda: copy.run(sink, mine, per_batch=2 * PER_BATCH))
        finally:
            Path(f"{flag}.go").touch()
            for process in tree if accident == "stopped" else ():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)
        child.wait(PATIENCE_S)
        said = [line for line in child.lines if re.match(r"\w+Error: ", line)]
    assert all(line.startswith(("LedgerError", "LedgerChangedError")) for line in said), said
    if refused:  # a part of the batch is written, as the other driver has planned it
        assert isinstance(sink.failure, LedgerError)
        assert (moment, checkpoint) not in [(PLANNED, "a copy"), (Accident.PAUSED, "the same")]
        copy.run()
    copy.expect_exactly_once()


def _refused(run: Callable[[], None]) -> bool:
    try:
        run()
    except StreamingQueryException:
        return True
    return False


def _is_at(copy: Copy, flag: Path, moment: str) -> bool:
    if moment == PLANNED:
        return flag.exists()
    # Of the last shard, a transaction may be pending.
    return Path(f"{flag}.{LAST}").exists() and copy.next_batches(LAST) == [2] * LAST


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(TimeoutError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)
