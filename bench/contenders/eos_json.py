"""eos with a batch function that parses each value and writes it again, as contender d does."""

from __future__ import annotations

from collections.abc import Callable

from bench.contenders.eos_loop import copy
from bench.contenders.raw_json import parse_and_write
from eos import InputBatch, OutputBatch


def to(topic: str) -> Callable[[InputBatch], list[OutputBatch]]:
    """The batch function."""
    return lambda batch: [OutputBatch(topic, [parse_and_write(value) for value in batch.values], batch.keys)]


if __name__ == "__main__":
    copy(transform_batch=to)
