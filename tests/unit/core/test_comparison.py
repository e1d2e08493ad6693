"""The comparison with what is stored: another owner's commit is found out, and one's own outcome is never guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.core.comparison import compare, compared, look_for_rival
from eos.core.ledger import Ledger, Outcome
from eos.errors import EosError, FencedError, RebalancedError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.spark.stream.log_entry import EntryMetadata, LogEntry

CASES = settings(max_examples=25, deadline=None)

P0, P1, P2 = (Partition("in", number) for number in range(3))
Store = dict[Partition, Committed]
HAD = {"in": 3}

partitions = st.sampled_from([P0, P1, P2])
vectors = st.dictionaries(partitions, st.integers(0, 3), min_size=1).map(OffsetVector)


def owner(shard: str = "#0") -> Ledger:
    return Ledger(OffsetMetadata(OwnershipMode.GROUP, shard))


def write(store: Store, offsets: OffsetVector, by: Ledger) -> None:
    """What the coordinator does when it commits a transaction with these offsets."""
    store.update(
        {
            p: Committed(offset, str(replace(by.metadata, started_partitions=HAD[p.topic])))
            for p, offset in offsets.items()
        }
    )


def further(mine: Ledger, steps: OffsetVector) -> OffsetVector:
    """Offsets that are so many records behind those that this owner knows of: an owner never goes back."""
    known = {p: stored.offset for p in steps if (stored := mine.stored.get(p)) is not None}
    return OffsetVector({p: known.get(p, 0) + step for p, step in steps.items()})


def after(commits: list[OffsetVector]) -> tuple[Ledger, Store]:
    """An owner of all three partitions that began with a group without offsets and made these commits."""
    mine, store = owner(), Store()
    mine.taken_over(dict.fromkeys((P0, P1, P2)))
    for steps in commits:
        offsets = further(mine, steps)
        mine.sent(offsets, HAD)
        write(store, offsets, mine)
        mine.ended(Outcome.COMMITTED)
    return mine, store


def send_without_an_answer(
    mine: Ledger, store: Store, unanswered: OffsetVector | None, *, happened: bool
) -> None:
    """One more commit, if there is one, whose answer is lost."""
    if unanswered is None:
        return
    unanswered = further(mine, unanswered)
    mine.sent(unanswered, HAD)
    if happened:
        write(store, unanswered, mine)


@given(st.lists(vectors, max_size=3), st.none() | vectors, st.booleans())
@CASES
def test_own_outcome_is_read_back_right(
    commits: list[OffsetVector], unanswered: OffsetVector | None, happened: bool
) -> None:
    mine, store = after(commits)
    send_without_an_answer(mine, store, unanswered, happened=happened)
    outcome = compare(mine, store)
    assert outcome is (Outcome.COMMITTED if unanswered is not None and happened else Outcome.ABORTED)
    mine.ended(outcome)
    assert compare(mine, store) is Outcome.ABORTED
    assert mine.pending is None


shards_of_writers = pytest.mark.parametrize(
    ("shard", "error"), [("#0", FencedError), ("#1", RebalancedError)]
)


@shards_of_writers
@given(
    commits=st.lists(vectors, max_size=3),
    unanswered=st.none() | vectors,
    happened=st.booleans(),
    theirs=vectors,
)
@CASES
def test_commit_of_somebody_else_is_always_detected(
    shard: str,
    error: type[EosError],
    commits: list[OffsetVector],
    unanswered: OffsetVector | None,
    happened: bool,
    theirs: OffsetVector,
) -> None:
    """Even one of the very same offsets: the metadata differs. Another ordinal's only says that partitions have moved."""
    mine, store = after(commits)
    send_without_an_answer(mine, store, unanswered, happened=happened)
    write(store, theirs, owner(shard))
    with pytest.raises(error):
        compare(mine, store)


def test_partition_that_moved_does_not_hide_a_replacement_of_our_own_shard() -> None:
    mine, store = after([OffsetVector({P0: 5, P1: 5, P2: 5})])
    write(store, OffsetVector({P0: 9}), owner("#1"))
    write(store, OffsetVector({P2: 9}), owner("#0"))
    for look in (compare, look_for_rival):
        with pytest.raises(FencedError, match=r"in\[2\]"):
            look(mine, store)


def test_partition_owner_has_no_other_shard_to_lose_to() -> None:
    """Under partition ownership nothing moves: whoever commits our partition has taken it."""
    mine = Ledger(OffsetMetadata(OwnershipMode.PARTITION, "in[0]"))
    mine.taken_over({P0: None})
    with pytest.raises(FencedError):
        compare(mine, {P0: Committed(3, str(OffsetMetadata(OwnershipMode.GROUP, "#1")))})


