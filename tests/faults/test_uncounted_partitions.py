"""A partition without an offset is new only if eos's commits in its topic show it: else it may be processed, and is refused.

Who deletes, alters or sets offsets takes away what the metadata of eos's commits had counted.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from eos.base.deadline import Deadline
from eos.core.consumer import ShardConsumer
from eos.errors import ConfigError
from eos.events import Event, PartitionsAssigned
from eos.exits import ExitCode
from eos.group.metadata import OwnershipMode
from eos.offsets import Partition
from eos.runner.worker import run
from eos.settings import Settings
from eos.spark.batch import planning
from eos.spark.plan import Commit
from tests.faults.test_strangers import stranger
from tests.support.command_line import Ended, Eos
from tests.support.jobs_for_faults import FaultJob, fault_job, run_to_end, settings_for
from tests.support.observer import delete_groups, read_committed
from tests.support.offset_ages import offsets_of, store, three_partitions
from tests.support.operated import GROUP, MODES, Operated
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

EACH = 10  # records in each of two partitions

NewOperated = Callable[[str], Operated]


@pytest.fixture
def operated(bootstrap: str, eos: Eos, tmp_path: Path) -> NewOperated:
    """A maker of jobs with records in both partitions of their input, and a start that has to be told where."""

    def make(mode: str) -> Operated:
        job = fault_job(bootstrap, partitions=2)
        job.load(bootstrap, 2 * EACH)
        return Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], "input__start": "fail"})

    return make


def leave_one_strange_offset(bootstrap: str, job: FaultJob) -> None:
    """In the group of a stopped job; as kafka-consumer-groups --delete-offsets, and a member that commits what it has read."""
    delete_groups(bootstrap, job.group)
    with a_member(bootstrap, job) as consumer:
        consumer.commit(offsets=[TopicPartition(job.inputs[0], 0, EACH)], asynchronous=False)


@contextmanager
def a_member(bootstrap: str, job: FaultJob) -> Iterator[Consumer]:
    consumer = stranger(bootstrap, job.group, **{"enable.auto.commit": False})
    try:
        consumer.subscribe(list(job.inputs))
        assert Deadline(PATIENCE_S).wait_for(
            lambda: (consumer.poll(0.1), len(consumer.assignment()) == 2)[1]  # its records do not matter
        )
        yield consumer
    finally:
        consumer.close()


def refuses_the_other_one(one: Operated, settings: Settings | None = None) -> None:
    """The start does; it says how to go on, and then that is exact."""
    with pytest.raises(ConfigError) as refused:
        run_to_end(one.job, settings or one.settings)
    found = re.search(
        r"\[1\]: the group .* the offset has expired \(.*\), was deleted, or there never was one.*--to (\S+)@N",
        str(refused.value),
    )
    assert found is not None, str(refused.value)
    ended = one("offsets", "set", "JOB", "--to", f"{found[1]}@{EACH}", "--yes")
    assert ended.code == ExitCode.DONE, ended.err


def names_the_other_one(ended: Ended) -> None:
    assert ended.code == ExitCode.DONE, ended.err
    assert re.search(
        r"\[1\]: no committed offset either\..*--to \S+:1@OFFSET", " ".join(ended.out.split())
    ), ended.out


@pytest.mark.parametrize("way", ["set back", "adopted"])
def test_partition_without_an_offset_beside_a_strangers_is_not_processed_again_once_that_is(
    bootstrap: str, operated: NewOperated, way: str
) -> None:
    """The refusal named the stranger's offset alone; what it said to do led to 10 records twice, and exit 0."""
    one = operated("group")
    run_to_end(one.job, settings_for(bootstrap, **GROUP))
    leave_one_strange_offset(bootstrap, one.job)
    if way == "set back":
        names_the_other_one(one("offsets", "set", "JOB", "--to", f"{one.job.inputs[0]}:0@{EACH}", "--yes"))
        refuses_the_other_one(one)
    else:
        adopts = settings_for(bootstrap, **one.changes, ownership__adopt_offsets=True)
        refuses_the_other_one(one, adopts)
        run_to_end(one.job, adopts)
    one.job.load(bootstrap, 2 * EACH, "later ")
    one.run()
    assert one.job.check(bootstrap).processed == 4 * EACH


