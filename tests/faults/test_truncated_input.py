"""A log loses its end and grows past the committed offset again (KIP-320): nothing of the new end is skipped in silence.

An older copy of the partition's folder is put under a stopped broker. Three brokers with an unclean leader election, or the
loss of all in-sync replicas, do the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eos import OffsetGapError, Session, retry
from eos.events import PartitionsAssigned, Rewound
from eos.kafka.admin import Admin, Mark
from eos.kafka.consumer import ConsumerClient, Fetched, lone_reader
from eos.kafka.topics import produce_plain
from eos.local import LocalKafka
from eos.offsets import Partition
from eos.records import OutputRecord
from tests.support.jobs_for_faults import fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import (
    committed_offsets,
    create_topics,
    load,
    read_committed,
    unique,
)
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from eos.spark.plan import Commit

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("truncated")]

KEPT = 50
COMMITTED = 100
AFTER = 100
OWNED: dict[str, dict[str, object]] = {
    "group": {"ownership__mode": "group", "ownership__static_membership": False},
    "partition": {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
}


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker whose files the tests change."""
    with own_broker(tmp_path_factory.mktemp("kafka"), heap_mb=384) as cluster:
        yield cluster


class Truncated:
    """Keeps a copy of a partition's log, and puts it back."""

    def __init__(self, broker: LocalKafka, topic: str, kept: Path) -> None:
        self._broker = broker
        self._topic = topic
        self._log = broker.data_dir(1) / f"{topic}-0"
        self._kept = kept

    def keep(self) -> None:
        self._broker.stop_broker(1)
        shutil.copytree(self._log, self._kept)
        self._start()

    def put_back(self) -> None:
        self._broker.stop_broker(1)
        shutil.rmtree(self._log)
        shutil.copytree(self._kept, self._log)
        self._start()

    def _start(self) -> None:
        """Until the partition has its leader, which comes a moment after the broker answers."""
        self._broker.restart_broker(1)
        admin = Admin({"bootstrap.servers": self._broker.bootstrap_servers})
        retry.ask(
            lambda s: admin.offsets_at(Mark.HIGH_WATERMARK, [Partition(self._topic, 0)], s),
            timeout_s=PATIENCE_S,
        )

    def fill(self) -> None:
        """COMMITTED records, of which the copy has the first."""
        self.load(KEPT, "kept")
        self.keep()
        self.load(COMMITTED - KEPT, "lost")

    def truncate(self) -> None:
        """The copy in the place of the log, which then grows past COMMITTED again."""
        self.put_back()
        self.load(AFTER, "after")

    def load(self, count: int, prefix: str) -> None:
        load(self._broker.bootstrap_servers, self._topic, count, prefix)


@pytest.mark.parametrize("mode", ["group", pytest.param("partition", marks=pytest.mark.slow)])
def test_start_over_a_log_that_was_truncated_below_the_committed_offset_is_refused(
    breakable: LocalKafka, tmp_path: Path, mode: str
) -> None:
    bootstrap = breakable.bootstrap_servers
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    log = Truncated(breakable, source, tmp_path / "kept")
    log.fill()
    settings = settings_for(bootstrap, **OWNED[mode])
    run_to_end(job, settings)
    log.truncate()

    with pytest.raises(OffsetGapError, match=rf"{source}\[0\].*truncat.*Fix: "):
        run_to_end(job, settings)

    assert len(read_committed(bootstrap, job.out)) == COMMITTED
    assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == COMMITTED


def test_log_that_is_truncated_while_the_job_runs_ends_it(breakable: LocalKafka, tmp_path: Path) -> None:
    bootstrap = breakable.bootstrap_servers
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    log = Truncated(breakable, source, tmp_path / "kept")
    log.fill()
    with in_thread(job, settings_for(bootstrap)) as run:
        run.told(PartitionsAssigned)
        wait_for_output(bootstrap, job.out, COMMITTED)
        log.truncate()
        with pytest.raises(OffsetGapError, match="Fix: "):
            run.wait()
    assert len(read_committed(bootstrap, job.out)) == COMMITTED


