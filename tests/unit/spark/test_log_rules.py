"""The ledger's rules: what is written is skipped, what does not fit is refused, and drivers agree on the shards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topics import stored_topic_ids
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.shards import ledger_group
from eos.spark.stream.log_entry import Checksum, Division, EntryMetadata, LogEntry, RunningChecksum
from eos.spark.stream.log_rules import (
    BatchPlan,
    LedgerChangedError,
    LedgerError,
    decide,
    different_content,
    reach,
    stands_elsewhere,
)

_MOST = 4
_WANTED = (0, 0, 0, *range(1, _MOST + 1))  # numbers of shards; 0: in place
Q = "0e365255-bb8e-4c9e-a5f2-cf1429bb7347"
OTHER = "aa61f0f2-0000-4c9e-a5f2-cf1429bb7347"


RUN = "5f0c2a51-0b5d-4f0e-8c53-0a4d7f0c9f11"
OTHER_RUN = "9d3b6a0e-1c3f-4a34-9a56-6d1d2c6f1b22"


def at(
    batch: int, shards: int = 3, *, query: str = Q, was: int = 0, rows: int = 0, run: str = RUN
) -> LogEntry:
    return LogEntry(batch, query, shards, was, Checksum(rows, rows), run=run)


def ledger(*entries: LogEntry | None) -> dict[int, LogEntry]:
    return {k: entry for k, entry in enumerate(entries) if entry is not None}


def ask(
    batch: int, stored: dict[int, LogEntry], wanted: int | Division = 3, adopt: str | None = None
) -> BatchPlan:
    division = Division(wanted) if isinstance(wanted, int) else wanted
    return decide(batch, Q, division, stored, run=RUN, where="ledger", adopt=adopt)


def in_place(entry: LogEntry) -> LogEntry:
    return replace(entry, in_place=True)


IN_PLACE = Division(3, True, partitions=3)
MOVED = Division(3, moved_by="Exchange")


SAME = replace(at(7), owner="another")  # it says the same, but may be a step of another deal


# --- plans -------------------------------------------------------------------------------------------


def test_very_first_batch_deals_the_ledger_before_anything_is_written() -> None:
    plan = ask(0, {})
    assert (plan.was, list(plan.to_rewrite), dict(plan.entries)) == (3, [0, 1, 2], {})
    assert plan.rewritten(0) == at(0)


def test_next_batch_finds_every_shard_to_be_written() -> None:
    plan = ask(7, ledger(at(7), at(7), at(7)))
    assert (plan.shards, plan.was, dict(plan.done), sorted(plan.entries)) == (3, 0, {}, [0, 1, 2])


def test_batch_of_which_a_shard_is_written_leaves_the_others() -> None:
    plan = ask(7, ledger(at(7), at(8, rows=5), at(7)))
    assert (dict(plan.done), sorted(plan.entries)) == ({1: Checksum(5, 5)}, [0, 2])


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
        (ledger(at(7, 3, was=2), at(7, 3), at(7, 3)), 2),
        (ledger(at(7, 2), at(7, 3)), 2),
        (ledger(at(0, 3, was=3)), 3),
        (ledger(at(0, 3, was=3), None, at(0, 3)), 3),
    ],
    ids=[
        "more",
        "more, further",
        "fewer",
        "all but the last step",
        "of two numbers",
        "first",
        "first, further",
    ],
)
def test_interrupted_deal_is_begun_anew(stored: dict[int, LogEntry], was: int) -> None:
    plan = ask(stored[0].next_batch, stored)
    assert plan.was == was
    assert not plan.entries


def test_deal_that_lost_against_a_write_leaves_that_batch_its_number() -> None:
    """A zombie of three shards wrote one while another driver was dealing five."""
    stored = ledger(at(7, 5, was=3), at(7, 5), at(8, 3), None, at(7, 5))
    plan = ask(7, stored, 5)
    assert (plan.shards, sorted(plan.done), plan.entries) == (3, [2], {0: stored[0], 1: stored[1]})


def test_batch_that_nobody_has_begun_is_taken_over_from_another_run_before_it_is_written() -> None:
    """A driver of that run may have planned it otherwise, and each shard's fence would let it write the others."""
    plan = ask(7, ledger(at(7, rows=5), at(7, run=OTHER_RUN), at(7)))
    assert (plan.was, plan.shards, list(plan.to_rewrite)) == (3, 3, [0, 1, 2])
    assert plan.rewritten(0) == at(7, rows=5), "what the batch before came to, which Spark may run again"
    assert {plan.rewritten(k).run for k in range(3)} == {RUN}


