"""Ledger: each record is handed out again until its offset is committed, and never after that."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.core.comparison import compared
from eos.core.fetched import FetchedBatch
from eos.core.ledger import Ledger, Outcome
from eos.errors import AbortableError, EosError, RebalancedError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch, InputRecord

P0, P1 = Partition("in", 0), Partition("in", 1)
DAY_S = 86_400.0
MOST = 3  # records of a batch


class Owner:
    """The calls that a session, its consumer and its producer make, over a log that never ends."""

    def __init__(self, mode: OwnershipMode = OwnershipMode.GROUP) -> None:
        self.ledger = Ledger(OffsetMetadata(mode, "#0", app="app"))
        self.visible: list[tuple[Partition, int]] = []
        self.stored: dict[Partition, Committed] = {}
        self.client: dict[Partition, int] = {}
        self.take_over()

    def take_over(self, *partitions: Partition) -> None:
        found = {p: self.stored.get(p) for p in partitions or (P0, P1)}
        positions = OffsetVector({p: 0 if at is None else at.offset for p, at in found.items()})
        self.ledger.taken_over(found, positions)
        self.client |= positions

    def positions(self) -> OffsetVector:
        return self.ledger.next if self.ledger.rewind_due else OffsetVector(self.client)

    def rewind(self) -> None:
        if self.ledger.rewind_due:
            self.client = dict(self.ledger.next.only(self.ledger.committed))
            self.ledger.rewind_due = False

    def fetch(self, partition: Partition, count: int) -> FetchedBatch:
        self.rewind()
        records = []
        for _ in range(count if partition in self.client else 0):
            records.append(InputRecord(*partition, self.client[partition], None, b"", (), 1))
            self.client[partition] += 1
        batch, self.ledger.next = self.ledger.batch(InputBatch.of(records)._messages, self.positions())
        return batch

    def send(self, batch: InputBatch) -> OffsetVector:
        offsets = self.ledger.due().merged(self.ledger.to_commit(batch))
        self.ledger.sent(offsets, {"in": 2})
        return offsets

    def happen(self, batch: InputBatch) -> None:
        """The coordinator commits what was sent."""
        self.visible += zip(map(Partition, batch.topics, batch.partitions), batch.offsets, strict=True)
        self.stored |= self.ledger.to_be_stored()

    def settle(self) -> None:
        self.ledger.settle(self.positions)

    def commit(self, batch: InputBatch) -> None:
        self.send(batch)
        self.happen(batch)
        self.ledger.ended(Outcome.COMMITTED)
        self.settle()

    def commit_answered_late(self, batch: InputBatch, *, rewound: bool) -> None:
        """Behind the abort that gave up waiting for the answer."""
        self.send(batch)
        self.happen(batch)
        self.ledger.void()
        if rewound:
            self.rewind()
        self.ledger.ended(Outcome.COMMITTED)
        self.settle()


@pytest.fixture
def owner() -> Owner:
    return Owner()


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["fetch", "commit", "on", "aborted", "answer after a rewind", "void", "revoked", "lost"]
        ),
        st.sampled_from([P0, P1]),
        st.integers(0, MOST),
    ),
    min_size=10,
    max_size=30,
)


@given(steps)
@settings(max_examples=1_000, deadline=None)
def test_whatever_comes_what_is_visible_is_the_input_up_to_what_is_stored(
    walk: list[tuple[str, Partition, int]],
) -> None:
    owner = Owner()
    batches: list[FetchedBatch] = []
    for step, partition, number in walk:
        batch = batches[-1 if number else 0] if batches else owner.fetch(partition, 0)
        with suppress(AbortableError, UsageError, RebalancedError):
            match step:
                case "fetch":
                    batches.append(owner.fetch(partition, number))
                case "commit":
                    owner.commit(batch)
                case (
                    "on"
                ):  # more than any batch before: what is read again shows beside what was not read yet
                    owner.commit(owner.fetch(partition, MOST + 1))
                case "aborted":
                    owner.send(batch)
                    owner.ledger.ended(Outcome.ABORTED)
                    owner.ledger.void()
                case "answer after a rewind":
                    owner.commit_answered_late(batch, rewound=number > 0)
                case "void":
                    owner.ledger.void()
                case "revoked" | "lost":
                    (owner.ledger.revoked if step == "revoked" else owner.ledger.lose)([partition])
                    owner.rewind()
                    owner.take_over(partition)
    for partition in (P0, P1):
        with suppress(AbortableError, UsageError, RebalancedError):
            owner.commit(owner.fetch(partition, MOST + 1))
        offsets = [offset for p, offset in owner.visible if p == partition]
        assert offsets == list(range(owner.stored[partition].offset if partition in owner.stored else 0))


def test_batch_is_committed_behind_the_one_before_it_only(owner: Owner) -> None:
    first, second = owner.fetch(P0, 2), owner.fetch(P0, 2)
    with pytest.raises(AbortableError, match="begins at offset 2, and offsets are committed up to 0"):
        owner.send(second)
    with pytest.raises(AbortableError, match="this batch is void"):
        owner.send(first)
    again = owner.fetch(P0, 2)
    assert again.offsets == [0, 1]
    owner.commit(again)


def test_third_refusal_in_a_row_is_the_codes_fault(owner: Owner) -> None:
    for error in (AbortableError, AbortableError, UsageError):
        owner.fetch(P0, 2)
        second = owner.fetch(P0, 2)
        with pytest.raises(error):
            owner.ledger.to_commit(second)


def test_dropped_batch_is_found_out(owner: Owner) -> None:
    owner.fetch(P0, 2)
    with pytest.raises(AbortableError, match="was dropped"):
        owner.ledger.require_kept()
    kept = owner.fetch(P0, 2)
    owner.ledger.require_kept()
    owner.commit(kept)


def test_batch_that_was_not_fetched_has_no_offsets(owner: Owner) -> None:
    with pytest.raises(UsageError, match="not returned by fetch"):
        owner.ledger.to_commit(InputBatch.of([InputRecord("in", 0, 1, None, b"", (), 1)]))
    assert not owner.ledger.to_commit(InputBatch([]))


def test_partition_that_is_gone_is_not_committed(owner: Owner) -> None:
    batch = owner.fetch(P0, 2)
    owner.ledger.revoked([P0])
    with pytest.raises(RebalancedError, match="not ours any more"):
        owner.send(batch)


def test_commit_whose_answer_comes_after_the_rewind_is_not_read_again(owner: Owner) -> None:
    batch = owner.fetch(P0, 3)
    owner.send(batch)
    owner.ledger.void()
    owner.rewind()
    owner.ledger.ended(Outcome.COMMITTED)
    owner.settle()
    assert owner.ledger.rewind_due
    assert owner.fetch(P0, 1).offsets == [3]


def test_positions_behind_markers_are_committed_without_a_rewind(owner: Owner) -> None:
    owner.client[P0] = 5  # control records only
    owner.ledger.sent(OffsetVector({P0: 5}), {"in": 2})
    owner.ledger.ended(Outcome.COMMITTED)
    owner.settle()
    assert not owner.ledger.rewind_due
    assert (owner.ledger.committed[P0], owner.ledger.next[P0]) == (5, 5)


def test_settling_that_was_left_is_made_up_for(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an exception of a signal handler."""
    batch = owner.fetch(P0, 3)
    owner.send(batch)
    owner.ledger.void()
    owner.rewind()
    owner.ledger.ended(Outcome.COMMITTED)
    merged = OffsetVector.merged
    for call in (1, 2):
        calls: list[int] = []

        def interrupted(
            vector: OffsetVector, newer: OffsetVector, calls: list[int] = calls, at: int = call
        ) -> OffsetVector:
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return merged(vector, newer)

        monkeypatch.setattr(OffsetVector, "merged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            owner.settle()
    monkeypatch.undo()
    owner.settle()
    assert owner.fetch(P0, 1).offsets == [3]


def test_loss_in_between_leaves_nothing_to_settle(owner: Owner) -> None:
    batch = owner.fetch(P0, 3)
    owner.send(batch)
    owner.ledger.ended(Outcome.COMMITTED)
    owner.ledger.lose([P0])
    owner.take_over(P0)
    owner.settle()
    assert owner.ledger.committed[P0] == 0, "as the group said at the takeover"


def test_offsets_beside_a_loss_show_the_outcome_of_a_commit(owner: Owner) -> None:
    owner.ledger.sent(OffsetVector({P0: 3, P1: 3}), {"in": 2})
    owner.ledger.lose([P1])
    assert owner.ledger.pending == OffsetVector({P0: 3})
    owner.ledger.lose([P0])
    assert owner.ledger.pending is None


def test_new_partition_and_the_offset_of_another_mode_are_due(owner: Owner) -> None:
    assert set(owner.ledger.due()) == {P0, P1}
    owner.commit(owner.fetch(P0, 0))
    assert not owner.ledger.due()
    owner.ledger.make_due([P1])
    assert owner.ledger.still_due([P0, P1]) == {P1}


def test_owner_by_partition_commits_what_it_took_over() -> None:
    mine = OffsetMetadata(OwnershipMode.PARTITION, "in[0]", app="app", topic="id")
    ledger = Ledger(mine)
    ledger.taken_over({P0: Committed(7, str(mine))}, OffsetVector({P0: 7}))
    assert ledger.due() == OffsetVector({P0: 7})


def test_offsets_are_committed_again_before_they_expire(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.commit(owner.fetch(P0, 0))
    now = time.monotonic()
    later: Callable[[], float] = lambda: now + DAY_S + 1  # noqa: E731
    monkeypatch.setattr("eos.core.ledger.time.monotonic", later)
    assert set(owner.ledger.due()) == {P0, P1}


def test_positions_behind_markers_are_committed_every_five_seconds(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [1000.0]
    monkeypatch.setattr("eos.core.ledger.time.monotonic", lambda: at[0])
    told = []
    for _ in range(11):
        told.append(owner.ledger.time_for_passed_markers())
        at[0] += 1
    assert [n for n, now in enumerate(told) if now] == [0, 5, 10]


def test_offset_that_the_coordinator_has_forgotten_is_known_as_it_was(owner: Owner) -> None:
    owner.commit(owner.fetch(P0, 2))
    before = dict(owner.stored)
    owner.commit(owner.fetch(P0, 2))
    assert owner.ledger.forgotten(owner.stored) == []
    assert owner.ledger.forgotten(before) == [P0]
    assert owner.ledger.stored[P0] == before[P0]
    assert owner.ledger.committed[P0] == 4, "its records are visible"


def test_own_offset_never_goes_back(owner: Owner) -> None:
    owner.commit(owner.fetch(P0, 2))
    with pytest.raises(EosError, match="offset 1 is behind 2"):
        owner.ledger.sent(OffsetVector({P0: 1}), {"in": 2})


def test_batch_that_has_only_passed_markers_says_nothing_once_it_is_void(owner: Owner) -> None:
    owner.client[P0] = 5
    passed = owner.fetch(P0, 0)
    assert owner.ledger.to_commit(passed) == OffsetVector({P0: 5})
    owner.ledger.void()
    assert not owner.ledger.to_commit(passed)


def test_refusals_are_counted_from_one_commit_to_the_next(owner: Owner) -> None:
    for _ in range(2):
        owner.fetch(P0, 2)
        second = owner.fetch(P0, 2)
        with pytest.raises(AbortableError):
            owner.ledger.to_commit(second)
    owner.commit(owner.fetch(P0, 1))
    owner.fetch(P0, 2)
    second = owner.fetch(P0, 2)
    with pytest.raises(AbortableError):
        owner.ledger.to_commit(second)


def test_records_without_a_position_are_not_committed(owner: Owner) -> None:
    """The group has fenced the member, and librdkafka has taken its assignment back without a word."""
    records = InputBatch.of([InputRecord("in", 0, 0, None, b"", (), 1)])
    batch, _ = owner.ledger.batch(records._messages, OffsetVector())
    with pytest.raises(RebalancedError, match="no position any more when it was fetched"):
        owner.ledger.to_commit(batch)


def test_batch_is_void_when_any_partition_goes(owner: Owner) -> None:
    """It may hold records of that one."""
    batch = owner.fetch(P0, 2)
    owner.ledger.revoked([P1])
    with pytest.raises(AbortableError, match="this batch is void"):
        owner.send(batch)
    assert owner.fetch(P0, 2).offsets == [0, 1]


def test_lost_partition_stays_in_the_comparison_whatever_a_late_callback_says(owner: Owner) -> None:
    owner.ledger.lose([P0])
    assert owner.ledger.stored_of([P0, P1]) == {P1: None}
    owner.ledger.revoked([P0])
    assert compared(owner.ledger) == {P0, P1}
    owner.ledger.proved()
    assert compared(owner.ledger) == {P1}


def test_partition_that_is_gone_is_neither_due_nor_read_to_its_end(owner: Owner) -> None:
    owner.ledger.at_end.update([P0, P1])
    owner.ledger.make_due([P0])
    owner.ledger.revoked([P0])
    assert not owner.ledger.still_due([P0])
    assert owner.ledger.at_end == {P1}
    owner.ledger.at_end.add(P0)  # a fetch tells it late
    owner.take_over(P0)
    assert owner.ledger.at_end == {P1}


def test_open_transaction_sends_what_it_holds_beyond_the_committed_offsets(owner: Owner) -> None:
    owner.ledger.claims_begin()
    owner.ledger.claim(OffsetVector({P0: 2, P1: 0}))
    owner.ledger.claim(OffsetVector({P0: 4}))
    assert owner.ledger.claimed() == (OffsetVector({P0: 4}), OffsetVector())
    owner.ledger.revoked([P0])
    assert owner.ledger.claimed() == (OffsetVector({P0: 4}), OffsetVector({P0: 4}))
    owner.ledger.claims_begin()
    assert owner.ledger.claimed() == (OffsetVector(), OffsetVector())
