"""Strangers are asked for now and then, beside the loop, and said when they come and when they have gone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from eos.core.surroundings import Seat
from eos.errors import RetriableError
from eos.events import Event, StrangersInGroup
from eos.kafka.groups import Member
from eos.offsets import OffsetVector, Partition
from eos.watches.strangers import Strangers
from tests.support.settings import settings_of

OURS = Member("eos", "", "10.0.0.1", ())
THEIRS = Member("console-consumer", "", "10.0.0.7", ())
CLIENT = cast("Any", None)


class Group:
    """The members of the group, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.asked = 0
        self.known: list[Member] | None = [OURS]
        self.pending: list[Callable[[], None]] | None = None
        self.said: list[Event] = []
        self.groups = self
        monkeypatch.setattr("eos.watches.strangers.time.monotonic", lambda: self.now)
        monkeypatch.setattr("eos.watches.strangers._asking", {})
        monkeypatch.setattr("eos.watches.strangers.Admin.of", lambda _: self)
        monkeypatch.setattr("eos.watches.strangers.future_beside", self.beside)
        self.watch = Strangers(self.seat())

    def seat(self, given: tuple[Partition, ...] | None = None) -> Seat:
        return Seat(
            settings=settings_of("nowhere:1"),
            topics=["in"],
            group="g",
            given=given,
            app="a",
            shard="a.g.i.0",
            listener=self.said.append,
            destination=cast("Any", None),
        )

    def beside(self, question: Callable[[], object], *, name: str) -> Future[object]:
        answer: Future[object] = Future()

        def settle() -> None:
            try:
                answer.set_result(question())
            except RetriableError as error:
                answer.set_exception(error)

        if self.pending is None:
            settle()
        else:
            self.pending.append(settle)
        return answer

    def members(self, group: str, _timeout_s: float) -> list[Member]:
        assert group == "g"
        self.asked += 1
        if self.known is None:
            raise RetriableError("no answer in time")
        return self.known

    def looks(self, seconds: int) -> list[tuple[str, ...]]:
        """Look twice a second; returns what was said."""
        before = len(self.said)
        for _ in range(2 * seconds):
            self.now += 0.5
            if self.now >= self.watch.due_at:
                assert self.watch.look(CLIENT, OffsetVector()) == ""
        return [one.members for one in self.said[before:] if isinstance(one, StrangersInGroup)]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_stranger_is_said_once_within_a_minute_and_so_is_its_going(group: Group) -> None:
    assert group.looks(60) == []
    group.known = [OURS, THEIRS]
    assert group.looks(60) == [("console-consumer @ 10.0.0.7",)]
    assert group.looks(120) == []
    group.known = [OURS]
    assert group.looks(60) == [()]
    assert group.asked <= 300 / 20 + 1


def test_group_that_does_not_answer_is_asked_again_and_nothing_is_said_of_it(group: Group) -> None:
    group.known = None
    assert group.looks(120) == []
    group.known = [THEIRS]
    assert group.looks(60) == [("console-consumer @ 10.0.0.7",)]
    group.known = None
    assert group.looks(120) == []


def test_group_that_is_slow_to_answer_is_asked_once_at_a_time(group: Group) -> None:
    group.pending = []
    assert group.looks(120) == []
    assert len(group.pending) == 1
    group.known = [THEIRS]
    group.pending.pop()()
    assert group.looks(2) == [("console-consumer @ 10.0.0.7",)]


def test_every_member_is_a_stranger_to_owners_that_are_none(group: Group) -> None:
    group.watch = Strangers(group.seat((Partition("in", 0),)))
    group.known = []
    assert group.looks(60) == []
    group.known = [OURS]
    assert group.looks(60) == [("eos @ 10.0.0.1",)]


def test_one_of_the_owners_that_are_no_members_asks_for_all_and_another_one_when_it_has_gone(
    group: Group,
) -> None:
    first, second = (Strangers(group.seat((Partition("in", n),))) for n in (0, 1))
    group.known = [THEIRS]
    group.watch = first
    assert len(group.looks(60)) == 1
    group.watch = second
    assert group.looks(30) == []
    assert len(group.looks(60)) == 1
    group.watch = first
    assert group.looks(30) == []
