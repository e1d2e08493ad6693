"""A job whose group's offsets have an age: stored as a run in some mode of ownership left them so many days ago."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topics import TopicIds
from eos.settings import Settings
from tests.support.jobs_for_faults import FaultJob, fault_job, settings_for
from tests.support.observer import PlainRecord, committed_offsets, produce_plain
from tests.support.patience import PATIENCE_S

DAY_S = 86_400
PARTITIONS = 3


def three_partitions(bootstrap: str, *, inputs: int = 1) -> FaultJob:
    """With a record in each."""
    job = fault_job(bootstrap, partitions=PARTITIONS, inputs=inputs)
    for source in job.inputs:
        produce_plain(bootstrap, source, [PlainRecord(b"%d" % p, partition=p) for p in range(PARTITIONS)])
    return job


def by_partition(bootstrap: str, job: FaultJob, *numbers: int, **changes: object) -> Settings:
    """The settings of an owner of these partitions of each input, or of all."""
    partitions = [f"{source}:{p}" for source in job.inputs for p in numbers or range(PARTITIONS)]
    return settings_for(bootstrap, ownership__mode="partition", ownership__partitions=partitions, **changes)


def store(
    bootstrap: str,
    job: FaultJob,
    offsets: Mapping[int, int],
    *,
    days_ago: float = 0,
    had: int = PARTITIONS,
    mode: OwnershipMode = OwnershipMode.PARTITION,
    attempts: Mapping[int, int] | None = None,
) -> None:
    """Offsets of the first input by partition, as a run in this mode has left them, which knew of so many."""
    source = job.inputs[0]
    at_s = int(time.time() - days_ago * DAY_S)
    topic_id = TopicIds(settings_for(bootstrap)).of([source], timeout_s=PATIENCE_S)[source]
    store_plain(
        bootstrap,
        job,
        {
            p: (
                offset,
                str(
                    OffsetMetadata(
                        mode,
                        f"{source}[{p}]",
                        at_s=at_s,
                        started_partitions=had,
                        app=job.name,
                        topic=topic_id,
                        attempt=(attempts or {}).get(p, 0),
                    )
                ),
            )
            for p, offset in offsets.items()
        },
    )


def store_plain(bootstrap: str, job: FaultJob, offsets: Mapping[int, tuple[int, str]]) -> None:
    """Offsets of a job's first input with the metadata that anybody may have written."""
    store_offsets(bootstrap, job.group, job.inputs[0], offsets)


def store_offsets(bootstrap: str, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
    """Offsets, and their metadata, as they are given."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    client.commit(
        offsets=[TopicPartition(topic, p, *stored) for p, stored in offsets.items()],
        asynchronous=False,
    )
    client.close()


def offsets_of(bootstrap: str, job: FaultJob, partitions: int = PARTITIONS) -> list[int | None]:
    """Of the first input, by partition."""
    found = committed_offsets(bootstrap, job.group, [(job.inputs[0], p) for p in range(partitions)])
    return [offset for offset, _ in found.values()]


def days_old(bootstrap: str, job: FaultJob) -> list[int]:
    """How many whole days ago each offset of the first input was committed, as its metadata says."""
    found = committed_offsets(bootstrap, job.group, [(job.inputs[0], p) for p in range(PARTITIONS)])
    parsed = [OffsetMetadata.parse(metadata) for _, metadata in found.values()]
    return [int((time.time() - one.at_s) / DAY_S) for one in parsed if one is not None]
