"""Jobs that tests give to `eos run`: topics and behaviour come from the environment of the process.

``TEST_INPUT`` names the input topic; the outputs are named after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from pydantic import BaseModel

from eos.errors import FencedError
from eos.job import Job
from eos.records import InputRecord, OutputRecord
from tests.support.exactly_once import Output, SeenRecord

INPUT = os.environ.get("TEST_INPUT", "test-input")
COPIES, AUDIT, DEAD_LETTERS = f"{INPUT}.copies", f"{INPUT}.audit", f"{INPUT}.dlq"
POISON = b"poison"
POISON_AS_A_FENCE = b"poison, raised as a class of eos"
_SECONDS_PER_RECORD = float(os.environ.get("TEST_SECONDS_PER_RECORD", "0"))


def copied(record: InputRecord) -> list[OutputRecord]:
    """A copy and an audit record: half of that would be torn."""
    if record.value == POISON:
        raise ValueError("this record cannot be processed")
    if record.value == POISON_AS_A_FENCE:
        raise FencedError("not of this job's shard")
    if _SECONDS_PER_RECORD:
        time.sleep(_SECONDS_PER_RECORD)
    return [OutputRecord(COPIES, record.value, record.key), OutputRecord(AUDIT, b"seen", record.key)]


def expected(record: SeenRecord, topic: str) -> Iterable[Output]:
    """What ``copied`` makes of a record of this input topic, for the outside observer."""
    return [(f"{topic}.copies", record.key, record.value), (f"{topic}.audit", record.key, b"seen")]


class Limits(BaseModel):
    """Settings of ``limited``."""

    most: int


copying = Job(
    name="copying", inputs=[INPUT], outputs=[COPIES, AUDIT], transform=copied, dead_letters=DEAD_LETTERS
)
limited = Job(
    name="limited",
    inputs=[INPUT],
    outputs=[COPIES, AUDIT],
    transform_factory=lambda _: copied,
    settings=Limits,
)
