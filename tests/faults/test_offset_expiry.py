"""Kafka forgets committed offsets, one by one or all of a group: what is gone is never taken for new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from eos.errors import ConfigError, OffsetGapError
from eos.events import PartitionsAssigned, TransactionCommitted
from eos.group.metadata import OwnershipMode
from eos.local import LocalKafka
from eos.ops.check.preflight import preflight
from eos.spark.batch.planning import plan_input
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, committed_offsets, create_topics, produce_plain, unique
from tests.support.offset_ages import by_partition, offsets_of, store, store_plain, three_partitions
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

RETENTION_S = 60  # a minute is the least that a broker can be set to
FORGOTTEN_S = RETENTION_S + 15  # it looks every second


@pytest.mark.parametrize("who", ["loop", "batch"])
@pytest.mark.parametrize(
    ("stored", "days_ago", "had", "gone"),
    [({1: 1, 2: 1}, 0, 3, 0), ({0: 1, 2: 1}, 0, 3, 1), ({0: 1, 1: 1}, 0, 3, 2), ({0: 1, 1: 1}, 6, 2, 2)],
    ids=["below others", "between others", "above all", "above all, after a long rest"],
)
def test_partition_whose_offset_alone_was_forgotten_is_not_processed_again(
    bootstrap: str, who: str, stored: dict[int, int], days_ago: float, had: int, gone: int
) -> None:
    job = three_partitions(bootstrap)
    store(bootstrap, job, stored, days_ago=days_ago, had=had)
    before = offsets_of(bootstrap, job)
    settings = by_partition(bootstrap, job)

    with pytest.raises(ConfigError, match=rf"{job.inputs[0]}\[{gone}\]: .*the offset has expired.*Fix: "):
        if who == "loop":
            run_to_end(job, settings)
        else:
            plan_input(settings, job.inputs, app=job.name, commit="partition")

    assert offsets_of(bootstrap, job) == before


def test_long_rest_is_remembered_by_those_who_begin_first(bootstrap: str) -> None:
    """Their own commits make the topic's newest offset young."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1, 1: 1}, days_ago=6, had=2)
    run_to_end(job, by_partition(bootstrap, job, 0))
    with pytest.raises(ConfigError, match=rf"{job.inputs[0]}\[2\]: .*the offset has expired"):
        run_to_end(job, by_partition(bootstrap, job, 2))
    assert offsets_of(bootstrap, job) == [1, 1, None]


@pytest.mark.parametrize("who", ["loop", "batch"])
def test_new_partition_begins_at_its_beginning_and_never_looks_forgotten(bootstrap: str, who: str) -> None:
    """Two partitions are added; only the second one's records are processed before everything stops."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1}, days_ago=1, had=1)
    settings = by_partition(bootstrap, job)

    if who == "loop":
        run_to_end(job, settings)
        assert offsets_of(bootstrap, job) == [1, 1, 1]
    else:
        found = plan_input(settings, job.inputs, app=job.name, commit="partition")
        assert [(one.start, one.end) for one in found] == [(0, 1), (0, 1)]
        assert offsets_of(bootstrap, job) == [1, 0, 0]
        stored = committed_offsets(bootstrap, job.group, [(job.inputs[0], 2)])[job.inputs[0], 2][1]
        assert " had=3 " in stored, "what its own offset counts is all that tells, once that is gone"
    run_to_end(job, settings)
    assert offsets_of(bootstrap, job) == [1, 1, 1]


def test_partition_that_nobody_ever_wrote_to_has_no_offset_to_forget(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=3)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"2", partition=2)])
    store(bootstrap, job, {2: 0}, days_ago=6, had=3)
    run_to_end(job, by_partition(bootstrap, job))
    assert offsets_of(bootstrap, job) == [0, 0, 1]


@pytest.mark.parametrize("until", [1, 2], ids=["in part", "all"])
@pytest.mark.parametrize("who", ["loop", "own loop", "member", "batch"])
def test_new_partition_whose_first_records_were_deleted_before_they_were_processed_is_refused(
    bootstrap: str, who: str, until: int
) -> None:
    """Nobody chose where to start in it: records that went before its owner came would be skipped without a word."""
    job = replace(three_partitions(bootstrap), own_loop=who == "own loop")
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"2 more", partition=2)])
    is_member = who in ("member", "own loop")
    settings = settings_for(bootstrap) if is_member else by_partition(bootstrap, job)
    mode = OwnershipMode.GROUP if is_member else OwnershipMode.PARTITION
    store(bootstrap, job, {0: 1, 1: 1}, mode=mode, had=2)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(job.inputs[0], 2, until)]).values():
        future.result(PATIENCE_S)
    with pytest.raises(OffsetGapError, match=rf"\[2\]: it is new to the group.*begins at {until}"):
        if who == "batch":
            plan_input(settings, job.inputs, app=job.name, commit="partition")
        else:
            run_to_end(job, settings)
    assert offsets_of(bootstrap, job) == [1, 1, None]


@pytest.mark.parametrize("who", ["loop", "batch"])
def test_forgotten_offset_is_refused_beside_a_topic_that_starts_anew(bootstrap: str, who: str) -> None:
    job = three_partitions(bootstrap, inputs=2)
    store(bootstrap, job, {1: 1, 2: 1})
    settings = by_partition(bootstrap, job)
    with pytest.raises(ConfigError, match="the offset has expired"):
        if who == "loop":
            run_to_end(job, settings)
        else:
            plan_input(settings, job.inputs, app=job.name, commit="partition")
    assert offsets_of(bootstrap, job) == [None, 1, 1]


def test_offset_that_is_missing_beside_those_that_somebody_has_set_is_refused(bootstrap: str) -> None:
    """Nothing tells how old they are, or whether there were more."""
    job = three_partitions(bootstrap)
    store_plain(bootstrap, job, {0: (1, ""), 1: (1, "eos1 of some other form")})
    # That partition's owner alone: those of the others are refused for the offsets that are there.
    with pytest.raises(ConfigError, match=rf"{job.inputs[0]}\[2\]: .*the offset has expired"):
        run_to_end(job, by_partition(bootstrap, job, 2))


def test_forgotten_offset_of_somebody_elses_partition_is_not_in_the_way(bootstrap: str) -> None:
    """Of partitions that nobody owns, the offsets of the start policy are gone after 7 days."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {1: 1, 2: 0})
    run_to_end(job, by_partition(bootstrap, job, 1, 2))
    assert offsets_of(bootstrap, job) == [None, 1, 1]
    with pytest.raises(ConfigError, match="the offset has expired"):
        run_to_end(job, by_partition(bootstrap, job, 0))


