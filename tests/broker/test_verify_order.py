"""Order, place and held-back input on a real broker: damaged output of a plain producer is named, legal histories pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.job import Job
from eos.offsets import Partition
from eos.ops.verifier.placement import partition_of
from eos.ops.verifier.report import Difference, VerificationReport
from eos.ops.verifier.verify import verify
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.settings import Settings
from tests.conftest import NewTopic
from tests.support import by_hand
from tests.support.jobs_for_faults import Running, settings_for
from tests.support.observer import PlainRecord, produce_plain, read_committed, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

PLACES = 3
POISON = b"poison"
Outputs = Sequence[OutputRecord]


class House(NamedTuple):
    """A job with keyed outputs, outputs without a key, and dead letters; its output may also be written by hand."""

    bootstrap: str
    job: Job
    policy: str = "dead-letter"

    @property
    def source(self) -> str:
        return self.job.inputs[0]

    @property
    def keyed(self) -> str:
        return self.job.outputs[0]

    @property
    def bare(self) -> str:
        return self.job.outputs[1]

    def settings(self) -> Settings:
        return settings_for(self.bootstrap, poison__policy=self.policy)

    def verified(self, **options: object) -> VerificationReport:
        return verify(self.job, self.settings(), timeout_s=PATIENCE_S, **options)  # type: ignore[arg-type] # verify's own

    def load(self, count: int, *, poison: bool = False) -> list[InputRecord]:
        records = [
            PlainRecord(POISON if poison and i % 9 == 8 else b"v%d" % i, b"k%d" % (i % 40), i % 2)
            for i in range(count)
        ]
        return [InputRecord(*one) for one in produce_plain(self.bootstrap, self.source, records)]

    def outputs(self, records: Iterable[InputRecord]) -> list[OutputRecord]:
        transform = self.job.bound()
        return [out for one in records for out in transform.record(one)]

    def write(self, outputs: Outputs, offsets: Mapping[int, int], metadata: str = "") -> None:
        """One transaction of a plain producer: these outputs, where they say or where their keys belong."""
        producer = by_hand.producer(self.bootstrap)
        producer.begin_transaction()
        by_hand.write(producer, outputs)
        positions = {Partition(self.source, p): offset for p, offset in offsets.items()}
        by_hand.send_offsets(producer, self.bootstrap, self.job.name, positions, metadata)
        producer.commit_transaction(PATIENCE_S)

    def run(self) -> None:
        """The real loop, over all that is there."""
        running = Running(self.job, self.settings(), until_caught_up=True)
        try:
            running.wait()
        finally:
            running.ask_to_stop()


@pytest.fixture
def house(bootstrap: str, topic: NewTopic) -> House:
    source, keyed, bare, dead = topic("in", 2), topic("keyed", PLACES), topic("bare", 2), topic("dead", 1)

    def transform(record: InputRecord) -> Iterator[OutputRecord]:
        if record.value == POISON:
            raise ValueError(record.value)
        yield OutputRecord(keyed, record.value, record.key)
        yield OutputRecord(bare, b"saw %d" % record.offset)  # alike for both input partitions

    job = Job(
        name=unique("house"), inputs=[source], outputs=[keyed, bare], transform=transform, dead_letters=dead
    )
    return House(bootstrap, job)


def kinds(report: VerificationReport) -> set[str]:
    return {str(kind) for kind, count in report.differences.items() if count}


# --- damages ---------------------------------------------------------------------------------------------


def verified_after(house: House, damage: Callable[[list[OutputRecord]], Outputs]) -> VerificationReport:
    """The report on 20 input records whose outputs were changed before they were written; those without a key to one place."""
    records = house.load(20)
    outputs = [replace(out, partition=1) if out.key is None else out for out in house.outputs(records)]
    house.write(damage(outputs), {0: 10, 1: 10})
    return house.verified()


def test_outputs_as_they_should_be_pass(house: House) -> None:
    report = verified_after(house, lambda outputs: outputs)
    assert report.exactly_once, report
    assert dict(report.rows())["exactly once"] == "yes"
    assert dict(report.rows())["order"].startswith("compared")


def test_outputs_without_a_key_in_reversed_order_are_reordered(house: House) -> None:
    report = verified_after(
        house, lambda outs: [*(o for o in outs if o.key), *(o for o in outs[::-1] if not o.key)]
    )
    assert kinds(report) == {"reordered"}
    assert {one.partition.topic for one in report.examples} == {house.bare}


def test_outputs_of_different_keys_in_reversed_order_are_reordered(house: House) -> None:
    """Each key is there once, so nothing but the input partition gives them an order."""
    report = verified_after(
        house, lambda outs: [*(o for o in outs[::-1] if o.key), *(o for o in outs if not o.key)]
    )
    assert kinds(report) == {"reordered"}
    assert {one.partition.topic for one in report.examples} == {house.keyed}
    assert "made of" in report.examples[0].detail


def elsewhere(out: OutputRecord) -> OutputRecord:
    if out.key is None:
        return out
    return replace(out, partition=(partition_of(out.key, PLACES) + 1) % PLACES)


def test_records_in_partitions_that_their_keys_do_not_hash_to_are_misplaced(house: House) -> None:
    report = verified_after(house, lambda outs: [elsewhere(out) for out in outs])
    assert kinds(report) == {"misplaced"}
    assert report.differences[Difference.MISPLACED] == 20
    assert "it belongs in " in report.examples[0].detail


# --- legal histories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["dead-letter", "skip"])
def test_the_real_loop_passes_with_several_inputs_transactions_equal_records_and_poison(
    house: House, policy: str
) -> None:
    house = house._replace(policy=policy)
    house.load(400, poison=True)
    house.run()
    house.load(300, poison=True)  # the same values once more
    house.run()
    report = house.verified()
    assert report.exactly_once, [str(one) for one in report.examples]
    assert (report.records, report.complete) == (700, True)


def test_the_real_loop_with_a_batch_function_passes(house: House) -> None:
    def batches(batch: InputBatch) -> list[OutputBatch]:
        return [
            OutputBatch(house.keyed, batch.values, batch.keys),
            OutputBatch(house.bare, batch.values, timestamps_ms=[1_000 + o for o in batch.offsets]),
        ]

    job = Job(name=house.job.name, inputs=[house.source], outputs=house.job.outputs, transform_batch=batches)
    batching = house._replace(job=job, policy="stop")
    batching.load(1_000)
    batching.run()
    report = batching.verified()
    assert report.exactly_once, [str(one) for one in report.examples]


def test_a_batch_function_that_orders_its_outputs_itself_is_named_as_a_reason(house: House) -> None:
    def evens_first(batch: InputBatch) -> list[OutputBatch]:
        numbers = range(len(batch))
        return [
            OutputBatch(house.keyed, [batch.values[n] for n in numbers if batch.offsets[n] % 2 == odd])
            for odd in (0, 1)
        ]

    job = Job(name=house.job.name, inputs=[house.source], outputs=[house.keyed], transform_batch=evens_first)
    sorting = house._replace(job=job, policy="stop")
    sorting.load(200)
    sorting.run()
    report = sorting.verified()
    assert kinds(report) == {"reordered"}
    assert "orders them itself" in report.order
    assert sorting.verified(order=False).exactly_once


def test_outputs_of_spark_are_compared_in_order_only_where_asked(house: House) -> None:
    records = house.load(20)
    outputs = house.outputs(records)
    metadata = OffsetMetadata(OwnershipMode.PARTITION, f"{house.source}[0]", "5b1crun1t0")
    house.write(outputs[::-1], {0: 10, 1: 10}, str(metadata))
    report = house.verified()
    assert report.exactly_once
    assert "not compared: a Spark run" in report.order
    assert kinds(house.verified(order=True)) == {"reordered"}


def test_order_that_is_not_wanted_is_not_compared_and_the_report_says_so(house: House) -> None:
    records = house.load(20)
    house.write(house.outputs(records)[::-1], {0: 10, 1: 10})
    report = house.verified(order=False)
    assert report.exactly_once
    assert ("order", "not compared, as asked") in report.rows()


def test_a_topic_that_was_grown_is_right_once_that_is_said(house: House) -> None:
    records = house.load(40)
    house.write(house.outputs(records[:20]), {0: 10, 1: 10})
    admin = AdminClient({"bootstrap.servers": house.bootstrap})
    admin.create_partitions([NewPartitions(house.keyed, 2 * PLACES)])[house.keyed].result(PATIENCE_S)
    house.write(house.outputs(records[20:]), {0: 20, 1: 20})
    assert {one.partition for one in read_committed(house.bootstrap, house.keyed)} > {PLACES}
    report = house.verified()
    assert kinds(report) == {"misplaced"}
    assert f"--grown-from {house.keyed}={PLACES}" in report.examples[0].detail
    assert house.verified(grown_from={house.keyed: PLACES}).exactly_once


def test_offsets_that_were_counted_in_another_topic_of_this_name_are_a_problem(house: House) -> None:
    """Whatever is found: the records below them are not those that were processed."""
    records = house.load(20)
    metadata = OffsetMetadata(OwnershipMode.GROUP, "#0", topic="d3JvbmctdG9waWMtaWQtMQ")
    house.write(house.outputs(records), {0: 10, 1: 10}, str(metadata))
    report = house.verified()
    assert not any(report.differences.values())
    assert not report.exactly_once
    assert "deleted and created anew" in report.problems[0]


# --- input that is held back -----------------------------------------------------------------------------


@contextmanager
def open_transaction(bootstrap: str, topic: str, partition: int) -> Iterator[str]:
    """A transaction of another writer, with one record in the partition; aborted at the end of the block."""
    name = unique("another")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=partition)
    producer.flush(PATIENCE_S)
    try:
        yield name
    finally:
        producer.abort_transaction(PATIENCE_S)


def test_input_held_back_by_an_open_transaction_is_said_with_its_name(house: House) -> None:
    house.write(house.outputs(house.load(20)), {0: 10, 1: 10})
    with open_transaction(house.bootstrap, house.source, 1) as name:
        produce_plain(house.bootstrap, house.source, [PlainRecord(b"later", b"k", 1)] * 100)
        report = house.verified()
    (held_back,) = report.held_back
    assert (held_back.partition.number, held_back.lso, held_back.high_watermark) == (1, 10, 111)
    assert repr(name) in held_back.by
    assert report.exactly_once
    assert not report.complete
    rows = dict(report.rows())
    assert rows["held back"].startswith(f"101 offsets of {house.source}[1], from the LSO 10")
    assert rows["exactly once"].startswith("for what is committed")
    report = house.verified()  # aborted: the records behind it can be read now, and are not processed
    assert not report.held_back
    assert [one.waiting for one in report.inputs] == [0, 102]
    assert dict(report.rows())["not processed"].startswith(f"102 offsets of {house.source}[1]")


def test_a_committed_offset_behind_a_marker_alone_leaves_nothing_to_process(house: House) -> None:
    house.write(house.outputs(house.load(20)), {0: 10, 1: 10})
    with open_transaction(house.bootstrap, house.source, 1):
        pass
    report = house.verified()
    assert report.complete
    assert dict(report.rows())["exactly once"] == "yes"
