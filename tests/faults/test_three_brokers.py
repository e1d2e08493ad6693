"""Three brokers, three replicas: coordinators and leaders die in the middle of transactions, one after the other."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from eos import EosError, TransactionalProducer
from eos.base.deadline import Deadline
from eos.events import PartitionsRevoked, Waiting
from eos.local import LocalKafka
from eos.ops.check.preflight import preflight
from eos.ops.check.transactions import TransactionsView
from eos.ops.observe.worker_state import WorkerState
from tests.support.jobs_for_faults import fault_job, in_process, in_thread, run_to_end, settings_for
from tests.support.observer import create_topics, read_committed, unique
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with own_broker(tmp_path_factory.mktemp("three"), 3, heap_mb=384) as cluster:
        yield cluster


def coordinator_of(cluster: LocalKafka, transactional_id: str) -> int:
    """The broker that is the transaction coordinator of an id."""
    told = cluster.tool(
        "org.apache.kafka.tools.TransactionsCommand",
        "--bootstrap-server",
        cluster.bootstrap_servers,
        "describe",
        "--transactional-id",
        transactional_id,
    )
    row = re.search(rf"^(\d+)\s+{re.escape(transactional_id)}\s", told.stdout, re.MULTILINE)
    assert row is not None, told.stdout + told.stderr
    return int(row[1])


def leader_of(cluster: LocalKafka, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader


def test_preflight_asks_each_of_three_brokers_and_has_nothing_to_warn_of(three: LocalKafka) -> None:
    """librdkafka refuses a call that asks two brokers for their configuration."""
    job = fault_job(three.bootstrap_servers, partitions=1, rf=3)
    assert preflight(job.job(), settings_for(three.bootstrap_servers)) == []


# kafka-python leaves the connection to a broker that is gone to the collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)
def test_view_of_the_transactions_goes_on_when_their_coordinator_is_gone(three: LocalKafka) -> None:
    settings = settings_for(three.bootstrap_servers)
    job = fault_job(three.bootstrap_servers, partitions=4, rf=3)
    job.load(three.bootstrap_servers, 100, "v", range(4))
    run_to_end(job, settings)
    shard = f"{job.name}.{job.group}.i.0"
    with TransactionsView(settings, timeout_s=PATIENCE_S) as view:
        before = view.describe([shard])[shard]
        three.kill_broker(before.coordinator)
        try:
            after = view.describe([shard])[shard]
        finally:
            three.restart_broker(before.coordinator)
    gc.collect()  # here, and not in another test
    assert after.coordinator != before.coordinator
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch)


@pytest.mark.parametrize("accident", ["kill", "pause"])
@pytest.mark.parametrize("role", ["coordinator", "leader"])
def test_broker_lost_in_the_middle_of_transactions_three_times_over(
    three: LocalKafka, role: str, accident: str
) -> None:
    """A commit that was begun is finished from the coordinator's log by whichever broker has it next."""
    job = fault_job(three.bootstrap_servers, partitions=4, rf=3, batch=True, pause_ms=20)
    job.load(three.bootstrap_servers, 60_000, "a", range(4))
    shard = f"{job.name}.{job.group}.i.0"
    with in_thread(
        job, settings_for(three.bootstrap_servers, transaction__interval_ms=50, input__fetch_records=100)
    ) as run:
        for _ in range(3):
            run.wait_for_commits(run.committed_records + 2_000)
            broker = coordinator_of(three, shard) if role == "coordinator" else leader_of(three, job.out)
            run.wait_for_commits(run.committed_records + 100)
            if accident == "kill":
                three.kill_broker(broker)
                time.sleep(2)
                three.restart_broker(broker)
            else:
                three.pause_broker(broker)
                time.sleep(8)
                three.resume_broker(broker)
        run.wait_for_commits(run.committed_records + 100)
        run.stop()
    run_to_end(job, settings_for(three.bootstrap_servers))
    assert job.check(three.bootstrap_servers).processed == 60_000


