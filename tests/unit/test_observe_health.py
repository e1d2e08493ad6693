"""When a worker is healthy, and when it is ready."""

from __future__ import annotations

from eos.observe import Health


def test_a_loop_that_turns_is_healthy_however_long_the_brokers_are_away() -> None:
    health = Health([0], max_silence_s=60, now=0)
    for second in range(0, 3600, 5):
        health.turned(0, second)
        assert health.healthy(second + 1).ok


def test_silence_is_unhealthy_and_a_turn_heals() -> None:
    health = Health([0, 1], max_silence_s=60, now=0)
    health.turned(0, 10)
    health.turned(1, 50)
    assert health.healthy(70).ok
    verdict = health.healthy(70.5)
    assert verdict.missing == ("worker 0: no turn of its loop for 60 s (limit 60 s)",)
    health.turned(0, 71)
    assert health.healthy(72).ok


def test_an_older_turn_that_is_reported_late_does_not_take_back_a_newer_one() -> None:
    health = Health([0], max_silence_s=60, now=0)
    health.turned(0, 50)
    health.turned(0, 20)
    assert health.healthy(100).ok


def test_a_worker_gets_the_same_time_to_start_and_to_be_replaced() -> None:
    health = Health([7], max_silence_s=60, now=0)
    assert health.healthy(60).ok
    assert not health.healthy(61).ok
    health.turned(7, 61)
    health.killed(7, 100)
    assert health.healthy(160).ok
    assert not health.healthy(161).ok


def test_ready_once_every_expected_session_of_every_worker_is_open() -> None:
    health = Health([0, 1], max_silence_s=60, now=0)
    assert health.ready().missing == (
        "worker 0: 0 of 1 sessions open",
        "worker 1: 0 of 1 sessions open",
    )
    health.sessions(0, open_now=1, expected=1)
    health.sessions(1, open_now=2, expected=3)
    assert health.ready().missing == ("worker 1: 2 of 3 sessions open",)
    health.sessions(1, open_now=3, expected=3)
    assert health.ready().ok
    health.killed(0, 10)
    assert health.ready().missing == ("worker 0: 0 of 1 sessions open",)


def test_a_worker_whose_transform_is_at_work_for_long_is_not_ready_until_it_has_returned() -> None:
    health = Health([0], max_silence_s=60, now=0)
    health.sessions(0, open_now=1, expected=1, at_work="orders[2] offset 7 for 34 s")
    assert health.ready().missing == ("worker 0: its transform is at work on orders[2] offset 7 for 34 s",)
    health.sessions(0, open_now=1, expected=1)
    assert health.ready().ok


def test_a_worker_whose_brokers_do_not_answer_is_not_ready_and_a_stuck_transform_is_said_instead_of_that() -> (
    None
):
    health = Health([0, 1], max_silence_s=60, now=0)
    for ordinal in (0, 1):
        health.sessions(ordinal, open_now=1, expected=1)
    assert health.ready({1: 23.4}).missing == ("worker 1: the brokers have not answered for 23 s",)
    health.sessions(1, open_now=1, expected=1, at_work="orders[2] offset 7 for 34 s")
    assert health.ready({1: 23.4}).missing == (
        "worker 1: its transform is at work on orders[2] offset 7 for 34 s",
    )


def test_a_worker_that_does_not_report_is_not_ready() -> None:
    health = Health([0, 1], 60.0, 0.0)
    for ordinal in (0, 1):
        health.sessions(ordinal, open_now=1, expected=1)
    assert health.ready(unreported_s={1: 9.0}).missing == ("worker 1: it has not reported for 9 s",)


def test_nothing_is_expected_of_a_worker_that_has_finished() -> None:
    health = Health([0, 1], max_silence_s=60, now=0)
    health.finished(0)
    health.turned(0, 1)
    health.sessions(0, open_now=0, expected=1)
    health.turned(1, 100)
    health.sessions(1, open_now=1, expected=1)
    assert health.healthy(100).ok
    assert health.ready().ok
