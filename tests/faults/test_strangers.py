"""Another program commits in a job's group: no input is passed over, and the refusal says where eos's own offset was.

A console consumer with `--group`, a tool that resets offsets, a plain loop: none of them writes what eos writes with an offset.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from eos.base.deadline import Deadline
from eos.core.surroundings import Entered, Seat
from eos.errors import ConfigError, EosError, OffsetGapError, RetriableError
from eos.events import (
    Event,
    OffsetsAdopted,
    PartitionsAssigned,
    SessionClosed,
    StrangersInGroup,
    ignore_event,
)
from eos.exits import ExitCode
from eos.faces.surroundings import ToKafka
from eos.group import offset_history
from eos.group.committed import fresh_reader
from eos.group.metadata import OwnershipMode
from eos.group.offset_history import Before
from eos.guards import start_policy
from eos.guards.adoption import Adoption
from eos.guards.enter import enter
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.runner import last_look, supervisor
from eos.watches.catch_up import CatchUp
from tests.support import by_hand
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import FaultJob, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import (
    alter_offsets,
    committed_offsets,
    create_topics,
    delete_groups,
    delete_topic,
    read_committed,
    recreate_topic,
    unique,
)
from tests.support.offset_ages import store, store_plain
from tests.support.operated import GROUP, MODES, Operated
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

EACH = 10  # records in each of two partitions, before the stranger comes and while it is there
PROTOCOLS: dict[str, dict[str, Any]] = {
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6_000,  # one that is closed while it joins stays for so long
    },
    "consumer": {"group.protocol": "consumer"},
}


def stranger(bootstrap: str, group: str, **options: Any) -> Consumer:
    """As kafka-console-consumer is: it commits by itself what it has read, and when it leaves."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
            "log_level": 0,
            **options,
        }
    )


def read_by_a_member(bootstrap: str, job: FaultJob, **options: Any) -> None:
    """One that reads to the end and leaves."""
    consumer = stranger(bootstrap, job.group, **options)
    consumer.subscribe(list(job.inputs))
    read_on(bootstrap, job, consumer, 2)
    consumer.close()


def read_on(bootstrap: str, job: FaultJob, consumer: Consumer, partitions: int) -> set[int]:
    """Once it is given so many partitions, more comes, which it reads to the end; returns the numbers of the partitions."""
    deadline = Deadline(PATIENCE_S)
    while len(consumer.assignment()) < partitions and not deadline.passed:
        assert consumer.poll(0.1) is None
    job.load(bootstrap, 2 * EACH, "later ")
    read: dict[int, int] = {}
    while (len(read) < partitions or set(read.values()) != {2 * EACH}) and not deadline.passed:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None
            read[message.partition() or 0] = (message.offset() or 0) + 1
    assert set(read.values()) == {2 * EACH}
    return set(read)


def set_by_a_client(bootstrap: str, job: FaultJob) -> None:
    job.load(bootstrap, 2 * EACH, "later ")
    consumer = stranger(bootstrap, job.group, **{"enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(job.inputs[0], n, 2 * EACH) for n in (0, 1)], asynchronous=False)
    consumer.close()


def set_by_an_admin(bootstrap: str, job: FaultJob) -> None:
    job.load(bootstrap, 2 * EACH, "later ")
    alter_offsets(bootstrap, job.group, {(job.inputs[0], n): 2 * EACH for n in (0, 1)})


WAYS: dict[str, Callable[[str, FaultJob], None]] = {
    "a member": read_by_a_member,
    "a client": set_by_a_client,
    "an admin": set_by_an_admin,
}


@pytest.fixture
def operated(bootstrap: str, eos: Eos, tmp_path: Path) -> Callable[..., Operated]:
    """A maker of jobs that have processed `EACH` records in each of two partitions."""

    def make(mode: str, **changes: object) -> Operated:
        job = fault_job(bootstrap, partitions=2)
        job.load(bootstrap, 2 * EACH)
        one = Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], **changes})
        one.run()
        return one

    return make


