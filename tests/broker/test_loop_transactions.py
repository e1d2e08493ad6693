"""The loop on a quiet broker: what goes into a transaction, what ends it, and what never becomes visible."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from eos.base.deadline import Deadline
from eos.errors import RecordRefusedError, TransformError, UsageError
from eos.events import (
    Event,
    PartitionsAssigned,
    ProducerOpened,
    RecordDeadLettered,
    Rewound,
    TransactionCommitted,
)
from eos.group.topics import known_partitions
from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    lso,
    produce_plain,
    read_committed,
    read_uncommitted,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

# Nothing but what a test is about ends a transaction.
LONG = {"transaction__interval_ms": 100_000, "transaction__timeout_ms": 240_000}


def records(count: int, *, prefix: str = "v", partitions: int = 2) -> list[PlainRecord]:
    return [PlainRecord(f"{prefix}{i}".encode(), f"k{i % 7}".encode(), i % partitions) for i in range(count)]


def commits(events: Sequence[Event]) -> list[TransactionCommitted]:
    return [event for event in events if isinstance(event, TransactionCommitted)]


@pytest.mark.parametrize("batch", [False, True], ids=["record function", "batch function"])
def test_two_topics_of_several_partitions_become_exactly_their_outputs(
    bootstrap: str, *, batch: bool
) -> None:
    job = fault_job(bootstrap, partitions=3, inputs=2, batch=batch)
    for topic in job.inputs:
        produce_plain(bootstrap, topic, records(500, prefix=topic, partitions=3))

    run_to_end(job, settings_for(bootstrap))

    comparison = job.check(bootstrap)
    assert (comparison.processed, comparison.produced) == (1000, 2000)
    ends = {(topic, p): end for topic in job.inputs for p, end in lso(bootstrap, topic).items()}
    offsets = committed_offsets(bootstrap, job.group, ends)
    assert {p: offset for p, (offset, _) in offsets.items()} == ends
    assert all("mode=group shard=#0" in metadata for _, metadata in offsets.values())


def test_second_run_goes_on_where_the_first_ended(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    settings = settings_for(bootstrap)
    produce_plain(bootstrap, job.inputs[0], records(10))
    run_to_end(job, settings)
    produce_plain(bootstrap, job.inputs[0], records(20, prefix="w"))

    events = run_to_end(job, settings_for(bootstrap, input__start="fail"))

    assert sum(event.records_in for event in commits(events)) == 20
    assert job.check(bootstrap).processed == 30


def test_input_without_outputs_still_commits_its_offsets(bootstrap: str) -> None:
    """Otherwise a filter that drops everything would read the same input after each start."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], records(50, prefix="drop", partitions=1))

    run_to_end(job, settings_for(bootstrap))

    assert job.check(bootstrap).produced == 0
    assert committed_offsets(bootstrap, job.group, [(job.inputs[0], 0)])[job.inputs[0], 0][0] == 50


def test_empty_input_ends_a_catching_up_run_without_a_transaction(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=3)

    assert commits(run_to_end(job, settings_for(bootstrap))) == []


@pytest.mark.parametrize(
    ("limit", "expected"),
    [({"transaction__max_records": 20}, [20, 20, 20, 20, 20]), ({"transaction__max_bytes": 1}, None)],
    ids=["max_records", "max_bytes"],
)
def test_a_full_transaction_ends_before_its_interval(
    bootstrap: str, limit: dict[str, object], expected: list[int] | None
) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], records(100, partitions=1))

    events = run_to_end(
        job,
        settings_for(bootstrap, input__fetch_records=25, **LONG, **limit),
    )

    sizes = [event.records_in for event in commits(events)]
    assert sum(sizes) == 100
    assert len(sizes) > 1
    if expected is not None:
        assert sizes == expected
    assert job.check(bootstrap).processed == 100


def test_interval_ends_a_transaction_that_nothing_fills(bootstrap: str) -> None:
    """The interval begins with the first record, so a lone record is visible one interval later."""
    job = fault_job(bootstrap, partitions=1)
    with in_thread(job, settings_for(bootstrap, transaction__interval_ms=300)) as run:
        run.told(PartitionsAssigned)
        time.sleep(0.5)
        for count in (1, 2):
            produced_at = time.monotonic()
            produce_plain(bootstrap, job.inputs[0], records(1, partitions=1))
            run.told(TransactionCommitted, count=count)
            assert time.monotonic() - produced_at > 0.25
    assert job.check(bootstrap).processed == 2


