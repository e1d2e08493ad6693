"""The input changes: topics or partitions come, or a topic is deleted, between two starts or while the job runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, the package only lacks __all__
    AdminClient,
    NewPartitions,
)

from eos.errors import ConfigError
from eos.events import PartitionsAssigned, SessionOpened, TransactionCommitted
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, create_topics, produce_plain, unique

pytestmark = pytest.mark.broker

SESSION_MS = 2_000
SOON: Mapping[str, object] = {"topic.metadata.refresh.interval.ms": 1_000}


def load(bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
    values = [PlainRecord(f"{prefix}{i}".encode(), partition=i % partitions) for i in range(100)]
    produce_plain(bootstrap, topic, values)


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(10)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_topics([topic]).values():
        done.result(10)


def test_restart_within_the_session_reads_partitions_that_were_added(bootstrap: str) -> None:
    """A static member would get its old assignment without a rebalance, and a catching-up run would wait for ever."""
    job = fault_job(bootstrap)
    load(bootstrap, job.inputs[0], 2, "a")
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    run_to_end(job, settings)
    grow(bootstrap, job.inputs[0], 4)
    load(bootstrap, job.inputs[0], 4, "b")

    run_to_end(job, settings, timeout_s=20)

    assert job.check(bootstrap).processed == 200


def test_restart_within_the_session_reads_a_topic_that_was_added(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    load(bootstrap, job.inputs[0], 2, "a")
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    run_to_end(job, settings)
    second = unique("in")
    create_topics(bootstrap, {second: 2}, 1)
    load(bootstrap, second, 2, "b")
    more = FaultJob((*job.inputs, second), job.out, job.audit, job.dead, job.name)

    run_to_end(more, settings, timeout_s=20)

    assert more.check(bootstrap).processed == 200


def test_running_job_reads_partitions_that_were_added_after_the_next_refresh(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    with in_thread(job, settings_for(bootstrap, kafka__consumer=SOON)) as run:
        run.told(PartitionsAssigned)
        grow(bootstrap, job.inputs[0], 4)
        load(bootstrap, job.inputs[0], 4, "a")
        deadline = time.monotonic() + 20
        while sum(e.records_in for e in run.events if isinstance(e, TransactionCommitted)) < 100:
            assert time.monotonic() < deadline, run.events[-3:]
            time.sleep(0.05)
        run.stop()
    assert job.check(bootstrap).processed == 100


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_deleted_input_topic_ends_the_job_with_its_name(
    bootstrap: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eos.consumer._LOOK_EVERY_S", 3.0)  # of 30 s, which is the bound under assign()
    job = fault_job(bootstrap, inputs=2)
    for topic in job.inputs:
        load(bootstrap, topic, 2, "a")
    owned: dict[str, object] = {"ownership__mode": mode}
    if mode == "partition":
        owned |= {"ownership__ordinal": 0, "ownership__instances": 1}
    with in_thread(job, settings_for(bootstrap, kafka__consumer=SOON, **owned)) as run:
        run.told(SessionOpened, count=4 if mode == "partition" else 1)
        run.told(TransactionCommitted)
        delete(bootstrap, job.inputs[0])
        with pytest.raises(ConfigError, match=rf"deleted while the job ran.*{job.inputs[0]}"):
            run.wait(25)


def test_instance_that_owns_no_partition_says_so_and_ends(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = fault_job(bootstrap)
    settings = settings_for(
        bootstrap, ownership__mode="partition", ownership__instances=3, ownership__ordinal=2
    )
    with caplog.at_level(logging.WARNING), in_thread(job, settings) as run:
        run.wait(10)
    assert "owns no partition" in caplog.text
    assert "ownership.instances is 3" in caplog.text
