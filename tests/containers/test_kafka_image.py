"""The image of Kafka: the part of the official image's interface that clusters and tests rely on, seen from outside."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from eos.local.ports import free_port
from tests.support import observer
from tests.support.docker_cli import KAFKA_IMAGE, Container, container, docker, missing, wait_for
from tests.support.observer import PlainRecord

_REASON = missing(KAFKA_IMAGE)
pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("kafka-image"),
    pytest.mark.skipif(bool(_REASON), reason=_REASON),
]

_DATA = "/var/lib/kafka/data"
_CLUSTER = "5L6g3nShT-eMCtK--X86sw"
_OTHER_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_HEALTHY_S = 150.0  # takes 5 s; the machine may be busy with two more test processes
_END_S = 120.0
_STOP_GRACE_S = 60
_TERMINATED = 143  # what java ends with after SIGTERM, its shutdown hooks done
_HEALTH_EVERY_SECOND = ("--health-interval", "1s", "--health-retries", "2")


class Node(NamedTuple):
    """A running broker and its address on this machine."""

    container: Container
    bootstrap: str


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """One broker for the tests that only look at it, or leave it as it was."""
    extra = {"KAFKA_LOG_RETENTION_MS": "86400123", "KAFKA_MADE_UP__NAME___OF_OURS": "passes"}
    with running_node(environment=extra) as started:
        yield started


@pytest.fixture
def volume() -> Iterator[str]:
    """A new volume, which is removed after the test."""
    name = observer.unique("eos-test")
    docker("volume", "create", name)
    try:
        yield name
    finally:
        docker("volume", "rm", name)


def test_variables_become_properties_by_the_rule_of_the_official_image(node: Node) -> None:
    """`_` is `.`, `__` is `_`, `___` is `-`; a name that Kafka does not know passes."""
    written = node.container.run("cat", "/opt/kafka/config/server.properties").splitlines()
    assert "made.up_name-of.ours=passes" in written
    assert not any(line.startswith("heap.opts") for line in written), "KAFKA_HEAP_OPTS is for java"
    assert broker_config(node.bootstrap, "log.retention.ms") == "86400123"


def test_broker_is_process_one_and_not_root(node: Node) -> None:
    """So that signals reach it, and so that it may run where root may not."""
    assert node.container.run("cat", "/proc/1/comm") == "java"
    owners = node.container.run("grep", "^Uid:", "/proc/1/status").split()[1:]
    assert owners == ["1000"] * 4
    assert node.container.inspect(".Config.User") == "appuser"


def test_port_is_reached_on_the_loopback_interface_only(node: Node) -> None:
    port = int(node.bootstrap.rpartition(":")[2])
    bound = {b["HostIp"] for b in node.container.inspect(".NetworkSettings.Ports")["9092/tcp"]}
    assert bound == {"127.0.0.1"}
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    # The engine's bridge is an address of this machine too, and not the loopback one.
    gateway = node.container.inspect(".NetworkSettings.Gateway")
    with pytest.raises(OSError, match=r"refused|timed out"):
        socket.create_connection((gateway, port), timeout=2)


def test_tools_are_where_the_official_image_has_them(node: Node) -> None:
    name = observer.unique("topic")
    own = ("--bootstrap-server", "localhost:29092")
    node.container.run("/opt/kafka/bin/kafka-topics.sh", *own, "--create", "--topic", name)
    assert name in node.container.run("/opt/kafka/bin/kafka-topics.sh", *own, "--list").splitlines()
    for tool in ("kafka-storage", "kafka-acls", "kafka-configs", "kafka-broker-api-versions"):
        assert "usage" in run_anyway(node.container, f"/opt/kafka/bin/{tool}.sh", "--help").lower(), tool


@pytest.mark.slow
def test_stopped_broker_turns_unhealthy_and_recovers(node: Node) -> None:
    """The check asks the broker itself: its port still takes connections while it is stopped."""
    port = int(node.bootstrap.rpartition(":")[2])
    docker("kill", "--signal", "STOP", node.container.id)
    try:
        wait_for(lambda: health(node.container) == "unhealthy", _HEALTHY_S, lambda: "it stays healthy")
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    finally:
        docker("kill", "--signal", "CONT", node.container.id)
    node.container.wait_healthy(_HEALTHY_S)


@pytest.mark.slow
def test_records_survive_a_new_container_on_the_same_volume(volume: str) -> None:
    """Formatted once; SIGTERM is a controlled shutdown, so the next start has nothing to recover."""
    topic = observer.unique("kept")
    with running_node("--volume", f"{volume}:{_DATA}", environment={"KAFKA_LOG_DIRS": _DATA}) as first:
        assert f"Formatting metadata directory {_DATA}" in first.container.logs()
        observer.create_topics(first.bootstrap, {topic: 1})
        observer.produce_plain(first.bootstrap, topic, [PlainRecord(b"one"), PlainRecord(b"two")])
        code, seconds = first.container.stop(_STOP_GRACE_S)
        log = first.container.logs()
        assert code == _TERMINATED
        assert seconds < _STOP_GRACE_S, "it was killed"
        assert "granted a controlled shutdown" in log
        assert "shut down completed" in log
    with running_node("--volume", f"{volume}:{_DATA}", environment={"KAFKA_LOG_DIRS": _DATA}) as second:
        log = second.container.logs()
        assert "Formatting" not in log
        assert "since clean shutdown file was found" in log
        seen = observer.read_committed(second.bootstrap, topic)
        assert [record.value for record in seen] == [b"one", b"two"]


@pytest.mark.slow
def test_mounted_properties_hold_unless_a_variable_says_otherwise(tmp_path: Path) -> None:
    mounted = tmp_path / "config"
    mounted.mkdir()
    lines = {"log.retention.ms": "1000123", "log.segment.bytes": "1048999", **without_variables()}
    file = mounted / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    mounted.chmod(0o755)  # tmp_path is its owner's alone, and the broker is somebody else
    file.chmod(0o644)
    port = free_port()
    options = ("--volume", f"{mounted}:/mnt/shared/config:ro", *_HEALTH_EVERY_SECOND, *published(port))
    environment = {
        "KAFKA_LOG_RETENTION_MS": "2000123",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:29092,OUTSIDE://127.0.0.1:{port}",
        "KAFKA_LISTENERS": "PLAINTEXT://localhost:29092,OUTSIDE://:9092,CONTROLLER://localhost:29093",
        "KAFKA_HEAP_OPTS": "-Xmx384m",
    }
    with container(KAFKA_IMAGE, options=options, environment=environment) as started:
        started.wait_healthy(_HEALTHY_S)
        assert broker_config(f"127.0.0.1:{port}", "log.retention.ms") == "2000123"
        assert broker_config(f"127.0.0.1:{port}", "log.segment.bytes") == "1048999"


def test_defaults_make_a_broker_on_a_read_only_root_without_capabilities() -> None:
    locked = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")  # noqa: S108
    heap = {"KAFKA_HEAP_OPTS": "-Xmx384m"}
    with container(KAFKA_IMAGE, options=(*locked, *_HEALTH_EVERY_SECOND), environment=heap) as started:
        started.wait_healthy(_HEALTHY_S)
        assert started.run("bash", "-c", "touch /opt/kafka/x 2>&1 || true").endswith("Read-only file system")


@pytest.mark.slow
def test_log_levels_are_set_by_variables_and_keep_the_output() -> None:
    """The official translation of the root level drops the appender; ours goes another way."""
    levels = {
        "KAFKA_LOG4J_ROOT_LOGLEVEL": "ERROR",
        "KAFKA_LOG4J_LOGGERS": "kafka.server.KafkaRaftServer=INFO",
    }
    with running_node(environment=levels) as started:
        said = [line for line in started.container.logs().splitlines() if " INFO " in line]
        assert said
        assert all("KafkaRaftServer" in line for line in said)


@pytest.mark.slow
def test_secured_listener_is_asked_through_tls(volume: str) -> None:
    """With no plain listener for clients the check speaks TLS; stores and passwords come from files."""
    secrets = ("--volume", f"{volume}:/etc/kafka/secrets")
    run_in_volume(
        secrets,
        "cd /etc/kafka/secrets && echo made-for-this-test > pass && "
        "keytool -genkeypair -alias node -keyalg EC -dname CN=localhost -validity 2 "
        "-ext SAN=dns:localhost -storetype PKCS12 -keystore node.p12 -storepass:file pass && "
        "keytool -exportcert -alias node -keystore node.p12 -storepass:file pass -file node.der && "
        "keytool -importcert -alias node -file node.der -noprompt "
        "-storetype PKCS12 -keystore trusted.p12 -storepass:file pass",
    )
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    secured = {
        "KAFKA_LISTENERS": "SECURE://:9092,CONTROLLER://localhost:29093",
        "KAFKA_ADVERTISED_LISTENERS": "SECURE://localhost:9092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "SECURE",
        "KAFKA_SASL_MECHANISM_INTER_BROKER_PROTOCOL": "PLAIN",
        "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN",
        "KAFKA_LISTENER_NAME_SECURE_PLAIN_SASL_JAAS_CONFIG": f'{login} username="u" password="p" user_u="p";',
        "KAFKA_SSL_KEYSTORE_FILENAME": "node.p12",
        "KAFKA_SSL_KEYSTORE_TYPE": "PKCS12",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS": "pass",
        "KAFKA_SSL_TRUSTSTORE_FILENAME": "trusted.p12",  # the broker talks to itself too
        "KAFKA_SSL_TRUSTSTORE_TYPE": "PKCS12",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "pass",
    }
    environment = node_environment(free_port()) | secured
    options = (*secrets, *_HEALTH_EVERY_SECOND)
    with container(KAFKA_IMAGE, options=options, environment=environment) as started:
        started.wait_healthy(_HEALTHY_S)
        assert "SECURE://" in started.inspect(".State.Health.Log")[-1]["Output"]
        assert "handshake failed" not in started.logs(), "every check would leave a line in the log"
        given = started.run("cat", "/proc/1/environ")
        assert "made-for-this-test" not in given, "the password was read from a file, and stays in files"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"KAFKA_NUM_IO_THREADS": "many"}, "num.io.threads"),
        ({"KAFKA_PROCESS_ROLES": "brocker"}, "process.roles"),
        ({"KAFKA_LOG_DIRS": "/proc/nowhere"}, "log.dirs: /proc/nowhere is not writable for uid 1000"),
        ({"KAFKA_SSL_KEYSTORE_FILENAME": "none.jks"}, "/etc/kafka/secrets/none.jks is missing"),
    ],
    ids=["number", "role", "directory", "key-store"],
)
def test_bad_configuration_is_refused_with_its_name_and_the_fix(
    environment: Mapping[str, str], named: str
) -> None:
    options = node_environment(free_port()) | dict(environment)
    code, said = ended(environment=options)
    assert code == 1
    assert named in said
    assert "Fix: " in said or "is missing" in said
    assert "\tat " not in said, "no stack trace of Java"


def test_data_of_another_cluster_is_refused(volume: str) -> None:
    mount = ("--volume", f"{volume}:{_DATA}")
    write_meta = f"printf 'version=1\\ncluster.id={_OTHER_CLUSTER}\\nnode.id=1\\n' > {_DATA}/meta.properties"
    run_in_volume(mount, write_meta)
    code, said = ended(*mount, environment=node_environment(free_port()) | {"KAFKA_LOG_DIRS": _DATA})
    assert code == 1
    assert f"cluster {_OTHER_CLUSTER}, but CLUSTER_ID is {_CLUSTER}" in said
    assert f"Fix: set CLUSTER_ID={_OTHER_CLUSTER}" in said


def test_logs_without_their_identity_are_refused_and_kept(volume: str) -> None:
    """Kafka itself would format over them without a word."""
    mount = ("--volume", f"{volume}:{_DATA}")
    run_in_volume(mount, f"mkdir {_DATA}/orders-0 && echo record > {_DATA}/orders-0/00000000000000000000.log")
    code, said = ended(*mount, environment=node_environment(free_port()) | {"KAFKA_LOG_DIRS": _DATA})
    assert code == 1
    assert "half formatted" in said
    kept = run_in_volume(mount, f"ls {_DATA}")
    assert kept.split() == ["orders-0"]


@pytest.mark.slow
def test_interrupted_format_is_finished(volume: str) -> None:
    """Kafka writes meta.properties last: what is there without it, and no log, is the rest of a first start."""
    mount = ("--volume", f"{volume}:{_DATA}")
    with running_node(*mount, environment={"KAFKA_LOG_DIRS": _DATA}) as started:
        bootstrap_file = started.container.run("ls", _DATA).split()
        assert "bootstrap.checkpoint" in bootstrap_file
        started.container.stop(_STOP_GRACE_S)
    run_in_volume(mount, f"cd {_DATA} && find . -mindepth 1 ! -name bootstrap.checkpoint -delete")
    with running_node(*mount, environment={"KAFKA_LOG_DIRS": _DATA}) as again:
        assert f"Formatting metadata directory {_DATA}" in again.container.logs()


def without_variables() -> dict[str, str]:
    """Properties of a node that is broker and controller, but for its listeners' addresses."""
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:29093",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def node_environment(port: int) -> dict[str, str]:
    """The variables of a broker whose clients reach it on this machine's ``port``."""
    properties = {
        f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in without_variables().items()
    }
    return properties | {
        "KAFKA_LISTENERS": "PLAINTEXT://localhost:29092,OUTSIDE://:9092,CONTROLLER://localhost:29093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:29092,OUTSIDE://127.0.0.1:{port}",
        "KAFKA_HEAP_OPTS": "-Xmx384m",
    }