@given(vectors, vectors)
@CASES
def test_comparison_changes_nothing(committed: OffsetVector, unanswered: OffsetVector) -> None:
    mine, store = after([committed])
    unanswered = further(mine, unanswered)
    mine.sent(unanswered, HAD)
    first = compare(mine, store)
    assert compare(mine, store) is first
    assert mine.pending == unanswered


@given(vectors.filter(lambda vector: len(vector) > 1), st.data())
@CASES
def test_half_a_transaction_is_the_work_of_another(unanswered: OffsetVector, data: st.DataObject) -> None:
    """A transaction is atomic, so offsets that are stored in part cannot come from it alone."""
    mine, store = after([])
    some = data.draw(st.sets(st.sampled_from(sorted(unanswered)), min_size=1, max_size=len(unanswered) - 1))
    unanswered = further(mine, unanswered)
    mine.sent(unanswered, HAD)
    write(store, unanswered.only(some), mine)
    with pytest.raises(FencedError):
        compare(mine, store)


def test_offsets_that_vanished_are_the_work_of_another() -> None:
    mine, store = after([OffsetVector({P0: 5})])
    del store[P0]
    with pytest.raises(
        FencedError,
        match=r"in\[0\].*stored nothing.*last committed offset 5.*by another program, or by Kafka.*offsets set .*--to",
    ):
        compare(mine, store)


def test_another_owner_is_known_also_where_more_stands_behind_its_metadata() -> None:
    """A relay that was fenced was told that another program had set its offset."""
    mine, store = after([OffsetVector({P0: 5})])
    store[P0] = store[P0]._replace(metadata=f"{owner().metadata} relays=1 db=x id=25")
    with pytest.raises(FencedError, match=r"another owner .* has taken the partition over"):
        compare(mine, store)


def test_partition_given_up_in_order_may_go_to_anybody() -> None:
    mine, store = after([OffsetVector({P0: 5, P1: 5})])
    mine.revoked([P1])
    assert P1 not in compared(mine)
    write(store, OffsetVector({P1: 9}), owner("#0"))
    assert compare(mine, store) is Outcome.ABORTED


def test_lost_partition_may_have_moved_to_another_shard() -> None:
    mine, store = after([OffsetVector({P0: 5, P1: 5})])
    mine.lose([P1])
    write(store, OffsetVector({P1: 9}), owner("#1"))
    assert compare(mine, store) is Outcome.ABORTED


def test_lost_partition_under_our_own_shard_shows_a_replacement() -> None:
    """SIGSTOP, a replacement under the same ordinal, SIGCONT: the zombie must not take the shard back."""
    mine, store = after([OffsetVector({P0: 5})])
    mine.lose([P0])
    assert P0 in compared(mine)
    write(store, OffsetVector({P0: 9}), owner("#0"))
    with pytest.raises(FencedError):
        compare(mine, store)


def test_lost_partition_is_forgotten_once_the_shard_was_proved_ours() -> None:
    mine, store = after([OffsetVector({P0: 5})])
    mine.lose([P0])
    mine.proved()
    write(store, OffsetVector({P0: 9}), owner("#0"))
    assert compare(mine, store) is Outcome.ABORTED
    assert compared(mine) == {P1, P2}


def test_partition_that_came_back_is_judged_by_what_was_found_then() -> None:
    mine, store = after([OffsetVector({P0: 5})])
    mine.lose([P0])
    write(store, OffsetVector({P0: 9}), owner("#1"))
    mine.taken_over({P0: store[P0]})
    assert compare(mine, store) is Outcome.ABORTED
    write(store, OffsetVector({P0: 9}), owner("#1"))
    with pytest.raises(RebalancedError):
        compare(mine, store)


@given(vectors, st.booleans())
@CASES
def test_what_was_lost_while_a_commit_was_unanswered_shows_its_outcome_and_accuses_nobody(
    unanswered: OffsetVector, happened: bool
) -> None:
    mine, store = after([OffsetVector({P0: 1, P1: 1, P2: 1})])
    unanswered = further(mine, unanswered)
    mine.sent(unanswered, HAD)
    if happened:
        write(store, unanswered, mine)
    mine.lose([P0])
    mine.lose([P1, P2])
    outcome = compare(mine, store)
    assert outcome is (Outcome.COMMITTED if happened else Outcome.ABORTED)
    mine.ended(outcome)
    assert compare(mine, store) is Outcome.ABORTED


@pytest.mark.parametrize("last", [P0, P1])
def test_what_nobody_has_gone_on_from_shows_an_outcome_in_whichever_order_partitions_were_lost(
    last: Partition,
) -> None:
    mine, store = after([OffsetVector({P0: 1, P1: 1})])
    unanswered = OffsetVector({P0: 5, P1: 5})
    mine.sent(unanswered, HAD)
    write(store, unanswered, mine)
    for partition in (P1, P0) if last == P0 else (P0, P1):
        mine.lose([partition])
    write(store, OffsetVector({P1: 9}), owner("#1"))
    assert compare(mine, store) is Outcome.COMMITTED


