"""FencedMember: who lives under the name of a fenced member decides; in doubt the fence stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from eos.errors import FencedError, RetriableError, UnavailableError
from eos.group.fenced_member import FENCED_MEMBER, FencedMember
from eos.kafka.groups import Member
from tests.support.settings import settings_of

NAME = "g-0"
SETTINGS = settings_of("nowhere:1", ownership__session_timeout_ms=10_000)
FENCE = FencedError("fenced", code=FENCED_MEMBER)


@dataclass
class Group:
    """The clock, and what the coordinator answers at a time: the living names, or None for no answer."""

    answer: Callable[[float], frozenset[str] | None] = field(default=lambda _: frozenset())
    now_s: float = 1000.0
    asked: int = 0

    def monotonic(self) -> float:
        return self.now_s

    @property
    def groups(self) -> Group:
        return self

    def members(self, group: str, timeout_s: float) -> list[Member]:
        self.asked += 1
        living = self.answer(self.now_s - 1000.0)
        if living is None:
            raise RetriableError("no answer")
        return [Member("a-client", name, "10.0.0.7", ()) for name in living]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr("eos.group.fenced_member.time", group)
    monkeypatch.setattr("eos.kafka.admin.Admin.of", lambda _: group)
    return group


def waited_s(member: FencedMember, group: Group, limit_s: float = 300.0) -> float:
    """Seconds until it may join; raises what it raises."""
    began = group.now_s
    while not member.may_join():
        assert group.now_s - began < limit_s
        group.now_s += 0.1
    assert not member.pending
    return group.now_s - began


def test_nobody_under_the_name_may_be_joined_at_once(group: Group) -> None:
    member = FencedMember(SETTINGS, "g", NAME)
    assert member.may_join()
    assert member.note_fence(FENCE) == 1
    assert member.pending
    group.answer = lambda _: frozenset({"g-1"})
    assert waited_s(member, group) < 1


def test_what_the_coordinator_drops_after_a_session_is_waited_for(group: Group) -> None:
    member = FencedMember(SETTINGS, "g", NAME)
    member.note_fence(FENCE)
    group.answer = lambda at: frozenset({NAME}) if at < 12 else frozenset()
    assert 12 <= waited_s(member, group) < 13
    assert group.asked < 30


def test_who_stays_longer_than_a_session_is_a_rival(group: Group) -> None:
    member = FencedMember(SETTINGS, "g", NAME)
    member.note_fence(FENCE)
    group.answer = lambda _: frozenset({NAME})
    with pytest.raises(
        FencedError, match=r"fenced.*It is at 10\.0\.0\.7, with the client\.id a-client\. Fix"
    ) as caught:
        waited_s(member, group)
    assert caught.value.code == FENCE.code
    assert 15 <= group.now_s - 1000 < 17
    assert member.pending


def test_time_without_an_answer_does_not_count_as_life(group: Group) -> None:
    """The coordinator stood still, and so did its clock for sessions."""
    member = FencedMember(SETTINGS, "g", NAME)
    member.note_fence(FENCE)
    group.answer = lambda at: (
        frozenset({NAME}) if at < 8 else None if at < 20 else frozenset({NAME}) if at < 29 else frozenset()
    )
    assert 29 <= waited_s(member, group) < 30


def test_silence_ends_as_unavailable(group: Group) -> None:
    member = FencedMember(SETTINGS, "g", NAME)
    member.note_fence(FENCE)
    group.answer = lambda _: None
    with pytest.raises(UnavailableError, match="'g'"):
        waited_s(member, group)
    assert group.now_s - 1000 == pytest.approx(SETTINGS.open_timeout_s, abs=1)


def test_fences_that_come_again_and_again_are_a_rival_and_old_ones_are_forgotten(group: Group) -> None:
    member = FencedMember(SETTINGS, "g", NAME)
    waits = []
    for time_ in (1, 2, 3):
        assert member.note_fence(FENCE) == time_
        waits.append(waited_s(member, group))
    assert waits == sorted(waits)
    with pytest.raises(FencedError):
        member.note_fence(FENCE)
    group.now_s += 700
    assert member.note_fence(FENCE) == 1
