"""Which partition of __consumer_offsets has a group; what is in it is read in tests/faults/test_strangers.py."""

from __future__ import annotations

import pytest

from eos.group.offset_history import place_of


@pytest.mark.parametrize(
    ("group", "hashed"),
    [  # by String.hashCode() of a JDK 21
        ("", 0),
        ("hello", 99_162_322),
        ("refunds", 1_085_542_395),
        ("größe-😀", 175_616_671),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_a_group_is_where_javas_hash_of_its_name_says(group: str, hashed: int) -> None:
    many = 2**31
    assert place_of(group, many) == (0 if hashed == -many else abs(hashed))
    assert place_of(group, 50) == (0 if hashed == -many else abs(hashed) % 50)
