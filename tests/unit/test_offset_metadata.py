"""OffsetMetadata: written with every offset, and read back from what anybody may have written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.group.metadata import OffsetMetadata, OwnershipMode

CASES = settings(max_examples=25, deadline=None)

shown_shards = st.from_regex(r"([A-Za-z0-9._-]{1,30}\[\d{1,3}\]|#\d{1,6}|start)", fullmatch=True)


@given(st.sampled_from(OwnershipMode), shown_shards, st.integers(0, 10**15))
@CASES
def test_stamp_is_read_back_as_written(mode: OwnershipMode, shard: str, commit: int) -> None:
    stamp = OffsetMetadata(mode, shard, commit=commit)
    assert OffsetMetadata.parse(str(stamp.next())) == stamp.next() != stamp
    assert OffsetMetadata.parse(str(stamp)) == stamp


@given(st.text(max_size=40))
@CASES
def test_text_of_others_is_no_stamp_and_no_error(text: str) -> None:
    stamp = OffsetMetadata.parse(text)
    assert stamp is None or str(stamp) == text


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
def test_almost_a_stamp_is_none(metadata: str) -> None:
    assert OffsetMetadata.parse(metadata) is None


def test_no_two_owners_share_a_token() -> None:
    """Two sessions of one shard differ in nothing else, and the comparison after a reopen rests on it."""
    assert len({OffsetMetadata(OwnershipMode.GROUP, "#0") for _ in range(100)}) == 100
