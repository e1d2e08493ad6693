"""Kafka forgets committed offsets, one by one or all of a group: what is gone is never taken for new."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError
from eos.events import PartitionsAssigned, TransactionCommitted
from eos.local import QUICK_START, LocalKafka
from eos.settings import Settings
from eos.spark.plan import Commit, plan_input
from eos.stamps import OwnershipMode, Stamp
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, committed_offsets, create_topics, produce_plain, unique

pytestmark = pytest.mark.broker

JARS = Path(__file__).parents[2] / ".eos/jars"
DAY_S = 86_400
RETENTION_S = 60  # a minute is the least that a broker can be set to
FORGOTTEN_S = RETENTION_S + 15  # it looks every second


def three_partitions(bootstrap: str) -> FaultJob:
    """With a record in each."""
    job = fault_job(bootstrap, partitions=3)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"%d" % p, partition=p) for p in range(3)])
    return job


def by_partition(bootstrap: str, job: FaultJob, **changes: object) -> Settings:
    partitions = [f"{job.inputs[0]}:{p}" for p in range(3)]
    return settings_for(bootstrap, ownership__mode="partition", ownership__partitions=partitions, **changes)


def store(bootstrap: str, job: FaultJob, offsets: Mapping[int, int], *, days_ago: float = 0) -> None:
    """As a run of the job in partition mode has left it, so long ago."""
    source = job.inputs[0]
    at_s = int(time.time() - days_ago * DAY_S)
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
    stamps = {p: Stamp(OwnershipMode.PARTITION, f"{source}[{p}]", at_s=at_s) for p in offsets}
    client.commit(
        offsets=[TopicPartition(source, p, offset, str(stamps[p])) for p, offset in offsets.items()],
        asynchronous=False,
    )
    client.close()


def offsets_of(bootstrap: str, job: FaultJob) -> list[int | None]:
    found = committed_offsets(bootstrap, job.group, [(job.inputs[0], p) for p in range(3)])
    return [offset for offset, _ in found.values()]


@pytest.mark.parametrize("who", ["loop", "batch"])
@pytest.mark.parametrize(
    ("stored", "days_ago", "gone"),
    [({1: 1, 2: 1}, 0, 0), ({0: 1, 2: 1}, 0, 1), ({0: 1, 1: 1}, 6, 2)],
    ids=["below another", "between others", "above all, after a long rest"],
)
def test_partition_whose_offset_alone_was_forgotten_is_not_processed_again(
    bootstrap: str, who: str, stored: dict[int, int], days_ago: float, gone: int
) -> None:
    job = three_partitions(bootstrap)
    store(bootstrap, job, stored, days_ago=days_ago)
    before = offsets_of(bootstrap, job)
    settings = by_partition(bootstrap, job)

    with pytest.raises(ConfigError, match=rf"{job.inputs[0]}\[{gone}\]: .*Kafka has forgotten it.*Fix: "):
        if who == "loop":
            run_to_end(job, settings)
        else:
            plan_input(settings, job.inputs, app=job.name, commit="partition")

    assert offsets_of(bootstrap, job) == before


@pytest.mark.parametrize("who", ["loop", "batch"])
def test_new_partition_begins_at_its_beginning_and_never_looks_forgotten(bootstrap: str, who: str) -> None:
    """Two partitions are added; only the second one's records are processed before everything stops."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1}, days_ago=1)
    settings = by_partition(bootstrap, job)

    if who == "loop":
        run_to_end(job, settings)
        assert offsets_of(bootstrap, job) == [1, 1, 1]
    else:
        found = plan_input(settings, job.inputs, app=job.name, commit="partition")
        assert [(one.start, one.end) for one in found] == [(0, 1), (0, 1)]
        assert offsets_of(bootstrap, job) == [1, 0, 0]
    run_to_end(job, settings)
    assert offsets_of(bootstrap, job) == [1, 1, 1]


