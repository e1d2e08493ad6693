"""Offsets are committed again where they stand before Kafka forgets them, whatever keeps their partitions from going on."""

from __future__ import annotations

import pytest

from eos.errors import TransformError
from eos.group.metadata import OwnershipMode
from eos.spark.batch.planning import plan_input
from eos.spark.plan import Commit
from tests.support.jobs_for_faults import run_to_end
from tests.support.observer import PlainRecord, produce_plain
from tests.support.offset_ages import by_partition, days_old, offsets_of, store, three_partitions

pytestmark = pytest.mark.broker


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
    assert offsets_of(bootstrap, job) == [1, 1, 1]
    assert days_old(bootstrap, job) == [0, 0, 0]


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_offset_whose_task_fails_night_after_night_is_committed_again(bootstrap: str, commit: Commit) -> None:
    """It would be forgotten beside those of partitions that get on. A single failed night costs no transaction more."""
    job = three_partitions(bootstrap)
    settings = by_partition(bootstrap, job)
    for nights, ages in ((2, [0, 2, 2]), (4, [0, 0, 0])):
        store(bootstrap, job, {0: 1, 1: 0, 2: 0}, days_ago=nights, mode=OwnershipMode(commit))
        planned = plan_input(settings, job.inputs, app=job.name, commit=commit)
        assert [(one.start, one.end) for one in planned] == [(0, 1), (0, 1)]
        assert days_old(bootstrap, job) == ages
        assert offsets_of(bootstrap, job) == [1, 0, 0]


def test_offset_before_a_record_that_stops_the_job_is_committed_again_at_every_start(bootstrap: str) -> None:
    job = three_partitions(bootstrap)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"poison", partition=0)])
    store(bootstrap, job, {0: 1, 1: 1, 2: 1}, days_ago=2)
    with pytest.raises(TransformError):
        run_to_end(job, by_partition(bootstrap, job))
    assert offsets_of(bootstrap, job) == [1, 1, 1]
    assert days_old(bootstrap, job)[0] == 0  # the other owners may be stopped before they have begun
