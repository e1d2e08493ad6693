"""assert_exactly_once passes what is right and fails, with the report, what was damaged on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.errors import UnavailableError
from eos.job import Job
from eos.ops.verifier.placement import partition_of
from eos.records import InputRecord, OutputRecord
from eos.testing import KafkaCluster, assert_exactly_once
from eos.testing.cluster import unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

COUNT = 20
PLACES = 3
KEY = b"k"
Write = Callable[[Sequence[OutputRecord]], Sequence[OutputRecord]]


class House(NamedTuple):
    """A job whose output is written by hand, right or wrong: two outputs per record."""

    cluster: KafkaCluster
    job: Job

    def process(self, damage: Write = lambda outputs: outputs, *, commit: bool = True) -> Producer:
        """One transaction with the outputs of all input, as ``damage`` changes them, and with its offsets."""
        transform = self.job.bound()
        outputs = [
            out for one in self.cluster.read_committed(*self.job.inputs) for out in transform.record(one)
        ]
        client = {"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0}
        producer = Producer(client | {"transactional.id": unique("by-hand"), "partitioner": "murmur2_random"})
        group = Consumer(client | {"group.id": self.cluster.group_of(self.job)})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for out in damage(outputs):
            producer.produce(out.topic, out.value, out.key, -1 if out.partition is None else out.partition)
        producer.send_offsets_to_transaction(
            [TopicPartition(self.job.inputs[0], partition_of(KEY, PLACES), COUNT)],
            group.consumer_group_metadata(),
            PATIENCE_S,
        )
        producer.flush(PATIENCE_S)
        group.close()
        if commit:
            producer.commit_transaction(PATIENCE_S)
        return producer


def _elsewhere(out: OutputRecord) -> OutputRecord:
    return replace(out, partition=(partition_of(KEY, PLACES) + 1) % PLACES)


@pytest.fixture
def house(eos_cluster: KafkaCluster) -> House:
    source, big, small = unique("in"), unique("big"), unique("small")

    def both(record: InputRecord) -> list[OutputRecord]:
        value = record.value or b""
        return [OutputRecord(big, value.upper(), record.key), OutputRecord(small, value.lower(), record.key)]

    job = Job(name="both", inputs=[source], outputs=[big, small], transform=both)
    eos_cluster.create_topics(job, partitions=PLACES)
    eos_cluster.produce(source, [OutputRecord(source, b"Value%d" % i, KEY) for i in range(COUNT)])
    return House(eos_cluster, job)


def test_exact_output_passes_and_says_what_was_compared(house: House) -> None:
    house.process()
    report = assert_exactly_once(house.job, house.cluster, records=COUNT)
    assert (report.records, report.found) == (COUNT, 2 * COUNT)


def test_the_settings_of_the_run_are_as_good_as_the_cluster(house: House) -> None:
    house.process()
    assert_exactly_once(house.job, house.cluster.settings(house.job))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda outputs: outputs[2:], r"lost +2\n"),
        (lambda outputs: outputs[1:], r"torn +1\n"),
        (lambda outputs: [*outputs, outputs[0]], r"duplicated +1\n"),
        (lambda outputs: [*outputs, replace(outputs[0], value=b"else")], r"unexpected +1\n"),
        (lambda outputs: [*outputs[4:], *outputs[:4]], r"reordered +[1-9]"),
        (lambda outputs: outputs[::-1], r"reordered +[1-9]"),
        (lambda outputs: [_elsewhere(one) for one in outputs], r"misplaced +40\n"),
    ],
    ids=["lost", "torn", "duplicated", "unexpected", "turned", "reversed", "misplaced"],
)
def test_damaged_output_fails_and_the_report_names_the_damage(house: House, damage: Write, told: str) -> None:
    house.process(damage)
    with pytest.raises(AssertionError, match=told) as failed:
        assert_exactly_once(house.job, house.cluster)
    assert f"job 'both' is not exactly-once:\n  input {house.job.inputs[0]}[0]" in str(failed.value)
    assert "exactly once" in str(failed.value)
    assert "@" in str(failed.value), "an example says where to look"


def test_offsets_without_output_fail(house: House) -> None:
    """As after a commit of offsets outside of the transaction."""
    house.process(lambda _: [])
    with pytest.raises(AssertionError, match=rf"lost +{2 * COUNT}\n"):
        assert_exactly_once(house.job, house.cluster)


def test_output_of_an_aborted_transaction_does_not_count(house: House) -> None:
    house.process(commit=False).abort_transaction(PATIENCE_S)
    house.process()
    assert_exactly_once(house.job, house.cluster, records=COUNT)


def test_a_job_that_has_processed_nothing_fails(house: House) -> None:
    """Nothing compared with nothing is equal, and proves nothing."""
    with pytest.raises(AssertionError, match="'both' has processed no record, so nothing was compared"):
        assert_exactly_once(house.job, house.cluster)
    assert_exactly_once(house.job, house.cluster, records=0)


def test_a_job_that_has_processed_another_number_of_records_fails(house: House) -> None:
    house.process()
    with pytest.raises(AssertionError, match=f"has processed {COUNT} records, not {COUNT + 1}"):
        assert_exactly_once(house.job, house.cluster, records=COUNT + 1)


def test_an_open_transaction_is_waited_for_and_named(house: House) -> None:
    producer = house.process(commit=False)
    with pytest.raises(UnavailableError):
        assert_exactly_once(house.job, house.cluster, timeout_s=2)
    producer.commit_transaction(PATIENCE_S)
    assert_exactly_once(house.job, house.cluster, records=COUNT)
