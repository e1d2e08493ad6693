"""An operator moves offsets, or skips a record, while owners hang, wake up, come back or start: nothing is torn or taken back."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.errors import ConfigError, FencedError, UnavailableError
from eos.exits import ExitCode
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionsView
from eos.ops.operate import commit as operate_commit
from eos.ops.operate.commit import commit_in_place
from eos.ops.operate.owners import Owners
from eos.ops.operate.positions import Change
from eos.ops.operate.target import target_of
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Edge, HoldProxy
from tests.conftest import NewTopic
from tests.faults.test_zombies_paused import OWNER
from tests.support.command_line import Ended, Eos
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, run_to_end
from tests.support.members import cooperative_member
from tests.support.observer import (
    PlainRecord,
    alter_offsets,
    committed_offsets,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.offset_ages import store_plain
from tests.support.operated import MODES, Operated
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running, running_module
from tests.support.sessions import commit, fill, session_for
from tests.support.settings import owning, settings_of, shard_of

pytestmark = pytest.mark.broker

STEP = 10  # input records per transaction of a zombie

NewOperated = Callable[..., Operated]


@pytest.fixture
def operated(bootstrap: str, eos: Eos, tmp_path: Path) -> NewOperated:
    """A maker of jobs of two input partitions, ten records in each."""

    def make(mode: str, **changes: object) -> Operated:
        job = fault_job(bootstrap, partitions=2)
        job.load(bootstrap, 20)
        return Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], **changes})

    return make


@pytest.mark.parametrize("where", ["inside a transaction", "suspect between transactions"])
@pytest.mark.parametrize("mode", ["partition", "group"])
def test_owner_that_hangs_cannot_commit_over_the_offsets_that_were_set(
    bootstrap: str, topic: NewTopic, tmp_path: Path, eos: Eos, mode: str, where: str
) -> None:
    source, out, group = topic("in"), topic("out"), unique("paused")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(5 * STEP)])
    go_on = tmp_path / "go-on"
    given = (bootstrap, mode, group, source, out, where, "60000", str(go_on), "10000")
    with running(OWNER, *given) as zombie:
        zombie.wait_line("ready", PATIENCE_S)
        zombie.pause()
        settings = settings_of(bootstrap, **owning(mode, source))
        job = FaultJob((source,), out, topic("audit"), topic("dead"), "paused")
        one = Operated(eos, tmp_path, bootstrap, job, {**MODES[mode], "group": group})
        to_3 = ("offsets", "set", "JOB", "--to", f"{source}:0@3", "--yes")
        deadline = time.monotonic() + PATIENCE_S
        refusals = []
        while (ended := one(*to_3)).code != ExitCode.DONE:
            assert time.monotonic() < deadline, ended.err
            refusals.append(ended.err)
            if mode == "partition":  # it may live: a person says that it does not
                name = shard_of(mode, "paused", group, source).transactional_id
                assert one("transactions", "end", name, "--yes", "--fence-owner").code == ExitCode.DONE
            time.sleep(0.5)
        expected = "has live members" if mode == "group" else "a transaction is open"
        assert all(expected in one for one in refusals)
        assert bool(refusals) == (mode == "group" or where == "inside a transaction")
        assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 3

        zombie.resume()
        go_on.touch()
        assert zombie.wait(PATIENCE_S) == 0
        assert "committed" not in zombie.lines[zombie.lines.index("ready") + 1 :]
        assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 3
        assert [int(r.value or b"") for r in read_committed(bootstrap, out)] == list(range(STEP))
        with session_for(settings, shard_of(mode, "paused", group, source), [source]) as successor:
            fill(successor, out)
            commit(successor)
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 3 + STEP
    assert [int(r.value or b"") for r in read_committed(bootstrap, out)] == [
        *range(STEP),
        *range(3, 3 + STEP),
    ]


@contextmanager
def idle_owner(one: Operated) -> Iterator[Child]:
    """A process that owns both partitions, and has committed all that they hold."""
    with in_process(
        one.job, one.bootstrap, ownership__mode="partition", ownership__ordinal=0, ownership__instances=1
    ) as owner:
        assert Deadline(PATIENCE_S).wait_for(lambda: one.offsets() == [10, 10])
        yield owner


def owner_that_goes_on(one: Operated) -> Callable[[], None]:
    """Gives the first partition a record, and runs the job by the settings that it has now."""
    (source,) = one.job.inputs
    settings = one.settings

    def go_on() -> None:
        produce_plain(one.bootstrap, source, [PlainRecord(b"1", partition=0)])
        run_to_end(one.job, settings)

    return go_on


def copy_to_a_new_group(one: Operated, *options: str) -> tuple[str, Ended]:
    """Copy the offsets of the job's own group; the job is in the new one from then on, whose name is returned."""
    one.changes["group"] = group = unique("copy")
    return group, one("offsets", "copy", "JOB", "--from-group", one.job.group, *options, "--yes")


