"""A fence is not believed while it may have another cause, and not for ever."""

from __future__ import annotations

import pytest

from eos.kafka import late_copies
from eos.kafka.late_copies import FenceDoubt


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(late_copies, "time", clock)
    return clock


def test_fence_is_believed_where_nothing_speaks_against_it() -> None:
    assert FenceDoubt().reason == ""


def test_init_that_was_sent_again_is_a_doubt_for_as_long_as_a_packet_may_live(clock: Clock) -> None:
    doubt = FenceDoubt()
    doubt.init_may_come_late("GETPID: no answer")
    clock.now_s += 900
    assert "GETPID: no answer" in doubt.reason
    clock.now_s += 30
    assert doubt.reason == ""


def test_fourth_fence_in_ten_minutes_is_believed(clock: Clock) -> None:
    doubt = FenceDoubt("a clock that runs ahead")
    for _ in range(3):
        assert doubt.reason == "a clock that runs ahead"
        doubt.doubted()
        clock.now_s += 100
    doubt.init_may_come_late("GETPID: no answer")
    assert doubt.reason == ""
    clock.now_s += 301
    assert doubt.reason != ""


def test_fences_far_apart_are_never_believed_unseen(clock: Clock) -> None:
    doubt = FenceDoubt("a clock that runs ahead")
    for _ in range(20):
        assert doubt.reason
        doubt.doubted()
        clock.now_s += 201