def test_job_whose_leader_is_away_for_long_says_so_and_hardly_uses_the_processor(three: LocalKafka) -> None:
    """librdkafka connects to it without any pause as long as it is asked for offsets there: 0.7 of a core."""
    job = fault_job(three.bootstrap_servers, partitions=4, rf=3)
    job.load(three.bootstrap_servers, 100, "a", range(4))
    # Two of three: what they led finds no other leader, because the controllers have no majority.
    (away,) = {leader_of(three, job.inputs[0])}
    others = sorted({1, 2, 3} - {away})
    own: dict[str, Any] = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}
    with in_process(job, three.bootstrap_servers, **own) as child:
        child.wait_line("TransactionCommitted", PATIENCE_S)
        time.sleep(5)  # it has no transaction open that would have to be settled
        three.kill_broker(away)
        three.kill_broker(others[0])
        try:
            child.wait_line("the broker that leads .* cannot be reached", PATIENCE_S)
            process = psutil.Process(child.pid)
            before = sum(process.cpu_times()[:2])
            time.sleep(20)
            assert sum(process.cpu_times()[:2]) - before < 6
        finally:
            for broker in (away, others[0]):
                three.restart_broker(broker)
        job.load(three.bootstrap_servers, 100, "b", range(4))
        child.terminate()
        assert child.wait(PATIENCE_S) == 0
    run_to_end(job, settings_for(three.bootstrap_servers, **own))
    assert job.check(three.bootstrap_servers).processed == 200


def test_member_whose_coordinator_is_away_says_for_how_long_also_when_its_partitions_are_lost(
    three: LocalKafka,
) -> None:
    """No partition is left then that could show it, and readiness would say yes."""
    job = fault_job(three.bootstrap_servers, partitions=4, rf=3)
    job.load(three.bootstrap_servers, 100, "a", range(4))
    worker = WorkerState()

    def outside_s() -> float:
        return worker.report().outside_s

    with in_thread(job, settings_for(three.bootstrap_servers, ownership__session_timeout_ms=6_000)) as run:
        run.also(worker)
        run.wait_for_commits(100)
        time.sleep(3)  # it has no transaction open that would have to be settled
        assert outside_s() == 0
        admin = AdminClient({"bootstrap.servers": three.bootstrap_servers})
        group = admin.describe_consumer_groups([job.group])[job.group].result(PATIENCE_S)
        away = [group.coordinator.id, next(one for one in (1, 2, 3) if one != group.coordinator.id)]
        for broker in away:
            three.kill_broker(broker)
        try:
            (lost,) = run.told(PartitionsRevoked)
            assert lost.lost
            assert Deadline(PATIENCE_S).wait_for(lambda: outside_s() > 10)
            assert worker.report().owned == {}
            said = [event.reason for event in run.told(Waiting) if event.call == "consume"]
            assert any("the coordinator of the group" in text for text in said), said
        finally:
            for broker in away:
                three.restart_broker(broker)
        assert Deadline(PATIENCE_S).wait_for(lambda: outside_s() == 0 and worker.report().owned != {})
        job.load(three.bootstrap_servers, 100, "b", range(4))
        run.wait_for_commits(200)
        run.stop()
    assert job.check(three.bootstrap_servers).processed == 200


def test_output_with_too_few_replicas_in_sync_is_named_with_the_cause(three: LocalKafka) -> None:
    """The leader answers NOT_ENOUGH_REPLICAS, and librdkafka tries again without a word until the transaction's time is over."""
    out, other = unique("out"), unique("other")
    create_topics(three.bootstrap_servers, {out: 1}, rf=3, config={"min.insync.replicas": "3"})
    create_topics(three.bootstrap_servers, {other: 1}, rf=3)
    settings = settings_for(three.bootstrap_servers, transaction__timeout_ms=6_000)
    with TransactionalProducer(settings, app=unique("few")) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"before")
        coordinator = coordinator_of(three, producer.transactional_id)
        away = next(n for n in (1, 2, 3) if n not in (coordinator, leader_of(three, out)))
        three.stop_broker(away)
        try:
            says = rf"{out}\[0\]: 2 of 3 replicas in sync, and min\.insync\.replicas is 3.*Fix: bring back"
            with pytest.raises(EosError, match=says), producer.transaction() as txn:
                txn.produce(other, b"never")
                txn.produce(out, b"never")
        finally:
            three.restart_broker(away)
    assert [record.value for record in read_committed(three.bootstrap_servers, out, other)] == [b"before"]
