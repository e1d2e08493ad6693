"""The only broker goes away: killed, paused, for longer than the session, or never there; the loop comes back by itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from eos import retry
from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.errors import UnavailableError
from eos.events import Sampled
from eos.exits import ExitCode
from eos.group.committed import committed_offsets, fresh_reader
from eos.kafka.admin import Admin, Mark
from eos.local import LocalKafka
from eos.offsets import Partition
from eos.shards import OrdinalShard
from tests.support.jobs_for_faults import (
    FaultJob,
    fault_job,
    in_process,
    in_thread,
    run_to_end,
    settings_for,
)
from tests.support.observer import PlainRecord, create_topics, produce_plain, unique
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("outage")]

BROKER = 1


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that these tests may break."""
    with own_broker(tmp_path_factory.mktemp("outage")) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "own_loop", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eos.run", "own loop"]
)
def test_broker_killed_in_the_middle_and_restarted_is_survived(own: LocalKafka, *, own_loop: bool) -> None:
    """Longer than the session timeout, so the member is gone as well."""
    job = fault_job(own.bootstrap_servers, pause_ms=1, own_loop=own_loop)
    job.load(own.bootstrap_servers, 4_000, "a")
    settings = settings_for(own.bootstrap_servers, ownership__session_timeout_ms=6_000)
    with in_thread(job, settings) as run:
        run.wait_for_commits(500)
        own.kill_broker(BROKER)
        time.sleep(8)
        own.restart_broker(BROKER)
        job.load(own.bootstrap_servers, 1_000, "b")
        run.wait_for_commits(5_000)
        run.stop()
    assert job.check(own.bootstrap_servers).processed == 5_000


@pytest.mark.slow
def test_offsets_are_told_by_the_client_that_was_there_before_the_leader_changed(own: LocalKafka) -> None:
    """librdkafka's own client is refused for ever; when that is not so any more, `Admin` need not ask for the topic."""
    config: dict[str, Any] = {"bootstrap.servers": own.bootstrap_servers}
    topic = unique("leader")
    create_topics(own.bootstrap_servers, {topic: 2})
    produce_plain(own.bootstrap_servers, topic, [PlainRecord(b"x", partition=i) for i in (0, 1, 1)])
    partitions = [Partition(topic, 0), Partition(topic, 1)]
    upstream, admin, watching = AdminClient(config), Admin(config), Admin(config)
    wanted: dict[TopicPartition, Any] = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]

    def refused() -> str:
        (future,) = upstream.list_offsets(wanted, request_timeout=5).values()
        error = future.exception(10)
        return str(error.args[0].name()) if isinstance(error, KafkaException) else ""

    def told_in_the_background() -> bool:
        asked = watching.ask_offsets_at(Mark.HIGH_WATERMARK, partitions, 2)
        time.sleep(0.3)
        return len(asked.answers()) == 2

    assert refused() == ""
    assert Deadline(PATIENCE_S).wait_for(told_in_the_background)
    assert list(admin.offsets_at(Mark.HIGH_WATERMARK, partitions, 5).values()) == [1, 2]
    own.kill_broker(BROKER)
    own.restart_broker(BROKER)
    found = retry.ask(lambda s: admin.offsets_at(Mark.HIGH_WATERMARK, partitions, s), timeout_s=PATIENCE_S)
    assert list(found.values()) == [1, 2]
    assert Deadline(PATIENCE_S).wait_for(told_in_the_background)
    # `_NOENT` if it asked for the topic while this had no leader; it is kept as well.
    assert {refused() for _ in range(5)} <= {"FENCED_LEADER_EPOCH", "_NOENT"}, "the canary"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "static"), [(5, True), (15, False), (15, True)])
def test_broker_paused_in_the_middle_is_survived_and_the_loop_turns_on(
    own: LocalKafka, seconds: float, static: bool
) -> None:
    """Nobody answers and no connection breaks: requests are resent by the client, which makes it suspect.

    After longer than the session (10 s) a static member is mostly fenced by its own heartbeat, which no longer names
    the member: a rival looks the same at first.
    """
    job = fault_job(own.bootstrap_servers, pause_ms=1)
    job.load(own.bootstrap_servers, 4_000, "a")
    settings = settings_for(own.bootstrap_servers, ownership__static_membership=static)
    with in_thread(job, settings) as run:
        turns: list[float] = []
        run.also(lambda event: turns.append(time.monotonic()) if isinstance(event, Sampled) else None)
        run.wait_for_commits(500)
        own.pause_broker(BROKER)
        try:
            time.sleep(seconds)
            assert time.monotonic() - turns[-1] < seconds / 2
        finally:
            own.resume_broker(BROKER)
        job.load(own.bootstrap_servers, 1_000, "b")
        run.wait_for_commits(5_000)
        run.stop()
    assert job.check(own.bootstrap_servers).processed == 5_000


