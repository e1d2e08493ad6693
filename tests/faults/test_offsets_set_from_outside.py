"""Somebody sets the group's offsets while the job runs: nothing is processed twice or skipped, and it has no effect."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from eos import FencedError
from tests.support.jobs_for_faults import fault_job, in_thread, settings_for
from tests.support.observer import committed_offsets, load

pytestmark = pytest.mark.broker

OWNED: dict[str, dict[str, object]] = {
    "group": {"ownership__mode": "group"},
    "partition": {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
}


def set_offset(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """As kafka-consumer-groups.sh --reset-offsets does."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_offsets_that_are_set_while_the_job_runs_are_refused_or_overwritten_by_its_next_commit(
    bootstrap: str, mode: str
) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, 100)
    with in_thread(job, settings_for(bootstrap, **OWNED[mode])) as run:
        run.wait_for_commits(100)
        if mode == "group":  # Kafka knows its members
            with pytest.raises(KafkaException) as refused:
                set_offset(bootstrap, job.group, source, 5)
            assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        else:
            set_offset(bootstrap, job.group, source, 5)
            assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == 5
        load(bootstrap, source, 50, "more")
        run.wait_for_commits(150)
    assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == 150
    assert job.check(bootstrap).processed == 150


def test_an_owner_that_reopens_its_producer_before_it_commits_again_ends_and_says_that_the_offset_was_set(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, 100)
    settings = settings_for(bootstrap, transaction__fence_every="transaction", **OWNED["partition"])
    with in_thread(job, settings) as run:
        run.wait_for_commits(100)
        set_offset(bootstrap, job.group, source, 5)
        load(bootstrap, source, 50, "more")
        with pytest.raises(
            FencedError,
            match=r"stored offset 5 \(no metadata\).*another program has set it.*Fix: stop the job",
        ):
            run.wait()
    assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == 5  # what was set stands
