"""Suspects: what the attempts in committed offsets lead to; the broker's part is in tests/faults/test_deadly_records.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from eos.core.ledger import Ledger, Outcome
from eos.crashes.alone import Alone
from eos.crashes.suspects import FEW_RECORDS, Suspects
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition

P, Q = Partition("in", 0), Partition("in", 1)
OFFSET = 40
FIRST = OffsetMetadata(OwnershipMode.PARTITION, "in[0]", app="job")


def left(attempt: int, *, offset: int = OFFSET, age_s: float = 0) -> Committed:
    """What an owner has left."""
    return Committed(offset, str(replace(FIRST, attempt=attempt, at_s=int(time.time() - age_s))))


class Owner:
    """A session's part: it takes partitions over, announces and commits."""

    def __init__(self, *stored: Committed | None, replaces_dead: bool = False, max_deaths: int = 3) -> None:
        self.ledger = Ledger(OffsetMetadata(OwnershipMode.PARTITION, "in[0]", app="job"))
        self.suspects = Suspects(max_deaths, self.ledger.metadata.owner, replaces_dead=replaces_dead)
        self.ledger.attempt_at = self.suspects.attempt_at
        self.take_over(*stored)

    def take_over(self, *stored: Committed | None) -> None:
        found = dict(zip((P, Q), stored, strict=False))
        self.ledger.taken_over(found)
        self.suspects.taken_over(found)

    def commit(self, offset: int, partition: Partition = P) -> Committed:
        stored = self.ledger.sent(OffsetVector({partition: offset}), {"in": 1})[partition]
        self.ledger.ended(Outcome.COMMITTED)
        self.suspects.committed({partition: stored})
        return stored

    def announce(self) -> Committed | None:
        due = self.suspects.unannounced(P)
        self.suspects.announce(due)
        return self.commit(OFFSET) if P in due else None


def attempt(stored: Committed | None) -> int:
    metadata = OffsetMetadata.parse(stored.metadata) if stored is not None else None
    assert metadata is not None
    return metadata.attempt


@pytest.mark.parametrize(
    "stored",
    [
        lambda: None,
        lambda: left(0),
        lambda: left(0, age_s=30),
        lambda: Committed(OFFSET, ""),
        lambda: Committed(OFFSET, "of another tool"),
    ],
    ids=["none", "new", "young", "without metadata", "of another tool"],
)
def test_ordinary_takeover_announces_nothing(stored: Callable[[], Committed | None]) -> None:
    owner = Owner(stored())
    assert not owner.suspects
    assert not owner.suspects.unannounced(P)
    assert attempt(owner.commit(OFFSET + 1)) == 0


