"""Transforms that change what they were given, or use again what they returned: the outputs are those of the call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from eos.errors import TransformError
from eos.events import RecordDeadLettered, TransactionCommitted
from eos.headers import Header
from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.exactly_once import Output, SeenRecord
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, settings_for
from tests.support.observer import (
    PlainRecord,
    assert_exactly_once,
    committed_offsets,
    produce_plain,
    read_committed,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

# No transaction ends because a machine is slow.
LONG = {"transaction__interval_ms": 100_000, "transaction__timeout_ms": 240_000}

POISON = b"poison"


class Reusing:
    """Batch functions and a record function that have one set of lists for all their calls."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.seen = 0
        self._outputs: list[Any] = []
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._of_record: list[Header] = []
        self._headers: list[Any] = []

    def outer_list(self, batch: InputBatch) -> list[OutputBatch]:
        self.seen += len(batch)
        self._outputs[:] = [OutputBatch(self.out, batch.values, batch.keys)]
        return self._outputs

    def columns(self, batch: InputBatch) -> list[OutputBatch]:
        self.seen += len(batch)
        self._values[:], self._keys[:] = batch.values, batch.keys
        return [OutputBatch(self.out, self._values, self._keys)]

    def columns_of_a_generator(self, batch: InputBatch) -> Iterator[OutputBatch]:
        self.seen += len(batch)
        for value, key in zip(batch.values, batch.keys, strict=True):
            self._values[:], self._keys[:] = [value], [key]
            yield OutputBatch(self.out, self._values, self._keys)

    def headers(self, batch: InputBatch) -> list[OutputBatch]:
        """One list of headers for all records of a call, and it changes with the next call."""
        self.seen += len(batch)
        self._of_record[:] = [("first", batch.values[0])]
        return [OutputBatch(self.out, batch.values, batch.keys, [self._of_record] * len(batch))]  # type: ignore[list-item]

    def record(self, record: InputRecord) -> list[OutputRecord]:
        self.seen += 1
        self._of_record[:] = [("value", record.value)]
        self._outputs[:] = [OutputRecord(self.out, record.value, record.key, self._of_record)]  # type: ignore[arg-type]
        return self._outputs


@pytest.mark.parametrize("how", ["outer_list", "columns", "columns_of_a_generator", "headers", "record"])
def test_lists_that_a_transform_uses_again_hold_what_it_returned(
    bootstrap: str, proxy: HoldProxy, how: str
) -> None:
    """Several fetches are transformed while a commit is in flight; their outputs wait for it."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"v%d" % n, b"k%d" % n) for n in range(2_000)])
    reusing = Reusing(job.out)
    shape = {"transform" if how == "record" else "transform_batch": getattr(reusing, how)}
    declared = Job(name=job.name, inputs=job.inputs, outputs=[job.out], **shape)
    limits = {
        "transaction__max_records": 200,
        "input__fetch_records": 50,
        **LONG,
    }
    held = proxy.hold(ApiKey.END_TXN, nth=2)  # the first one is the start policy's
    run = Running(declared, settings_for(proxy.bootstrap_servers, **limits), until_caught_up=True)
    try:
        held.wait_held(PATIENCE_S)
        _until(lambda: reusing.seen == 400, run)
        held.release()
        run.wait()
    finally:
        held.release()
        run.ask_to_stop()
    commits = [one.records_in for one in run.events if isinstance(one, TransactionCommitted)]
    assert sum(commits) == 2_000
    seen = assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], _copied(job))
    assert seen.produced == 2_000
    if how == "record":
        assert all(one.headers == (("value", one.value),) for one in read_committed(bootstrap, job.out))
    if how == "headers":
        firsts = {dict(one.headers)["first"] for one in read_committed(bootstrap, job.out)}
        assert len(firsts) > 2_000 // 50 - 2


def _until(condition: Callable[[], bool], run: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, run.events[-5:]
        time.sleep(0.01)


def _copied(job: FaultJob) -> Callable[[SeenRecord], list[Output]]:
    def copied(record: SeenRecord) -> list[Output]:
        return [] if record.value == POISON else [(job.out, record.key, record.value)]

    return copied


def values_replaced(batch: InputBatch) -> None:
    batch.values[:] = [b"changed"] * len(batch)


def values_cleared(batch: InputBatch) -> None:
    batch.values.clear()


def keys_reversed(batch: InputBatch) -> None:
    batch.keys.reverse()


def coordinates_changed(batch: InputBatch) -> None:
    batch.offsets[:] = [0] * len(batch)
    batch.partitions.clear()
    batch.topics[:] = ["elsewhere"] * len(batch)
    batch.headers.clear()
    batch.timestamps_ms.clear()


CHANGES = [values_replaced, values_cleared, keys_reversed, coordinates_changed]


def changing(job: FaultJob, change: Callable[[InputBatch], None]) -> Job:
    """A job whose batch function makes its outputs, changes what it was given, and raises where there is poison."""

    def changed(batch: InputBatch) -> Iterable[OutputBatch]:
        good = [(v, k) for v, k in zip(batch.values, batch.keys, strict=True) if v != POISON]
        is_poisoned = len(good) < len(batch)
        change(batch)
        if is_poisoned:
            raise ValueError
        return [OutputBatch(job.out, [v for v, _ in good], [k for _, k in good])]

    return Job(
        name=job.name, inputs=job.inputs, outputs=[job.out], dead_letters=job.dead, transform_batch=changed
    )


def _with_poison(bootstrap: str, topic: str) -> None:
    records = [
        PlainRecord(POISON if n == 41 else b"v%d" % n, b"k%d" % n, n % 2, (("n", b"%d" % n),))
        for n in range(120)
    ]
    produce_plain(bootstrap, topic, records)


@pytest.mark.parametrize("change", CHANGES)
def test_records_are_redone_as_they_came_when_a_batch_function_that_changed_them_raises(
    bootstrap: str, change: Callable[[InputBatch], None]
) -> None:
    job = fault_job(bootstrap, partitions=2)
    _with_poison(bootstrap, job.inputs[0])
    run = Running(
        changing(job, change), settings_for(bootstrap, poison__policy="dead-letter"), until_caught_up=True
    )
    run.wait()

    seen = assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], _copied(job))
    assert (seen.processed, seen.produced) == (120, 119)
    told = [event for event in run.events if isinstance(event, RecordDeadLettered)]
    assert [(event.partition, event.offset) for event in told] == [((job.inputs[0], 1), 20)]
    (letter,) = read_committed(bootstrap, job.dead)
    assert (letter.key, letter.value) == (b"k41", POISON)
    assert dict(letter.headers)["n"] == b"41"
    assert dict(letter.headers)["eos.deadletter.offset"] == b"20"


@pytest.mark.parametrize("change", CHANGES)
def test_poison_is_named_by_its_own_coordinates_when_a_batch_function_changed_them(
    bootstrap: str, change: Callable[[InputBatch], None]
) -> None:
    job = fault_job(bootstrap, partitions=2)
    _with_poison(bootstrap, job.inputs[0])
    run = Running(changing(job, change), settings_for(bootstrap, **LONG), until_caught_up=True)
    with pytest.raises(TransformError, match=rf"{job.inputs[0]}\[1\] offset 20:"):
        run.wait()
    offsets = committed_offsets(bootstrap, job.group, [(job.inputs[0], 0), (job.inputs[0], 1)])
    assert [offset for offset, _ in offsets.values()] == [0, 0]
