"""Partition ownership: a new owner commits the found offsets again before it reads, so that no zombie takes the shard back.

A zombie that opens its producer anew compares what the group has stored with what it committed itself. Before the new
owner has committed anything, both were the same.
"""

from __future__ import annotations

import time

import pytest

from eos import ConfigError, FencedError, OutputBatch, OutputRecord, Partition
from eos.core.pipeline import Pipeline
from eos.events import TransactionCommitted
from eos.group.metadata import OffsetMetadata
from eos.records import InputBatch, by_topic
from eos.shards import PartitionShard
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import committed_offsets, load
from tests.support.patience import PATIENCE_S
from tests.support.sessions import producer_of, session_for

pytestmark = pytest.mark.broker

OWNED = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}


def owner_of(bootstrap: str, job: FaultJob) -> str:
    (source,) = job.inputs
    metadata = committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][1]
    parsed = OffsetMetadata.parse(metadata)
    return "" if parsed is None else parsed.owner


def process(session: Pipeline, job: FaultJob, count: int) -> InputBatch:
    """The next ``count`` records, as the job does; returns the last batch of them."""
    batch = InputBatch([])
    deadline = time.monotonic() + PATIENCE_S
    while count:
        assert time.monotonic() < deadline
        batch = session.fetch(count, 0.2, 0.01)
        if batch:
            outputs = [
                output
                for record in batch
                for output in (
                    OutputRecord(job.out, b"out " + (record.value or b""), record.key),
                    OutputRecord(job.audit, b"audit " + (record.value or b"")),
                )
            ]
            session.stage(batch, by_topic(outputs))
            count -= len(batch)
    session.produce()
    session.owner.committer.commit_soon()
    session.owner.committer.join(PATIENCE_S)
    return batch


def test_zombie_finds_a_successor_that_has_processed_nothing_yet_and_leaves_it_the_shard(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    load(bootstrap, source, 10, "a")
    settings = settings_for(bootstrap, **OWNED)
    zombie = session_for(settings, PartitionShard(job.name, job.group, Partition(source, 0)), [source])
    zombie.open()
    batch = process(zombie, job, 10)
    mine = owner_of(bootstrap, job)
    with in_thread(job, settings) as successor:
        deadline = time.monotonic() + PATIENCE_S
        while owner_of(bootstrap, job) == mine:
            assert time.monotonic() < deadline, "the successor leaves no trace"
        producer_of(zombie.owner)._suspect("a test: it has outlived its timeout")
        zombie.stage(batch, [OutputBatch(job.out, [b"of the zombie"])])
        with pytest.raises(FencedError):
            zombie.produce()
        zombie.close()
        load(bootstrap, source, 10, "b")
        while sum(e.records_in for e in successor.events if isinstance(e, TransactionCommitted)) < 10:
            assert time.monotonic() < deadline
            assert successor.error is None
            time.sleep(0.02)
        successor.stop()
    assert job.check(bootstrap).processed == 20


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_offsets_of_another_job_are_refused_until_they_are_adopted(bootstrap: str, mode: str) -> None:
    """A job that was renamed while its group kept the old name: two names do not fence each other."""
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    load(bootstrap, source, 10, "a")
    owned = OWNED if mode == "partition" else {"ownership__static_membership": False}
    settings = settings_for(bootstrap, group=job.group, **owned)
    run_to_end(job, settings)
    load(bootstrap, source, 10, "b")
    renamed = FaultJob(job.inputs, job.out, job.audit, job.dead, f"{job.name}-renamed")

    with pytest.raises(ConfigError, match=rf"committed by the job '{job.name}'.*--adopt-offsets"):
        run_to_end(renamed, settings)
    assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == 10

    adopting = settings_for(bootstrap, group=job.group, ownership__adopt_offsets=True, **owned)
    run_to_end(renamed, adopting)
    assert job.check(bootstrap).processed == 20
    run_to_end(renamed, settings)  # adopted for good, also where nothing new came in
    with pytest.raises(ConfigError, match=r"--adopt-offsets"):
        run_to_end(job, settings)
