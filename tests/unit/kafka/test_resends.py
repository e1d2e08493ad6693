"""A resend that cannot be excluded is never forgotten before the next begin; a normal call raises no alarm."""

from __future__ import annotations

import pytest

from eos.base.calls import Call
from eos.kafka.late_copies import ResendWatch


def logged(watch: ResendWatch, facility: str, text: str = "Timed out EndTxnRequest in flight") -> None:
    """As confluent-kafka's logger calls it: level, a template, and (facility, client name, text)."""
    watch.log(20, "%s [%s] %s", facility, "rdkafka#producer-1", text)


@pytest.mark.parametrize("facility", ["REQTMOUT", "FAIL"])
def test_line_of_a_timeout_or_a_broken_connection_is_a_reason(facility: str) -> None:
    watch = ResendWatch()
    logged(watch, facility)
    assert watch.reason == f"{facility}: Timed out EndTxnRequest in flight"


@pytest.mark.parametrize("facility", ["CONNECT", "STATE", "APIVERSION", "SEND", "RECV", ""])
def test_chatter_of_debug_broker_is_none(facility: str) -> None:
    watch = ResendWatch()
    logged(watch, facility)
    assert watch.reason == ""


def test_line_without_arguments_is_no_error() -> None:
    """An exception in a callback would replace the error of the call that serves it."""
    watch = ResendWatch()
    watch.log(20, "text")
    assert watch.reason == ""


def test_any_line_shows_that_lines_come() -> None:
    watch = ResendWatch()
    assert "no log line" in watch.deaf
    logged(watch, "CONNECT")
    watch.forget()
    assert watch.deaf == ""


def test_first_reason_stays_until_it_is_forgotten() -> None:
    watch = ResendWatch()
    logged(watch, "REQTMOUT", "first")
    logged(watch, "FAIL", "second")
    watch.took(Call.COMMIT, 100.0)
    assert watch.reason == "REQTMOUT: first"
    watch.forget()
    assert watch.reason == ""


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("Local: Broker transport failure: retrying", True),
        ("Local: Timed out: retrying", True),
        ("Broker: Coordinator load in progress: retrying", False),
        ("Broker: Producer attempted to update a transaction while another concurrent operation", False),
    ],
)
def test_init_was_sent_again_if_the_one_before_had_no_answer(said: str, again: bool) -> None:
    watch = ResendWatch()
    logged(
        watch,
        "GETPID",
        f"[thrd:main]: Failed to acquire transactional PID from broker TxnCoordinator/1: {said}",
    )
    assert bool(watch.init_sent_again) is again
    assert watch.reason == ""
    watch.forget()  # a copy may arrive in any later transaction
    assert bool(watch.init_sent_again) is again


@pytest.mark.parametrize(
    ("past", "seconds", "suspect"),
    [
        ([], 0.49, False),
        ([], 0.51, True),
        ([0.01] * 31, 0.49, False),
        ([0.01] * 31, 0.51, True),
        ([0.1] * 31, 0.99, False),
        ([0.1] * 31, 1.01, True),
    ],
)
def test_call_is_slow_beyond_ten_medians_and_half_a_second(
    past: list[float], seconds: float, suspect: bool
) -> None:
    watch = ResendWatch()
    for took in past:
        watch.took(Call.COMMIT, took)
    assert watch.reason == ""
    watch.took(Call.COMMIT, seconds)
    assert bool(watch.reason) is suspect


def test_each_call_is_held_against_its_own_past() -> None:
    """An init takes hundreds of milliseconds; its past must not excuse a slow commit."""
    watch = ResendWatch()
    for _ in range(31):
        watch.took(Call.INIT, 0.4)
    watch.took(Call.COMMIT, 0.6)
    assert watch.reason.startswith("commit took 0.600 s")


def test_forgetting_keeps_what_is_normal() -> None:
    watch = ResendWatch()
    for _ in range(31):
        watch.took(Call.COMMIT, 0.3)
    watch.forget()
    watch.took(Call.COMMIT, 2.9)
    assert watch.reason == ""


def test_one_slow_call_does_not_make_slow_calls_normal() -> None:
    watch = ResendWatch()
    for seconds in (*[0.01] * 5, 30.0):
        watch.took(Call.COMMIT, seconds)
    watch.forget()
    watch.took(Call.COMMIT, 0.6)
    assert watch.reason


@pytest.mark.parametrize(
    ("facility", "text", "lost"),
    [
        ("PARTCNT", "[thrd:main]: Topic out (id AAAA) partition count changed from 1 to 0", True),
        ("PARTCNT", "[thrd:main]: Topic out partition count changed from 12 to 0", True),
        ("PARTCNT", "[thrd:main]: Topic out partition count changed from 0 to 1", False),
        ("PARTCNT", "[thrd:main]: Topic out partition count changed from 1 to 10", False),
        (
            "REQERR",
            "[thrd:b/1]: b/1: ProduceRequest failed: Broker: Unknown topic or partition: explicit",
            True,
        ),
        (
            "REQERR",
            "[thrd:b/1]: b/1: ProduceRequest failed: Broker: Not leader for partition: explicit",
            False,
        ),
        ("REQERR", "[thrd:b/1]: b/1: MetadataRequest failed: Broker: Unknown topic or partition", False),
        (
            "ADDPARTS",
            'AddPartitionsToTxn response: partition "out": [0]: Broker: Unknown topic or partition',
            True,
        ),
        ("ADDPARTS", 'AddPartitionsToTxn response: partition "out": [0]: Broker: Not coordinator', False),
    ],
)
def test_topic_that_is_not_there_is_heard_of_once(facility: str, text: str, lost: bool) -> None:
    watch = ResendWatch()
    logged(watch, facility, text)
    assert (watch.lost_a_topic(), watch.lost_a_topic()) == (lost, False)
    assert watch.reason == ""
