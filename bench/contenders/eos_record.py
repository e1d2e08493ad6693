"""eos with a function of one record."""

from __future__ import annotations

from collections.abc import Callable

from bench.contenders.eos_loop import copy
from eos import InputRecord, OutputRecord


def to(topic: str) -> Callable[[InputRecord], list[OutputRecord]]:
    """The function that copies a record to a topic."""
    return lambda record: [OutputRecord(topic, record.value, record.key)]


if __name__ == "__main__":
    copy(transform=to)
