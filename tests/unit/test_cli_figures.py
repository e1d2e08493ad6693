"""What `eos run` shows of its progress."""

from __future__ import annotations

from eos.cli.figures import Figures
from eos.events import LagMeasured, TransactionCommitted
from eos.observe import Board, MetricsListener
from eos.observe.relay import Snapshot, packed
from eos.observe.worker_state import WorkerState
from eos.offsets import OffsetVector, Partition


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_adds_up_what_workers_processed_and_have_left() -> None:
    board = Board([0, 1])
    figures = Figures(board)
    assert figures.read() == (0, 0)
    for ordinal in (0, 1):
        board.take(ordinal, _report(ordinal, processed=0, lag=50))
    assert figures.read() == (0, 100)
    board.take(0, _report(0, processed=30, lag=50))  # the lag was not measured again
    assert figures.read() == (30, 100)
    board.take(0, _report(0, processed=50, lag=0))
    assert figures.read() == (50, 100)
    board.take(1, _report(1, processed=48, lag=0))  # of the 50 offsets two were markers
    assert figures.read() == (98, 98)


def _report(ordinal: int, *, processed: int, lag: int, measured_s: float = 0.0) -> bytes:
    metrics, clock = MetricsListener(), Clock()
    worker = WorkerState(clock=clock)
    partition = Partition("t", ordinal)
    for listener in (metrics, worker):
        listener(LagMeasured("s", {partition: lag}, {partition: 0}))
        listener(
            TransactionCommitted(
                "s", processed, 2 * processed, OffsetVector({partition: processed}), 0.1, 0.1
            )
        )
    clock.now += measured_s
    families = tuple(metrics.registry.collect())
    return packed(Snapshot(f"process-{ordinal}", 0.0, 1, 1, "", False, families, worker.state()))


def test_rates_are_of_the_last_seconds_and_the_sum_is_of_all() -> None:
    clock = Clock()
    board = Board([0], clock=clock)
    figures = Figures(board, clock=clock)
    board.take(0, _report(0, processed=5_000, lag=0))
    clock.now += 20
    figures.read()
    assert str(figures) == "5,000 in (250/s), 10,000 out (500/s), 0.1 commits/s, lag 0, last commit 0 s ago"
    clock.now += 20
    figures.read()
    clock.now += 5
    figures.read()
    assert str(figures) == "5,000 in (0/s), 10,000 out (0/s), 0.0 commits/s, lag 0, last commit 25 s ago"
    assert figures.summary() == "5,000 records in, 10,000 out, in 1 transactions and 45.0 s (111 records/s)"


def test_a_lag_that_a_waiting_loop_has_not_measured_of_late_is_not_shown() -> None:
    """It tried a commit again for two minutes while its broker was away, and the line said: lag 0."""
    clock = Clock()
    board = Board([0], clock=clock)
    figures = Figures(board, clock=clock)
    board.take(0, _report(0, processed=10, lag=0, measured_s=9.0))
    figures.read()
    assert "lag 0" in str(figures)
    clock.now += 2
    board.take(0, _report(0, processed=10, lag=0, measured_s=11.0))
    figures.read()
    assert "lag not known now" in str(figures)
    board.take(0, _report(0, processed=10, lag=7))
    figures.read()
    assert "lag 7" in str(figures)


def test_a_lag_that_was_known_and_is_not_now_is_not_said_to_be_unmeasured() -> None:
    board = Board([0])
    figures = Figures(board)
    figures.read()
    assert "lag not measured yet" in str(figures)
    board.take(0, _report(0, processed=10, lag=5))
    figures.read()
    assert "lag 5" in str(figures)
    board.restarted(0)  # and with the process its gauges go
    figures.read()
    assert "lag not known now" in str(figures)
