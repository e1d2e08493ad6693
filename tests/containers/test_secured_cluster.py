"""The cluster of docker/compose.yaml: nobody gets in without TLS, a name and a grant, and a job stays exact on it.

Commits are seen by `eos verify`, run by another user than the job's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from eos.errors import ConfigError, UnavailableError
from eos.job import Job
from eos.kafka.config import client_config
from eos.ops.check.preflight import preflight
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.settings import Settings
from eos.shards import OrdinalShard
from jobs import refunds
from tests.support.compose import (
    APP_IMAGE,
    CERTIFICATES,
    KAFKA_IMAGE,
    SecuredCluster,
    missing,
    secured_cluster,
)
from tests.support.docker_cli import docker
from tests.support.processes import Child, running_module

_WHY_NOT = missing(KAFKA_IMAGE)
pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,  # three secured brokers take a minute and a half to come up
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT),
    pytest.mark.xdist_group("secured cluster"),  # it is brought up once, by one process
    pytest.mark.timeout(900),
]

CONFIG = ("jobs.refunds:job", "--config", "conf/refunds.toml")
SHARD = OrdinalShard(refunds.job.name, "refunds", 0).transactional_id
WAIT_S = 180.0  # three brokers and the rest share the machine's cores
ASK_S = 30.0
TRIES = 200  # to meet a transaction that is open
UNGRANTED = "not-granted"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
    assert running.leftovers() == []


@pytest.fixture(scope="module")
def ungranted(cluster: SecuredCluster) -> str:
    """A topic that nobody has been granted anything on."""
    admin = AdminClient(client_config(cluster.settings("admin")))
    admin.create_topics([NewTopic(UNGRANTED, 1)])[UNGRANTED].result(ASK_S)
    return UNGRANTED


def load(cluster: SecuredCluster, count: int, seed: int) -> None:
    arguments = ("--count", str(count), "--seed", str(seed), "--bootstrap-servers", cluster.scram_servers)
    environment = cluster.environment("admin")
    with running_module("jobs.settlements", *arguments, env=environment) as child:
        assert child.wait(WAIT_S) == 0, child.lines
    cluster.loaded += count


def verified(cluster: SecuredCluster) -> int:
    """`eos verify` as the administrator: its exit code says exactly once; returns how much input it compared."""
    with running_module("eos.cli", "verify", *CONFIG, env=cluster.environment("admin")) as child:
        assert child.wait(WAIT_S) == 0, child.lines
        counts = [re.search(r"committed offset [\d,]+, ([\d,]+) records", line) for line in child.lines]
    return sum(int(found[1].replace(",", "")) for found in counts if found)


def run_arguments(*more: str) -> tuple[str, ...]:
    return ("run", *CONFIG, "--workers", "1", "--set", "observe.http_port=0", *more)


def entries(child: Child, event: str) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in child.lines if line.startswith("{"))
    return [entry for entry in found if entry.get("event") == event]


def committed(child: Child) -> int:
    return sum(int(entry["records_in"]) for entry in entries(child, "transaction committed"))


def wait_committed(child: Child, records: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while (done := committed(child)) < records:
        assert child.alive, f"it ended after {done} records"
        assert time.monotonic() < deadline, f"{done} of {records} records after {WAIT_S:g} s"
        time.sleep(0.1)


def stop_inside_transaction(view: TransactionsView, child: Child, worker: int) -> TransactionDescription:
    """SIGSTOP the worker at a moment when the coordinator knows its transaction as open."""
    for _ in range(TRIES):
        os.kill(worker, signal.SIGSTOP)
        state = view.describe([SHARD]).get(SHARD)
        if state is not None and state.state == "Ongoing" and state.partitions:
            return state
        os.kill(worker, signal.SIGCONT)
        assert child.alive
        time.sleep(0.05)
    pytest.fail(f"no open transaction in {TRIES} looks")


def test_the_coordinators_broker_is_killed_inside_a_transaction_and_the_output_is_exact(
    cluster: SecuredCluster,
) -> None:
    load(cluster, 6_000, seed=1)
    environment = cluster.environment("refunds") | {
        "EOS_TRANSACTION__MAX_RECORDS": "500",
        "EOS_OBSERVE__LOG_LEVEL": "debug",
        "EOS_OBSERVE__LOG_FORMAT": "json",
    }
    with running_module("eos.cli", *run_arguments("--start", "earliest"), env=environment) as child:
        child.wait_line('"transaction committed"', WAIT_S)
        (started,) = entries(child, "started")
        worker = int(started["pid"])
        with TransactionsView(cluster.settings("admin"), timeout_s=ASK_S) as view:
            open_state = stop_inside_transaction(view, child, worker)
        cluster.kill_broker(open_state.coordinator)
        os.kill(worker, signal.SIGCONT)
        load(cluster, 3_000, seed=2)  # two of three brokers are enough to write
        wait_committed(child, 9_000)
        survivors = cluster.settings("admin", without=open_state.coordinator)
        with TransactionsView(survivors, timeout_s=ASK_S) as view:
            after = view.describe([SHARD])[SHARD]
        child.terminate()
        assert child.wait(WAIT_S) == 0
    assert after.coordinator != open_state.coordinator
    cluster.restart_broker(open_state.coordinator)
    assert verified(cluster) == cluster.loaded


def test_the_job_goes_on_over_mutual_tls_with_the_same_grants(cluster: SecuredCluster) -> None:
    load(cluster, 1_000, seed=3)
    environment = cluster.environment("refunds", mtls=True)
    # In case no other test has run the job before.
    arguments = run_arguments("--until-caught-up", "--start", "earliest")
    with running_module("eos.cli", *arguments, env=environment) as child:
        assert child.wait(WAIT_S) == 0
    assert verified(cluster) == cluster.loaded


def test_two_replicas_in_containers_share_the_input_and_one_is_replaced_after_a_kill(
    cluster: SecuredCluster,
) -> None:
    if why_not := missing(APP_IMAGE):
        pytest.skip(why_not)
    assert "refunds processor" in cluster.up()
    load(cluster, 2_000, seed=4)
    victim = cluster.container("refunds-1")
    docker("kill", victim)
    docker("start", victim)
    load(cluster, 2_000, seed=5)
    for replica in ("0", "1"):
        wait_ready(cluster.ports[f"METRICS_PORT_{replica}"])
    deadline = time.monotonic() + WAIT_S
    while lag(cluster):
        assert time.monotonic() < deadline, lag(cluster)
        time.sleep(0.5)
    for replica in ("0", "1"):
        found = cluster.container(f"refunds-{replica}")
        docker("stop", "--time", "45", found)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", found) == "0"
    assert verified(cluster) == cluster.loaded


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while not answers_ready(port):
        assert time.monotonic() < deadline, f"port {port} is not ready after {WAIT_S:g} s"
        time.sleep(0.5)


def answers_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(json.load(answer) == {"ok": True})
    except OSError:  # nobody listens yet, or 503
        return False


def lag(cluster: SecuredCluster) -> dict[int, int]:
    """Input that is not committed yet, by partition, as the administrator sees it."""
    config = {**client_config(cluster.settings("admin")), "group.id": "refunds"}
    consumer = Consumer({**config, "enable.auto.commit": False, "isolation.level": "read_committed"})
    try:
        partitions = [TopicPartition(refunds.SETTLEMENTS, number) for number in range(4)]
        offsets = consumer.committed(partitions, timeout=ASK_S)
        behind = {}
        for offset in offsets:
            _, end = consumer.get_watermark_offsets(
                TopicPartition(offset.topic, offset.partition), timeout=ASK_S
            )
            # Behind the last record may stand the marker of its transaction.
            if end - max(0, offset.offset) > 1:
                behind[offset.partition] = end - max(0, offset.offset)
        return behind
    finally:
        consumer.close()


# --- who may do what --------------------------------------------------------------------------------------


def produced(config: Mapping[str, Any], topic: str) -> KafkaError | None:
    """The error of one record's delivery; None if it was delivered."""
    told: list[KafkaError | None] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        del message
        told.append(error)

    producer = Producer({**config, "message.timeout.ms": int(ASK_S * 1000), "log_level": 0})
    producer.produce(topic, b"x", on_delivery=on_delivery)
    producer.flush(ASK_S)
    assert told, "neither delivered nor refused"
    return told[0]


