"""When a worker is healthy, and when it is ready."""

from __future__ import annotations

from typing import Any

from eos.ops.observe import WorkerState
from eos.ops.observe.job_status import JobStatus
from eos.ops.observe.worker_report import LongTransform

AT_WORK = (LongTransform("orders[2] offset 7", 34.0, ""),)


class Job(JobStatus):
    def __init__(self, *ordinals: int) -> None:
        super().__init__(ordinals, {}, 60.0, 0.0)

    def reports(
        self, ordinal: int, at: float, *, silent_s: float = 0.0, expected: int = 1, **said: Any
    ) -> None:
        report = WorkerState().report(process=f"of {ordinal}", silent_s=silent_s, sessions_expected=expected)
        self.take(ordinal, report._replace(**{"sessions_open": 1, **said}), at)


def test_a_loop_that_turns_is_healthy_however_long_the_brokers_are_away() -> None:
    job = Job(0)
    for second in range(0, 3600, 5):
        job.reports(0, second)
        assert job.healthy(second + 1).ok


def test_silence_is_unhealthy_and_a_turn_heals() -> None:
    job = Job(0, 1)
    job.reports(0, 10)
    job.reports(1, 50)
    assert job.healthy(70).ok
    verdict = job.healthy(70.5)
    assert verdict.missing == ("worker 0: no turn of its loop for 60 s (limit 60 s)",)
    job.reports(0, 71)
    assert job.healthy(72).ok


def test_an_older_turn_that_is_reported_late_does_not_take_back_a_newer_one() -> None:
    job = Job(0)
    job.reports(0, 50)
    job.reports(0, 60, silent_s=40)
    assert job.healthy(100).ok


def test_a_worker_gets_the_same_time_to_start_and_to_be_replaced() -> None:
    job = Job(7)
    assert job.healthy(60).ok
    assert not job.healthy(61).ok
    job.reports(7, 61)
    job.restarted(7, "", 100, 0)
    assert job.healthy(160).ok
    assert not job.healthy(161).ok


def test_ready_once_every_expected_session_of_every_worker_is_open() -> None:
    job = Job(0, 1)
    assert job.ready(0).missing == (
        "worker 0: 0 of 1 sessions open",
        "worker 1: 0 of 1 sessions open",
    )
    job.reports(0, 1)
    job.reports(1, 1, sessions_open=2, expected=3)
    assert job.ready(1).missing == ("worker 1: 2 of 3 sessions open",)
    job.reports(1, 2, sessions_open=3, expected=3)
    assert job.ready(2).ok
    job.restarted(0, "", 3, 0)
    assert job.ready(3).missing == ("worker 0: 0 of 1 sessions open",)


def test_a_worker_whose_transform_is_at_work_for_long_is_not_ready_until_it_has_returned() -> None:
    job = Job(0)
    job.reports(0, 1, at_work=AT_WORK)
    assert job.ready(1).missing == ("worker 0: its transform is at work on orders[2] offset 7 for 34 s",)
    job.reports(0, 2)
    assert job.ready(2).ok


def test_a_worker_whose_brokers_do_not_answer_is_not_ready_and_a_stuck_transform_is_said_instead_of_that() -> (
    None
):
    job = Job(0, 1)
    job.reports(0, 1)
    job.reports(1, 1, outside_s=23.4)
    assert job.ready(1).missing == ("worker 1: the brokers have not answered for 23 s",)
    job.reports(1, 2, outside_s=23.4, at_work=AT_WORK)
    assert job.ready(2).missing == ("worker 1: its transform is at work on orders[2] offset 7 for 34 s",)


def test_a_worker_that_does_not_report_is_not_ready() -> None:
    job = Job(0, 1)
    job.reports(1, 0)
    job.reports(0, 9)
    assert job.ready(9).missing == ("worker 1: it has not reported for 9 s",)


def test_nothing_is_expected_of_a_worker_that_has_finished() -> None:
    job = Job(0, 1)
    job.done(0)
    job.reports(0, 1, sessions_open=0)
    job.reports(1, 100)
    assert job.healthy(100).ok
    assert job.ready(100).ok