def test_stop_commits_what_is_open_and_ends_within_the_grace_period(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    settings = settings_for(bootstrap, shutdown__grace_ms=60_000, **LONG)
    with in_thread(job, settings) as run:
        run.told(PartitionsAssigned)
        produce_plain(bootstrap, job.inputs[0], records(100, partitions=1))
        _wait_for_open_output(bootstrap, job)
        assert commits(run.events) == []
        asked_at = time.monotonic()
        run.stop()
        assert time.monotonic() - asked_at < 30
    assert job.check(bootstrap).processed == 100


def test_stop_is_noticed_between_the_records_of_a_slow_transform(bootstrap: str) -> None:
    """A fetch holds no more than the transform takes in an interval; 10,000 records would take 100 s."""
    job = fault_job(bootstrap, partitions=1, pause_ms=10)
    produce_plain(bootstrap, job.inputs[0], records(10_000, partitions=1))
    with in_thread(job, settings_for(bootstrap)) as run:
        run.told(TransactionCommitted, count=2)
        run.stop()
    assert 0 < job.check(bootstrap).processed < 5_000


@pytest.mark.parametrize("batch", [False, True], ids=["record function", "batch function"])
def test_poison_stops_the_job_with_its_coordinates_and_leaves_nothing_of_its_transaction(
    bootstrap: str, *, batch: bool
) -> None:
    job = fault_job(bootstrap, partitions=1, batch=batch)
    source = job.inputs[0]
    produce_plain(bootstrap, source, [*records(5, partitions=1), b"poison", *records(5, partitions=1)])

    with pytest.raises(TransformError, match=rf"{source}\[0\] offset 5: .*ValueError.*poison") as raised:
        run_to_end(job, settings_for(bootstrap, **LONG))

    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (source, 0, 5)
    assert read_committed(bootstrap, *job.outputs) == []
    assert job.check(bootstrap).processed == 0


@pytest.mark.parametrize("batch", [False, True], ids=["record function", "batch function"])
@pytest.mark.parametrize("policy", ["dead-letter", "skip"])
def test_poison_is_isolated_and_everything_else_goes_on(bootstrap: str, policy: str, *, batch: bool) -> None:
    job = fault_job(bootstrap, partitions=1, batch=batch)
    source = job.inputs[0]
    poison = PlainRecord(b"poison pill", b"key", 0, (("trace", b"7"),))
    produce_plain(
        bootstrap, source, [*records(5, partitions=1), poison, *records(5, prefix="w", partitions=1)]
    )

    events = run_to_end(job, settings_for(bootstrap, poison__policy=policy))

    assert job.check(bootstrap).processed == 11
    told = [event for event in events if isinstance(event, RecordDeadLettered)]
    assert [(e.partition.topic, e.offset, e.skipped) for e in told] == [(source, 5, policy == "skip")]
    dead = read_committed(bootstrap, job.dead)
    if policy == "skip":
        assert dead == []
    else:
        (letter,) = dead
        assert (letter.key, letter.value) == (b"key", b"poison pill")
        headers = dict(letter.headers)
        assert headers.pop("eos.deadletter.error") == b"ValueError: b'poison pill' is poison"
        assert headers == {
            "trace": b"7",
            "eos.deadletter.topic": source.encode(),
            "eos.deadletter.partition": b"0",
            "eos.deadletter.offset": b"5",
        }


def test_dead_letter_is_part_of_its_transaction(bootstrap: str) -> None:
    """Poison met after a dead letter, under `stop` for a bug of the code, takes the dead letter with it."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"poison", b"undeclared"])

    def transform(record: InputRecord) -> list[OutputRecord]:
        if record.value == b"poison":
            raise ValueError
        return [OutputRecord("elsewhere", record.value)]

    declared = Job(
        name=job.name, inputs=job.inputs, outputs=[job.out], dead_letters=job.dead, transform=transform
    )
    with pytest.raises(UsageError, match="'elsewhere', which is not declared"):
        _run(declared, bootstrap, poison__policy="dead-letter", **LONG)

    assert read_committed(bootstrap, job.dead, job.out) == []
    assert committed_offsets(bootstrap, job.group, [(job.inputs[0], 0)])[job.inputs[0], 0][0] == 0


def test_policy_dead_letter_without_a_topic_is_refused_before_anything_is_read(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    declared = replace(job.job(), dead_letters=None)
    with pytest.raises(UsageError, match="needs a topic"):
        _run(declared, bootstrap, poison__policy="dead-letter")


def test_record_larger_than_the_client_takes_stops_the_job(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"small", b"large"])

    def transform(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(job.out, (record.value or b"") * (1 if record.value == b"small" else 500_000))]

    declared = Job(name=job.name, inputs=job.inputs, outputs=[job.out], transform=transform)
    with pytest.raises(RecordRefusedError, match=r"message\.max\.bytes"):
        _run(declared, bootstrap, **LONG)

    assert read_committed(bootstrap, job.out) == []
    assert committed_offsets(bootstrap, job.group, [(job.inputs[0], 0)])[job.inputs[0], 0][0] == 0


def test_output_topic_that_goes_away_after_the_start_stops_the_job(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is missing at the start is refused then: tests/broker/test_preflight.py."""
    job = fault_job(bootstrap, partitions=1)
    monkeypatch.setattr(
        "eos.runner.worker.known_partitions",
        lambda admin, topics, **others: (
            [] if "never-created" in topics else known_partitions(admin, topics, **others)
        ),
    )
    produce_plain(bootstrap, job.inputs[0], [b"one"])

    def transform(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(job.out, record.value), OutputRecord("never-created", record.value)]

    declared = Job(name=job.name, inputs=job.inputs, outputs=[job.out, "never-created"], transform=transform)
    soon = {"topic.metadata.propagation.max.ms": 500}
    with pytest.raises(RecordRefusedError, match="never-created"):
        _run(declared, bootstrap, kafka__producer=soon)

    assert read_committed(bootstrap, job.out) == []


def test_fence_every_transaction_opens_a_producer_for_each_and_stays_exact(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], records(90, partitions=1))

    events = run_to_end(
        job,
        settings_for(
            bootstrap,
            transaction__fence_every="transaction",
            transaction__max_records=30,
            input__fetch_records=4,
            **LONG,
        ),
    )

    assert job.check(bootstrap).processed == 90
    assert [event.records_in for event in commits(events)] == [30, 30, 30]
    opened = [event for event in events if isinstance(event, ProducerOpened)]
    assert len(opened) == 3
    assert not [event for event in events if isinstance(event, Rewound)]