@pytest.mark.parametrize("mtls", [False, True], ids=["scram", "mtls"])
def test_the_jobs_user_is_refused_on_a_topic_that_it_was_not_granted(
    cluster: SecuredCluster, ungranted: str, mtls: bool
) -> None:
    refused = produced(client_config(cluster.settings("refunds", mtls=mtls)), ungranted)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    # The topic is there, and takes records from whom they are allowed.
    assert produced(client_config(cluster.settings("admin", mtls=mtls)), ungranted) is None


def test_a_job_with_an_output_that_was_not_granted_does_not_start(
    cluster: SecuredCluster, ungranted: str
) -> None:
    job = Job(name="refunds", inputs=[refunds.SETTLEMENTS], outputs=[ungranted], transform=lambda _: [])
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
        preflight(job, cluster.settings("refunds"), timeout_s=ASK_S)


def test_preflight_of_the_refunds_job_finds_no_risk_on_three_brokers(cluster: SecuredCluster) -> None:
    assert preflight(refunds.job, cluster.settings("admin"), timeout_s=ASK_S) == []


def reach(**overrides: object) -> None:
    settings = Settings.load(
        overrides={f"kafka.{name}": value for name, value in overrides.items()}, environ={}
    )
    preflight(refunds.job, settings, timeout_s=5)


