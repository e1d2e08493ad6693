"""The ledger's rules: what is written is skipped, what does not fit is refused, and drivers agree on the shards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topic_ids import stored_topic_ids
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.shards import ledger_group
from eos.spark.ledger import (
    BatchPlan,
    LedgerChangedError,
    LedgerError,
    decide,
    different_content,
    reach,
)
from eos.spark.ledger_entry import Content, EntryMetadata, LedgerEntry, Tally

_MOST = 4
Q = "0e365255-bb8e-4c9e-a5f2-cf1429bb7347"
OTHER = "aa61f0f2-0000-4c9e-a5f2-cf1429bb7347"


def at(batch: int, shards: int = 3, *, query: str = Q, was: int = 0, rows: int = 0) -> LedgerEntry:
    return LedgerEntry(batch, query, shards, was, Content(rows, rows))


def ledger(*entries: LedgerEntry | None) -> dict[int, LedgerEntry]:
    return {k: entry for k, entry in enumerate(entries) if entry is not None}


def ask(batch: int, stored: dict[int, LedgerEntry], shards: int = 3, adopt: str | None = None) -> BatchPlan:
    return decide(batch, Q, shards, stored, where="ledger", adopt=adopt)


SAME = replace(at(7), owner="another")  # it says the same, but may be a step of another deal


# --- plans -------------------------------------------------------------------------------------------


def test_very_first_batch_deals_the_ledger_before_anything_is_written() -> None:
    plan = ask(0, {})
    assert (plan.was, list(plan.to_rewrite), dict(plan.entries)) == (3, [0, 1, 2], {})
    assert plan.rewritten == at(0)


def test_next_batch_finds_every_shard_to_be_written() -> None:
    plan = ask(7, ledger(at(7), at(7), at(7)))
    assert (plan.shards, plan.was, dict(plan.done), sorted(plan.entries)) == (3, 0, {}, [0, 1, 2])


def test_batch_of_which_a_shard_is_written_leaves_the_others() -> None:
    plan = ask(7, ledger(at(7), at(8, rows=5), at(7)))
    assert (dict(plan.done), sorted(plan.entries)) == ({1: Content(5, 5)}, [0, 2])


def test_batch_that_is_written_leaves_nothing() -> None:
    plan = ask(7, ledger(at(8), at(8), at(8)))
    assert (sorted(plan.done), dict(plan.entries)) == ([0, 1, 2], {})


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_number_of_shards_changes_between_batches(wanted: int) -> None:
    plan = ask(7, ledger(at(7), at(7), at(7)), wanted)
    assert (plan.shards, plan.was, len(plan.to_rewrite)) == (wanted, 3, max(3, wanted))


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_batch_that_is_begun_keeps_its_number_of_shards(wanted: int) -> None:
    """With another one, the rows would be divided anew: some twice, some never."""
    plan = ask(7, ledger(at(7), at(7), at(8)), wanted)
    assert (plan.shards, plan.was, sorted(plan.done), sorted(plan.entries)) == (3, 0, [2], [0, 1])


@pytest.mark.parametrize(
    ("stored", "was"),
    [
        (ledger(at(7, 5, was=3), at(7, 3), at(7, 3)), 3),
        (ledger(at(7, 5, was=3), at(7, 5), at(7, 3), at(7, 5)), 3),
        (ledger(at(7, 2, was=3), at(7, 2), at(7, 3)), 3),
        (ledger(at(7, 2), at(7, 3)), 2),
        (ledger(at(0, 3, was=3)), 3),
        (ledger(at(0, 3, was=3), None, at(0, 3)), 3),
    ],
    ids=["more", "more, further", "fewer", "of two numbers", "first", "first, further"],
)
def test_interrupted_deal_is_begun_anew(stored: dict[int, LedgerEntry], was: int) -> None:
    plan = ask(stored[0].next_batch, stored)
    assert plan.was == was
    assert not plan.entries


def test_deal_that_lost_against_a_write_leaves_that_batch_its_number() -> None:
    """A zombie of three shards wrote one while another driver was dealing five."""
    stored = ledger(at(7, 5, was=3), at(7, 5), at(8, 3), None, at(7, 5))
    plan = ask(7, stored, 5)
    assert (plan.shards, sorted(plan.done), plan.entries) == (3, [2], {0: stored[0], 1: stored[1]})


def test_reach_is_every_entry_that_matters() -> None:
    assert reach(None, 3) == 3
    assert reach(at(7, 8), 3) == 8
    assert reach(at(7, 2, was=9), 3) == 9


# --- refusals -----------------------------------------------------------------------------------------


REFUSED = [
    pytest.param(7, {}, "has expired", id="expired or deleted"),
    pytest.param(7, ledger(None, at(7), at(7)), "no entry of shard 0", id="shard 0 expired"),
    pytest.param(0, ledger(None, at(0)), "no entry of shard 0", id="shard 0 deleted in batch 0"),
    pytest.param(7, ledger(at(7), None, at(7)), "entry of shard 1 is missing", id="a shard expired"),
    pytest.param(7, ledger(at(8), None, at(7)), "entry of shard 1 is missing", id="expired in the middle"),
    pytest.param(0, ledger(at(0), None, at(0)), "entry of shard 1 is missing", id="expired in batch 0"),
    pytest.param(0, ledger(*3 * [at(7, query=OTHER)]), "query " + OTHER, id="checkpoint deleted"),
    pytest.param(7, ledger(*3 * [at(7, query=OTHER)]), "query " + OTHER, id="foreign checkpoint"),
    pytest.param(8, ledger(*3 * [at(8, query=OTHER)]), "query " + OTHER, id="foreign, same number"),
    pytest.param(7, ledger(at(7), at(7, query=OTHER), at(7)), "another query", id="a shard is foreign"),
    pytest.param(6, ledger(at(8), at(8), at(8)), "goes back", id="goes back"),
    pytest.param(9, ledger(at(8), at(8), at(8)), "jumps", id="jumps"),
    pytest.param(7, ledger(at(7), at(6), at(7)), "jumps", id="a shard is behind"),
    pytest.param(7, ledger(at(8), at(9), at(8)), "goes back", id="a shard is ahead"),
    pytest.param(7, ledger(at(8, 3), at(8, 2), at(7)), "as 2 and as 3 shards", id="two numbers in one batch"),
]


@pytest.mark.parametrize(("batch", "stored", "why"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_way_out(
    batch: int, stored: dict[int, LedgerEntry], why: str
) -> None:
    with pytest.raises(LedgerError) as refusal:
        ask(batch, stored)
    assert why in str(refusal.value)
    assert f"adopt='{Q}:{batch}'" in str(refusal.value)


@pytest.mark.parametrize(("batch", "stored", "why"), REFUSED)
def test_a_persons_decision_deals_the_ledger_from_this_batch_on(
    batch: int, stored: dict[int, LedgerEntry], why: str
) -> None:
    del why
    plan = ask(batch, stored, adopt=f"{Q}:{batch}")
    assert len(plan.to_rewrite) == reach(stored.get(0), 3)
    assert (plan.unchecked, dict(plan.done), plan.rewritten) == (True, {}, at(batch))


@pytest.mark.parametrize("adopt", [f"{Q}:8", f"{OTHER}:7", Q, "7", ""])
def test_decision_for_another_batch_or_query_has_no_effect(adopt: str) -> None:
    """So it may stay in a configuration: a checkpoint that is lost later is refused again."""
    with pytest.raises(LedgerError):
        ask(7, {}, adopt=adopt)


def test_decision_that_is_not_needed_changes_no_plan() -> None:
    stored = ledger(at(7), at(8), at(7))
    assert replace(ask(7, stored, adopt=f"{Q}:7"), unchecked=False) == ask(7, stored)


def test_different_content_names_shards_and_the_way_out() -> None:
    text = str(
        different_content(ask(7, ledger(at(8), at(7), at(7))), {0: (str(Content(3, 1)), str(Content(4, 2)))})
    )
    assert "shard 0: written 3 rows (0000000000000001), now 4 rows (0000000000000002)" in text
    assert f"adopt='{Q}:7'" in text


def test_first_batch_without_entries_is_refused_where_it_was_begun_before() -> None:
    with pytest.raises(LedgerError, match=r"batch 0 was begun before \(the checkpoint says so\)") as refusal:
        decide(0, Q, 3, {}, where="ledger", begun="the checkpoint says so")
    assert f"adopt='{Q}:0'" in str(refusal.value)


# --- under the fence ----------------------------------------------------------------------------------


def test_entry_as_planned_is_work_and_the_one_behind_it_is_done() -> None:
    plan = ask(7, ledger(at(7, rows=4), at(7), at(7)))
    assert not plan.is_done(0, plan.entries[0])
    assert plan.is_done(0, at(8, rows=9))


@pytest.mark.parametrize(
    "found",
    [None, at(9), at(6), at(7, 4), at(8, 4), at(7, query=OTHER), at(8, query=OTHER), at(7, was=3), SAME],
    ids=str,
)
def test_entry_that_changed_since_the_plan_is_refused(found: LedgerEntry | None) -> None:
    plan = ask(7, ledger(at(7), at(7), at(7)))
    with pytest.raises(LedgerChangedError, match="stop one of them"):
        plan.is_done(0, found)


# --- text --------------------------------------------------------------------------------------------


def test_entry_is_read_back_from_its_metadata() -> None:
    tally = Tally()
    metadata = EntryMetadata.of(at(8, 5, was=3), "out#2", tally)
    tally.add(2, -7)
    tally.add(1, 9)
    assert LedgerEntry.parse(8, str(metadata.next())) == LedgerEntry(
        8, Q, 5, 3, Content(3, 2), metadata.owner
    )
    kept = EntryMetadata.of(LedgerEntry(8, Q, 5, 0, Content(3, 2)), "out#2")
    assert LedgerEntry.parse(8, str(kept)) == LedgerEntry(8, Q, 5, 0, Content(3, 2), kept.owner)


def test_entry_of_an_earlier_version_is_read_and_kept_as_it_is() -> None:
    """Its digest is of keys alone, and nothing is said of marks."""
    metadata = str(EntryMetadata.of(at(8), "out#0", Tally(Content(3, 2))))
    former = metadata.replace(" digest=", " content=")
    entry = LedgerEntry.parse(8, former)
    assert entry is not None
    assert (entry.content, entry.marks) == (Content(3, 2, of_keys=True), 0)
    assert str(EntryMetadata.of(entry, "out#0")).endswith(" rows=3 content=0000000000000002")


def test_entry_says_how_many_marks_stand_beside_it() -> None:
    metadata = EntryMetadata.of(replace(at(8), marks=500), "out#0")
    found = LedgerEntry.parse(8, str(replace(metadata, app="a", topic="b")))
    assert found is not None
    assert found.marks == 500
    assert at(8).is_said_by(found), "they are no part of what batches and shards are agreed on"
    assert ask(8, {k: replace(at(8), marks=500 * (k == 0)) for k in range(3)}).marks == 500


@pytest.mark.parametrize(
    "text", ["", "x", str(OffsetMetadata(OwnershipMode.SINK, "out#0", "1f", at_s=0, host=""))]
)
def test_what_no_sink_wrote_is_no_entry(text: str) -> None:
    assert LedgerEntry.parse(8, text) is None


def test_metadata_of_another_mode_is_no_entry() -> None:
    text = str(EntryMetadata.of(at(8), "out#0")).replace("mode=sink", "mode=group")
    assert LedgerEntry.parse(8, text) is None


def test_content_is_the_same_in_any_order() -> None:
    one = Content().plus(1, -(1 << 63)).plus(1, (1 << 63) - 1).plus(2, 5)
    assert one == Content().plus(2, 5).plus(1, (1 << 63) - 1).plus(1, -(1 << 63))


def test_groups_begin_with_the_sinks_group_and_no_two_sinks_have_the_same() -> None:
    assert ledger_group("refunds", "refunds", 3) == "refunds.ledger.3"
    assert ledger_group("audit", "refunds", 3) == "refunds.audit.ledger.3"


# --- drivers against each other -----------------------------------------------------------------------


class _Kafka:
    """The ledger as a set of registers that are compared and set, which is what fence and transaction make of them."""

    def __init__(self) -> None:
        self.entries: dict[int, LedgerEntry] = {}
        self.commits = 0
        self.finished = 0
        self.written: dict[int, list[tuple[int, int]]] = {}  # per batch: (shard, of how many)

    def set(self, shard: int, seen: LedgerEntry | None, entry: LedgerEntry) -> LedgerEntry | None:
        """Write over what was seen; None if it is not there any more."""
        if self.entries.get(shard) != seen:
            return None
        self.commits += 1
        self.entries[shard] = replace(entry, owner=str(self.commits))
        return self.entries[shard]


def _driver(kafka: _Kafka, shards: int, batches: int, rng: random.Random) -> Iterator[None]:
    """A driver that yields wherever another one may come in between, and reads anew after each refusal."""
    batch = kafka.finished
    while batch < batches:
        seen: dict[int, LedgerEntry] = {}
        for k in rng.sample(range(_MOST), _MOST):  # not all at the same moment
            yield
            if k in kafka.entries:
                seen[k] = kafka.entries[k]
        stored = {k: seen[k] for k in range(reach(seen.get(0), shards)) if k in seen}
        try:
            plan = decide(batch, Q, shards, stored, where="")
        except LedgerError:
            # Others are ahead. Spark's own log of finished batches, in the shared checkpoint, says where.
            batch = max(batch, kafka.finished)
            continue
        if plan.was:
            yield from _reshard(kafka, plan, stored, rng)
            continue
        for k in rng.sample(list(plan.entries), len(plan.entries)):
            yield
            try:
                is_done = plan.is_done(k, kafka.entries.get(k))
            except LedgerChangedError:
                break
            if not is_done:
                kafka.set(k, kafka.entries.get(k), plan.after)
                kafka.written.setdefault(batch, []).append((k, plan.shards))
        else:
            batch += 1
            kafka.finished = max(kafka.finished, batch)


def _reshard(
    kafka: _Kafka, plan: BatchPlan, stored: dict[int, LedgerEntry], rng: random.Random
) -> Iterator[None]:
    yield
    begun = kafka.set(0, stored.get(0), replace(plan.rewritten, was=plan.was))
    if begun is None:
        return
    for k in rng.sample(plan.to_rewrite[1:], len(plan.to_rewrite) - 1):
        yield
        if kafka.set(k, stored.get(k), plan.rewritten) is None:
            return
    yield
    kafka.set(0, begun, plan.rewritten)


def _run_drivers(rng: random.Random) -> None:
    kafka = _Kafka()
    batches = 5
    alive = [_driver(kafka, rng.randint(1, _MOST), batches, rng) for _ in range(rng.randint(1, 3))]
    for _ in range(3_000):
        chosen = rng.randrange(len(alive)) if rng.random() < 0.5 else 0  # some are slow
        if next(alive[chosen], "ended") == "ended" or rng.random() < 0.01:  # or a crash: a new one comes
            alive[chosen] = _driver(kafka, rng.randint(1, _MOST), batches, rng)
        if kafka.written.get(batches - 1) and rng.random() < 0.05:
            break
    for batch, writes in kafka.written.items():
        counts = {shards for _, shards in writes}
        assert len(counts) == 1, (batch, writes)
        shards = counts.pop()
        written = sorted(k for k, _ in writes)
        whole = batch + 1 in kafka.written  # Spark goes on only from a batch that is done
        assert written == list(range(shards)) if whole else len(written) == len(set(written)), (batch, writes)
    assert kafka.finished > 1


def test_drivers_that_want_different_numbers_of_shards_never_divide_a_batch_in_two_ways() -> None:
    """Whatever the interleaving: each batch is written once, whole, as one number of shards."""
    for seed in range(300):
        try:
            _run_drivers(random.Random(seed))
        except Exception as error:
            error.add_note(f"with the seed {seed}")
            raise


def test_mark_says_which_topic_it_counts_in_though_the_ledger_has_more_to_say_behind_it() -> None:
    """Else a mark that has outlived its topic would pass for one of the topic that was created anew."""
    metadata = EntryMetadata.of(LedgerEntry(7, "q", 3, marks=1), "job.group.o.0")
    stored = {
        Partition("in", 0): Committed(30, str(replace(metadata, app="job", topic="A2NmP82VSsOMRgT8Vkizyw")))
    }
    assert stored_topic_ids(stored, with_more=True) == {("in", "A2NmP82VSsOMRgT8Vkizyw")}