def test_partition_that_nobody_ever_wrote_to_has_no_offset_to_forget(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=3)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"2", partition=2)])
    store(bootstrap, job, {2: 0}, days_ago=6)
    run_to_end(job, by_partition(bootstrap, job))
    assert offsets_of(bootstrap, job) == [0, 0, 1]


def test_new_partition_that_was_emptied_before_its_first_start_is_caught_up(bootstrap: str) -> None:
    """Its position moves past nothing, so its first commit is the only sign that it is done."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1, 1: 1})
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(job.inputs[0], 2, 1)]).values():
        future.result(20)
    run_to_end(job, by_partition(bootstrap, job), timeout_s=20)
    assert offsets_of(bootstrap, job) == [1, 1, 1]


@pytest.mark.parametrize("who", ["loop", "batch", "batch in one transaction"])
def test_old_offset_of_an_idle_partition_is_committed_again_at_every_start(bootstrap: str, who: str) -> None:
    """A process that is restarted more often than daily, or runs nightly, would never get round to it."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1, 1: 1, 2: 1}, days_ago=2)
    settings = by_partition(bootstrap, job, ownership__adopt_offsets=who == "batch in one transaction")
    if who == "loop":
        run_to_end(job, settings)
    else:
        commit: Commit = "partition" if who == "batch" else "batch"
        assert not plan_input(settings, job.inputs, app=job.name, commit=commit).ranges

    found = committed_offsets(bootstrap, job.group, [(job.inputs[0], p) for p in range(3)])
    for offset, metadata in found.values():
        stamp = Stamp.parse(metadata)
        assert stamp is not None
        assert (offset, time.time() - stamp.at_s < DAY_S) == (1, True)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory, kafka: LocalKafka) -> Iterator[str]:
    """A broker that forgets offsets after a minute."""
    del kafka  # its jars are there by now
    properties = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with LocalKafka(
        tmp_path_factory.mktemp("forgetful"),
        jars=JARS,
        jvm_options=QUICK_START,
        properties=properties,
        heap_mb=256,
    ) as broker:
        yield broker.bootstrap_servers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_broker_forgets_offsets_one_by_one_but_all_of_a_group_that_had_members(forgetful: str) -> None:
    """What `eos.expiry` and `eos.admission` rest on. An offset is committed again after 40 s, and looked at after 75."""
    source = unique("in")
    create_topics(forgetful, {source: 2})
    groups = {}
    for name, options in (("simple", None), ("classic", {}), ("KIP-848", {"group.protocol": "consumer"})):
        group = unique("group")
        base = {
            "bootstrap.servers": forgetful,
            "group.id": group,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        if options is not None:
            member = Consumer(base | options)
            member.subscribe([source])
            deadline = time.monotonic() + 20
            while not member.assignment() and time.monotonic() < deadline:
                member.poll(0.1)
            member.close()
        groups[name] = (group, Consumer(base))
        groups[name][1].commit(offsets=[TopicPartition(source, p, 5) for p in range(2)], asynchronous=False)
    time.sleep(RETENTION_S - 20)
    for _, client in groups.values():
        client.commit(offsets=[TopicPartition(source, 1, 6)], asynchronous=False)
    time.sleep(FORGOTTEN_S - RETENTION_S + 20)

    found = {
        name: [
            offset for offset, _ in committed_offsets(forgetful, group, [(source, 0), (source, 1)]).values()
        ]
        for name, (group, _) in groups.items()
    }
    for _, client in groups.values():
        client.close()
    assert found == {"simple": [None, 6], "classic": [None, None], "KIP-848": [None, 6]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_idle_partitions_keep_their_offsets_while_the_job_runs(forgetful: str) -> None:
    job = three_partitions(forgetful)
    settings = by_partition(forgetful, job, input__recommit_idle_after_s=15)
    with in_thread(job, settings) as run:
        run.told(PartitionsAssigned, count=3)
        run.told(TransactionCommitted, count=3)
        time.sleep(FORGOTTEN_S)
        assert offsets_of(forgetful, job) == [1, 1, 1]
        run.stop()
    assert job.check(forgetful).processed == 3
