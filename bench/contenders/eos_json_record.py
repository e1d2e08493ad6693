"""eos with a function of one record that parses its value and writes it again, as contender d does."""

from __future__ import annotations

from collections.abc import Callable

from bench.contenders.eos_loop import copy
from bench.contenders.raw_json import parse_and_write
from eos import InputRecord, OutputRecord


def to(topic: str) -> Callable[[InputRecord], list[OutputRecord]]:
    """The function."""
    return lambda record: [OutputRecord(topic, parse_and_write(record.value), record.key)]


if __name__ == "__main__":
    copy(transform=to)