def test_batch_that_is_begun_is_finished_by_another_run_too() -> None:
    stored = ledger(at(7, run=OTHER_RUN), at(8, run=OTHER_RUN), at(7, run=OTHER_RUN))
    plan = ask(7, stored)
    assert (plan.was, sorted(plan.done), sorted(plan.entries)) == (0, [1], [0, 2])
    assert plan.after.run == RUN


def test_first_batch_in_place_says_so_in_each_entry() -> None:
    plan = ask(0, {}, IN_PLACE)
    assert (plan.was, plan.division, plan.rewritten(0), plan.after) == (
        3,
        IN_PLACE,
        in_place(at(0)),
        in_place(at(1)),
    )


@pytest.mark.parametrize(("before", "wanted"), [(at(7), IN_PLACE), (in_place(at(7)), MOVED)], ids=str)
def test_another_division_into_as_many_shards_deals_the_ledger_too(
    before: LogEntry, wanted: Division
) -> None:
    """The same numbers stand for other rows."""
    plan = ask(7, ledger(before, before, before), wanted)
    assert (plan.was, plan.division, dict(plan.entries)) == (3, wanted, {})
    same = ask(7, ledger(before, before, before), before.division)
    assert (same.was, same.division, sorted(same.entries)) == (0, before.division, [0, 1, 2])


def test_deal_to_another_division_that_was_interrupted_is_begun_anew() -> None:
    stored = ledger(in_place(at(7, was=3)), in_place(at(7)), at(7))
    assert (ask(7, stored, IN_PLACE).was, ask(7, stored, IN_PLACE).entries) == (3, {})
    stored = ledger(in_place(at(7)), in_place(at(7)), at(7))
    assert (ask(7, stored, IN_PLACE).was, ask(7, stored, IN_PLACE).entries) == (3, {})


@pytest.mark.parametrize("wanted", [IN_PLACE, Division(5, True, partitions=5), MOVED], ids=str)
def test_batch_that_is_begun_behind_a_shuffle_is_finished_behind_one(wanted: Division) -> None:
    plan = ask(7, ledger(at(7), at(8), at(7)), wanted)
    assert (plan.division, sorted(plan.done), sorted(plan.entries)) == (Division(3), [1], [0, 2])


@pytest.mark.parametrize("wanted", [IN_PLACE, Division(2, moved_by="sink_shards=2", partitions=3)], ids=str)
def test_batch_that_is_begun_in_place_is_finished_in_place_where_its_rows_are_there(wanted: Division) -> None:
    plan = ask(7, ledger(in_place(at(7)), in_place(at(8)), in_place(at(7))), wanted)
    assert (plan.division, sorted(plan.done), sorted(plan.entries)) == (IN_PLACE, [1], [0, 2])


@pytest.mark.parametrize("wanted", [MOVED, Division(4, True, partitions=4)], ids=str)
@pytest.mark.parametrize("adopt", [None, f"{Q}:7"])
def test_batch_that_is_begun_in_place_is_refused_where_its_rows_have_left_their_tasks(
    wanted: Division, adopt: str | None
) -> None:
    """Whatever a person decides: a part of it is written, so that it cannot be written as a whole."""
    with pytest.raises(LedgerError) as refusal:
        ask(7, ledger(in_place(at(7)), in_place(at(8)), in_place(at(7))), wanted, adopt)
    text = str(refusal.value)
    assert f"batch 7 was begun {IN_PLACE}, of which [1] are written. Now its rows would be {wanted}" in text
    assert "Fix: start once more with what the batch was begun with" in text
    assert "adopt" not in text


def test_batch_that_is_all_written_in_place_stays_so_once_a_person_accepts_it() -> None:
    stored = ledger(*3 * [in_place(at(8))])
    with pytest.raises(LedgerError, match=f"adopt='{Q}:7'"):
        ask(7, stored, MOVED)
    plan = ask(7, stored, MOVED, f"{Q}:7")
    assert (plan.unchecked, sorted(plan.done), dict(plan.entries), plan.was) == (True, [0, 1, 2], {}, 0)
    assert ask(8, stored, MOVED).was == 3


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
    pytest.param(7, ledger(at(7), at(8, query=OTHER), at(7)), "another query", id="written by a foreign one"),
    pytest.param(6, ledger(at(8), at(8), at(8)), "goes back", id="goes back"),
    pytest.param(9, ledger(at(8), at(8), at(8)), "jumps", id="jumps"),
    pytest.param(7, ledger(at(7), at(6), at(7)), "jumps", id="a shard is behind"),
    pytest.param(7, ledger(at(8), at(9), at(8)), "goes back", id="a shard is ahead"),
    pytest.param(
        7,
        ledger(at(8, 3), at(8, 2), at(7)),
        "to 2 shards, and shuffled by key to 3 shards",
        id="two numbers in one batch",
    ),
]