def _run(job: Job, bootstrap: str, **changes: object) -> None:
    run = Running(job, settings_for(bootstrap, **changes), until_caught_up=True)
    try:
        run.wait(PATIENCE_S)
    finally:
        run.ask_to_stop()


def _wait_for_open_output(bootstrap: str, job: FaultJob) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not read_uncommitted(bootstrap, job.out):
        assert time.monotonic() < deadline, "nothing was produced"


def test_no_more_than_10000_records_are_transformed_ahead_of_a_commit_in_flight(
    bootstrap: str, proxy: HoldProxy
) -> None:
    """Unbounded, the next transaction became one burst, whose commit took longer, and so on to 100,000 records."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], records(40_000, partitions=1))
    seen = 0

    def counted(batch: InputBatch) -> list[OutputBatch]:
        nonlocal seen
        seen += len(batch)
        return [OutputBatch(job.out, batch.values, batch.keys)]

    counting = Job(name=job.name, inputs=job.inputs, outputs=job.outputs, transform_batch=counted)
    limits = {"transaction__max_records": 15_000, "input__fetch_records": 1_500, **LONG}
    held = proxy.hold(ApiKey.END_TXN, nth=2)  # the first one is the start policy's
    run = Running(counting, settings_for(proxy.bootstrap_servers, **limits), until_caught_up=True)
    try:
        held.wait_held(PATIENCE_S)
        assert Deadline(PATIENCE_S).wait_for(lambda: seen >= 25_000), seen
        time.sleep(1)
        ahead = seen - 15_000
        held.release()
        run.wait(PATIENCE_S)
    finally:
        held.release()
        run.ask_to_stop()
    assert ahead == 10_000
    assert [one.records_in for one in commits(run.events)] == [15_000, 15_000, 10_000]
    assert len(read_committed(bootstrap, job.out)) == 40_000


def test_interval_of_a_loop_that_is_behind_counts_from_the_begin_of_its_transaction(
    bootstrap: str, proxy: HoldProxy
) -> None:
    """Its first record was fetched while the last commit was in flight; counted from that, each commit made the next one early."""
    interval_s, held_s = 0.6, 0.5
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], records(400, partitions=1))

    def slow(batch: InputBatch) -> list[OutputBatch]:
        time.sleep(0.005 * len(batch))
        return [OutputBatch(job.out, batch.values, batch.keys)]

    its = Job(name=job.name, inputs=job.inputs, outputs=job.outputs, transform_batch=slow)
    limits = {"transaction__interval_ms": int(interval_s * 1000), "input__fetch_records": 4}
    held = proxy.hold(ApiKey.END_TXN, nth=2)  # the first one is the start policy's
    run = Running(its, settings_for(proxy.bootstrap_servers, **limits), until_caught_up=True)
    try:
        held.wait_held(PATIENCE_S)
        time.sleep(held_s)
        held.release()
        run.wait(PATIENCE_S)
    finally:
        held.release()
        run.ask_to_stop()
    _, behind_the_late_commit, *_ = commits(run.events)
    assert behind_the_late_commit.seconds > interval_s
    assert len(read_committed(bootstrap, job.out)) == 400