def test_new_partitions_are_taken_up_in_any_order(bootstrap: str) -> None:
    """A rolling restart begins with the highest ordinal; then the lower new partition has a neighbour and no offset."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, {0: 1}, had=1)
    run_to_end(job, by_partition(bootstrap, job, 2))
    assert offsets_of(bootstrap, job) == [1, None, 1]
    run_to_end(job, by_partition(bootstrap, job, 0, 1))
    assert offsets_of(bootstrap, job) == [1, 1, 1]


def test_classic_group_that_has_rested_takes_a_new_partition_up(bootstrap: str) -> None:
    """Such a group loses all of its offsets at once, so one that is missing alone is new."""
    job = three_partitions(bootstrap)
    settings = settings_for(bootstrap, ownership__static_membership=False)
    run_to_end(job, settings)
    store(bootstrap, job, dict.fromkeys(range(3), 1), days_ago=6, mode=OwnershipMode.GROUP)
    add_partition(bootstrap, job)
    run_to_end(job, settings)
    assert offsets_of(bootstrap, job, 4) == [1, 1, 1, 1]


def add_partition(bootstrap: str, job: FaultJob) -> None:
    """With a record in it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_partitions([NewPartitions(job.inputs[0], 4)]).values():
        future.result(PATIENCE_S)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"3", partition=3)])


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory, kafka: LocalKafka) -> Iterator[str]:
    """A broker that forgets offsets after a minute."""
    del kafka  # its jars are there by now
    properties = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with own_broker(tmp_path_factory.mktemp("forgetful"), heap_mb=256, properties=properties) as broker:
        yield broker.bootstrap_servers


@pytest.mark.slow
def test_broker_forgets_offsets_one_by_one_but_all_of_a_group_that_had_members(forgetful: str) -> None:
    """What `eos.group.expiry` and `eos.guards.owners` rest on. An offset is committed again after 40 s, and looked at after 75."""
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
            deadline = time.monotonic() + PATIENCE_S
            while not member.assignment() and time.monotonic() < deadline:
                member.poll(0.1)
            assert member.assignment(), "it never was a member"
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
def test_partition_whose_owner_is_away_for_too_long_is_not_processed_again(forgetful: str) -> None:
    """The owners of the others live on, and looked at its offset while it was there."""
    job = three_partitions(forgetful)
    assert any(
        "offsets.retention.minutes = 1" in one for one in preflight(job.job(), settings_for(forgetful))
    )
    run_to_end(job, by_partition(forgetful, job, 2, input__start="earliest"))
    with in_thread(job, by_partition(forgetful, job, 0, 1, input__recommit_idle_after_s=15)) as others:
        others.told(TransactionCommitted, count=2)
        time.sleep(FORGOTTEN_S)
        assert offsets_of(forgetful, job) == [1, 1, None]
        with pytest.raises(ConfigError, match="the offset has expired"):
            run_to_end(job, by_partition(forgetful, job, 2, input__start="fail"))
        others.stop()
    assert offsets_of(forgetful, job) == [1, 1, None]


@pytest.mark.slow
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
