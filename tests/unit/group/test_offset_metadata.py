"""OffsetMetadata: written with every offset, and read back from what any program may have written."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.group.metadata import OffsetMetadata, OwnershipMode

CASES = settings(max_examples=25, deadline=None)

shown_shards = st.from_regex(r"([A-Za-z0-9._-]{1,30}\[\d{1,3}\]|#\d{1,6}|start)", fullmatch=True)


@given(st.sampled_from(OwnershipMode), shown_shards, st.integers(0, 10**15))
@CASES
def test_metadata_is_read_back_as_written(mode: OwnershipMode, shard: str, commit: int) -> None:
    metadata = OffsetMetadata(mode, shard, commit=commit)
    assert OffsetMetadata.parse(str(metadata.next())) == metadata.next() != metadata
    assert OffsetMetadata.parse(str(metadata)) == metadata


@given(st.text(max_size=40))
@CASES
def test_text_of_others_is_no_metadata_and_no_error(text: str) -> None:
    metadata = OffsetMetadata.parse(text)
    assert metadata is None or str(metadata) == text


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "eos1 mode=group shard=#0",
        "eos1 mode=group shard=#0 owner=1f",
        "eos1 mode=group shard=#0 owner=1f commit= at=1 had=1",
        "eos1 mode=group shard=#0 owner=1f commit=1",
        "eos1 mode=group shard=#0 owner=1f commit=1 at=x had=1",
        "eos1 mode=group shard=#0 owner=1f commit=01 at=1 had=1",
        "eos1 mode=nobody shard=#0 owner=1f commit=1 at=1 had=1",
        "eos2 mode=group shard=#0 owner=1f commit=1 at=1 had=1",
        " eos1 mode=group shard=#0 owner=1f commit=1 at=1 had=1",
        "eos1 mode=group shard=#0 owner=1f commit=1 at=1 had=1 and more",
    ],
)
def test_almost_metadata_is_none(metadata: str) -> None:
    assert OffsetMetadata.parse(metadata) is None


def test_no_two_owners_share_a_token() -> None:
    """Two sessions of one shard differ in nothing else, and the comparison after a reopen rests on it."""
    assert len({OffsetMetadata(OwnershipMode.GROUP, "#0") for _ in range(100)}) == 100


@given(st.integers(1, 9_999))
@CASES
def test_attempt_is_read_back_and_the_owner_stays_the_same(attempt: int) -> None:
    said = OffsetMetadata(OwnershipMode.GROUP, "#0", app="job")
    tried = replace(said, attempt=attempt)
    assert OffsetMetadata.parse(str(tried)) == tried
    assert said.is_owner_of(str(tried))


@pytest.mark.parametrize("name", ["web-0", "host.example", "Jürgens Rechner", "", "a host=b/1"])
def test_any_host_name_is_read_back_in_the_form_of_metadata(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)
    said = OffsetMetadata(OwnershipMode.GROUP, "#0", app="job")
    read = OffsetMetadata.parse(str(said))
    assert read == said
    assert said.host.endswith(f"/{os.getpid()}")


def test_metadata_without_a_host_is_read_without_one() -> None:
    older = "eos1 mode=group shard=#0 owner=1f commit=1 at=1 had=1 app=job topic=abc"
    read = OffsetMetadata.parse(older)
    assert read is not None
    assert (read.topic, read.host, str(read)) == ("abc", "", older)


@given(st.integers(1, 10**9 - 1), st.integers(0, 9_999))
@CASES
def test_row_of_poison_records_is_read_back_and_an_older_version_reads_the_rest(
    in_a_row: int, attempt: int
) -> None:
    metadata = OffsetMetadata(OwnershipMode.GROUP, "#0", in_a_row=in_a_row, attempt=attempt)
    assert OffsetMetadata.parse(str(metadata)) == metadata
    assert metadata.is_owner_of(str(replace(metadata, in_a_row=0, attempt=0)))
    older = re.fullmatch(r"eos1 mode=\w+ shard=\S+ owner=(\w+?)(?:_([1-9]\d{0,4}))? commit=.*", str(metadata))
    assert older is not None
    assert int(older[2] or 0) == attempt


@given(st.text(min_size=1, max_size=40))
@CASES
def test_group_that_has_the_offsets_now_is_read_back(group: str) -> None:
    metadata = OffsetMetadata(OwnershipMode.GROUP, "#0", app="mine")
    assert metadata.moved_to == ""
    there = OffsetMetadata.parse(str(metadata.moved(group)))
    assert there is not None
    assert (there.moved_to, there.owner, there.app) == (group, metadata.owner, "mine")