@pytest.mark.parametrize(
    ("mode", "way"),
    [*(("group", way) for way in WAYS), ("partition", "a client"), ("partition", "an admin")],
)
def test_offsets_that_another_program_has_moved_on_are_refused_at_the_start_and_set_back(
    bootstrap: str, operated: Callable[..., Operated], mode: str, way: str
) -> None:
    """Of a job that is stopped: the records of that time were never processed, and its start ended with 0."""
    one = operated(mode)
    WAYS[way](bootstrap, one.job)
    assert one.offsets() == [2 * EACH, 2 * EACH]
    with pytest.raises(ConfigError) as refused:
        one.run()
    assert one.offsets() == [2 * EACH, 2 * EACH]
    at = r"\(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)"
    found = re.search(
        rf"in\S+\[0\]: the group \S+ has the offset {2 * EACH}, which eos has not committed {at}, and of 1 other partition\. "
        rf"The last one of eos's there is {EACH} {at}\. .*\(eos offsets set \S+ --to (\S+)\); .*--adopt-offsets",
        str(refused.value),
    )
    assert found is not None, str(refused.value)
    ended = one("offsets", "set", "JOB", "--to", found[1], "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    one.run()
    assert one.job.check(bootstrap).processed == 4 * EACH


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_partitions_that_a_stranger_gives_back_at_offsets_of_its_own_are_refused(
    bootstrap: str, eos: Eos, tmp_path: Path, protocol: str, *, own_loop: bool
) -> None:
    """Of a job that runs: it had committed these partitions itself, and went on at the stranger's offsets without a line."""
    job = fault_job(bootstrap, partitions=2, own_loop=own_loop)
    job.load(bootstrap, 2 * EACH)
    one = Operated(eos, tmp_path, bootstrap, job, {**GROUP, "ownership__protocol": protocol})
    with in_thread(job, one.settings) as running:
        running.wait_for_commits(2 * EACH)
        consumer = stranger(bootstrap, job.group, **PROTOCOLS[protocol])
        consumer.subscribe(list(job.inputs))
        (taken,) = read_on(bootstrap, job, consumer, 1)
        consumer.close()
        job.load(bootstrap, 2, "at last ")
        with pytest.raises(
            ConfigError,
            match=rf"\[{taken}\]: the group .* has the offset {2 * EACH}, which eos has not committed \(.*\)\. "
            rf"The last one of eos's there is {EACH} \(",
        ):
            running.wait()
    assert one.offsets()[taken] == 2 * EACH
    place = f"{job.inputs[0]}:{taken}@{EACH}"
    assert one("offsets", "set", "JOB", "--to", place, "--yes").code == ExitCode.DONE
    one.run()
    assert job.check(bootstrap).processed == 4 * EACH + 2


def test_offsets_of_a_group_that_another_program_leaves_are_adopted_by_a_setting_and_it_is_said(
    bootstrap: str,
) -> None:
    """A job that replaces another application goes on where that one ended; then they are eos's, though nothing new has come."""
    job = fault_job(bootstrap, partitions=2)
    source = job.inputs[0]
    job.load(bootstrap, 2 * EACH)
    read_by_a_member(bootstrap, job)
    settings = settings_for(bootstrap, input__start="fail", **GROUP)
    with pytest.raises(ConfigError, match="the log of the group's offsets does not show"):
        run_to_end(job, settings)
    events = run_to_end(
        job, settings_for(bootstrap, input__start="fail", ownership__adopt_offsets=True, **GROUP)
    )
    (adopted,) = [one for one in events if isinstance(one, OffsetsAdopted)]
    assert dict(adopted.positions) == {Partition(source, n): 2 * EACH for n in (0, 1)}
    job.load(bootstrap, 2 * EACH, "at last ")
    run_to_end(job, settings)
    assert len(read_committed(bootstrap, job.audit)) == 2 * EACH


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_offset_beyond_the_end_of_the_log_is_not_adopted(
    bootstrap: str, eos: Eos, tmp_path: Path, mode: str
) -> None:
    """A run until it has caught up was at its end at once, with 0; what was written up to that offset was never processed."""
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    job.load(bootstrap, 2 * EACH)
    store_plain(bootstrap, job, {0: (99, ""), 1: (4, "")})
    one = Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], "ownership__adopt_offsets": True})
    with pytest.raises(
        OffsetGapError, match=rf"{source}\[0\]: .* at offset 99, and the log ends at {EACH}\..*Fix: "
    ):
        one.run()
    assert (one.offsets()[0], one.metadata()[0]) == (99, None)
    assert one("offsets", "set", "JOB", "--to", f"{source}:0@{EACH}", "--yes").code == 0
    one.run()
    job.load(bootstrap, 2 * EACH, "later ")
    one.run()
    assert one.offsets() == [2 * EACH, 2 * EACH]
    assert len(read_committed(bootstrap, job.audit)) == EACH + 2 * EACH - 4


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_own_offset_beyond_the_end_of_the_log_is_refused_at_the_start(bootstrap: str, mode: str) -> None:
    """As a log leaves it that was truncated before a record was read: the offset has no epoch that could tell."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    store(bootstrap, job, {0: 99, 1: 4}, had=2, mode=OwnershipMode(mode))
    with pytest.raises(OffsetGapError, match=rf"at offset 99, and the log ends at {EACH}\. It was truncated"):
        run_to_end(job, settings_for(bootstrap, **MODES[mode]))


def test_instance_that_was_given_no_partition_does_not_end_well_over_an_offset_beyond_the_end(
    bootstrap: str,
) -> None:
    """A member that was killed held the partitions for its session's time: who came beside it ended with 0, and had read nothing."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    store(bootstrap, job, {0: 99, 1: EACH}, had=2, mode=OwnershipMode.GROUP)
    with (
        closing(CatchUp(settings_for(bootstrap), job.group, job.inputs)) as goal,
        pytest.raises(OffsetGapError, match=f"at offset 99, and the log ends at {EACH}"),
    ):
        goal.reached(OffsetVector())


