"""eos with a batch function: columns in, columns out."""

from __future__ import annotations

from collections.abc import Callable

from bench.contenders.eos_loop import copy
from eos import InputBatch, OutputBatch


def to(topic: str) -> Callable[[InputBatch], list[OutputBatch]]:
    """The batch function that copies to a topic."""
    return lambda batch: [OutputBatch(topic, batch.values, batch.keys)]


if __name__ == "__main__":
    copy(transform_batch=to)
