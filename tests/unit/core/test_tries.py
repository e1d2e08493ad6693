"""Tries: how often, and for how long, an owner goes on without progress."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eos.base.calls import Call
from eos.core import tries
from eos.core.tries import Tries
from eos.errors import AbortableError, EosError, FencedError, ReopenError, UnavailableError

OFFLINE_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tries, "time", clock)
    return clock


@pytest.fixture
def told() -> list[tuple[Call, int]]:
    return []


@pytest.fixture
def counted(told: list[tuple[Call, int]], clock: Clock) -> Tries:
    del clock
    return Tries(OFFLINE_S, lambda call, attempt, _: told.append((call, attempt)))


def unanswered() -> UnavailableError:
    error = UnavailableError("no broker answered")
    error.unanswered = True
    return error


def look_without_answer() -> AbortableError:
    """A transaction that was aborted because the look before its commit got no answer."""
    error = AbortableError("the topics could not be looked at")
    error.__cause__ = unanswered()
    return error


@pytest.mark.parametrize("make", [unanswered, look_without_answer])
def test_question_without_an_answer_is_sat_out_for_the_time_that_is_set_and_no_longer(
    counted: Tries, clock: Clock, make: Callable[[], EosError]
) -> None:
    for _ in range(3):
        assert counted.sits_out(make())
        clock.now += OFFLINE_S / 3 - 0.01
    clock.now += 1
    assert not counted.sits_out(make())


@pytest.mark.parametrize("make", [unanswered, look_without_answer])
def test_question_that_was_sat_out_for_too_long_ends_the_owner_without_another_try(
    counted: Tries, told: list[tuple[Call, int]], make: Callable[[], EosError]
) -> None:
    with pytest.raises((UnavailableError, AbortableError)):
        counted.failed(make())
    assert told == []


@pytest.mark.parametrize("progress", [Tries.answered, Tries.succeeded])
def test_any_answer_begins_the_time_anew(counted: Tries, clock: Clock, progress: type) -> None:
    assert counted.sits_out(unanswered())
    clock.now += OFFLINE_S + 1
    progress(counted)
    assert counted.sits_out(unanswered())


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("the cluster has refused it"),
        AbortableError("a rebalance"),
        FencedError("another owner"),
    ],
)
def test_what_was_answered_is_not_sat_out(counted: Tries, error: EosError) -> None:
    assert not counted.sits_out(error)


@pytest.mark.parametrize(("error", "tries_of_it"), [(AbortableError("again"), 10), (ReopenError("anew"), 5)])
def test_a_transaction_is_made_again_as_often_as_the_policy_says(
    counted: Tries, told: list[tuple[Call, int]], error: EosError, tries_of_it: int
) -> None:
    for _ in range(tries_of_it - 1):
        assert counted.failed(error) >= 0
    with pytest.raises(type(error)):
        counted.failed(error)
    assert [attempt for _, attempt in told] == list(range(1, tries_of_it))


def test_an_answer_alone_is_no_progress_of_the_tries(counted: Tries, told: list[tuple[Call, int]]) -> None:
    """A reopen is answered each time; only a commit shows that the tries lead anywhere."""
    counted.failed(AbortableError("again"))
    counted.answered()
    counted.failed(AbortableError("again"))
    counted.succeeded()
    counted.failed(AbortableError("again"))
    assert [attempt for _, attempt in told] == [1, 2, 1]
