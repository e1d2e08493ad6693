"""A header whose name is not UTF-8: the record is poison like any other, if its headers are asked for."""

from __future__ import annotations

import pytest

from eos.errors import TransformError
from eos.exits import ExitCode, exit_code_of
from eos.job import Job
from eos.ops.verifier.report import Difference
from eos.ops.verifier.verify import verify
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from tests.support.jobs_for_faults import Running, settings_for
from tests.support.observer import SeenRecord, committed_offsets, create_topics, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.raw_headers import produce_with_names

pytestmark = pytest.mark.broker

BAD = (b"good", b"1"), (b"bad\xff", b"2"), (b"worse\xfe", b"3"), (b"last", b"4")
INPUT = [(b"0", [(b"a", b"A")]), (b"1", BAD), (b"2", []), (b"3", BAD[1:2]), (b"4", [(b"b", b"B")])]
GOOD = [(b"0", (("a", b"A"),)), (b"2", ()), (b"4", (("b", b"B"),))]
LEGIBLE = [
    (b"1", (("good", b"1"), (r"bad\xff", b"2"), ("eos.lost-name", b"3"), ("last", b"4"))),
    (b"3", ((r"bad\xff", b"2"),)),
]


class House:
    """A job that copies a topic with records of such headers among others, in one of four ways."""

    def __init__(self, bootstrap: str, way: str) -> None:
        self.bootstrap = bootstrap
        self.source, self.out, self.dead = unique("in"), unique("out"), unique("dead")
        create_topics(bootstrap, {self.source: 1, self.out: 1, self.dead: 1})
        produce_with_names(bootstrap, self.source, INPUT)
        shape = "transform_batch" if way.startswith("batch") else "transform"
        self.job = Job(
            name=unique("headers"),
            inputs=[self.source],
            outputs=[self.out],
            dead_letters=self.dead,
            **{shape: getattr(self, f"_{way}")},
        )

    def _record_looks(self, record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(self.out, record.value, headers=tuple(record.headers))]

    def _record_passes_on(self, record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(self.out, record.value, headers=record.headers)]

    def _record_never_looks(self, record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(self.out, record.value)]

    def _batch_looks(self, batch: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(self.out, batch.values, headers=batch.headers)]

    def _batch_passes_on(self, batch: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(self.out, batch.values, headers=[record.headers for record in batch])]

    def _batch_never_looks(self, batch: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(self.out, batch.values)]

    def run(self, policy: str) -> None:
        settings = settings_for(self.bootstrap, poison__policy=policy)
        Running(self.job, settings, until_caught_up=True).wait(PATIENCE_S)

    def verified(self, policy: str) -> bool:
        settings = settings_for(self.bootstrap, poison__policy=policy)
        return verify(self.job, settings, timeout_s=PATIENCE_S).exactly_once

    def offset(self) -> int | None:
        return committed_offsets(self.bootstrap, self.job.name, [(self.source, 0)])[self.source, 0][0]

    def outputs(self) -> list[tuple[bytes | None, object]]:
        return [(r.value, r.headers) for r in read_committed(self.bootstrap, self.out)]

    def dead_letters(self) -> list[SeenRecord]:
        return read_committed(self.bootstrap, self.dead)


ALL_THAT_LOOK = ["record_looks", "record_passes_on", "batch_looks", "batch_passes_on"]


@pytest.mark.parametrize("way", ALL_THAT_LOOK)
def test_unreadable_headers_stop_the_job_with_the_records_coordinates(bootstrap: str, way: str) -> None:
    house = House(bootstrap, way)
    for _ in range(2):
        with pytest.raises(
            TransformError, match=rf"{house.source}\[0\] offset 1: .* not UTF-8.*Fix: "
        ) as raised:
            house.run("stop")
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == (house.source, 0, 1)
        assert exit_code_of(raised.value) is ExitCode.POISON
    assert (house.offset(), house.outputs()) == (0, [])


@pytest.mark.parametrize("way", ALL_THAT_LOOK)
def test_unreadable_headers_are_dead_lettered_with_what_can_be_read_of_them(bootstrap: str, way: str) -> None:
    house = House(bootstrap, way)
    house.run("dead-letter")
    assert (house.offset(), house.outputs()) == (5, GOOD)
    dead = [(r.value, r.headers[:-4], dict(r.headers)["eos.deadletter.offset"]) for r in house.dead_letters()]
    assert dead == [(value, headers, value) for value, headers in LEGIBLE]
    assert house.verified("dead-letter")


@pytest.mark.parametrize("way", ["record_looks", "batch_looks"])
def test_unreadable_headers_are_skipped_where_poison_is(bootstrap: str, way: str) -> None:
    house = House(bootstrap, way)
    house.run("skip")
    assert (house.offset(), house.outputs(), house.dead_letters()) == (5, GOOD, [])
    assert house.verified("skip")


@pytest.mark.parametrize("way", ["record_never_looks", "batch_never_looks"])
def test_job_that_never_looks_at_headers_processes_the_record(bootstrap: str, way: str) -> None:
    house = House(bootstrap, way)
    house.run("stop")
    assert (house.offset(), [value for value, _ in house.outputs()]) == (5, [b"0", b"1", b"2", b"3", b"4"])
    assert house.verified("stop")


def test_foreign_output_with_unreadable_headers_is_unexpected_to_the_verification(bootstrap: str) -> None:
    """Even beside a dead letter that holds the same names, as text with escapes."""
    house = House(bootstrap, "record_looks")
    house.run("dead-letter")
    letter = house.dead_letters()[0]
    headers = [(n.encode(), v or b"") for n, v in letter.headers]
    headers[1] = (b"bad\xff", headers[1][1])
    produce_with_names(bootstrap, house.dead, [(letter.value or b"", headers)])
    report = verify(house.job, settings_for(bootstrap, poison__policy="dead-letter"), timeout_s=PATIENCE_S)
    assert not report.exactly_once
    assert report.differences[Difference.UNEXPECTED] == 1