@pytest.mark.slow
def test_loop_of_ones_own_survives_a_broker_that_is_paused_inside_its_blocks(own: LocalKafka) -> None:
    """Longer than the session, and than the transaction: it expires while its commit has no answer."""
    job = fault_job(own.bootstrap_servers, pause_ms=1, own_loop=True)
    job.load(own.bootstrap_servers, 4_000, "a")
    with in_thread(job, settings_for(own.bootstrap_servers, transaction__timeout_ms=10_000)) as run:
        run.wait_for_commits(500)
        own.pause_broker(BROKER)
        try:
            time.sleep(15)
        finally:
            own.resume_broker(BROKER)
        job.load(own.bootstrap_servers, 1_000, "b")
        run.wait_for_commits(5_000)
        run.stop()
    assert job.check(own.bootstrap_servers).processed == 5_000


@pytest.mark.slow
@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_a_broker_that_stands_still_for_longer_than_an_opening_may_take_ends_no_running_job(
    own: LocalKafka, *, own_loop: bool
) -> None:
    """The commit expires, and its outcome is read back after a reopen: both are asked for input.offline_timeout_ms."""
    job = fault_job(own.bootstrap_servers, pause_ms=1, own_loop=own_loop)
    job.load(own.bootstrap_servers, 4_000, "a")
    settings = settings_for(own.bootstrap_servers, transaction__timeout_ms=5_000)
    with in_thread(job, settings) as run:
        run.wait_for_commits(500)
        own.pause_broker(BROKER)
        try:
            time.sleep(settings.transaction.timeout_s + settings.open_timeout_s + 20)
        finally:
            own.resume_broker(BROKER)
        job.load(own.bootstrap_servers, 1_000, "b")
        run.wait_for_commits(5_000)
        run.stop()
    assert job.check(own.bootstrap_servers).processed == 5_000


@pytest.mark.slow
@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_idle_job_outlives_an_outage_and_reads_what_comes_after(own: LocalKafka, *, own_loop: bool) -> None:
    job = fault_job(own.bootstrap_servers, own_loop=own_loop)
    job.load(own.bootstrap_servers, 100, "a")
    with in_thread(job, settings_for(own.bootstrap_servers)) as run:
        run.wait_for_commits(100)
        own.kill_broker(BROKER)
        time.sleep(1)
        own.restart_broker(BROKER)
        job.load(own.bootstrap_servers, 100, "b")
        run.wait_for_commits(200)
        run.stop()
    assert job.check(own.bootstrap_servers).processed == 200


@pytest.mark.slow
def test_worker_told_to_end_during_an_outage_ends_and_leaves_the_rest_to_the_next(own: LocalKafka) -> None:
    """The grace period is over before the broker is back; the open transaction is settled at the next start."""
    job = fault_job(own.bootstrap_servers, pause_ms=1)
    job.load(own.bootstrap_servers, 8_000, "a")
    with in_process(
        job, own.bootstrap_servers, kind="workers", shutdown__grace_ms=2_000, transaction__timeout_ms=60_000
    ) as child:
        child.wait_line("TransactionCommitted", PATIENCE_S)
        own.pause_broker(BROKER)
        try:
            time.sleep(1)
            child.terminate()
            asked_at = time.monotonic()
            assert child.wait(PATIENCE_S) == ExitCode.DONE
            # The grace, and the supervisor's margin of 5 s; the transaction has a minute.
            assert time.monotonic() - asked_at < 30
        finally:
            own.resume_broker(BROKER)
    run_to_end(job, settings_for(own.bootstrap_servers))
    assert job.check(own.bootstrap_servers).processed == 8_000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_broker_that_is_down_at_the_start_is_named_in_bounded_time(mode: str) -> None:
    nowhere = "127.0.0.1:1"
    job = FaultJob(("in",), "out", "audit", "dead")
    ownership: dict[str, object] = (
        {} if mode == "group" else {"ownership__mode": "partition", "ownership__partitions": ["in:0"]}
    )
    settings = settings_for(nowhere, transaction__timeout_ms=1_000, **ownership, transaction__interval_ms=100)
    with pytest.raises(UnavailableError, match=nowhere):
        run_to_end(job, settings)


@pytest.mark.slow
def test_clients_that_connect_quickly_do_not_storm_a_broker_that_is_gone(own: LocalKafka) -> None:
    """librdkafka's defaults with so short a backoff: 150 connections a second and client, for as long as it takes."""
    settings = settings_for(own.bootstrap_servers)
    host, port = own.bootstrap_servers.split(":")
    topic = unique("quiet")
    create_topics(own.bootstrap_servers, {topic: 1})
    with (
        fresh_reader(settings, unique("quiet"), stable=True) as reader,
        ShardProducer(settings, OrdinalShard("quiet", "quiet", 0)),
    ):
        committed_offsets(reader, [Partition(topic, 0)], timeout_s=PATIENCE_S)
        own.kill_broker(BROKER)
        try:
            attempts = _connections_to(host, int(port), seconds=4.0)
        finally:
            own.restart_broker(BROKER)
    assert 0 < attempts < 200, attempts  # 40 to 60; librdkafka's defaults: above 1,000


def _connections_to(host: str, port: int, seconds: float) -> int:
    """How often somebody connects; nobody is answered."""
    count = 0
    with _listening(host, port) as listener:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            listener.settimeout(left_s)
            with suppress(TimeoutError):
                listener.accept()[0].close()
                count += 1
    return count


def _listening(host: str, port: int) -> socket.socket:
    """Once the dead broker's last connections are gone."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_server((host, port))
        except OSError:
            assert time.monotonic() < deadline, "the port stays taken"
            time.sleep(0.1)
