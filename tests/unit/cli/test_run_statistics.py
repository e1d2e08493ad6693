"""What `eos run` shows of its progress."""

from __future__ import annotations

from eos.cli.run_statistics import RunStatistics
from eos.events import Lag, Sampled, TransactionCommitted
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import Aggregator, WorkerState
from eos.ops.observe.worker_report import packed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_adds_up_what_workers_processed_and_have_left() -> None:
    aggregator = Aggregator([0, 1])
    statistics = RunStatistics(aggregator)
    assert statistics.read() == (0, 0)
    for ordinal in (0, 1):
        aggregator.take(ordinal, _report(ordinal, processed=0, lag=50))
    assert statistics.read() == (0, 100)
    aggregator.take(0, _report(0, processed=30, lag=50))  # the lag was not measured again
    assert statistics.read() == (30, 100)
    aggregator.take(0, _report(0, processed=50, lag=0))
    assert statistics.read() == (50, 100)
    aggregator.take(1, _report(1, processed=48, lag=0))  # of the 50 offsets two were markers
    assert statistics.read() == (98, 98)


def _report(ordinal: int, *, processed: int, lag: int, measured_s: float = 0.0) -> bytes:
    clock = Clock()
    worker = WorkerState(clock=clock)
    partition = Partition("t", ordinal)
    worker(Sampled("s", lag=Lag({partition: lag}, {partition: 0})))
    worker(
        TransactionCommitted("s", processed, 2 * processed, OffsetVector({partition: processed}), 0.1, 0.1)
    )
    clock.now += measured_s
    return packed(worker.report(process=f"process-{ordinal}"))


def test_rates_are_of_the_last_seconds_and_the_sum_is_of_all() -> None:
    clock = Clock()
    aggregator = Aggregator([0], clock=clock)
    statistics = RunStatistics(aggregator, clock=clock)
    report = _report(0, processed=5_000, lag=0)
    aggregator.take(0, report)
    clock.now += 20
    aggregator.take(0, report)
    statistics.read()
    assert (
        str(statistics) == "5,000 in (250/s), 10,000 out (500/s), 0.1 commits/s, lag 0, last commit 0 s ago"
    )
    clock.now += 20
    statistics.read()
    clock.now += 5
    aggregator.take(0, report)
    statistics.read()
    assert str(statistics) == "5,000 in (0/s), 10,000 out (0/s), 0.0 commits/s, lag 0, last commit 25 s ago"
    assert statistics.summary() == "5,000 records in, 10,000 out, in 1 transaction and 45.0 s (111 records/s)"


def test_a_lag_that_a_waiting_loop_has_not_measured_of_late_is_not_shown() -> None:
    """It tried a commit again for two minutes while its broker was away, and the line said: lag 0."""
    clock = Clock()
    aggregator = Aggregator([0], clock=clock)
    statistics = RunStatistics(aggregator, clock=clock)
    aggregator.take(0, _report(0, processed=10, lag=0, measured_s=9.0))
    statistics.read()
    assert "lag 0" in str(statistics)
    clock.now += 2
    aggregator.take(0, _report(0, processed=10, lag=0, measured_s=11.0))
    statistics.read()
    assert "lag not known now" in str(statistics)
    aggregator.take(0, _report(0, processed=10, lag=7))
    statistics.read()
    assert "lag 7" in str(statistics)


def test_a_lag_that_was_known_and_is_not_now_is_not_said_to_be_unmeasured() -> None:
    aggregator = Aggregator([0])
    statistics = RunStatistics(aggregator)
    statistics.read()
    assert "lag not measured yet" in str(statistics)
    aggregator.take(0, _report(0, processed=10, lag=5))
    statistics.read()
    assert "lag 5" in str(statistics)
    aggregator.restarted(0)  # and with the process its gauges go
    statistics.read()
    assert "lag not known now" in str(statistics)
