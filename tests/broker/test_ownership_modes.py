"""Who owns a partition: the given list, p mod instances, or the group; and the two modes do not mix."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from eos.errors import ConfigError, FencedError
from eos.events import PartitionsAssigned, SessionOpened, TransactionCommitted
from eos.exits import ExitCode
from eos.offsets import Partition
from eos.runner.owned import shards_of
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import fault_job, in_process, in_thread, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    assert_exactly_once,
    committed_offsets,
    produce_plain,
    unique,
)
from tests.support.operated import PARTITION, Operated
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from eos.settings import Settings

pytestmark = pytest.mark.broker


def spread(count: int, partitions: int) -> list[PlainRecord]:
    return [PlainRecord(b"v%d" % i, partition=i % partitions) for i in range(count)]


def modes_of(bootstrap: str, source: str) -> dict[str, Settings]:
    """For two input partitions."""
    return {
        "group": settings_for(bootstrap, ownership__static_membership=False),
        "group of KIP-848": settings_for(
            bootstrap, ownership__static_membership=False, ownership__protocol="consumer"
        ),
        "partition": settings_for(
            bootstrap, ownership__mode="partition", ownership__partitions=[f"{source}:0", f"{source}:1"]
        ),
    }


def test_partitions_by_list_are_owned_by_a_shard_each_and_no_others_are_read(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=4)
    source = job.inputs[0]
    produce_plain(bootstrap, source, spread(40, 4))

    events = run_to_end(
        job,
        settings_for(
            bootstrap, ownership__mode="partition", ownership__partitions=[f"{source}:1", f"{source}:3"]
        ),
    )

    opened = {event.shard for event in events if isinstance(event, SessionOpened)}
    assert opened == {f"{job.name}.{job.group}.p.{source}.{p}" for p in (1, 3)}
    offsets = committed_offsets(bootstrap, job.group, [(source, p) for p in range(4)])
    assert [offset for offset, _ in offsets.values()] == [0, 10, 0, 10]
    assert [re.sub("owner=.*", "", metadata) for _, metadata in offsets.values()] == [
        "eos1 mode=partition shard=start ",
        f"eos1 mode=partition shard={source}[1] ",
        "eos1 mode=partition shard=start ",
        f"eos1 mode=partition shard={source}[3] ",
    ]
    assert job.check(bootstrap).processed == 20


def test_process_that_would_own_more_partitions_than_it_may_refuses_before_it_owns_any(
    bootstrap: str, eos: Eos, tmp_path: Path
) -> None:
    """Each has clients of its own: a thousand took 5 GB and had committed nothing after a minute."""
    job = fault_job(bootstrap, partitions=5)
    job.load(bootstrap, 10)
    owned = {"ownership__mode": "partition", "ownership__instances": 1, "ownership__ordinal": 0}
    limited = Operated(eos, tmp_path, bootstrap, job, {**owned, "ownership__max_partitions": 2})
    ended = limited("run", "JOB", "--until-caught-up", "--start", "earliest")
    assert ended.code == ExitCode.CONFIGURATION, ended
    with pytest.raises(
        ConfigError, match=r"has 5 partitions.*ownership.max_partitions = 2.*workers.count = 3 instead of 1"
    ):
        run_to_end(job, limited.settings)
    partitions = [(job.inputs[0], number) for number in range(5)]
    assert not any(offset for offset, _ in committed_offsets(bootstrap, job.group, partitions).values())

    settings = settings_for(bootstrap, **owned, workers__count=3, ownership__max_partitions=2)
    for worker in range(3):  # as eos run does with workers.count = 3
        run_to_end(job, settings.for_worker(worker))
    assert job.check(bootstrap).processed == 10


def test_instances_by_count_share_all_partitions_of_all_topics(bootstrap: str) -> None:
    """p mod instances = ordinal; instances need not know of each other, and none is missing or doubled."""
    job = fault_job(bootstrap, partitions=3, inputs=2)
    for topic in job.inputs:
        produce_plain(bootstrap, topic, spread(30, 3))
    both = [
        settings_for(
            bootstrap, ownership__mode="partition", ownership__instances=2, ownership__ordinal=ordinal
        )
        for ordinal in range(2)
    ]
    shards = [{str(shard) for shard in shards_of(job.job(), settings)} for settings in both]
    first, second = job.inputs
    assert shards[0] == {f"{first}[0]", f"{first}[2]", f"{second}[0]", f"{second}[2]"}
    assert shards[1] == {f"{first}[1]", f"{second}[1]"}

    with ExitStack() as stack:
        runs = [stack.enter_context(in_thread(job, settings, until_caught_up=True)) for settings in both]
        for run in runs:
            run.wait(PATIENCE_S)
    assert job.check(bootstrap).processed == 60


def test_partition_that_does_not_exist_is_refused(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=2)
    settings = settings_for(
        bootstrap, ownership__mode="partition", ownership__partitions=[f"{job.inputs[0]}:2"]
    )
    with pytest.raises(ConfigError, match=rf"names {job.inputs[0]}\[2\]"):
        run_to_end(job, settings)


@pytest.mark.parametrize(
    ("first", "second"),
    [("group of KIP-848", "partition"), ("partition", "group"), ("partition", "group of KIP-848")],
)
def test_offsets_of_the_other_mode_are_refused_until_they_are_adopted(
    bootstrap: str, first: str, second: str
) -> None:
    """Kafka accepts the offsets of an assigned consumer unchecked: neither mode fences the other.

    Adopted once is adopted for good, also where nothing new came in.
    """
    job = fault_job(bootstrap, partitions=2)
    source = job.inputs[0]
    modes = modes_of(bootstrap, source)
    produce_plain(bootstrap, source, [PlainRecord(b"1", partition=0), PlainRecord(b"2", partition=1)])
    run_to_end(job, modes[first])
    produce_plain(bootstrap, source, [PlainRecord(b"3", partition=0)])

    was, mine = first.split(maxsplit=1)[0], second.split(maxsplit=1)[0]
    with pytest.raises(ConfigError, match=f"mode = '{was}'.*runs with '{mine}'.*--adopt-offsets"):
        run_to_end(job, modes[second])
    ownership = modes[second].ownership.model_copy(update={"adopt_offsets": True})
    run_to_end(job, modes[second].model_copy(update={"ownership": ownership}))

    assert job.check(bootstrap).processed == 3
    run_to_end(job, modes[second])  # the metadata is its own now
    with pytest.raises(ConfigError, match=r"--adopt-offsets|had members"):
        run_to_end(job, modes[first])


@pytest.mark.parametrize("adopt", [False, True])
def test_partition_mode_refuses_a_group_that_had_members_and_goes_on_in_a_copy_of_it(
    bootstrap: str, tmp_path: Path, eos: Eos, adopt: bool
) -> None:
    """Kafka forgets all offsets of such a group, however young: tests/faults/test_offset_expiry.py shows it.

    The way out is what the error says.
    """
    job = fault_job(bootstrap, partitions=2)
    source = job.inputs[0]
    modes = modes_of(bootstrap, source)
    produce_plain(bootstrap, source, [PlainRecord(b"1", partition=0), PlainRecord(b"2", partition=1)])
    run_to_end(job, modes["group"])
    produce_plain(bootstrap, source, [PlainRecord(b"3", partition=0)])
    ownership = modes["partition"].ownership.model_copy(update={"adopt_offsets": adopt})
    settings = modes["partition"].model_copy(update={"ownership": ownership})
    with pytest.raises(ConfigError, match=r"had members.*Fix: copy the offsets to a new group") as refused:
        run_to_end(job, settings)

    group = unique("copy")
    fix = str(refused.value).partition("instance runs: eos ")[2].replace("NEW", group)
    fix = fix.replace("MODULE:NAME", "JOB")
    operated = Operated(eos, tmp_path, bootstrap, job, PARTITION)
    copied = operated(*fix.split(), "--yes")  # as it stands, it only shows what it would do
    assert copied.code == ExitCode.DONE, copied.err
    run_to_end(job, settings.model_copy(update={"group": group}))
    assert (
        assert_exactly_once(
            bootstrap, group, job.inputs, job.outputs, job.expected, timeout_s=PATIENCE_S
        ).processed
        == 3
    )


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_partition_mode_refuses_a_group_with_live_members(bootstrap: str, protocol: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    group = settings_for(bootstrap, ownership__protocol=protocol, ownership__static_membership=False)
    with in_thread(job, group) as run:
        run.told(PartitionsAssigned)
        with pytest.raises(ConfigError, match="has live members"):
            run_to_end(
                job,
                settings_for(
                    bootstrap,
                    ownership__mode="partition",
                    ownership__partitions=[f"{job.inputs[0]}:0"],
                    ownership__adopt_offsets=True,
                ),
            )
        run.stop()


def test_partition_taken_over_by_another_instance_ends_its_former_owner(bootstrap: str) -> None:
    """The transactional.id of a partition is the whole fence: whoever opens it fences whoever had it."""
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    settings = settings_for(bootstrap, ownership__mode="partition", ownership__partitions=[f"{source}:0"])
    with in_thread(job, settings) as former:
        produce_plain(bootstrap, source, [b"1"])
        former.told(TransactionCommitted)
        with in_thread(job, settings) as heir:
            heir.told(PartitionsAssigned)
            produce_plain(bootstrap, source, [b"2"])
            with pytest.raises(FencedError):
                former.wait(PATIENCE_S)
            heir.told(TransactionCommitted)
            heir.stop()
    assert job.check(bootstrap).processed == 2


def test_several_shards_of_a_process_that_is_killed_are_taken_over_by_other_processes(bootstrap: str) -> None:
    """Ownership may be dealt anew after a crash: each partition's own id ends what the dead process left."""
    job = fault_job(bootstrap, partitions=4)
    source = job.inputs[0]
    produce_plain(bootstrap, source, spread(4_000, 4))
    mode: dict[str, Any] = {
        "ownership__mode": "partition",
        "transaction__max_records": 50,
        "transaction__interval_ms": 5_000,
    }
    everything = [f"{source}:{p}" for p in range(4)]
    with in_process(job, bootstrap, **mode, ownership__partitions=everything) as child:
        for p in range(4):
            child.wait_line(rf"TransactionCommitted.*\.p\.{source}\.{p}'", PATIENCE_S)
        child.kill()
    with ExitStack() as stack:
        heirs = [
            stack.enter_context(
                in_thread(
                    job,
                    settings_for(bootstrap, **mode, ownership__partitions=everything[half::2]),
                    until_caught_up=True,
                )
            )
            for half in range(2)
        ]
        for heir in heirs:
            heir.wait(PATIENCE_S)
    assert job.check(bootstrap).processed == 4_000


def test_group_reads_offsets_that_an_older_start_policy_has_committed(bootstrap: str) -> None:
    """They said no mode: both take them over."""
    job = fault_job(bootstrap, partitions=2)
    source = job.inputs[0]
    older = f"eos1 mode=start shard=start owner=abcdef commit=1 at={int(time.time())} had=2"
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
    plain.commit(offsets=[TopicPartition(source, p, 0, older) for p in range(2)], asynchronous=False)
    plain.close()
    produce_plain(bootstrap, source, spread(10, 2))

    events = run_to_end(job, settings_for(bootstrap))

    (assigned,) = [e for e in events if isinstance(e, PartitionsAssigned)]
    assert dict(assigned.positions) == {Partition(source, 0): 0, Partition(source, 1): 0}
    assert job.check(bootstrap).processed == 10
