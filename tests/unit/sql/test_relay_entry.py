"""What a relay stores in Kafka: read back as it was written, and nobody else's taken for its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.spark.stream.log_entry import EntryMetadata, LogEntry
from eos.sql.outbox_position import OutboxPosition
from eos.sql.relay_entry import Reached, RelayEntry, RelayMetadata, entry_in
from eos.sql.snapshot import Snapshot

POSITION = OutboxPosition("1.2.3", Snapshot(7, 12, (8, 10)), Snapshot(9, 20, (10,)), 44)
METADATA = RelayMetadata(OwnershipMode.SINK, "out#0", app="relay", shards=3, reached=Reached(POSITION))
P = Partition("out", 0)


def found(
    stored: dict[Partition, Committed], elsewhere: dict[Partition, Committed] | None = None
) -> tuple[Partition, RelayEntry] | None:
    return entry_in(stored, elsewhere or {}, group="g", app="relay", shards=3)


@pytest.mark.parametrize("position", [POSITION, OutboxPosition("sqlite", last=3)])
@pytest.mark.parametrize("in_a_row", [0, 4])
def test_an_entry_is_read_as_it_was_written(position: OutboxPosition, in_a_row: int) -> None:
    metadata = replace(METADATA, reached=Reached(position), in_a_row=in_a_row).next()
    assert found({P: Committed(17, str(metadata), None)}) == (
        P,
        RelayEntry(17, position, 3, "relay", in_a_row),
    )
    assert OffsetMetadata.parse(str(metadata), with_more=True) is not None


def test_the_next_commit_says_the_position_of_then() -> None:
    reached = Reached(POSITION)
    metadata = replace(METADATA, reached=reached)
    reached.position = OutboxPosition("sqlite", last=9)
    assert str(metadata.next()).endswith(" relays=3 db=sqlite id=9")


def test_nothing_stored_is_no_entry() -> None:
    assert found({}) is None


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ("", "another program"),
        (str(OffsetMetadata(OwnershipMode.GROUP, "#0", app="relay")), "another program"),
        (str(EntryMetadata.of(LogEntry(1, "q", 1), "out#0")), "another program"),
        (str(replace(METADATA, mode=OwnershipMode.GROUP)), "another program"),
        (str(METADATA) + "x", "another program"),
        (str(replace(METADATA, app="other")), "the job 'other'"),
        (str(replace(METADATA, shards=2)), "shards = 2, and the job says 3"),
        (str(replace(METADATA, shards=4)), "shards = 4, and the job says 3"),
    ],
    ids=["none", "a loop", "a stream", "another mode", "more", "another job", "fewer", "too many"],
)
def test_what_is_not_this_relay_s_is_refused(metadata: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"{says}.*Fix:"):
        found({P: Committed(1, metadata, None)})


def test_an_offset_that_a_tool_has_set_names_the_danger_of_another_group() -> None:
    with pytest.raises(ConfigError, match=r"set by a tool.*all would be relayed again"):
        found({P: Committed(1, "", None)})


def test_two_offsets_are_refused() -> None:
    stored = Committed(1, str(METADATA), None)
    with pytest.raises(ConfigError, match=r"out\[0\], two\[0\]"):
        found({P: stored, Partition("two", 0): stored})


@pytest.mark.parametrize("here", [None, 0, 4, 5])
def test_an_entry_on_a_topic_that_is_no_output_is_refused_unless_this_one_is_further(
    here: int | None,
) -> None:
    stored = {} if here is None else {P: Committed(here, str(METADATA), None)}
    with pytest.raises(ConfigError, match=r"two\[0\] that 5 rows.*Fix: name the topic in outputs= again"):
        found(stored, {Partition("two", 0): Committed(5, str(METADATA), None)})


@pytest.mark.parametrize("here", [0, 6])
def test_an_entry_elsewhere_with_fewer_rows_or_of_another_program_counts_for_nothing(here: int) -> None:
    elsewhere = {
        Partition("two", 0): Committed(here and 5, str(METADATA), None),
        Partition("three", 0): Committed(9, "", None),
    }
    entry = found({P: Committed(here, str(METADATA), None)}, elsewhere)
    assert entry is not None
    assert entry[1].relayed == here
    assert found({}, {Partition("two", 0): Committed(0, str(METADATA), None)}) is None


def test_of_several_entries_those_without_a_row_count_for_nothing() -> None:
    stored = {P: Committed(0, str(METADATA), None), Partition("two", 0): Committed(5, str(METADATA), None)}
    entry = found(stored)
    assert entry is not None
    assert (entry[0].topic, entry[1].relayed) == ("two", 5)
    assert found({**stored, Partition("two", 0): stored[P]}) == (P, RelayEntry(0, POSITION, 3, "relay"))
    of_another = {P: Committed(0, str(replace(METADATA, app="other")), None)}
    with pytest.raises(ConfigError, match="a relay has one"):
        found(stored | of_another)