def test_what_another_member_has_gone_on_from_shows_no_outcome() -> None:
    mine, store = after([OffsetVector({P0: 1})])
    mine.sent(OffsetVector({P0: 5}), HAD)
    mine.lose([P0])
    write(store, OffsetVector({P0: 9}), owner("#1"))
    assert compare(mine, store) is Outcome.ABORTED


def test_aborted_offsets_are_not_taken_for_stored_ones() -> None:
    mine, store = after([OffsetVector({P0: 5})])
    mine.sent(OffsetVector({P0: 6}), HAD)
    mine.ended(Outcome.ABORTED)
    assert compare(mine, store) is Outcome.ABORTED


# --- before the init, while transactions may be pending on the offsets --------------------------------


def test_own_commit_that_does_not_show_yet_accuses_nobody() -> None:
    """The coordinator answers a commit before it has written the markers."""
    mine, store = after([OffsetVector({P0: 5})])
    late = dict(store)
    mine.sent(OffsetVector({P0: 6}), HAD)
    mine.ended(Outcome.COMMITTED)
    look_for_rival(mine, late)


def test_offsets_found_at_the_takeover_are_no_evidence() -> None:
    mine = owner()
    before = Committed(3, str(owner().metadata))
    mine.taken_over({P0: before})
    mine.sent(OffsetVector({P0: 4}), HAD)
    mine.ended(Outcome.COMMITTED)
    look_for_rival(mine, {P0: before})


@shards_of_writers
def test_commit_of_somebody_else_is_seen_before_the_init_fences_it(shard: str, error: type[EosError]) -> None:
    mine, store = after([OffsetVector({P0: 5})])
    write(store, OffsetVector({P0: 5}), owner(shard))
    with pytest.raises(error):
        look_for_rival(mine, store)


def test_lost_partition_may_be_at_another_shard_before_the_init_too() -> None:
    mine, store = after([OffsetVector({P0: 5})])
    mine.lose([P0])
    write(store, OffsetVector({P0: 9}), owner("#1"))
    look_for_rival(mine, store)
    write(store, OffsetVector({P0: 9}), owner("#0"))
    with pytest.raises(FencedError):
        look_for_rival(mine, store)


def test_offset_behind_the_own_last_commit_is_refused_and_one_behind_anothers_is_not() -> None:
    mine, _ = after([OffsetVector({P0: 5})])
    mine.taken_over({P1: Committed(7, str(owner("#1").metadata))})
    mine.sent(OffsetVector({P0: 5, P1: 3}), HAD)
    mine.ended(Outcome.ABORTED)
    with pytest.raises(UsageError, match=r"in\[0\]: offset 4 is behind 5.*Fix: "):
        mine.sent(OffsetVector({P0: 4}), HAD)
    assert mine.pending is None


def test_own_entry_in_a_ledger_is_no_rivals_and_never_goes_back() -> None:
    """Its metadata says more than that of other offsets: an unanswered commit of it was taken for another owner's."""
    mine = Ledger(EntryMetadata.of(LogEntry(7, "query", 3), "out#0"))
    mine.taken_over({P0: None})
    sent = mine.sent(OffsetVector({P0: 7}), HAD)
    look_for_rival(mine, sent)
    assert compare(mine, sent) is Outcome.COMMITTED
    mine.ended(Outcome.COMMITTED)
    with pytest.raises(UsageError, match="behind 7"):
        mine.sent(OffsetVector({P0: 6}), HAD)


def test_commit_of_unchanged_offsets_is_told_from_none() -> None:
    """Its output would be made again: a transaction may carry records and no new offset."""
    mine, store = after([OffsetVector({P0: 5})])
    mine.sent(OffsetVector({P0: 5}), HAD)
    assert compare(mine, store) is Outcome.ABORTED
    write(store, OffsetVector({P0: 5}), mine)
    assert compare(mine, store) is Outcome.COMMITTED


def test_commit_says_what_the_next_owner_goes_on_counting_from() -> None:
    """How many records in a row were poison, and how far the search for a deadly one is."""
    mine = owner()
    mine.taken_over({P0: None, P1: None})
    mine.in_a_row = lambda: 7
    mine.attempt_at = lambda partition, _offset: 3 if partition == P0 else 0
    sent = mine.sent(OffsetVector({P0: 5, P1: 5}), HAD, {"in": "id"})
    said = {p: OffsetMetadata.parse(committed.metadata) for p, committed in sent.items()}
    assert {p: (one.in_a_row, one.attempt, one.topic) for p, one in said.items() if one is not None} == {
        P0: (7, 3, "id"),
        P1: (7, 0, "id"),
    }
