"""The start policy: asked for once, applied once, committed before anything is read."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from eos.errors import ConfigError, EosError, OffsetGapError
from eos.events import Event, PartitionsAssigned, StartPolicyApplied, TransactionCommitted
from eos.group.committed import fresh_reader
from eos.group.metadata import OwnershipMode
from eos.guards import start_policy
from eos.guards.start_policy import apply_start_policy
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import Edge, HoldProxy
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, in_thread, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    delete_groups,
    load,
    produce_plain,
    read_committed,
    recreate_topic,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


def offsets(bootstrap: str, job: FaultJob, partitions: int = 1) -> list[int | None]:
    found = committed_offsets(bootstrap, job.group, [(t, p) for t in job.inputs for p in range(partitions)])
    return [offset for offset, _ in found.values()]


def applied(events: list[Event]) -> list[StartPolicyApplied]:
    return [event for event in events if isinstance(event, StartPolicyApplied)]


def test_nothing_says_where_to_start_so_the_job_does_not(bootstrap: str) -> None:
    """The default. A silent `earliest` replays everything after the offsets have expired, `latest` skips."""
    job = fault_job(bootstrap)
    produce_plain(bootstrap, job.inputs[0], [b"1"])

    with pytest.raises(ConfigError) as raised:
        run_to_end(job, settings_for(bootstrap, input__start="fail"))

    message = str(raised.value)
    for part in (job.group, job.inputs[0], "--start earliest", "--start latest"):
        assert part in message
    assert offsets(bootstrap, job, 2) == [None, None]


@pytest.mark.parametrize(
    ("policy", "seen"), [("earliest", [b"audit old", b"audit new"]), ("latest", [b"audit new"])]
)
def test_policy_says_where_a_new_group_begins(bootstrap: str, policy: str, seen: list[bytes]) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"old"])
    with in_thread(job, settings_for(bootstrap, input__start=policy)) as run:
        run.told(PartitionsAssigned)
        produce_plain(bootstrap, job.inputs[0], [b"new"])
        run.told(TransactionCommitted)
        deadline = time.monotonic() + PATIENCE_S
        while offsets(bootstrap, job) != [2]:  # the first transaction may have held the old record alone
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.stop()

    assert [record.value for record in read_committed(bootstrap, job.audit)] == seen


def test_crash_after_the_start_and_before_the_first_commit_does_not_apply_it_again(
    bootstrap: str, proxy: HoldProxy
) -> None:
    """`latest` proves it: applied again, it would skip what came in between."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"old"])
    with in_process(job, proxy.bootstrap_servers, input__start="latest") as child:
        # The first commit of the job itself dies with the process; the start's is behind it.
        child.wait_line("PartitionsAssigned", PATIENCE_S)
        proxy.cut(ApiKey.END_TXN, Edge.REQUEST, then=lambda _: child.signal(signal.SIGKILL))
        produce_plain(bootstrap, job.inputs[0], [b"in between"])
        assert child.wait(PATIENCE_S) == -signal.SIGKILL

    events = run_to_end(job, settings_for(bootstrap, input__start="latest"))

    assert applied(events) == []
    assert [record.value for record in read_committed(bootstrap, job.audit)] == [b"audit in between"]


@pytest.mark.parametrize("edge", list(Edge), ids=lambda edge: edge.value)
def test_crash_in_the_middle_of_the_start_leaves_all_partitions_with_an_offset_or_none(
    bootstrap: str, proxy: HoldProxy, edge: Edge
) -> None:
    job = fault_job(bootstrap, partitions=3)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"%d" % p, partition=p) for p in range(3)])
    quick: dict[str, Any] = {"transaction__timeout_ms": 6_000}  # what is pending is waited for
    with in_process(job, proxy.bootstrap_servers, **quick) as child:
        proxy.cut(ApiKey.END_TXN, edge, then=lambda _: child.signal(signal.SIGKILL))
        assert child.wait(PATIENCE_S) == -signal.SIGKILL

    events = run_to_end(job, settings_for(bootstrap, **quick))

    assert len(applied(events)) == (1 if edge is Edge.REQUEST else 0)
    assert job.check(bootstrap).processed == 3


def test_several_instances_start_a_new_group_at_once_and_one_of_them_applies_it(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=4)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"%d" % i, partition=i % 4) for i in range(40)])
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                in_thread(job, settings_for(bootstrap, ownership__ordinal=i), until_caught_up=True)
            )
            for i in range(3)
        ]
        for run in runs:
            run.wait(PATIENCE_S)
    assert len(applied([event for run in runs for event in run.events])) == 1
    assert job.check(bootstrap).processed == 40


