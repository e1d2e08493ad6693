"""Jobs: what loops that are not `eos run` are judged by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from eos import InputRecord, Job, OutputRecord

SOURCE, SINK = "originals", "copies"
_KEYS = 7


def _copied(record: InputRecord) -> list[OutputRecord]:
    return [OutputRecord(SINK, record.value, record.key)]


def sample_input(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Values of which no two are alike."""
    return ((b"%d" % (number % _KEYS), b"%d %d" % (seed, number)) for number in count())


copy = Job(name="copy", inputs=[SOURCE], outputs=[SINK], transform=_copied)