@pytest.mark.parametrize(
    "owner",
    [
        lambda: Owner(left(0), replaces_dead=True),
        lambda: Owner(left(0, age_s=120)),
        lambda: Owner(Committed(OFFSET, str(FIRST.next()))),
    ],
    ids=["a worker was killed", "nothing came of the input for long", "a takeover has led to nothing"],
)
def test_sign_of_a_death_is_announced_and_forgotten_after_a_while(
    owner: Callable[[], Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = owner()
    assert attempt(one.announce()) == 1
    assert not one.suspects.few_at_a_time
    assert attempt(one.commit(OFFSET + 1)) == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    one.suspects.look()
    assert attempt(one.commit(OFFSET + 2)) == 0
    assert not one.suspects


def test_each_death_leads_one_step_further_until_the_record_is_left_to_the_policy() -> None:
    stored, few, alone = left(0), [], []
    for number in range(1, 6):
        owner = Owner(stored, replaces_dead=number == 1)
        assert owner.suspects.deaths(P) == 0
        assert attempt(owner.commit(OFFSET)) == number - 1, "an owner by partition does so when it takes over"
        announced = owner.announce()
        assert announced is not None
        stored = announced
        assert attempt(stored) == number
        assert owner.announce() is None
        few.append(owner.suspects.few_at_a_time)
        alone.append(owner.suspects.alone)
    assert few == [False, True, True, True, True]
    assert alone == [frozenset()] * 2 + [{P}] * 3
    last = Owner(stored)
    assert last.suspects.deaths(P) == 3
    assert last.announce() is None
    assert attempt(last.commit(OFFSET)) == 5, "the next start knows it too"
    assert attempt(last.commit(OFFSET + 1)) == 2
    assert last.suspects.deaths(P) == 0


def test_commits_of_an_owner_that_looks_for_a_record_announce_the_next() -> None:
    owner = Owner(left(1))
    owner.announce()
    assert attempt(owner.commit(OFFSET + 9)) == 2
    assert attempt(owner.commit(OFFSET + 99)) == 2
    owner = Owner(left(2))
    owner.announce()
    said = [attempt(owner.commit(OFFSET + number)) for number in range(1, FEW_RECORDS + 2)]
    assert said == [2] * (FEW_RECORDS + 1)
    assert not owner.suspects.alone


def test_kill_between_two_records_that_are_taken_alone_counts_for_neither() -> None:
    owner = Owner(left(2), max_deaths=1)
    assert attempt(owner.announce()) == 3
    between = owner.commit(OFFSET + 1)
    owner = Owner(between, max_deaths=1)
    assert owner.suspects.alone == {P}, "the search goes on"
    assert owner.suspects.deaths(P) == 0


def test_deaths_with_a_record_that_is_gone_count_for_no_other_one() -> None:
    """Compaction has removed it: the next one stands behind the offset that they were counted at."""
    owner = Owner(left(5))
    assert owner.suspects.deaths(P) == 3
    owner.suspects.met_alone(P, OFFSET)
    assert owner.suspects.deaths(P) == 3
    owner.suspects.met_alone(P, OFFSET + 4)
    assert owner.suspects.deaths(P) == 0
    owner.suspects.announce(owner.suspects.unannounced(P))
    assert attempt(owner.commit(OFFSET + 4)) == 3


def test_each_partition_has_a_time_alone_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one whose records take long would use up that of all others at each start, and their deadly record stayed."""
    owner = Owner(left(2), left(5))
    assert owner.suspects.alone == {Q}, "first where most have died"
    owner.suspects.alone = frozenset({P})
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    owner.suspects.look()
    assert owner.suspects.alone == {Q}
    assert owner.suspects.deaths(Q) == 3
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    owner.suspects.look()
    assert owner.suspects.alone == {Q}
    monkeypatch.setattr(time, "monotonic", lambda: now + 122)
    owner.suspects.look()
    assert not owner.suspects.alone


def test_search_without_a_result_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(left(2), left(4))
    owner.announce()
    now = time.monotonic()
    for seconds in (61, 122):  # each partition has a minute
        monkeypatch.setattr(time, "monotonic", lambda: now + seconds)  # noqa: B023 - called before it changes
        owner.suspects.look()
    assert not owner.suspects.alone
    assert not owner.suspects.few_at_a_time
    assert attempt(owner.commit(OFFSET + 1)) == 0
    assert not owner.suspects, "nor is anything said of the other one, whose input has not come"


def test_record_alone_is_counted_when_it_has_come_and_waits_for_a_moment_of_chance() -> None:
    owner = Owner(left(3), left(1))
    assert owner.suspects.unannounced(Q) == {Q}, "of another partition"
    assert owner.suspects.unannounced(P) == {P, Q}
    assert 1 <= owner.suspects.pause_s([P]) <= 3
    assert Owner(left(2)).suspects.pause_s([P]) == 0
    assert Owner(left(3), left(3)).suspects.alone == {P}, "one after the other"


@pytest.mark.parametrize("found", [0, 2, 4])
def test_owner_that_gives_up_in_order_leaves_what_it_has_found(found: int) -> None:
    owner = Owner(left(found), replaces_dead=True)
    owner.announce()
    assert owner.suspects.withdraw([P]) == {P}
    assert attempt(owner.commit(OFFSET)) == found
    assert not owner.suspects.alone
    assert not owner.suspects.unannounced(P), (
        "one that lives on, with input that was slow, begins no search by itself"
    )
    owner = Owner(left(2))
    owner.announce()
    owner.commit(OFFSET + 1)
    assert owner.suspects.withdraw([P]) == {P}
    assert attempt(owner.commit(OFFSET + 1)) == 0
    assert not Owner(left(2)).suspects.withdraw([P]), "it has announced nothing"


@pytest.mark.parametrize(("found", "left_behind"), [(1, 1), (2, 2), (4, 2)])
def test_announcement_is_taken_back_when_the_transform_has_returned(found: int, left_behind: int) -> None:
    """A record that was transformed has ended the row of deaths with it, and the search goes on."""
    owner = Owner(left(found))
    assert attempt(owner.announce()) == found + 1
    assert owner.suspects.returned() == {P}
    assert attempt(owner.commit(OFFSET)) == left_behind
    assert not owner.suspects.returned()
    assert not owner.suspects.withdraw([P]), "nothing is left to be taken back"
    owner = Owner(left(found))
    owner.announce()
    owner.suspects.returned()
    owner.commit(OFFSET)
    again = owner.announce()  # the commit has failed, and the record comes again
    assert attempt(again) == min(found, 2) + 1
    assert attempt(owner.commit(OFFSET + 1)) == 2


def test_first_attempt_goes_through_ordinary_transactions_and_stays_announced() -> None:
    """The record that ends the process may be in any of them."""
    owner = Owner(left(0), replaces_dead=True)
    assert attempt(owner.announce()) == 1
    assert not owner.suspects.returned()


def test_announcement_without_an_answer_may_be_stored_and_is_taken_back() -> None:
    owner = Owner(left(3))
    due = owner.suspects.unannounced(P)
    owner.suspects.announce(due)
    owner.suspects.announce(due, announced=False)  # the commit got no answer
    assert owner.suspects.withdraw([P]) == {P}
    assert attempt(owner.commit(OFFSET)) == 3


@pytest.mark.parametrize("number", [1, 3])
def test_owner_that_gets_lost_partitions_back_does_not_count_itself(number: int) -> None:
    owner = Owner(left(number))
    stored = owner.announce()
    for _ in range(5):
        assert attempt(stored) == number + 1
        owner.suspects.forget([P])
        owner.take_over(stored)
        assert owner.suspects.deaths(P) == 0
        assert owner.announce() is None
        stored = owner.commit(OFFSET)


def test_input_that_was_read_to_its_end_is_like_any_other() -> None:
    owner = Owner(left(2), replaces_dead=True)
    assert owner.suspects.finished([P]) == {P}
    assert attempt(owner.commit(OFFSET)) == 0
    assert not owner.suspects
    assert not Owner(left(0), replaces_dead=True).suspects.finished([P]), "nothing was announced"


def test_deaths_that_are_not_counted_leave_no_trace() -> None:
    owner = Owner(left(7), replaces_dead=True, max_deaths=0)
    assert not owner.suspects
    assert owner.suspects.deaths(P) == 0
    assert attempt(owner.commit(OFFSET)) == 0


def test_session_that_is_alone_begins_when_no_other_has_anything_in_work() -> None:
    alone = Alone()
    assert alone.begin("a")
    assert alone.begin("b")
    alone.end("a")
    assert not alone.claim("a"), "b works"
    assert not alone.begin("c")
    assert not alone.begin("b"), "it comes back for more"
    assert alone.claim("a")
    assert alone.begin("a")
    assert not alone.claim("b")
    alone.release("a")
    assert alone.begin("c")