@pytest.mark.parametrize("mode", list(MODES))
def test_partitions_that_an_operator_has_left_out_have_no_place_to_start_at(
    bootstrap: str, operated: NewOperated, mode: str
) -> None:
    """Of a group without offsets: they were read from 0, though ``input.start = "fail"``."""
    one = operated(mode)
    names_the_other_one(one("offsets", "set", "JOB", "--to", f"{one.job.inputs[0]}:0@{EACH}"))
    names_the_other_one(one("offsets", "set", "JOB", "--to", f"{one.job.inputs[0]}:0@{EACH}", "--yes"))
    refuses_the_other_one(one)
    one.job.load(bootstrap, 2 * EACH, "later ")
    one.run()
    made = [record.value for record in read_committed(bootstrap, one.job.audit)]
    assert Counter(made) == Counter(b"audit later %d" % n for n in range(2 * EACH))


@pytest.mark.parametrize(
    ("processed", "anew", "says"),
    [
        (True, False, "had committed offsets .* and has none here any more"),
        # Another owner may have come and gone since this start has begun the topic.
        (False, False, "had committed offsets .* and has none here any more"),
        (True, True, f"had the committed offset {EACH} when this instance started, and has 0 now"),
    ],
    ids=["deleted", "just begun, and deleted", "begun anew by another start"],
)
@pytest.mark.parametrize("mode", list(MODES))
def test_owner_whose_group_is_deleted_before_it_takes_its_input_over_does_not_begin_anew(
    bootstrap: str,
    operated: NewOperated,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    processed: bool,
    anew: bool,
    says: str,
) -> None:
    """As that of a member which was paused for longer than its session, and comes back: it read from 0, with exit 0."""
    one = operated(mode)
    begins = settings_for(bootstrap, **MODES[mode])
    if processed:
        run_to_end(one.job, begins)
    one.job.load(bootstrap, 2 * EACH, "later ")
    watch = ShardConsumer._watch  # called when the start has found offsets, and no partition is owned yet
    deleted = threading.Event()

    def delete() -> None:
        delete_groups(bootstrap, one.job.group)
        if anew:
            store(bootstrap, one.job, {0: 0, 1: 0}, had=2, mode=OwnershipMode(mode))
        deleted.set()

    # By partition there is an owner for each: one whose start comes later would find that the group never had an offset.
    all_have_looked = threading.Barrier(2 if mode == "partition" else 1, action=delete)

    def watch_a_deleted_group(consumer: ShardConsumer) -> None:
        if not deleted.is_set():
            all_have_looked.wait(PATIENCE_S)
        watch(consumer)

    monkeypatch.setattr(ShardConsumer, "_watch", watch_a_deleted_group)
    with pytest.raises(ConfigError, match=rf"\[\d\]: the group .* {says}"):
        run_to_end(one.job, one.settings if processed else begins)
    assert len(read_committed(bootstrap, one.job.audit)) == (2 * EACH if processed else 0)


def test_group_that_is_deleted_under_an_owner_leaves_no_partition_of_another_one_new(
    bootstrap: str,
) -> None:
    """The owner's next commit is the only one in the group, and counted its own partition."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)

    def instance(ordinal: int, start: str) -> Settings:
        two = {"ownership__mode": "partition", "ownership__instances": 2, "input__start": start}
        return settings_for(bootstrap, ownership__ordinal=ordinal, **two)

    for ordinal in (0, 1):
        run_to_end(job, instance(ordinal, "earliest"))
    job.load(bootstrap, EACH, "later ", partitions=(0,))

    def delete_it(event: Event) -> None:
        if isinstance(event, PartitionsAssigned):  # which it is told before it commits anything
            delete_groups(bootstrap, job.group)

    run(job.job(), instance(0, "fail"), until_caught_up=True, listener=delete_it)
    with pytest.raises(ConfigError, match=r"\[1\]: the group .* the offset has expired"):
        run_to_end(job, instance(1, "fail"))


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_plan_of_a_batch_does_not_renew_offsets_that_are_deleted_meanwhile_at_the_beginning(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, commit: Commit
) -> None:
    """The plan was of nothing, and the next one of all input again."""
    job = three_partitions(bootstrap)
    store(bootstrap, job, dict.fromkeys(range(3), 1), days_ago=2, mode=OwnershipMode(commit))
    due = planning._due_for_renewal

    def due_in_a_deleted_group(*given: Any, **named: Any) -> list[Partition]:
        delete_groups(bootstrap, job.group)
        return due(*given, **named)

    monkeypatch.setattr(planning, "_due_for_renewal", due_in_a_deleted_group)
    with pytest.raises(ConfigError, match=r"had committed offsets .* and has none here any more"):
        planning.plan_input(settings_for(bootstrap), job.inputs, app=job.name, commit=commit)
    assert offsets_of(bootstrap, job) == [None, None, None]