@pytest.mark.parametrize("again", [0, 2 * EACH], ids=["what was adopted", "what was read since"])
def test_a_setting_that_adopts_takes_what_was_there_at_the_start_alone(bootstrap: str, again: int) -> None:
    """It may be left in a configuration: what a stranger commits later is refused, also where it is the same offset once more."""
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    program = stranger(bootstrap, job.group, **{"enable.auto.commit": False})
    program.commit(offsets=[TopicPartition(source, n, 0) for n in (0, 1)], asynchronous=False)
    program.close()
    job.load(bootstrap, 2 * EACH)
    settings = settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP)
    with in_thread(job, settings) as running:
        running.wait_for_commits(2 * EACH)
        consumer = stranger(bootstrap, job.group, **{**PROTOCOLS["cooperative"], "enable.auto.commit": False})
        consumer.subscribe([source])
        (taken,) = read_on(bootstrap, job, consumer, 1)
        consumer.commit(offsets=[TopicPartition(source, taken, again)], asynchronous=False)
        consumer.close()
        job.load(bootstrap, 2, "at last ")
        with pytest.raises(ConfigError, match=f"has the offset {again}, which eos has not committed"):
            running.wait()
        assert len([event for event in running.events if isinstance(event, OffsetsAdopted)]) == 1
    values = [record.value for record in read_committed(bootstrap, job.audit)]
    assert len(values) == len(set(values))


def test_a_start_adopts_once_and_refuses_what_is_committed_behind_that(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked again, and adopted that too: three records of each partition were processed by nobody."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)

    store_plain(bootstrap, job, {0: (4, ""), 1: (4, "")})
    adopt = Adoption.adopt

    def adopt_and_be_overtaken(adoption: Adoption, partitions: Sequence[Partition]) -> None:
        adopt(adoption, partitions)
        store_plain(bootstrap, job, {0: (7, ""), 1: (7, "")})

    monkeypatch.setattr(Adoption, "adopt", adopt_and_be_overtaken)
    settings = settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP)
    with pytest.raises(ConfigError, match="has the offset 7, which eos has not committed"):
        run_to_end(job, settings)
    assert read_committed(bootstrap, job.audit) == []


@pytest.mark.parametrize("when", ["it looks", "it adopts"])
def test_a_start_adopts_nothing_that_is_committed_while_it_adopts(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It looked again, and took what had come on a partition of eos's own: two records were processed by nobody, exit 0."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    run_to_end(job, settings_for(bootstrap, **GROUP))
    job.load(bootstrap, 2 * EACH, "later ")
    values = [record.value for record in read_committed(bootstrap, job.audit)]

    store_plain(bootstrap, job, {0: (EACH, "")})
    owner, name = (start_policy, "_stored") if when == "it looks" else (Adoption, "adopt")
    step = getattr(owner, name)

    def step_and_be_overtaken(*given: Any) -> Any:
        monkeypatch.undo()
        done = step(*given)
        store_plain(bootstrap, job, {1: (EACH + 2, "")})
        return done

    monkeypatch.setattr(owner, name, step_and_be_overtaken)
    settings = settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP)
    with pytest.raises(ConfigError, match=rf"\[1\].*has the offset {EACH + 2}, which eos has not committed"):
        run_to_end(job, settings)
    assert [record.value for record in read_committed(bootstrap, job.audit)] == values


