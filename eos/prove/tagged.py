"""Tagged: a job of eos itself, whose outputs say which input they are made of: `eos prove eos.prove.tagged:job`.

Its transform makes none to three outputs of a record, in two topics, with keys and without.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple
from zlib import crc32

from eos.job import Job
from eos.offsets import Partition
from eos.records import InputRecord, OutputRecord

_TOPICS = ("tagged-first", "tagged-second")
_MOST = 4
_TAG = re.compile(rb"(\S+) (\d+) (\d+) (\d+)/(\d+)")
_KEYS = 50


UNCOUNTED = 0


class Tag(NamedTuple):
    """Which output of which input record this is, of how many; `UNCOUNTED`: only of which record is known."""

    source: Partition
    offset: int
    number: int
    of: int


def tag_of(value: bytes | None) -> Tag | None:
    """The tag of an output; None if it has none."""
    if (found := _TAG.fullmatch(value or b"")) is None:
        return None
    topic, *numbers = found.groups()
    partition, offset, number, of = map(int, numbers)
    return Tag(Partition(topic.decode(), partition), offset, number, of)


def outputs_of(record: InputRecord, count: int, topics: Sequence[str]) -> list[OutputRecord]:
    """So many outputs of a record, in these topics in turn."""
    source = f"{record.topic} {record.partition} {record.offset}"
    return [
        OutputRecord(topics[index % len(topics)], f"{source} {index}/{count}".encode(), record.key)
        for index in range(count)
    ]


def _tagged(record: InputRecord) -> list[OutputRecord]:
    return outputs_of(record, crc32(record.value or b"") % _MOST, _TOPICS)


def sample_input(seed: int) -> Iterator[tuple[bytes | None, bytes]]:
    """Values of which no two are alike; every other one with a key."""
    random = Random(seed)  # noqa: S311 - reproducible, no secret
    for number in itertools.count():
        key = b"%d" % random.randrange(_KEYS) if number % 2 else None
        yield key, b"%d of %d" % (number, seed)


job = Job(name="tagged", inputs=["tagged-input"], outputs=list(_TOPICS), transform=_tagged)
