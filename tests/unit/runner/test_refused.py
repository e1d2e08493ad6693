"""Which input record a refused output was made of, and whether a clock is at fault."""

from __future__ import annotations

import time

from eos.errors import RecordRefusedError
from eos.job import Job
from eos.poison import PoisonFilter
from eos.records import InputBatch, InputRecord, OutputRecord, fingerprint
from eos.runner.refused import _Look
from tests.support.settings import settings_of

OLD_MS = 3_600_000


def outputs(record: InputRecord) -> list[OutputRecord]:
    stamp = OLD_MS if record.value == b"old" else int(time.time() * 1000)
    return [OutputRecord("out", record.value, b"k", timestamp_ms=stamp)]


def test_clock_is_not_blamed_while_a_refused_output_was_not_looked_at() -> None:
    """The one with a wrong timestamp may be the one that is missing: a slow fetch ends the look early."""
    settings = settings_of("nowhere:1")
    error = RecordRefusedError("out: refused", code="INVALID_TIMESTAMP")
    error.outputs = {fingerprint("out", value, b"k") for value in (b"young", b"old")}
    transform = Job(name="job", inputs=["in"], outputs=["out"], transform=outputs).bound(None)
    look = _Look(PoisonFilter(transform, settings.poison.policy, shard="", listener=lambda _: None), error)
    look.at(InputBatch.of([InputRecord("in", 0, 7, None, b"young")]))
    assert not look.clock_alone(settings)
    look.at(InputBatch.of([InputRecord("in", 0, 8, None, b"old")]))
    assert look.done
    assert not look.clock_alone(settings)
    assert "in[0] offset 8" in look.found