def test_program_that_commits_its_first_offsets_and_leaves_while_a_start_looks_is_adopted(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start had found nothing when it looked, so it adopted nothing: it refused what it was to take over, for good."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    look = start_policy._stored

    def look_too_early(*given: Any) -> Entered:
        monkeypatch.undo()
        found = look(*given)
        store_plain(bootstrap, job, {0: (4, ""), 1: (4, "")})
        return found

    monkeypatch.setattr(start_policy, "_stored", look_too_early)
    run_to_end(job, settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP))
    assert len(read_committed(bootstrap, job.audit)) == 2 * (EACH - 4)


def test_start_that_adopts_waits_for_the_program_before_it_asks_which_of_its_offsets_are_missing(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that had not committed in each partition yet made the others pass for expired ones."""
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    program = stranger(bootstrap, job.group, **{"enable.auto.commit": False})
    program.subscribe([source])
    job.load(bootstrap, 2 * EACH)
    Deadline(PATIENCE_S).wait_for(lambda: program.poll(0.1) is not None)
    program.commit(offsets=[TopicPartition(source, 1, 4)], asynchronous=False)
    asked = Adoption._has_no_members

    def leave_once_asked(adoption: Adoption, **named: Any) -> bool:
        monkeypatch.undo()
        with pytest.raises(RetriableError, match="has members"):
            asked(adoption, **named)
        program.commit(offsets=[TopicPartition(source, 0, 4)], asynchronous=False)
        program.close()
        return asked(adoption, **named)

    monkeypatch.setattr(Adoption, "_has_no_members", leave_once_asked)
    run_to_end(job, settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP))
    assert len(read_committed(bootstrap, job.audit)) == 2 * (EACH - 4)


def test_offset_that_the_program_commits_while_a_start_waits_for_it_is_adopted_where_eoss_stood_before(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start held it against what it had found first, and refused what it was told to adopt; a second start took it."""
    job = fault_job(bootstrap, partitions=2)
    (source,) = job.inputs
    job.load(bootstrap, 2 * EACH)
    run_to_end(job, settings_for(bootstrap, **GROUP))
    program = stranger(bootstrap, job.group, **{"enable.auto.commit": False})
    program.subscribe([source])
    job.load(bootstrap, 2 * EACH)
    Deadline(PATIENCE_S).wait_for(lambda: program.poll(0.1) is not None)
    program.commit(offsets=[TopicPartition(source, 0, EACH + 2)], asynchronous=False)
    asked = Adoption._has_no_members

    def leave_once_asked(adoption: Adoption, **named: Any) -> bool:
        monkeypatch.undo()
        program.commit(offsets=[TopicPartition(source, 1, EACH + 2)], asynchronous=False)
        try:
            return asked(adoption, **named)  # it has members: the next try looks again
        finally:
            program.close()

    monkeypatch.setattr(Adoption, "_has_no_members", leave_once_asked)
    run_to_end(job, settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP))
    assert len(read_committed(bootstrap, job.audit)) == 2 * (2 * EACH - 2)


