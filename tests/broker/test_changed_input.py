"""The input changes: topics or partitions come, or a topic is deleted, between two starts or while the job runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, the package only lacks __all__
    AdminClient,
    NewPartitions,
)

from eos.core.producer import ShardProducer
from eos.errors import AbortableError, ConfigError
from eos.events import PartitionsAssigned, SessionOpened, ShardsOwned, TransactionCommitted
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import OrdinalShard
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import create_topics, delete_topic, load, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

SESSION_MS = 6_000
SOON: Mapping[str, object] = {"topic.metadata.refresh.interval.ms": 1_000}


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(PATIENCE_S)


def test_restart_within_the_session_reads_partitions_that_were_added(bootstrap: str) -> None:
    """A static member would get its old assignment without a rebalance, and a catching-up run would wait for ever."""
    job = fault_job(bootstrap)
    load(bootstrap, job.inputs[0], 100, "a", range(2))
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    run_to_end(job, settings)
    grow(bootstrap, job.inputs[0], 4)
    load(bootstrap, job.inputs[0], 100, "b", range(4))

    run_to_end(job, settings)

    assert job.check(bootstrap).processed == 200


def test_partition_whose_first_commit_was_aborted_is_not_taken_for_one_whose_offset_has_expired(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner counted it in the commits of other partitions, and it went to another one."""
    job = fault_job(bootstrap)
    load(bootstrap, job.inputs[0], 100, "a", range(2))
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    run_to_end(job, settings)
    grow(bootstrap, job.inputs[0], 3)
    load(bootstrap, job.inputs[0], 30, "b", range(3))
    old, new = (Partition(job.inputs[0], number) for number in (0, 2))

    member = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
    group = GroupMetadata(job.group, member.consumer_group_metadata())
    with ShardProducer(settings, OrdinalShard(job.name, job.group, 1)) as owner:
        begins = {old: owner.take_over(job.group, [old, new])[old].offset}
        with monkeypatch.context() as patched, pytest.raises(AbortableError), owner.transaction() as txn:
            patched.setattr(owner.topics, "last_look", refuse)
            txn.add_offsets(OffsetVector(begins | {new: 0}), group)
        with owner.transaction() as txn:
            txn.add_offsets(OffsetVector(begins), group)
    member.close()

    run_to_end(job, settings)
    assert job.check(bootstrap).processed == 130


def refuse() -> None:
    msg = "the look before the commit"
    raise AbortableError(msg)


