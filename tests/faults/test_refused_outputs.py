"""An output that the cluster does not take: the error names the input record, and nothing is lost behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from eos.errors import AbortableError, ConfigError, RecordRefusedError, ReopenError
from eos.exits import ExitCode, exit_code_of
from eos.job import Job
from eos.kafka.refused_records import RefusedBatch, one_more
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.jobs_for_faults import Running, fault_job, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    assert_exactly_once,
    committed_offsets,
    create_topics,
    produce_plain,
    read_committed,
    unique,
)

pytestmark = pytest.mark.broker

LIMIT_BYTES = 100_000  # all other records fit into one batch below it
HOUR_MS = 3_600_000
BAD = b"bad"
RECORDS = 300


def too_large(out: str) -> OutputRecord:
    return OutputRecord(out, b"x" * 2 * LIMIT_BYTES, b"k")


def too_old(out: str) -> OutputRecord:
    return OutputRecord(out, b"old", b"k", timestamp_ms=HOUR_MS)


def without_a_key(out: str) -> OutputRecord:  # a compacted topic takes none
    return OutputRecord(out, b"v")


def too_large_for_the_client(out: str) -> OutputRecord:
    return OutputRecord(out, b"y" * 2_000_000, b"k")


def by_record(source: str, out: str, bad: Callable[[str], OutputRecord]) -> Job:
    def transform(record: InputRecord) -> list[OutputRecord]:
        return [bad(out) if record.value == BAD else OutputRecord(out, record.value, b"k")]

    return Job(name=source, inputs=[source], outputs=[out], transform=transform)


def by_batch(source: str, out: str, bad: Callable[[str], OutputRecord]) -> Job:
    def transform(batch: InputBatch) -> list[OutputBatch]:
        made = [bad(out) if value == BAD else OutputRecord(out, value, b"k") for value in batch.values]
        return [
            OutputBatch(
                out,
                [one.value for one in made],
                [one.key for one in made],
                timestamps_ms=[one.timestamp_ms for one in made],
            )
        ]

    return Job(name=source, inputs=[source], outputs=[out], transform_batch=transform)


@pytest.mark.parametrize("shape", [by_record, by_batch])
@pytest.mark.parametrize("bad", [too_large, too_old, without_a_key, too_large_for_the_client])
def test_refused_output_is_told_with_the_input_record_it_was_made_of(
    bootstrap: str, shape: Callable[..., Job], bad: Callable[[str], OutputRecord]
) -> None:
    require_named(bootstrap, shape, bad)


@pytest.mark.parametrize("bad", [too_old, without_a_key])
def test_refusal_whose_reports_come_slowly_beside_the_offsets_is_told_with_all_of_its_records(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, bad: Callable[[str], OutputRecord]
) -> None:
    """The thread that sends the offsets saw the first report, and called a clock wrong: the record at fault was not among them yet."""

    def slowly(*arguments: Any) -> RefusedBatch:
        time.sleep(0.005)
        return one_more(*arguments)

    monkeypatch.setattr("eos.kafka.producer.one_more", slowly)
    require_named(bootstrap, by_batch, bad)


def require_named(bootstrap: str, shape: Callable[..., Job], bad: Callable[[str], OutputRecord]) -> None:
    source, out = unique("in"), unique("out")
    config = {"max.message.bytes": str(LIMIT_BYTES), "message.timestamp.before.max.ms": str(HOUR_MS)}
    if bad is without_a_key:
        config["cleanup.policy"] = "compact"
    create_topics(bootstrap, {source: 2})
    create_topics(bootstrap, {out: 1}, config=config)
    values = [[b"%d" % n for n in range(RECORDS)] for _ in range(2)]
    values[1][213] = BAD
    produce_plain(
        bootstrap, source, [PlainRecord(v, partition=p) for p, column in enumerate(values) for v in column]
    )
    run = Running(shape(source, out, bad), settings_for(bootstrap), until_caught_up=True)
    with pytest.raises(RecordRefusedError, match=rf"^{source}\[1\] offset 213: .*{out}.*") as raised:
        run.wait()
    assert exit_code_of(raised.value) is ExitCode.POISON
    stands = committed_offsets(bootstrap, source, [(source, 0), (source, 1)])
    assert all((offset or 0) <= RECORDS for offset, _ in stands.values())
    assert (stands[source, 1][0] or 0) <= 213
    assert_exactly_once(bootstrap, source, [source], [out], lambda record: [(out, b"k", record.value)])


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("records", [1, 50])
def test_clock_that_is_behind_the_brokers_is_named_and_no_record(
    bootstrap: str, records: int, key: bytes | None
) -> None:
    """By more than the topic allows: here the transform's clock."""
    source, out = unique("in"), unique("out")
    create_topics(bootstrap, {source: 1})
    create_topics(bootstrap, {out: 1}, config={"message.timestamp.before.max.ms": "30000"})
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=0) for n in range(records)])

    def transform(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(out, record.value, key, timestamp_ms=int(time.time() * 1000) - 60_000)]

    require_clock_named(
        bootstrap, bootstrap, Job(name=source, inputs=[source], outputs=[out], transform=transform)
    )


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("code", [32, 87], ids=["INVALID_TIMESTAMP", "INVALID_RECORD"])
def test_broker_that_refuses_the_clients_own_time_is_said_to_have_another_clock(
    bootstrap: str, proxy: HoldProxy, code: int, key: bytes | None
) -> None:
    source, out = unique("in"), unique("out")
    create_topics(bootstrap, {source: 1, out: 1})
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=0) for n in range(4)])
    proxy.refuse(ApiKey.PRODUCE, code, times=10)

    def transform(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(out, record.value, key)]

    job = Job(name=source, inputs=[source], outputs=[out], transform=transform)
    require_clock_named(bootstrap, proxy.bootstrap_servers, job)


