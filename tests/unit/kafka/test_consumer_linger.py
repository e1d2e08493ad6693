"""A fetch that collects records sleeps in between, for longer each time, and ends when it is full or its time is over."""

from __future__ import annotations

from typing import Any

import pytest

from eos.kafka.consumer import ConsumerClient


class Trickle:
    """A client that has so many messages each time it is asked."""

    def __init__(self, *amounts: int) -> None:
        self._amounts = list(amounts)
        self.asked: list[tuple[int, float]] = []

    def consume(self, most: int, timeout_s: float) -> list[str]:
        self.asked.append((most, timeout_s))
        amount = self._amounts.pop(0) if self._amounts else 0
        return ["message"] * min(most, amount)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept; the clock goes on by it."""
    pauses: list[float] = []
    monkeypatch.setattr("eos.kafka.consumer.time.sleep", pauses.append)
    monkeypatch.setattr("eos.kafka.consumer.time.monotonic", lambda: sum(pauses))
    return pauses


def client_of(trickle: Trickle) -> ConsumerClient:
    client = ConsumerClient.__new__(ConsumerClient)
    client._consumer = trickle  # type: ignore[assignment]
    return client


def test_a_full_queue_is_taken_at_once(slept: list[float]) -> None:
    trickle = Trickle(999)
    assert len(client_of(trickle)._more(999, 0.08)) == 999
    assert trickle.asked == [(999, 0)]
    assert not slept


def test_few_records_are_collected_with_few_looks(slept: list[float]) -> None:
    trickle = Trickle(3, 3, 3, 3, 3, 3, 3, 3)
    assert len(client_of(trickle)._more(999, 0.08)) == 3 * len(trickle.asked)
    assert sum(slept) == pytest.approx(0.08)
    assert len(slept) < 8
    assert slept[:-1] == sorted(slept[:-1])


def test_it_ends_when_it_is_full(slept: list[float]) -> None:
    trickle: Any = Trickle(5, 5, 5, 5)
    assert len(client_of(trickle)._more(12, 60.0)) == 12
    assert trickle.asked == [(12, 0), (7, 0), (2, 0)]


def test_without_time_it_takes_what_is_there(slept: list[float]) -> None:
    assert len(client_of(Trickle(4, 4))._more(12, 0.0)) == 4
    assert not slept


def test_a_single_record_asks_for_no_more(slept: list[float]) -> None:
    trickle = Trickle(4)
    assert client_of(trickle)._more(0, 0.1) == []
    assert not trickle.asked
    assert not slept