def test_restart_within_the_session_reads_a_topic_that_was_added(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    load(bootstrap, job.inputs[0], 100, "a", range(2))
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    run_to_end(job, settings)
    second = unique("in")
    create_topics(bootstrap, {second: 2}, 1)
    load(bootstrap, second, 100, "b", range(2))
    more = FaultJob((*job.inputs, second), job.out, job.audit, job.dead, job.name)

    run_to_end(more, settings)

    assert more.check(bootstrap).processed == 200


def test_running_job_reads_partitions_that_were_added_after_the_next_refresh(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    with in_thread(job, settings_for(bootstrap, kafka__consumer=SOON)) as run:
        run.told(PartitionsAssigned)
        grow(bootstrap, job.inputs[0], 4)
        load(bootstrap, job.inputs[0], 100, "a", range(4))
        deadline = time.monotonic() + PATIENCE_S
        while sum(e.records_in for e in run.events if isinstance(e, TransactionCommitted)) < 100:
            assert time.monotonic() < deadline, run.events[-3:]
            time.sleep(0.05)
        run.stop()
    assert job.check(bootstrap).processed == 100


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_deleted_input_topic_ends_the_job_with_its_name(
    bootstrap: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "eos.watches.input_topics._ASK_EVERY_S", 3.0
    )  # of 30 s, which is the bound under assign()
    job = fault_job(bootstrap, inputs=2)
    for topic in job.inputs:
        load(bootstrap, topic, 100, "a", range(2))
    owned: dict[str, object] = {"ownership__mode": mode}
    if mode == "partition":
        owned |= {"ownership__ordinal": 0, "ownership__instances": 1}
    with in_thread(job, settings_for(bootstrap, kafka__consumer=SOON, **owned)) as run:
        run.told(SessionOpened, count=4 if mode == "partition" else 1)
        run.told(TransactionCommitted)
        delete_topic(bootstrap, job.inputs[0])
        with pytest.raises(ConfigError, match=rf"deleted while the job ran.*{job.inputs[0]}"):
            run.wait(PATIENCE_S)


def by_instances(bootstrap: str, instances: int, ordinal: int) -> Settings:
    return settings_for(
        bootstrap, ownership__mode="partition", ownership__instances=instances, ownership__ordinal=ordinal
    )


def wait_records(runs: Sequence[Running], count: int, timeout_s: float = PATIENCE_S) -> None:
    """Until so many records are committed by all of them together."""
    deadline = time.monotonic() + timeout_s
    while (
        sum(e.records_in for run in runs for e in run.events if isinstance(e, TransactionCommitted)) < count
    ):
        assert time.monotonic() < deadline, [run.events[-3:] for run in runs]
        time.sleep(0.05)


def test_instances_take_up_partitions_that_were_added_each_its_own(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also an instance that had none before: it waits for some."""
    monkeypatch.setattr("eos.runner.worker._LOOK_EVERY_S", 1.0)  # of 30 s
    job = fault_job(bootstrap)
    source = job.inputs[0]
    load(bootstrap, source, 100, "a", range(2))
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        runs = [stack.enter_context(in_thread(job, by_instances(bootstrap, 3, n))) for n in range(3)]
        wait_records(runs, 100)
        assert "owns no partition" in caplog.text
        grow(bootstrap, source, 5)
        load(bootstrap, source, 100, "b", range(5))
        wait_records(runs, 200)
        for run in runs:
            run.stop()
    owned = [{e.transactional_ids for e in run.events if isinstance(e, ShardsOwned)} for run in runs]
    by_number = [f"{job.name}.{job.group}.p.{source}.{n}" for n in range(5)]
    assert max(owned[0], key=len) == (by_number[0], by_number[3])
    assert max(owned[1], key=len) == (by_number[1], by_number[4])
    assert max(owned[2], key=len) == (by_number[2],)
    assert f"takes up {source}[4] (p mod 3 = 1)" in caplog.text
    assert job.check(bootstrap).processed == 200


def test_instance_that_would_get_more_added_partitions_than_it_may_have_ends_and_says_so(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has clients of its own, which would grow with the input; what it had done is committed."""
    monkeypatch.setattr("eos.runner.worker._LOOK_EVERY_S", 0.3)
    job = fault_job(bootstrap)
    source = job.inputs[0]
    load(bootstrap, source, 20, "a", range(2))
    limited = settings_for(
        bootstrap,
        ownership__mode="partition",
        ownership__instances=1,
        ownership__ordinal=0,
        ownership__max_partitions=3,
    )
    with in_thread(job, limited) as run:
        wait_records([run], 20)
        grow(bootstrap, source, 4)
        with pytest.raises(ConfigError, match=r"has 4 partitions, and ownership.max_partitions = 3"):
            run.wait(PATIENCE_S)
    assert job.check(bootstrap).processed == 20


def test_instance_with_a_list_says_once_which_added_partitions_it_does_not_read(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eos.runner.worker._LOOK_EVERY_S", 0.3)
    job = fault_job(bootstrap)
    source = job.inputs[0]
    settings = settings_for(bootstrap, ownership__mode="partition", ownership__partitions=[f"{source}:1"])
    with in_thread(job, settings) as run, caplog.at_level(logging.WARNING):
        run.told(PartitionsAssigned)
        grow(bootstrap, source, 3)
        deadline = time.monotonic() + PATIENCE_S
        while f"input partitions were added: {source}[2]" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            time.sleep(0.05)
        looks = len(run.told(ShardsOwned))
        run.told(ShardsOwned, count=looks + 3)
        run.stop()
    assert caplog.text.count("were added") == 1
    assert "Fix: add each to the list of one instance" in caplog.text


@pytest.mark.parametrize("until_caught_up", [True, False])
def test_instance_that_owns_no_partition_says_so_and_ends_only_if_it_is_to_catch_up(
    bootstrap: str, caplog: pytest.LogCaptureFixture, until_caught_up: bool
) -> None:
    job = fault_job(bootstrap)
    with (
        caplog.at_level(logging.WARNING),
        in_thread(job, by_instances(bootstrap, 3, 2), until_caught_up=until_caught_up) as run,
    ):
        if until_caught_up:
            run.wait(PATIENCE_S)
        else:
            run.told(ShardsOwned)
            with pytest.raises(TimeoutError):
                run.wait(1)
            run.stop()
    assert "owns no partition" in caplog.text
    assert "there are 3 of them (ownership.instances x workers.count), its number is 2" in caplog.text
