"""Records of __consumer_offsets in words; what is of another form stays as it is."""

from __future__ import annotations

import struct

import pytest

from eos.group.offset_record import in_words


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


KEY = struct.pack(">h", 1) + text("refunds") + text("settlements") + struct.pack(">i", 2)
CASES = {
    0: struct.pack(">hq", 0, 4711) + text("eos1 …") + struct.pack(">q", 1),
    1: struct.pack(">hq", 1, 4711) + text("eos1 …") + struct.pack(">qq", 1, 2),
    2: struct.pack(">hq", 2, 4711) + text("eos1 …") + struct.pack(">q", 1),
    3: struct.pack(">hqi", 3, 4711, 7) + text("eos1 …") + struct.pack(">q", 1),
    4: struct.pack(">hqi", 4, 4711, 7) + bytes([len("eos1 …".encode()) + 1]) + "eos1 …".encode() + b"\0" * 9,
}


@pytest.mark.parametrize("version", CASES)
def test_a_commit_of_an_offset_says_whose_it_is_and_what_was_stored(version: int) -> None:
    epoch = b", epoch 7" if version >= 3 else b""
    assert in_words(KEY, CASES[version]) == (
        b"group refunds: settlements[2]",
        b"offset 4711" + epoch + ", eos1 …".encode(),
    )


def test_an_offset_that_was_deleted_has_no_value() -> None:
    assert in_words(KEY, None) == (b"group refunds: settlements[2]", None)


def test_an_offset_without_metadata_or_epoch_says_neither() -> None:
    for nothing in ("", "\0"):
        value = struct.pack(">hqi", 3, 5, -1) + text(nothing) + struct.pack(">q", 1)
        assert in_words(KEY, value)[1] == b"offset 5"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"x"),
        (b"", b"x"),
        (struct.pack(">h", 2) + text("refunds"), b"members"),
        (KEY[:-2], CASES[3]),
        (KEY, struct.pack(">hq", 9, 1)),
        (KEY, CASES[3][:12]),
        (KEY, struct.pack(">hqi", 3, 5, 1) + struct.pack(">h", -1)),
        (struct.pack(">hh", 1, 99) + b"short", b"x"),
        (struct.pack(">hqi", 4, 5, 1) + b"\xff" * 9, None),
    ],
    ids=[
        "no-key",
        "empty",
        "a-group",
        "cut-key",
        "new-version",
        "cut-value",
        "null-text",
        "cut-text",
        "other",
    ],
)
def test_what_is_of_another_form_stays_as_it_is(key: bytes | None, value: bytes | None) -> None:
    assert in_words(key, value) == (key, value)
