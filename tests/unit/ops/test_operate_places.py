"""What `--to` says: each form is recognised, and none is taken for another."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.kafka.admin import Mark
from eos.offsets import OffsetVector, Partition
from eos.ops.operate.places import coordinates, narrowed, place_of

HERE = [Partition("a", 0), Partition("a", 1), Partition("b.c", 0)]


def test_words_times_and_coordinates() -> None:
    assert place_of("earliest") is Mark.START
    assert place_of("latest") is Mark.LAST_STABLE
    assert place_of("2026-11-22T10:00:00Z") == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert place_of("2026-11-22T11:00+01:00") == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert place_of("b.c:0@4711, a:1@0") == OffsetVector({Partition("b.c", 0): 4711, Partition("a", 1): 0})
    assert coordinates("orders:2@4711") == (Partition("orders", 2), 4711)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("newest", "give earliest, latest"),
        ("2026-11-22T10:00:00", "2026-11-22T10:00:00Z for UTC"),
        ("2026-11-22", "whose time?"),
        ("a:1@x", "TOPIC:PARTITION@OFFSET"),
        ("a@1", "TOPIC:PARTITION@OFFSET"),
        ("a:0@1,,a:1@1", "TOPIC:PARTITION@OFFSET"),
        ("a:0@-1", "TOPIC:PARTITION@OFFSET"),
        ("a:0@²", "TOPIC:PARTITION@OFFSET"),
        ("/no/such/file", "no such file"),
        ("2999-01-01T00:00:00Z", r"[\d,]{10,} s in the future .*Fix: .*--to latest"),
    ],
)
def test_what_is_no_place_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        place_of(text)


def test_one_partition_is_not_put_in_two_places() -> None:
    with pytest.raises(ConfigError, match="twice"):
        place_of("a:0@1,a:0@2")


def test_backup_is_read_with_what_names_its_logs(tmp_path: Path) -> None:
    backup = tmp_path / "o@1.json"  # a file's name may look like an offset
    rows = [
        {"topic": "a", "partition": 0, "committed": 7, "leader_epoch": 3, "topic_id": "id-a"},
        {"topic": "a", "partition": 1, "committed": None, "leader_epoch": None, "topic_id": "id-a"},
        {"topic": "b.c", "partition": 0, "committed": 9, "leader_epoch": None, "topic_id": None},
    ]
    backup.write_text(json.dumps({"partitions": rows}))
    found = place_of(str(backup))
    assert isinstance(found, OffsetVector)
    assert dict(found) == {Partition("a", 0): 7, Partition("b.c", 0): 9}
    assert found.epoch_of(Partition("a", 0)) == 3
    assert found.epoch_of(Partition("b.c", 0)) is None
    assert found.topic_ids == {"a": "id-a"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"partitions": [{"topic": "a"}]}', '{"partitions": 1}', "\x00"]
)
def test_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not what eos offsets show --json writes"):
        place_of(str(path))


def test_partitions_are_narrowed_by_name() -> None:
    assert narrowed(HERE, []) == HERE
    assert narrowed(HERE, ["a"]) == HERE[:2]
    assert narrowed(HERE, ["a:1", "b.c:0"]) == HERE[1:]
    for wrong in ("c", "a:2", "b"):
        with pytest.raises(ConfigError, match="--only"):
            narrowed(HERE, ["a:0", wrong])
