"""The origin of an output is the one input record that makes it."""

from __future__ import annotations

from eos.offsets import Partition
from eos.prove.origins import Origins
from eos.prove.tagged import UNCOUNTED, Tag
from eos.records import InputRecord, OutputRecord


def read(
    offset: int, value: bytes, topic: str = "in", *, headers: tuple[tuple[str, bytes], ...] = ()
) -> InputRecord:
    return InputRecord(topic, 0, offset, b"k", value, headers, 1)


def made(value: bytes, *, headers: tuple[tuple[str, bytes], ...] = ()) -> OutputRecord:
    return OutputRecord("out", value, b"k", headers=headers)


def test_output_that_one_record_makes_is_known_by_topic_key_value_and_headers() -> None:
    origins = Origins()
    origins.add(read(7, b"a"), [made(b"a"), made(b"a", headers=(("h", b"1"),))])
    origins.add(read(8, b"b"), [made(b"b")])
    assert origins.of(read(0, b"a", "out")) == Tag(Partition("in", 0), 7, 0, UNCOUNTED)
    assert origins.of(read(1, b"a", "out", headers=(("h", b"1"),))) == Tag(
        Partition("in", 0), 7, 0, UNCOUNTED
    )
    assert origins.of(read(2, b"b", "out")) == Tag(Partition("in", 0), 8, 0, UNCOUNTED)
    assert origins.of(read(3, b"a", "elsewhere")) is None
    assert origins.of(read(4, b"a", "out", headers=(("h", b"2"),))) is None


def test_output_that_is_made_more_than_once_has_none() -> None:
    origins = Origins()
    origins.add(read(7, b"a"), [made(b"a"), made(b"b"), made(b"b")])
    origins.add(read(8, b"a"), [made(b"a")])
    origins.add(read(9, b"a"), [made(b"a")])
    assert origins.of(read(0, b"a", "out")) is None
    assert origins.of(read(1, b"b", "out")) is None
