"""Partitions that no member owns: who joins anew for them, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest

from eos.core.surroundings import Seat
from eos.errors import RetriableError
from eos.events import ignore_event
from eos.faces.surroundings import ToKafka
from eos.offsets import OffsetVector, Partition
from eos.watches.unowned import Unowned
from tests.support.settings import settings_of

ALL = [Partition("in", number) for number in range(4)]
HALF: Mapping[str, frozenset[Partition]] = {"g-0": frozenset(ALL[2:]), "g-1": frozenset()}
WHOLE: Mapping[str, frozenset[Partition]] = {"g-0": frozenset(ALL[2:]), "g-1": frozenset(ALL[:2])}


def at_once(question: Callable[[], object], *, name: str) -> Future[object]:
    answer: Future[object] = Future()
    try:
        answer.set_result(question())
    except RetriableError as error:
        answer.set_exception(error)
    return answer


class Group:
    """What is known of the group, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.assigned: Mapping[str, frozenset[Partition]] | None = HALF
        monkeypatch.setattr("eos.watches.unowned.time.monotonic", lambda: self.now)
        monkeypatch.setattr("eos.watches.unowned.Admin.of", lambda _: self)
        monkeypatch.setattr("eos.watches.unowned.future_beside", at_once)
        settings = settings_of(
            **{"kafka.bootstrap_servers": "nowhere:1", "ownership.session_timeout_ms": 6_000}
        )
        seat = Seat(
            settings=settings,
            topics=["in"],
            group="g",
            given=None,
            app="a",
            shard="s",
            listener=ignore_event,
            destination=ToKafka(),
            partitions=ALL,
        )
        self.watches = {name: Unowned(seat, name) for name in ("g-0", "g-1")}

    @property
    def groups(self) -> Group:
        return self

    def stable_assignment(self, *_: object) -> Mapping[str, frozenset[Partition]]:
        if self.assigned is None:
            raise RetriableError("away")
        return self.assigned

    def look(self, name: str) -> str:
        watch = self.watches[name]
        return "" if self.now < watch.due_at else watch.look(None, OffsetVector())  # type: ignore[arg-type] # it asks the group

    def looks(self, count: int, name: str = "g-1") -> list[str]:
        found = []
        for _ in range(count):
            self.now += 2.0
            found.append(self.look(name))
        return found


def without_owner(partitions: list[Partition]) -> str:
    return f"no member of the group 'g' owns {', '.join(map(str, partitions))}"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_after_a_session_timeout_the_member_with_the_fewest_partitions_joins_anew(group: Group) -> None:
    assert group.looks(5) == ["", "", "", "", without_owner(ALL[:2])]
    assert group.looks(3) == ["", "", ""], "and then it is given as long again"


def test_member_with_more_partitions_goes_on(group: Group) -> None:
    assert group.looks(10, "g-0") == [""] * 10


def test_of_members_with_equally_many_one_joins_anew(group: Group) -> None:
    group.assigned = {"g-0": frozenset(ALL[:1]), "g-1": frozenset(ALL[1:2])}
    assert group.looks(10, "g-1") == [""] * 10
    assert without_owner(ALL[2:]) in group.looks(5, "g-0")


@pytest.mark.parametrize("then", [WHOLE, {}, None, {"g-0": frozenset(ALL[3:]), "g-1": frozenset()}])
def test_group_that_moves_or_does_not_answer_is_waited_for(
    group: Group, then: Mapping[str, frozenset[Partition]] | None
) -> None:
    assert group.looks(3) == [""] * 3
    group.assigned = then
    assert group.looks(1) == [""]
    group.assigned = HALF
    assert group.looks(4) == [""] * 4


def test_looks_seldom(group: Group) -> None:
    group.now += 1.9
    group.assigned = None  # a question would count as one without an answer, and the first look is due later
    assert group.look("g-1") == ""
    group.assigned = HALF
    assert group.looks(5)[4] == without_owner(ALL[:2])


def test_group_that_is_slow_to_answer_is_asked_once_at_a_time(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Future[object]] = []

    def slowly(_: object, *, name: str) -> Future[object]:
        asked.append(Future())
        return asked[-1]

    monkeypatch.setattr("eos.watches.unowned.future_beside", slowly)
    assert group.looks(10) == [""] * 10
    assert len(asked) == 1
    asked[0].set_result(HALF)
    assert group.looks(2) == [""] * 2
    assert len(asked) == 2