@pytest.mark.parametrize("listener", ["scram_servers", "mtls_servers"])
def test_plain_text_is_not_answered(cluster: SecuredCluster, listener: str) -> None:
    with pytest.raises(
        (UnavailableError, ConfigError)
    ):  # which names what the listener speaks, where it says so
        reach(bootstrap_servers=getattr(cluster, listener))


def test_tls_without_a_clients_certificate_is_not_answered_by_the_listener_for_mutual_tls(
    cluster: SecuredCluster,
) -> None:
    ca = cluster.directory / "clients/refunds/ca.pem"
    with pytest.raises((UnavailableError, ConfigError)):
        reach(bootstrap_servers=cluster.mtls_servers, security_protocol="SSL", ssl_ca_file=ca)


def test_a_certificate_of_another_authority_is_not_answered(cluster: SecuredCluster, tmp_path: Path) -> None:
    subprocess.run([str(CERTIFICATES), str(tmp_path)], check=True, timeout=ASK_S)
    foreign = tmp_path / "clients" / "admin"
    with pytest.raises((UnavailableError, ConfigError)):
        reach(
            bootstrap_servers=cluster.mtls_servers,
            security_protocol="SSL",
            ssl_ca_file=cluster.directory / "clients/admin/ca.pem",
            ssl_certificate_file=foreign / "certificate.pem",
            ssl_key_file=foreign / "key.pem",
        )


def test_ports_are_published_on_the_loopback_only(cluster: SecuredCluster) -> None:
    for number in (1, 2, 3):
        listed = docker(
            "inspect", "--format", "{{json .HostConfig.PortBindings}}", cluster.container(f"kafka-{number}")
        )
        addresses = {one["HostIp"] for bound in json.loads(listed).values() for one in bound}
        assert addresses == {"127.0.0.1"}


def test_keys_and_passwords_are_for_their_owner_alone(cluster: SecuredCluster) -> None:
    files = [path for path in cluster.directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert any(path.name == "key.pem" for path in files)
