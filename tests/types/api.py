"""The public API as a user writes it: type-checked with the rest, never run.

Each function is a page of a user's code; a signature that changes breaks the type check here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import assert_type

from pydantic import BaseModel

import eos
from eos.testing import KafkaCluster, RunningJob, assert_exactly_once


class Rules(BaseModel):
    """A job's own settings."""

    limit: int = 10


def per_record(record: eos.InputRecord) -> Iterable[eos.OutputRecord]:
    assert_type(record.key, bytes | None)
    assert_type(record.timestamp_ms, int | None)
    if record.value is None:
        return [eos.dead_letter(record, "a tombstone", topic="dlq")]
    return [
        eos.OutputRecord("out", record.value, record.key, headers=(("h", None),), timestamp_ms=5, partition=0)
    ]


def per_batch(batch: eos.InputBatch) -> list[eos.OutputBatch]:
    assert_type(batch.values, list[bytes | None])
    assert_type(batch.offsets, list[int])
    assert_type([record for record in batch], list[eos.InputRecord])  # noqa: C416 - the iterator's type
    assert_type(batch[0], eos.InputRecord)
    return [eos.OutputBatch("out", batch.values, keys=batch.keys, timestamps_ms=batch.timestamps_ms)]


def factory(rules: Rules) -> Callable[[eos.InputRecord], list[eos.OutputRecord]]:
    return lambda record: [eos.OutputRecord("out", record.value)] * rules.limit


def declared_jobs() -> list[eos.Job]:
    return [
        eos.Job(name="a", inputs=["in"], outputs=["out"], transform=per_record, dead_letters="dlq"),
        eos.Job(name="b", inputs=("in",), outputs=("out",), transform_batch=per_batch),
        eos.Job(name="c", inputs=["in"], outputs=["out"], transform_factory=factory, settings=Rules),
    ]


def settings() -> eos.Settings:
    loaded = eos.Settings.load(
        Path("conf/refunds.toml"), overrides={"group": "g"}, environ={"EOS_ORDINAL": "0"}
    )
    assert_type(loaded.job_settings(Rules), Rules)
    assert_type(loaded.group_for("job"), str)
    return loaded


def verified(job: eos.Job) -> bool:
    report = eos.verify(
        job, settings(), timeout_s=600.0, input_from={eos.Partition("in", 0): 500}, order=False
    )
    assert_type(report, eos.VerificationReport)
    assert_type(report.rows(), list[tuple[str, str]])
    return report.exactly_once and report.complete


def shards(group: str) -> list[eos.Shard]:
    found: list[eos.Shard] = [
        eos.OrdinalShard("app", group, 0),
        eos.PartitionShard("app", group, eos.Partition("in", 3)),
    ]
    assert_type(found[0].transactional_id, str)
    return found


def transactions() -> eos.TransactionState:
    with eos.TransactionalProducer(settings(), app="payments") as producer:
        with producer.transaction() as transaction:
            transaction.produce("out", b"value")
            transaction.produce(
                "out", None, key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=5, partition=0
            )
            transaction.produce("out", "text", key="text", headers={"h": b"1"})
            transaction.produce_batch("out", [{"value": b"v", "key": b"k"}])
            transaction.produce_batch("out", eos.OutputBatch("out", [b"v", None]))
            transaction.produce_records([eos.OutputRecord("out", b"v")])
        assert_type(producer.transactional_id, str)
        assert_type(transaction.committed, bool)
        return transaction.state


def consume_transform_produce() -> None:
    with eos.Session(settings(), app="relay", inputs=["in"], outputs=["out"]) as session:
        for batch in session:
            assert_type(batch, eos.InputBatch)
            with session.transaction(batch) as transaction:
                for output in per_batch(batch):
                    transaction.produce_batch(output.topic, output)
                if not batch:
                    raise eos.AbortTransaction
            if not transaction.committed:
                session.stop()
        assert_type(session.committed_offsets, eos.OffsetVector)


def reading_alone() -> eos.InputBatch:
    with eos.ReadCommittedConsumer(settings(), ["in"], group="g") as consumer:
        assert_type(consumer.assignment, frozenset[eos.Partition])
        return consumer.fetch(1000, timeout_s=1.0)


def offsets() -> int:
    partition = eos.Partition("in", 0)
    vector = eos.OffsetVector({partition: 5}).advanced([(partition, 9)])
    assert_type(vector.merged({partition: 11}), eos.OffsetVector)
    assert_type(vector.only([partition]).without([partition]), eos.OffsetVector)
    assert_type(vector.get(partition), int | None)
    return vector[partition]


def errors(producer: eos.TransactionalProducer) -> eos.ExitCode:
    """One handler per thing that its holder has to do."""
    try:
        with producer.transaction() as transaction:
            transaction.produce("out", b"v")
    except eos.FencedError as error:
        assert_type(error.code, str | None)
        return eos.ExitCode.FENCED
    except eos.TransformError as error:
        assert_type((error.topic, error.partition, error.offset), tuple[str, int, int])
        return eos.ExitCode.POISON
    except (eos.AbortableError, eos.ReopenError):
        return eos.ExitCode.UNAVAILABLE
    except eos.EosError:
        return eos.ExitCode.UNEXPECTED
    return eos.ExitCode.DONE


def told() -> list[object]:
    """A listener is any function of one event."""
    events: list[object] = []

    def tell(event: object) -> None:
        events.append(event)

    eos.TransactionalProducer(settings(), app="payments", listener=tell)
    return events


def own_tests(eos_cluster: KafkaCluster, eos_topic: str, job: eos.Job) -> None:
    """What a user's tests do with the fixtures of eos.testing."""
    eos_cluster.create_topics(job, partitions=3)
    assert_type(eos_cluster.create_topic("other"), str)
    assert_type(eos_cluster.produce(eos_topic, [b"a", eos.OutputRecord(eos_topic, b"b", b"key")]), int)
    eos_cluster.run(job, eos_cluster.settings(job, {"transaction.interval_ms": 20}), timeout_s=30)
    with eos_cluster.running(job) as run:
        assert_type(run, RunningJob)
        run.wait_for_records(10)
        eos_cluster.kill_broker(1)
        eos_cluster.restart_broker(1)
    assert_type(assert_exactly_once(job, eos_cluster, records=10).records, int)
    assert_type(eos_cluster.read_committed(eos_topic), list[eos.InputRecord])
    assert_type(eos_cluster.committed(job), eos.OffsetVector)
    with KafkaCluster(3, kind="process", properties={"message.max.bytes": "1000"}) as own:
        assert_type(own.bootstrap_servers, str)