def test_refusal_names_the_partition_that_was_moved_and_not_one_that_another_owner_is_to_adopt(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    store_plain(bootstrap, job, {0: (4, ""), 1: (4, "")})
    adopt = Adoption.adopt

    def adopt_and_be_overtaken(adoption: Adoption, partitions: Sequence[Partition]) -> None:
        adopt(adoption, partitions)
        store_plain(bootstrap, job, {1: (7, "")})

    monkeypatch.setattr(Adoption, "adopt", adopt_and_be_overtaken)
    settings = settings_for(bootstrap, ownership__adopt_offsets=True, **MODES["partition"])
    seat = Seat(
        settings=settings,
        topics=job.inputs,
        group=job.group,
        given=(Partition(job.inputs[0], 1),),
        app=job.name,
        shard="the second partition's",
        listener=ignore_event,
        destination=ToKafka(),
    )
    with (
        fresh_reader(settings, job.group, stable=True) as reader,
        pytest.raises(
            ConfigError, match=r"\[1\]: the group .* has the offset 7, which eos has not committed"
        ),
    ):
        enter(seat, reader)


def test_a_start_does_not_adopt_what_is_committed_between_its_look_and_its_commit(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had settled on a partition, and took the offset that stood there by then: 8 records of each were processed by nobody, exit 0."""
    job = fault_job(bootstrap, partitions=2)
    job.load(bootstrap, 2 * EACH)
    store_plain(bootstrap, job, {0: (1, ""), 1: (1, "")})
    adopt = Adoption.adopt

    def be_overtaken_and_adopt(adoption: Adoption, partitions: Sequence[Partition]) -> None:
        store_plain(bootstrap, job, {0: (9, ""), 1: (9, "")})
        adopt(adoption, partitions)

    monkeypatch.setattr(Adoption, "adopt", be_overtaken_and_adopt)
    settings = settings_for(bootstrap, ownership__adopt_offsets=True, **GROUP)
    with pytest.raises(ConfigError, match="has the offset 9, which eos has not committed"):
        run_to_end(job, settings)
    assert read_committed(bootstrap, job.audit) == []


def test_record_is_not_skipped_behind_an_offset_of_another_program(
    bootstrap: str, operated: Callable[..., Operated]
) -> None:
    """The offset behind it would be eos's, and what the other program has passed over would stay so."""
    one = operated("group")
    set_by_a_client(bootstrap, one.job)
    one.job.load(bootstrap, 2, "at last ")
    place = f"{one.job.inputs[0]}:0@{2 * EACH}"
    for yes in ([], ["--yes"]):
        ended = one("skip", "JOB", place, "--reason", "x", *yes)
        assert ended.code == ExitCode.CONFIGURATION
        assert f"The last one of eos's there is {EACH}" in ended.err
    assert one.offsets() == [2 * EACH, 2 * EACH]


@pytest.mark.parametrize("theirs", [(1,), (0, 1)], ids=["a part", "all"])
@pytest.mark.parametrize("only", [False, True])
def test_group_of_eos_in_which_another_program_has_committed_is_not_copied_unless_a_person_adopts_that(
    bootstrap: str, operated: Callable[..., Operated], theirs: Sequence[int], *, only: bool
) -> None:
    one = operated("group")
    (source,) = one.job.inputs
    consumer = stranger(bootstrap, one.job.group, **{"enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(source, n, 3) for n in theirs], asynchronous=False)
    consumer.close()
    group = unique("second")
    second = Operated(one._eos, one._directory, bootstrap, one.job, {**one.changes, "group": group})
    chosen = ("--only", f"{source}:1") if only else ()
    words = ("offsets", "copy", "JOB", "--from-group", one.job.group, *chosen, "--yes")
    refused = second(*words)
    assert refused.code == ExitCode.CONFIGURATION
    assert f"the group {one.job.group!r} has the offset 3, which eos has not committed" in refused.err
    assert second.offsets(group) == [None, None]
    assert second(*words, "--adopt-offsets").code == ExitCode.DONE
    assert second.offsets(group)[1] == 3


def test_an_owner_that_has_input_is_not_led_astray_by_an_idle_member_that_commits(
    bootstrap: str, operated: Callable[..., Operated]
) -> None:
    """A member may commit for partitions that others have. The owner's next commit takes their place."""
    one = operated("group")
    with in_thread(one.job, one.settings) as running:
        running.told(PartitionsAssigned)
        consumer = stranger(
            bootstrap, one.job.group, **{**PROTOCOLS["cooperative"], "enable.auto.commit": False}
        )
        consumer.subscribe(list(one.job.inputs))
        mine: list[int] = []
        deadline = Deadline(PATIENCE_S)
        while not mine and not deadline.passed:
            consumer.poll(0.1)
            mine = [one.partition for one in consumer.assignment()]
        (number,) = mine
        one.job.load(bootstrap, 2 * EACH, "later ")
        running.wait_for_commits(EACH)
        other = TopicPartition(one.job.inputs[0], 1 - number, EACH + 1)
        consumer.commit(offsets=[other], asynchronous=False)
        one.job.load(bootstrap, 2, "at last ")
        running.wait_for_commits(EACH + 1)
        consumer.close()
        running.stop()
    one.run()
    assert one.job.check(bootstrap).processed == 4 * EACH + 2


def test_what_eos_had_committed_is_found_in_several_looks_and_not_guessed_in_a_part_of_one(
    bootstrap: str, operated: Callable[..., Operated], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = operated("group")
    source = one.job.inputs[0]
    own = one.offsets()
    consumer = stranger(bootstrap, one.job.group, **{"enable.auto.commit": False})
    for offset in range(1, 10):
        consumer.commit(offsets=[TopicPartition(source, n, offset) for n in (0, 1)], asynchronous=False)
    consumer.close()
    monkeypatch.setattr(offset_history, "_FIRST_LOOK", 2)
    monkeypatch.setattr(offset_history, "_GROWS", 1)
    wanted = {Partition(source, n): Committed(9, "") for n in (0, 1)}
    found = offset_history.before(one.settings, one.job.group, wanted, timeout_s=PATIENCE_S)
    assert [found[p].own for p in wanted] == own
    assert all(at.own_at_ms and at.other_at_ms and at.own_at_ms <= at.other_at_ms for at in found.values())
    nothing = dict.fromkeys(wanted, Before())
    assert offset_history.before(one.settings, one.job.group, wanted, timeout_s=0.0) == nothing
    # The log as far as it is read does not have what is stored: what eos had committed may be behind that.
    later = {p: Committed(10, "") for p in wanted}
    assert offset_history.before(one.settings, one.job.group, later, timeout_s=PATIENCE_S) == nothing


def test_offset_of_a_topic_that_was_deleted_is_not_named_as_eoss(
    bootstrap: str, operated: Callable[..., Operated]
) -> None:
    one = operated("group")
    (source,) = one.job.inputs
    delete_topic(bootstrap, source)
    create_topics(bootstrap, {source: 2})
    consumer = stranger(bootstrap, one.job.group, **{"enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(source, 0, 0)], asynchronous=False)
    consumer.close()
    wanted = {Partition(source, 0): Committed(0, "")}
    (found,) = offset_history.before(one.settings, one.job.group, wanted, timeout_s=PATIENCE_S).values()
    assert found.other_at_ms is not None
    assert found.own is None


def test_run_that_catches_up_does_not_count_what_another_program_has_committed_for_processed(
    bootstrap: str, operated: Callable[..., Operated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with 0 when the group's offsets had reached the end, whoever had committed them."""
    monkeypatch.setattr("eos.watches.catch_up._SET_BACK_S", 0.5)
    one = operated("group")
    set_by_a_client(bootstrap, one.job)
    deadline = Deadline(PATIENCE_S)
    with (
        closing(CatchUp(one.settings, one.job.group, one.job.inputs)) as goal,
        pytest.raises(ConfigError, match=f"has the offset {2 * EACH}, which eos has not committed"),
    ):
        while not deadline.passed:
            assert not goal.reached(OffsetVector())
            time.sleep(0.05)


def delete_by_an_admin(bootstrap: str, job: FaultJob) -> None:
    delete_groups(bootstrap, job.group)


def set_back_by_an_operator(bootstrap: str, job: FaultJob) -> None:
    store(bootstrap, job, {0: EACH - 2, 1: EACH}, had=2, mode=OwnershipMode.PARTITION)


def recreate(bootstrap: str, job: FaultJob) -> None:
    recreate_topic(bootstrap, (source := job.inputs[0]), 2)
    job.load(bootstrap, 2 * EACH, "later ")
    places = [(source, 0), (source, 1)]
    assert Deadline(PATIENCE_S).wait_for(
        lambda: all(one[0] is None for one in committed_offsets(bootstrap, job.group, places).values())
    )


@pytest.mark.parametrize(
    ("moves", "kind", "why"),
    [
        (set_by_an_admin, ConfigError, f"has the offset {2 * EACH}, which eos has not committed"),
        (
            delete_by_an_admin,
            ConfigError,
            "had committed offsets of .* when its owner was done, and has none here",
        ),
        (set_back_by_an_operator, ConfigError, "when its owner was done, .*it was set back"),
        # The fix for deleted offsets, the last processed record, would skip as many records of the new topic.
        (recreate, OffsetGapError, "created anew"),
    ],
)
def test_partition_that_was_done_before_the_others_is_looked_at_once_more_before_a_run_ends_well(
    bootstrap: str,
    operated: Callable[..., Operated],
    moves: Callable[[str, FaultJob], None],
    kind: type[EosError],
    why: str,
) -> None:
    """Its owner leaves when it is done. A stranger came while another partition was at work, and the run ended with 0."""
    one = operated("partition")
    at_work = {0, 1}

    def moved_meanwhile(event: Event) -> None:
        if isinstance(event, SessionClosed):
            at_work.pop()
            if not at_work:  # an owner that still is at work looks for itself
                moves(bootstrap, one.job)

    with pytest.raises(kind, match=why):
        one.job.drive(
            one.job.job(),
            one.settings,
            until_caught_up=True,
            stop=threading.Event(),
            listener=moved_meanwhile,
        )


def test_partition_of_a_worker_that_was_done_before_the_others_is_looked_at_once_more_by_their_parent(
    bootstrap: str, operated: Callable[..., Operated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker looked once more when itself was done, and the run ended with 0 over what was moved behind the first one's look."""
    one = operated("partition", workers__count=2)
    run = supervisor.run_workers

    def moved_behind_them(*args: Any, **named: Any) -> ExitCode:
        code = run(*args, **named)
        assert code is ExitCode.DONE
        set_by_an_admin(bootstrap, one.job)
        return code

    monkeypatch.setattr(supervisor, "run_workers", moved_behind_them)
    ended = one("run", "JOB", "--until-caught-up")
    assert ended.code == ExitCode.CONFIGURATION, ended.err
    assert f"has the offset {2 * EACH}, which eos has not committed" in ended.err


def test_stop_ends_the_look_at_what_workers_have_left(
    bootstrap: str, operated: Callable[..., Operated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction with an offset of the group holds its answer back, for longer than anybody waits for an end."""
    one = operated("partition", workers__count=2)
    producer = by_hand.producer(bootstrap)
    producer.begin_transaction()
    look = last_look.refuse_moved_since

    def asked_to_stop(*args: Any) -> None:
        by_hand.send_offsets(producer, bootstrap, one.job.group, {Partition(one.job.inputs[0], 0): EACH})
        os.kill(os.getpid(), signal.SIGTERM)
        look(*args)

    monkeypatch.setattr(last_look, "refuse_moved_since", asked_to_stop)
    ended = one("run", "JOB", "--until-caught-up")
    producer.abort_transaction(PATIENCE_S)
    assert ended.code == 143, ended.err
    assert "before its offsets were looked at once more" in ended.err


@pytest.mark.parametrize(
    "changes",
    [
        {"ownership__static_membership": False},
        {"ownership__static_membership": True, "ownership__session_timeout_ms": 6_000},
        {"ownership__mode": "partition", "ownership__instances": 2},
    ],
    ids=["dynamic", "static", "by partition"],
)
def test_stranger_is_named_while_it_is_in_the_group_and_an_instance_of_the_job_is_none(
    bootstrap: str, eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    monkeypatch.setattr("eos.watches.strangers._EVERY_S", 0.5)
    job = fault_job(bootstrap, partitions=2)
    one = Operated(eos, tmp_path, bootstrap, job, {**changes, "ownership__ordinal": 0})
    with (
        in_thread(job, one.settings) as running,
        in_thread(job, settings_for(bootstrap, ownership__ordinal=1, **changes)) as other,
    ):
        for instance in (running, other):
            instance.told(PartitionsAssigned)
        assert one.told("status", "JOB")["strangers"] == []
        consumer = stranger(
            bootstrap, job.group, **PROTOCOLS["cooperative"], **{"client.id": "console-consumer"}
        )
        consumer.subscribe(list(job.inputs))
        Deadline(PATIENCE_S).wait_for(
            lambda: bool(consumer.consume(1, 0.1)) or StrangersInGroup in map(type, other.events)
        )
        for instance in (running, other):
            (seen, *_) = instance.told(StrangersInGroup)
            assert seen.group == job.group
            assert [member.split(" @ ")[0] for member in seen.members] == ["console-consumer"]
        assert [name.split(" @ ")[0] for name in one.told("status", "JOB")["strangers"]] == [
            "console-consumer"
        ]
        consumer.close()
        for instance in (running, other):
            *_, gone = instance.told(StrangersInGroup, count=2)
            assert gone.members == ()