@pytest.mark.parametrize(("batch", "stored", "why"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_way_out(
    batch: int, stored: dict[int, LogEntry], why: str
) -> None:
    with pytest.raises(LedgerError) as refusal:
        ask(batch, stored)
    assert why in str(refusal.value)
    assert f"adopt='{Q}:{batch}'" in str(refusal.value)


@pytest.mark.parametrize(("batch", "stored", "why"), REFUSED)
def test_a_persons_decision_deals_the_ledger_from_this_batch_on(
    batch: int, stored: dict[int, LogEntry], why: str
) -> None:
    del why
    plan = ask(batch, stored, adopt=f"{Q}:{batch}")
    assert len(plan.to_rewrite) == reach(stored.get(0), 3)
    assert (plan.unchecked, dict(plan.done), plan.rewritten(0)) == (True, {}, at(batch))


@pytest.mark.parametrize("adopt", [f"{Q}:8", f"{OTHER}:7", Q, "7", ""])
def test_decision_for_another_batch_or_query_has_no_effect(adopt: str) -> None:
    """So it may stay in a configuration: a checkpoint that is lost later is refused again."""
    with pytest.raises(LedgerError):
        ask(7, {}, adopt=adopt)


def test_decision_that_is_not_needed_changes_no_plan() -> None:
    stored = ledger(at(7), at(8), at(7))
    assert replace(ask(7, stored, adopt=f"{Q}:7"), unchecked=False) == ask(7, stored)


def test_what_is_written_of_a_batch_goes_unchecked_by_a_decision_for_this_batch_only() -> None:
    stored = ledger(at(7), at(8), at(7))
    assert ask(7, stored, adopt=f"{Q}:7").unchecked
    for adopt in (f"{Q}:6", f"{OTHER}:7", ""):
        assert not ask(7, stored, adopt=adopt).unchecked


def test_different_content_names_shards_and_the_way_out() -> None:
    text = str(
        different_content(
            ask(7, ledger(at(8), at(7), at(7))), {0: (str(Checksum(3, 1)), str(Checksum(4, 2)))}
        )
    )
    assert "shard 0: written 3 rows (0000000000000001), now 4 rows (0000000000000002)" in text
    assert f"adopt='{Q}:7'" in text


def test_first_batch_without_entries_is_refused_where_it_was_begun_before() -> None:
    with pytest.raises(LedgerError, match=r"batch 0 was begun before \(the checkpoint says so\)") as refusal:
        decide(0, Q, Division(3), {}, run=RUN, where="ledger", begun="the checkpoint says so")
    assert f"adopt='{Q}:0'" in str(refusal.value)


# --- under the fence ----------------------------------------------------------------------------------


def test_entry_as_planned_is_work_and_the_one_behind_it_is_done() -> None:
    plan = ask(7, ledger(at(7, rows=4), at(7), at(7)))
    assert not plan.is_done(0, plan.entries[0])
    assert plan.is_done(0, at(8, rows=9))


@pytest.mark.parametrize(
    "found",
    [
        None,
        at(9),
        at(6),
        at(7, 4),
        at(8, 4),
        at(7, query=OTHER),
        at(8, query=OTHER),
        at(7, was=3),
        SAME,
        in_place(at(7)),
        in_place(at(8)),
    ],
    ids=str,
)
def test_entry_that_changed_since_the_plan_is_refused(found: LogEntry | None) -> None:
    plan = ask(7, ledger(at(7), at(7), at(7)))
    with pytest.raises(LedgerChangedError, match="stop one of them"):
        plan.is_done(0, found)


# --- text --------------------------------------------------------------------------------------------


def test_entry_is_read_back_from_its_metadata() -> None:
    checksum = RunningChecksum()
    metadata = EntryMetadata.of(at(8, 5, was=3), "out#2", checksum)
    checksum.add(2, -7)
    checksum.add(1, 9)
    assert LogEntry.parse(8, str(metadata.next())) == LogEntry(8, Q, 5, 3, Checksum(3, 2), metadata.owner)
    kept = EntryMetadata.of(LogEntry(8, Q, 5, 0, Checksum(3, 2)), "out#2")
    assert LogEntry.parse(8, str(kept)) == LogEntry(8, Q, 5, 0, Checksum(3, 2), kept.owner)


def test_entry_says_which_run_of_the_query_has_committed_it() -> None:
    for text in (RUN, ""):
        metadata = EntryMetadata.of(
            at(8, run=text), "out#2", RunningChecksum(Checksum(3, 2, "0123456789abcdef"))
        )
        found = LogEntry.parse(8, str(metadata))
        assert found is not None
        assert (found.run, found.checksum) == (text, Checksum(3, 2, "0123456789abcdef"))


def test_entry_says_that_its_shards_are_partitions_and_one_that_does_not_is_of_a_shuffle() -> None:
    """Also those of earlier versions."""
    for entry in (
        at(8),
        in_place(at(8)),
        in_place(replace(at(8), marks=5, checksum=Checksum(3, 2, "0" * 16))),
    ):
        text = str(EntryMetadata.of(entry, "out#0"))
        found = LogEntry.parse(8, text)
        assert found is not None
        assert (found.in_place, found.checksum, found.marks) == (entry.in_place, entry.checksum, entry.marks)
        assert text.endswith(" in-place") is entry.in_place
    assert not at(8).is_said_by(in_place(at(8)))


def test_text_of_an_entry_is_an_entry_on_its_own_topic_alone_and_an_older_one_where_the_reader_says_so() -> (
    None
):
    entry = LogEntry.parse(8, str(EntryMetadata.of(replace(at(8), on="out"), "s#0")))
    assert entry is not None
    assert [entry.stands_on(topic, if_unsaid=topic == "in") for topic in ("out", "in")] == [True, False]
    older = replace(entry, on="")
    assert [older.stands_on(topic, if_unsaid=topic == "in") for topic in ("out", "in")] == [False, True]


def test_ledger_that_stands_on_an_input_is_refused_by_what_is_so() -> None:
    refused = str(stands_elsewhere("g.ledger.0", "moved", is_input=False))
    assert (
        "the ledger stands on moved, and the sink's outputs do not name that topic. Fix: name it again"
        in refused
    )
    refused = str(stands_elsewhere("g.ledger.0", "moved", is_input=True))
    assert "that is an input now" in refused
    assert "Fix: take it out of the inputs" in refused


def test_entry_says_how_many_marks_stand_beside_it() -> None:
    metadata = EntryMetadata.of(replace(at(8), marks=500), "out#0")
    found = LogEntry.parse(8, str(replace(metadata, app="a", topic="b")))
    assert found is not None
    assert found.marks == 500
    assert at(8).is_said_by(found), "they are no part of what batches and shards are agreed on"
    assert ask(8, {k: replace(at(8), marks=500 * (k == 0)) for k in range(3)}).marks == 500


@pytest.mark.parametrize(
    "text", ["", "x", str(OffsetMetadata(OwnershipMode.SINK, "out#0", "1f", at_s=0, host=""))]
)
def test_what_no_sink_wrote_is_no_entry(text: str) -> None:
    assert LogEntry.parse(8, text) is None


def test_metadata_of_another_mode_is_no_entry() -> None:
    text = str(EntryMetadata.of(at(8), "out#0")).replace("mode=sink", "mode=group")
    assert LogEntry.parse(8, text) is None


def test_content_is_the_same_in_any_order() -> None:
    one = Checksum().plus(1, -(1 << 63)).plus(1, (1 << 63) - 1).plus(2, 5)
    assert one == Checksum().plus(2, 5).plus(1, (1 << 63) - 1).plus(1, -(1 << 63))


def test_groups_begin_with_the_sinks_group_and_no_two_sinks_have_the_same() -> None:
    assert ledger_group("refunds", "refunds", 3) == "refunds.ledger.3"
    assert ledger_group("audit", "refunds", 3) == "refunds.audit.ledger.3"


# --- drivers against each other -----------------------------------------------------------------------


class _Kafka:
    """The ledger as a set of registers that are compared and set, which is what fence and transaction make of them."""

    def __init__(self) -> None:
        self.entries: dict[int, LogEntry] = {}
        self.commits = 0
        self.finished = 0
        # per batch: (shard, of which division, of what input)
        self.written: dict[int, list[tuple[int, Division, str]]] = {}
        self.runs = 0

    def set(self, shard: int, seen: LogEntry | None, entry: LogEntry) -> LogEntry | None:
        """Write over what was seen; None if it is not there any more."""
        if self.entries.get(shard) != seen:
            return None
        self.commits += 1
        self.entries[shard] = replace(entry, owner=str(self.commits))
        return self.entries[shard]


def _driver(kafka: _Kafka, shards: int, batches: int, rng: random.Random) -> Iterator[None]:
    """A driver that yields wherever another one may come in between, and reads anew after each refusal.

    Without a number of shards it writes in place; how many partitions a batch has is in the checkpoint.
    """
    batch = kafka.finished
    kafka.runs += 1
    run = str(kafka.runs)
    reads = [rng.choice("ab") for _ in range(batches)]  # how this driver's checkpoint has planned them
    while batch < batches:
        partitions = batch % _MOST + 1
        wanted = Division(shards) if shards else Division(partitions, True, partitions=partitions)
        seen: dict[int, LogEntry] = {}
        for k in rng.sample(range(_MOST), _MOST):  # not all at the same moment
            yield
            if k in kafka.entries:
                seen[k] = kafka.entries[k]
        stored = {k: seen[k] for k in range(reach(seen.get(0), wanted.shards)) if k in seen}
        try:
            plan = decide(batch, Q, wanted, stored, run=run, where="")
        except LedgerError:
            # Others are ahead. Spark's own log of finished batches, in the shared checkpoint, says where.
            batch = max(batch, kafka.finished)
            continue
        if plan.was:
            yield from _reshard(kafka, plan, stored, rng)
            continue
        if any(one.input != reads[batch] for one in plan.done.values()):
            batch = max(batch, kafka.finished)  # refused: what is written came of another part of the input
            continue
        after = replace(plan.after, checksum=Checksum(input=reads[batch]))
        for k in rng.sample(list(plan.entries), len(plan.entries)):
            yield
            try:
                is_done = plan.is_done(k, kafka.entries.get(k))
            except LedgerChangedError:
                break
            if not is_done:
                kafka.set(k, kafka.entries.get(k), after)
                kafka.written.setdefault(batch, []).append((k, plan.division, reads[batch]))
        else:
            batch += 1
            kafka.finished = max(kafka.finished, batch)


def _reshard(
    kafka: _Kafka, plan: BatchPlan, stored: dict[int, LogEntry], rng: random.Random
) -> Iterator[None]:
    yield
    begun = kafka.set(0, stored.get(0), replace(plan.rewritten(0), was=plan.was))
    if begun is None:
        return
    for k in rng.sample(plan.to_rewrite[1:], len(plan.to_rewrite) - 1):
        yield
        if kafka.set(k, stored.get(k), plan.rewritten(k)) is None:
            return
    yield
    kafka.set(0, begun, plan.rewritten(0))


def _run_drivers(rng: random.Random) -> None:
    kafka = _Kafka()
    batches = 5
    alive = [_driver(kafka, rng.choice(_WANTED), batches, rng) for _ in range(rng.randint(1, 3))]
    for _ in range(3_000):
        chosen = rng.randrange(len(alive)) if rng.random() < 0.5 else 0  # some are slow
        if next(alive[chosen], "ended") == "ended" or rng.random() < 0.01:  # or a crash: a new one comes
            alive[chosen] = _driver(kafka, rng.choice(_WANTED), batches, rng)
        if kafka.written.get(batches - 1) and rng.random() < 0.05:
            break
    for batch, writes in kafka.written.items():
        assert len({input_ for _, _, input_ in writes}) == 1, (batch, writes)
        divisions = {division for _, division, _ in writes}
        assert len(divisions) == 1, (batch, writes)
        shards = divisions.pop().shards
        written = sorted(k for k, _, _ in writes)
        whole = batch + 1 in kafka.written  # Spark goes on only from a batch that is done
        assert written == list(range(shards)) if whole else len(written) == len(set(written)), (batch, writes)
    assert kafka.finished > 1


def test_drivers_with_other_shards_and_other_plans_never_divide_a_batch_in_two_ways() -> None:
    """Whatever the interleaving: each batch is written once, whole, divided in one way, and of one part of the input."""
    for seed in range(300):
        try:
            _run_drivers(random.Random(seed))
        except Exception as error:
            error.add_note(f"with the seed {seed}")
            raise


def test_mark_says_which_topic_it_counts_in_though_the_ledger_has_more_to_say_behind_it() -> None:
    """Else a mark that has outlived its topic would pass for one of the topic that was created anew."""
    metadata = EntryMetadata.of(LogEntry(7, "q", 3, marks=1), "job.group.o.0")
    stored = {
        Partition("in", 0): Committed(30, str(replace(metadata, app="job", topic="A2NmP82VSsOMRgT8Vkizyw")))
    }
    assert stored_topic_ids(stored, with_more=True) == {("in", "A2NmP82VSsOMRgT8Vkizyw")}