def require_clock_named(bootstrap: str, servers: str, job: Job) -> None:
    (source,), (out,) = job.inputs, job.outputs
    run = Running(job, settings_for(servers), until_caught_up=True)
    with pytest.raises(ConfigError, match=rf"^{out}: .*timestamps.*clock.*message.timestamp.before.max.ms"):
        run.wait()
    assert committed_offsets(bootstrap, source, [(source, 0)])[source, 0][0] == 0
    assert read_committed(bootstrap, out) == []


def test_refused_output_that_no_record_makes_alone_is_told_with_the_offsets_of_its_batch(
    bootstrap: str,
) -> None:
    source, out = unique("in"), unique("out")
    create_topics(bootstrap, {source: 1})
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": str(LIMIT_BYTES)})
    produce_plain(bootstrap, source, [b"%d" % n for n in range(4)])

    def transform(batch: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(out, [b"x" * (LIMIT_BYTES // 3) * len(batch)])]

    job = Job(name=source, inputs=[source], outputs=[out], transform_batch=transform)
    run = Running(job, settings_for(bootstrap), until_caught_up=True)
    with pytest.raises(
        RecordRefusedError, match=rf"^{source}\[0\] offsets 0 to 3: .*none of its records makes alone.*{out}"
    ):
        run.wait()


def test_refusal_whose_output_is_not_made_again_stays_as_it_is(bootstrap: str) -> None:
    source, out = unique("in"), unique("out")
    create_topics(bootstrap, {source: 1})
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": str(LIMIT_BYTES)})
    produce_plain(bootstrap, source, [b"1"])
    made: list[Any] = []

    def transform(_: InputRecord) -> list[OutputRecord]:
        made.append(0)
        return [OutputRecord(out, b"x" * (2 * LIMIT_BYTES + len(made)))]

    job = Job(name=source, inputs=[source], outputs=[out], transform=transform)
    run = Running(job, settings_for(bootstrap), until_caught_up=True)
    with pytest.raises(RecordRefusedError, match=rf"^{out}: "):
        run.wait()
    assert len(made) == 2


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.PRODUCE, 19),  # NOT_ENOUGH_REPLICAS
        (ApiKey.ADD_PARTITIONS_TO_TXN, 14),  # COORDINATOR_LOAD_IN_PROGRESS
        pytest.param(ApiKey.TXN_OFFSET_COMMIT, 14, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_cluster_that_lets_the_transactions_wait_ends_the_job_as_unavailable(
    bootstrap: str, proxy: HoldProxy, api: ApiKey, code: int
) -> None:
    """It answers everything else, so no outage is counted; the code was 1, which is for bugs."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 20, "a")
    run_to_end(job, settings_for(bootstrap))
    job.load(bootstrap, 20, "b")
    times = {"transaction__timeout_ms": 2_000, "transaction__commit_deadline_ms": 500}
    proxy.refuse(api, code, times=10**6, after_s=0.02)
    with pytest.raises((AbortableError, ReopenError)) as raised:
        run_to_end(job, settings_for(proxy.bootstrap_servers, **times))
    assert exit_code_of(raised.value) is ExitCode.UNAVAILABLE
    proxy.clear_rules()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 40