def test_idle_owner_of_partitions_is_fenced_and_ends_at_its_next_commit(
    bootstrap: str, operated: NewOperated
) -> None:
    """It is no member of a group, and has nothing open: nobody can see that it lives."""
    one = operated("partition")
    with idle_owner(one) as owner:
        ended = one("offsets", "set", "JOB", "--to", f"{one.job.inputs[0]}:0@7", "--yes")
        assert ended.code == ExitCode.DONE, ended.err
        assert one.offsets() == [7, 10]
        one.job.load(bootstrap, 2, "later ")
        assert owner.wait(PATIENCE_S) == ExitCode.FENCED
    assert one.offsets()[0] == 7
    one.run()
    assert one.offsets() == [11, 11]
    values = [record.value or b"" for record in read_committed(bootstrap, one.job.audit)]
    assert sorted(v for v in set(values) if values.count(v) > 1) == [b"audit 14", b"audit 16", b"audit 18"]
    assert len(values) == 22 + 3


def test_idle_owner_in_the_group_that_is_copied_ends_at_its_next_commit(
    bootstrap: str, operated: NewOperated
) -> None:
    """It was fenced, found nothing but its own commit in its group, and went on: two groups made the same output."""
    one = operated("partition")
    with idle_owner(one) as owner:
        group, copied = copy_to_a_new_group(one)
        assert copied.code == ExitCode.DONE, copied.err
        assert one.offsets() == one.offsets(group) == [10, 10]
        one.job.load(bootstrap, 2, "later ")
        assert owner.wait(PATIENCE_S) == ExitCode.FENCED
    assert one.offsets() == [10, 10]
    one.run()
    assert one.offsets(group) == [11, 11]
    assert len(read_committed(bootstrap, one.job.audit)) == 22