def test_topic_that_is_added_to_a_started_job_needs_a_policy_of_its_own(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1, inputs=2)
    first, second = job.inputs
    produce_plain(bootstrap, first, [b"1"])
    produce_plain(bootstrap, second, [b"2"])
    before = FaultJob((first,), job.out, job.audit, job.dead, job.name)
    # A static member that comes back at once keeps its partitions: the group takes no look at its new topics.
    dynamic = {"ownership__static_membership": False}
    run_to_end(before, settings_for(bootstrap, **dynamic))

    with pytest.raises(ConfigError, match=f"no committed offsets for {second}, "):
        run_to_end(job, settings_for(bootstrap, input__start="fail", **dynamic))
    events = run_to_end(job, settings_for(bootstrap, **dynamic))

    (start,) = applied(events)
    assert [partition.topic for partition in start.positions] == [second]
    assert job.check(bootstrap).processed == 2


def test_offsets_of_a_plain_client_are_taken_over_where_settings_adopt_them(bootstrap: str) -> None:
    """A job that replaces another application goes on where that one ended; no start policy is needed."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"theirs", b"ours"])
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
    plain.commit(offsets=[TopicPartition(job.inputs[0], 0, 1)], asynchronous=False)
    plain.close()

    run_to_end(job, settings_for(bootstrap, input__start="fail", ownership__adopt_offsets=True))

    assert [record.value for record in read_committed(bootstrap, job.audit)] == [b"audit ours"]
    assert offsets(bootstrap, job) == [2]


def test_missing_input_topic_is_an_error_before_any_offset_is_written(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    wrong = FaultJob((*job.inputs, "missing-input"), job.out, job.audit, job.dead, job.name)

    with pytest.raises(ConfigError, match=r"missing-input.* not exist"):
        run_to_end(wrong, settings_for(bootstrap))

    assert offsets(bootstrap, job) == [None]


def test_member_under_kip_848_is_live_while_a_new_topic_wants_a_start(bootstrap: str) -> None:
    """A KIP-848 group refuses offsets from outside while it has members; the error says to stop them."""
    job = fault_job(bootstrap, partitions=1, inputs=2)
    before = FaultJob(job.inputs[:1], job.out, job.audit, job.dead, job.name)
    settings = settings_for(bootstrap, ownership__protocol="consumer", ownership__static_membership=False)
    with in_thread(before, settings) as run:
        run.told(PartitionsAssigned)
        with pytest.raises(ConfigError, match="has live members"):
            run_to_end(job, settings)
        run.stop()
    run_to_end(job, settings)
    assert job.check(bootstrap).processed == 0


@pytest.mark.parametrize(
    ("with_the_topic", "error"),
    [
        (False, (ConfigError, "had committed offsets .* when this instance started")),
        (True, (OffsetGapError, "was deleted and created anew .* --to earliest")),
    ],
    ids=["group deleted", "topic created anew"],
)
def test_offsets_that_go_while_a_new_topic_gets_its_first_ones_are_not_begun_anew(
    bootstrap: str, with_the_topic: bool, error: tuple[type[EosError], str]
) -> None:
    """The start had seen them, looked again, and applied the policy for the new topic to the old one: its input was processed twice."""
    job = fault_job(bootstrap, partitions=2, inputs=2)
    old, new = job.inputs
    for name in job.inputs:
        produce_plain(bootstrap, name, [PlainRecord(b"%d" % n) for n in range(4)])
    settings = settings_for(bootstrap, input__start="earliest")
    reader_of: dict[str, Any] = {
        "app": job.name,
        "mode": OwnershipMode.GROUP,
        "on_first_offsets": lambda _: None,
    }

    def commit_and_lose(*given: Any, **named: Any) -> None:
        start_policy.commit_to_the_group(*given, **named)
        if with_the_topic:
            recreate_topic(bootstrap, old, 2)
            load(bootstrap, old, 12)
        else:
            delete_groups(bootstrap, job.group)

    with fresh_reader(settings, job.group, stable=True) as reader:
        apply_start_policy(settings, [old], reader, **reader_of)
    with (
        fresh_reader(settings, job.group, stable=True) as reader,
        pytest.raises(error[0], match=rf"{old}.*{error[1]}"),
    ):
        apply_start_policy(settings, [old, new], reader, commit_first=commit_and_lose, **reader_of)


@pytest.mark.parametrize(
    ("was_at", "policy", "is_at", "means"),
    [(4, "earliest", 0, "may be processed twice"), (0, "latest", 4, "may never be processed")],
)
def test_offsets_that_another_start_begins_anew_after_this_one_has_seen_them_are_not_gone_on_from(
    bootstrap: str, was_at: int, policy: str, is_at: int, means: str
) -> None:
    """They went between the looks of two starts. The second knew of none, and the first took its new ones: input was processed twice, or never."""
    job = fault_job(bootstrap, partitions=2, inputs=2)
    old, new = job.inputs
    for name in job.inputs:
        produce_plain(bootstrap, name, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(8)])
    reader_of: dict[str, Any] = {
        "app": job.name,
        "mode": OwnershipMode.GROUP,
        "on_first_offsets": lambda _: None,
    }
    anew = settings_for(bootstrap, input__start=policy)

    def start(settings: Settings, topics: list[str], **more: Any) -> None:
        with fresh_reader(settings, job.group, stable=True) as reader:
            apply_start_policy(settings, topics, reader, **reader_of, **more)

    def lose_and_be_overtaken(*given: Any, **named: Any) -> None:
        delete_groups(bootstrap, job.group)
        start(anew, [old, new])
        start_policy.commit_to_the_group(*given, **named)

    start(settings_for(bootstrap, input__start="latest" if was_at else "earliest"), [old])
    said = f"had the committed offset {was_at} when this instance started, and has {is_at} now.*{means}"
    with pytest.raises(ConfigError, match=rf"{old}\[0\].*{said}"):
        start(anew, [old, new], commit_first=lose_and_be_overtaken)


def test_twelve_instances_that_start_at_the_same_moment_all_come_to_read(bootstrap: str) -> None:
    """Their inits fence each other in turn: with five tries each and no waits, one of three such starts failed."""
    job = fault_job(bootstrap, partitions=2)
    topics, settings = list(job.inputs), settings_for(bootstrap, input__start="earliest")
    told: list[OffsetVector] = []

    def start(_number: int) -> dict[Partition, Committed]:
        with fresh_reader(settings, job.group, stable=True) as reader:
            _, stored = apply_start_policy(
                settings, topics, reader, app=job.name, mode=OwnershipMode.GROUP, on_first_offsets=told.append
            )
            return stored

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(start, range(12)))

    assert all({p: one.offset for p, one in stored.items()} == dict(told[0]) for stored in found)
    assert len(told) == 1


def test_nine_instances_whose_machine_is_slow_come_to_an_end_as_well(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one takes 1.5 s from its init to its commit, the eight others must not all come in between, again and again."""
    offsets_of = start_policy.first_offsets

    def slow(*arguments: Any) -> OffsetVector:
        time.sleep(1.5)
        return offsets_of(*arguments)

    monkeypatch.setattr(start_policy, "first_offsets", slow)
    job = fault_job(bootstrap, partitions=2)
    settings = settings_for(bootstrap, input__start="earliest", transaction__timeout_ms=20_000)
    told: list[OffsetVector] = []

    def start(_number: int) -> dict[Partition, Committed]:
        with fresh_reader(settings, job.group, stable=True) as reader:
            _, stored = apply_start_policy(
                settings,
                job.inputs,
                reader,
                app=job.name,
                mode=OwnershipMode.GROUP,
                on_first_offsets=told.append,
            )
            return stored

    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(start, range(9)))

    assert all({p: one.offset for p, one in stored.items()} == dict(told[0]) for stored in found)
    assert len(told) == 1


@pytest.mark.parametrize("error", [-1, 6], ids=["UNKNOWN_SERVER_ERROR", "NOT_LEADER_OR_FOLLOWER"])
def test_question_for_the_beginning_that_is_answered_by_an_error_is_asked_again(
    bootstrap: str, proxy: HoldProxy, error: int
) -> None:
    """librdkafka's consumer may take the end of the log for its beginning then: all of the input would be skipped."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"%d" % n) for n in range(20)])
    settings = settings_for(proxy.bootstrap_servers)

    def fail(frame: Frame, answer: bytes) -> bytes:
        time.sleep(0.02)  # so that the answer to a second question comes together with this one
        return frame.with_offsets_error(answer, error)

    for _ in range(20):  # it is a race in librdkafka: several of 20
        proxy.clear_rules()
        proxy.edit_reply(ApiKey.LIST_OFFSETS, fail)
        group = unique("group")
        with fresh_reader(settings, group, stable=True) as reader:
            _, stored = apply_start_policy(
                settings,
                job.inputs,
                reader,
                app=job.name,
                mode=OwnershipMode.GROUP,
                on_first_offsets=lambda _: None,
            )
        assert [one.offset for one in stored.values()] == [0]