def published(port: int) -> tuple[str, str]:
    return "--publish", f"127.0.0.1:{port}:9092"


@contextmanager
def running_node(*options: str, environment: Mapping[str, str]) -> Iterator[Node]:
    """A broker that is healthy."""
    port = free_port()
    variables = node_environment(port) | dict(environment)
    all_options = (*options, *_HEALTH_EVERY_SECOND, *published(port))
    with container(KAFKA_IMAGE, options=all_options, environment=variables) as started:
        started.wait_healthy(_HEALTHY_S)
        yield Node(started, f"127.0.0.1:{port}")


def ended(*options: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of a container that ends by itself, and what it said."""
    with container(KAFKA_IMAGE, options=options, environment=environment) as started:
        return started.wait(_END_S), started.logs()


def run_in_volume(mount: tuple[str, str], command: str) -> str:
    return docker("run", "--rm", "--pull", "never", *mount, KAFKA_IMAGE, "bash", "-c", command)


def run_anyway(in_container: Container, *command: str) -> str:
    """What a command says that ends with another code than 0, as some tools do after their help."""
    done = subprocess.run(
        ["docker", "exec", in_container.id, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=_END_S,
    )
    return done.stdout + done.stderr


def health(of: Container) -> str:
    return str(of.inspect(".State.Health.Status"))


def broker_config(bootstrap: str, name: str) -> str | None:
    """What the broker itself says of one of its settings."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    answer = admin.describe_configs([resource], request_timeout=20)[resource].result(timeout=_END_S)
    value: str | None = answer[name].value
    return value