def test_owner_that_goes_on_while_its_group_is_copied_is_not_put_back(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets were set back to those that had been read, and what it had made since was made again."""
    one = operated("partition")
    one.run()
    move_away, goes_on = operate_commit._move_away, owner_that_goes_on(one)

    def meanwhile(*given: Any) -> None:
        goes_on()
        move_away(*given)

    monkeypatch.setattr(operate_commit, "_move_away", meanwhile)
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.FENCED, copied.err
    assert "nothing was committed" in copied.err
    assert one.offsets() == [11, 10]
    assert one.offsets(group) == [None, None]


@pytest.mark.parametrize("mode", list(MODES))
def test_owner_that_starts_in_the_group_that_is_copied_is_named_and_refused(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It took over what the operator had committed there, and went on: two groups made the same output."""
    one = operated(mode)
    one.run()
    move_away, goes_on = operate_commit._move_away, owner_that_goes_on(one)

    def and_then(*given: Any) -> None:
        move_away(*given)
        with pytest.raises(ConfigError, match="were copied to the group"):
            goes_on()

    monkeypatch.setattr(operate_commit, "_move_away", and_then)
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.FENCED, copied.err
    assert "committed, but it may not last" in copied.err
    assert one.offsets() == one.offsets(group) == [10, 10]


def test_member_that_joins_the_group_that_is_copied_is_named(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read of the offsets before they were moved, nobody knows."""
    one = operated("group")
    one.run()
    move_away, member = operate_commit._move_away, cooperative_member(bootstrap, one.job.group)

    def and_then(*given: Any) -> None:
        move_away(*given)
        member.subscribe(list(one.job.inputs))
        deadline = Deadline(PATIENCE_S)
        while not member.assignment():
            assert not deadline.passed
            member.poll(0.2)

    monkeypatch.setattr(operate_commit, "_move_away", and_then)
    group, copied = copy_to_a_new_group(one)
    member.close()
    assert copied.code == ExitCode.FENCED, copied.err
    assert "committed, but it may not last" in copied.err
    assert one.offsets(group) == [10, 10]


@pytest.mark.parametrize("mode", list(MODES))
def test_job_that_starts_in_the_group_that_it_has_left_is_refused_until_its_offsets_are_copied_back(
    bootstrap: str, operated: NewOperated, mode: str
) -> None:
    """As a deployment that is rolled back does: both groups made the same output, without a word."""
    one = operated(mode)
    one.run()
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.DONE, copied.err
    one.job.load(bootstrap, 2, "later ")
    new, old = one.changes, {**one.changes, "group": one.job.group}
    one.changes = {**old, "ownership__adopt_offsets": True}
    with pytest.raises(ConfigError, match=f"were copied to the group '{group}'.*--from-group {group}"):
        one.run()
    assert one.offsets() == [10, 10]
    one.changes = new
    one.run()
    assert one.offsets(group) == [11, 11]

    one.changes = old
    back = one("offsets", "copy", "JOB", "--from-group", group, "--yes")
    assert back.code == ExitCode.DONE, back.err
    one.job.load(bootstrap, 2, "later still ")
    one.run()
    assert (one.offsets(), one.offsets(group)) == ([12, 12], [11, 11])
    one.changes = new
    with pytest.raises(ConfigError, match=f"were copied to the group '{one.job.group}'"):
        one.run()
    assert len(read_committed(bootstrap, one.job.audit)) == 24


def test_record_is_not_skipped_in_the_group_that_the_job_has_left(
    bootstrap: str, operated: NewOperated
) -> None:
    one = operated("group")
    one.run()
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.DONE, copied.err
    one.job.load(bootstrap, 2, "later ")
    one.changes["group"] = one.job.group
    skipped = one("skip", "JOB", f"{one.job.inputs[0]}:0@10", "--reason", "x", "--yes")
    assert skipped.code == ExitCode.CONFIGURATION
    assert f"were copied to the group '{group}'" in skipped.err
    assert one.offsets() == [10, 10]


def test_copy_that_died_before_its_commit_is_repeated(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets were marked as moved in the group that they are copied from, and are nowhere else."""
    one = operated("group")
    one.run()
    committing = operate_commit._commit

    def dies(settings: Settings, group: str, *rest: Any) -> bool:
        if group != one.job.group:
            raise UnavailableError("killed")
        return committing(settings, group, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(operate_commit, "_commit", dies)
        group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.UNAVAILABLE
    assert one.offsets(group) == [None, None]
    one.changes["group"] = one.job.group
    with pytest.raises(ConfigError, match="the copy did not end: repeat it"):
        one.run()
    one.changes["group"] = group
    assert one("offsets", "copy", "JOB", "--from-group", one.job.group, "--yes").code == ExitCode.DONE
    one.job.load(bootstrap, 2, "later ")
    one.run()
    assert one.offsets(group) == [11, 11]


@pytest.mark.parametrize("mode", list(MODES))
def test_owner_by_partition_that_starts_as_its_offsets_are_moved_fences_that_or_is_fenced(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Also one that has taken over a member's offset, and has not committed yet."""
    one = operated(mode, ownership__protocol="consumer")
    one.run()
    one.changes = {**MODES["partition"]}
    (source,) = one.job.inputs
    old, hold = one.settings, Owners.hold
    shard = PartitionShard(one.job.name, one.job.group, Partition(source, 0))
    with ShardProducer(old, shard):
        pass

    def first(owners: Owners, held: Shard) -> None:
        if held == shard:
            with ShardProducer(old, shard):
                pass
        hold(owners, held)

    monkeypatch.setattr(Owners, "hold", first)
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.FENCED, copied.err
    assert f"nothing was committed: an owner has come in the group {one.job.group!r}" in copied.err
    assert copied.err.count("Fix") == 1
    assert one.offsets(group) == [None, None]
    assert [bool(by.moved_to) for by in one.metadata() if by] == [False, True]


def test_idle_owner_by_partition_ends_behind_a_copy_where_its_last_partition_was_a_members(
    bootstrap: str, operated: NewOperated
) -> None:
    """One offset of a member of the group made all of it a group of members, and the owner by partition went on."""
    one = operated("group", ownership__protocol="consumer")
    one.run()
    (source,) = one.job.inputs
    with in_process(
        one.job,
        bootstrap,
        ownership__mode="partition",
        ownership__ordinal=0,
        ownership__instances=2,
        ownership__adopt_offsets=True,
    ) as owner:
        produce_plain(bootstrap, source, [PlainRecord(b"20", partition=0)])
        assert Deadline(PATIENCE_S).wait_for(lambda: one.offsets() == [11, 10])
        assert [by.mode for by in one.metadata() if by] == [OwnershipMode.PARTITION, OwnershipMode.GROUP]
        one.changes = {**MODES["partition"]}
        group, copied = copy_to_a_new_group(one)
        assert copied.code == ExitCode.DONE, copied.err
        produce_plain(bootstrap, source, [PlainRecord(b"21", partition=0)])
        assert owner.wait(PATIENCE_S) == ExitCode.FENCED
    assert one.offsets() == [11, 10]
    one.run()
    assert one.offsets(group) == [12, 10]
    assert len(read_committed(bootstrap, one.job.audit)) == 22


def test_owner_by_partition_that_has_not_committed_yet_is_fenced_behind_a_copy(
    bootstrap: str, operated: NewOperated
) -> None:
    """What it had taken over was a member's offset, and nothing else was committed behind it: it opened its shard again, and went on."""
    one = operated("group", ownership__protocol="consumer")
    one.run()
    (source,) = one.job.inputs
    partition, settings = Partition(source, 0), one.settings
    shard = PartitionShard(one.job.name, one.job.group, partition)
    mine = OffsetMetadata(OwnershipMode.PARTITION, str(shard), app=one.job.name)
    one.changes = {**MODES["partition"]}
    with ShardProducer(settings, shard, metadata=mine, compare_when_fenced=True) as sleeper:
        sleeper.take_over(one.job.group, [partition])
        _, copied = copy_to_a_new_group(one)
        assert copied.code == ExitCode.DONE, copied.err
        with pytest.raises(FencedError):
            sleeper.reopen()
    assert {by.mode for by in one.metadata() if by} == {OwnershipMode.GROUP}, "a member could not go on there"


def test_copied_offsets_without_a_job_in_them_are_its_own_and_those_of_another_job_are_said(
    bootstrap: str, operated: NewOperated
) -> None:
    one = operated("partition")
    one.run()
    ours, theirs = (by for by in one.metadata() if by)
    older = str(replace(ours, app="", topic="", host=""))
    another = str(replace(theirs, app="another-job"))
    store_plain(bootstrap, one.job, {0: (10, older), 1: (10, another)})
    group, copied = copy_to_a_new_group(one)
    assert copied.code == ExitCode.DONE, copied.err
    assert "is of job another-job, which is not fenced" in copied.out + copied.err
    assert one.offsets() == one.offsets(group) == [10, 10]
    assert [by.moved_to for by in one.metadata() if by] == [group, ""]


def test_strangers_offset_that_is_adopted_into_a_copy_stays_a_strangers_where_it_was(
    bootstrap: str, operated: NewOperated
) -> None:
    one = operated("partition")
    one.run()
    (source,) = one.job.inputs
    alter_offsets(bootstrap, one.job.group, {(source, 0): 7})
    group, copied = copy_to_a_new_group(one, "--adopt-offsets")
    assert copied.code == ExitCode.DONE, copied.err
    assert one.offsets() == one.offsets(group) == [7, 10]
    assert [by is not None for by in one.metadata()] == [False, True]
    assert all(one.metadata(group))


def test_owner_of_another_partition_rests_too_while_offsets_are_set_and_not_while_a_record_is_skipped(
    bootstrap: str, operated: NewOperated
) -> None:
    """It was overlooked; and `eos verify` said no without a loss from where the command says that it is to begin."""
    one = operated("partition")
    one.run()
    (source,) = one.job.inputs
    produce_plain(bootstrap, source, [PlainRecord(b"1", partition=number) for number in (0, 1)])
    to_3 = ("offsets", "set", "JOB", "--to", f"{source}:1@3", "--yes")
    shard = shard_of("partition", one.job.name, one.job.name, source)
    with session_for(one.settings, shard, [source]) as beside:
        fill(beside, one.job.audit, records=1)
        ended = one(*to_3)
        assert ended.code == ExitCode.CONFIGURATION, ended.err
        assert "a transaction is open" in ended.err
        assert one.offsets() == [10, 10]
        skipped = one("skip", "JOB", f"{source}:1@10", "--reason", "x", "--yes")
        assert skipped.code == ExitCode.DONE, skipped.err
        commit(beside)
        assert one.offsets() == [11, 11]
        ended = one(*to_3)  # now it is idle, and cannot be seen
        assert ended.code == ExitCode.DONE, ended.err
        assert shard.transactional_id in ended.out
    assert one.offsets() == [11, 3]


# With KIP-848 the broker says when a member that is silent is dropped: after 45 s.
@pytest.mark.parametrize("protocol", ["cooperative", pytest.param("consumer", marks=pytest.mark.slow)])
def test_member_that_hung_joins_again_and_goes_on_from_the_offsets_that_were_set(
    bootstrap: str, operated: NewOperated, protocol: str
) -> None:
    """The loop: its group has dropped it, so the offsets that it would commit are taken from it, and it asks anew."""
    silent: dict[str, Any] = {"ownership__session_timeout_ms": 6_000} if protocol == "cooperative" else {}
    one = operated("group", ownership__protocol=protocol)
    changes: dict[str, Any] = {
        "ownership__static_membership": False,
        "ownership__protocol": protocol,
        **silent,
    }
    with in_process(one.job, bootstrap, **changes) as member:
        deadline = time.monotonic() + PATIENCE_S
        while one.offsets() != [10, 10]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        member.pause()
        while one("offsets", "set", "JOB", "--to", f"{one.job.inputs[0]}:1@7", "--yes").code != ExitCode.DONE:
            assert time.monotonic() < deadline, "the group does not drop it"
            time.sleep(1)
        assert one.offsets() == [10, 7]
        member.resume()
        one.job.load(bootstrap, 10, "later ")
        while one.offsets() != [15, 15]:
            assert time.monotonic() < deadline, member.lines[-5:]
            time.sleep(0.1)
        member.terminate()
        assert member.wait(PATIENCE_S) == ExitCode.DONE
    values = [record.value or b"" for record in read_committed(bootstrap, one.job.audit)]
    assert sorted(v for v in set(values) if values.count(v) > 1) == [b"audit 15", b"audit 17", b"audit 19"]
    assert len(values) == 30 + 3


@pytest.mark.parametrize("edge", list(Edge), ids=lambda edge: edge.value)
def test_operator_that_dies_in_the_commit_has_set_all_partitions_or_none(
    bootstrap: str, proxy: HoldProxy, operated: NewOperated, edge: Edge
) -> None:
    one = operated("group", transaction__timeout_ms=6_000)
    one.run()
    line = one.behind(proxy.bootstrap_servers).line("offsets", "set", "JOB", "--to", "earliest", "--yes")
    with running_module("eos.cli", *line) as child:
        proxy.cut(ApiKey.END_TXN, edge, then=lambda _: child.signal(signal.SIGKILL))
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    assert one.offsets() == ([10, 10] if edge is Edge.REQUEST else [0, 0])
    assert one("offsets", "set", "JOB", "--to", "latest", "--yes").code == ExitCode.DONE
    one.run()
    assert one.job.check(bootstrap).processed == 20


def test_operator_that_dies_between_the_fences_and_the_commit_leaves_the_job_as_it_was(
    bootstrap: str, proxy: HoldProxy, operated: NewOperated
) -> None:
    one = operated("partition")
    one.run()
    line = one.behind(proxy.bootstrap_servers).line("offsets", "set", "JOB", "--to", "earliest", "--yes")
    with running_module("eos.cli", *line) as child:
        proxy.cut(ApiKey.ADD_OFFSETS_TO_TXN, Edge.REQUEST, then=lambda _: child.signal(signal.SIGKILL))
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    one.job.load(bootstrap, 10, "later ")
    one.run()
    assert one.job.check(bootstrap).processed == 30


@pytest.mark.parametrize("moment", ["before the commit", "behind it"])
@pytest.mark.parametrize("mode", list(MODES))
def test_owner_that_starts_in_between_is_noticed(
    bootstrap: str, operated: NewOperated, monkeypatch: pytest.MonkeyPatch, mode: str, moment: str
) -> None:
    """It has read what was committed before, and would commit behind that."""
    one = operated(mode)
    one.run()
    (source,) = one.job.inputs
    settings, name = one.settings, one.job.name
    partition = Partition(source, 1)
    shard: Shard = OrdinalShard(name, name, 7) if mode == "group" else PartitionShard(name, name, partition)

    def rival() -> None:
        with ShardProducer(settings, shard):
            pass

    def change(_stored: Mapping[Partition, Committed]) -> Change:
        if moment == "before the commit":
            rival()
        return Change(OffsetVector({partition: 3}))

    committing = operate_commit._commit

    def and_then(*arguments: object) -> bool:
        is_at_once = committing(*arguments)  # type: ignore[arg-type]
        rival()
        return is_at_once

    if moment == "behind it":
        monkeypatch.setattr(operate_commit, "_commit", and_then)
    target = target_of(one.job.job(), settings)
    with TransactionsView(settings) as view, pytest.raises(FencedError) as fenced:
        owners = operate_commit.owners_of(settings, view, target, [partition])
        commit_in_place(settings, target, [partition], change, owners=[owners])
    assert ("committed, but it may not last" in str(fenced.value)) == (moment == "behind it")
    assert shard.transactional_id in str(fenced.value)
    assert one.offsets() == [10, 3 if moment == "behind it" else 10]


def test_commit_without_an_answer_is_read_back(
    bootstrap: str, proxy: HoldProxy, operated: NewOperated
) -> None:
    """The connection breaks when the coordinator answers; librdkafka asks again, and the outcome is what is stored."""
    one = operated("group")
    one.run()
    proxy.cut(ApiKey.END_TXN, Edge.REPLY)
    ended = one.behind(proxy.bootstrap_servers)("offsets", "set", "JOB", "--to", "earliest", "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert one.offsets() == [0, 0]
