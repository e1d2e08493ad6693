"""StartedPartitions: a commit counts the partitions that have an offset, and those that get one by itself, which may fail."""

from __future__ import annotations

import time

import pytest

from eos.group.expiry import StartedPartitions
from eos.offsets import Partition
from tests.support.settings import settings_of

OLD, NEW = Partition("in", 0), Partition("in", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> StartedPartitions:
    """Of an owner whose group has an offset of one partition."""
    monkeypatch.setattr(StartedPartitions, "_ask", lambda *_: ({OLD}, {"in": 1}))
    return StartedPartitions(settings_of("nowhere:1"), "group")


def test_commit_counts_the_partitions_that_get_their_first_offset_by_it(started: StartedPartitions) -> None:
    assert started.with_offsets_of([OLD, NEW], stored=[OLD]) == {"in": 2}


def test_first_offset_whose_commit_was_aborted_is_in_no_later_count(started: StartedPartitions) -> None:
    """The partition's next owner would take it for one whose offset has expired, and refuse it."""
    started.with_offsets_of([OLD, NEW], stored=[OLD])
    assert started.with_offsets_of([OLD], stored=[OLD]) == {"in": 1}


def test_first_offset_that_was_committed_is_in_every_later_count(started: StartedPartitions) -> None:
    started.with_offsets_of([OLD, NEW], stored=[OLD])
    started.with_offsets_of([OLD], stored=[OLD, NEW])
    assert started.with_offsets_of([OLD], stored=[OLD]) == {"in": 2}, "it has gone to another member since"


def test_counts_that_are_given_stay_as_they_are() -> None:
    given = StartedPartitions(settings_of("nowhere:1"), "group", {"in": 3})
    assert given.with_offsets_of([OLD, NEW], stored=[OLD]) == {"in": 3}


def test_partition_that_another_owner_has_begun_is_counted_within_minutes(
    started: StartedPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own offset counts it until then, and that may be deleted."""
    assert started.with_offsets_of([OLD], stored=[OLD]) == {"in": 1}
    monkeypatch.setattr(StartedPartitions, "_ask", lambda *_: ({OLD, NEW}, {"in": 2}))
    assert started.with_offsets_of([OLD], stored=[OLD]) == {"in": 1}
    later = time.monotonic() + 600
    monkeypatch.setattr("eos.group.expiry.time.monotonic", lambda: later)
    assert started.with_offsets_of([OLD], stored=[OLD]) == {"in": 2}