def wait_for_output(bootstrap: str, out: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(read_committed(bootstrap, out)) < count:
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_loop_of_ones_own_is_refused_a_truncated_log(breakable: LocalKafka, tmp_path: Path) -> None:
    bootstrap = breakable.bootstrap_servers
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    log = Truncated(breakable, source, tmp_path / "kept")
    settings = settings_for(bootstrap, ownership__static_membership=False, group=group)

    def copy(until: int) -> None:
        with Session(settings, app="own", inputs=[source], outputs=[out]) as session:
            for _ in range(60):
                batch = session.fetch(50, 0.5)
                with session.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(out, record.value)
                if sum(session.committed_offsets.values()) >= until:
                    return

    log.fill()
    copy(COMMITTED)
    log.truncate()
    with pytest.raises(OffsetGapError, match="truncat"):
        copy(KEPT + AFTER)
    assert len(read_committed(bootstrap, out)) == COMMITTED


@pytest.mark.parametrize(
    "own_loop", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eos.run", "own loop"]
)
def test_start_before_a_backlog_in_every_partition_is_not_held_up(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, *, own_loop: bool
) -> None:
    """The check of one partition must not wait until all of another's backlog has been read."""
    job = fault_job(bootstrap, partitions=20, batch=True, own_loop=own_loop)
    (source,) = job.inputs
    records = [OutputRecord(source, b"%d" % n, partition=n % 20) for n in range(60_000)]
    small_batches = {"bootstrap.servers": bootstrap, "batch.num.messages": 100}
    produce_plain(small_batches, records[:20], timeout_s=PATIENCE_S)
    run_to_end(job, settings_for(bootstrap))
    produce_plain(small_batches, records[20:], timeout_s=PATIENCE_S)
    read: list[int] = []

    def counted_reader(*arguments: Any, **options: Any) -> ConsumerClient:
        reader = lone_reader(*arguments, **options)
        consume = reader.consume

        def counted(max_records: int, timeout_s: float) -> Fetched:
            fetched = consume(max_records, timeout_s)
            read.append(len(fetched.messages))
            return fetched

        monkeypatch.setattr(reader, "consume", counted)
        return reader

    monkeypatch.setattr("eos.guards.truncated.lone_reader", counted_reader)
    with in_thread(job, settings_for(bootstrap), until_caught_up=True) as run:
        assigned = run.told(PartitionsAssigned)
        assert 0 < sum(read) < 60_000 / 2  # 57,000 where the partitions wait for each other
        run.wait()
    assert {len(event.positions) for event in assigned} == {20}
    assert job.check(bootstrap).processed == 60_000


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_leader_that_changes_inside_a_transaction_of_the_input_is_no_truncation(
    breakable: LocalKafka, ending: str
) -> None:
    """The transaction's marker has a newer epoch than its records; the position behind it must carry the marker's."""
    from confluent_kafka import Producer

    bootstrap = breakable.bootstrap_servers
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("in"), "log_level": 0})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    for n in range(KEPT):
        writer.produce(source, b"%d" % n)
    writer.flush(PATIENCE_S)
    breakable.restart_broker(1)
    (writer.commit_transaction if ending == "commit" else writer.abort_transaction)(30)
    settings = settings_for(bootstrap, ownership__static_membership=False)
    run_to_end(job, settings)
    breakable.restart_broker(1)
    load(bootstrap, source, AFTER, "after")
    run_to_end(job, settings)
    committed = KEPT if ending == "commit" else 0
    assert len(read_committed(bootstrap, job.out)) == committed + AFTER
    assert job.check(bootstrap).processed == committed + AFTER


@pytest.mark.slow
def test_rewind_over_a_change_of_leader_is_no_truncation(breakable: LocalKafka) -> None:
    """A seek carries the epoch of the last commit, which is older than the leader's."""
    bootstrap = breakable.bootstrap_servers
    source, out, group = unique("in"), unique("out"), unique("own")
    create_topics(bootstrap, {source: 1, out: 1})
    settings = settings_for(bootstrap, group=group)
    rewound: list[Partition] = []
    with Session(
        settings,
        app="own",
        inputs=[source],
        outputs=[out],
        listener=lambda event: rewound.extend(event.positions) if isinstance(event, Rewound) else None,
    ) as session:
        done = 0
        for turn in range(3):
            load(bootstrap, source, KEPT, f"{turn}-")
            failed = False
            for _ in range(60):
                batch = session.fetch(KEPT, 0.5)
                if batch and not failed:
                    failed = True
                    with pytest.raises(ZeroDivisionError), session.transaction(batch):
                        raise ZeroDivisionError
                    continue
                with session.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(out, record.value)
                done += len(batch) if txn.committed else 0
                if done == (turn + 1) * KEPT:
                    break
            breakable.restart_broker(1)
    assert len(rewound) >= 3
    assert len(read_committed(bootstrap, out)) == 3 * KEPT


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_spark_run_over_a_truncated_log_is_refused_by_its_plan(
    breakable: LocalKafka, tmp_path: Path, commit: Commit
) -> None:
    """Spark's source goes by offsets alone; the task has committed the leader's epoch as the driver has seen it."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    from eos.spark.batch.planning import plan_input
    from eos.spark.batch.range_record import RangeRecord
    from eos.spark.write.output import OutputColumns
    from eos.spark.write.writer import ShardWriter

    bootstrap = breakable.bootstrap_servers
    source, out, app = unique("in"), unique("out"), unique("batch")
    create_topics(bootstrap, {source: 1, out: 1})
    log = Truncated(breakable, source, tmp_path / "kept")
    settings = settings_for(bootstrap)
    log.fill()

    plan = plan_input(settings, [source], app=app, commit=commit)
    partition = Partition(source, 0)
    done = RangeRecord(settings, plan).in_task(0, 0)
    ShardWriter(settings, done, OutputColumns((out,), ("value",))).write(iter(()))
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == COMMITTED

    breakable.restart_broker(1)  # another leader epoch alone is no truncation
    load(bootstrap, source, AFTER, "more")
    assert plan_input(settings, [source], app=app, commit=commit).ends[partition] == COMMITTED + AFTER
    log.truncate()
    with pytest.raises(OffsetGapError, match=rf"{source}\[0\].*truncat.*Fix: "):
        plan_input(settings, [source], app=app, commit=commit)
