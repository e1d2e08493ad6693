"""LocalKafka with real brokers: start, accidents, failover, and that nothing stays behind.

Everything that a broker kept is read back with a client, everything that ended is looked up by its id.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from eos.base.deadline import Deadline
from eos.errors import ConfigError, UsageError
from eos.kafka import brokers
from eos.kafka.topics import elect_preferred_leaders
from eos.local import QUICK_START, LocalKafka
from eos.local.ports import HOST, free_port
from eos.local.process import identity_of
from eos.testing.proxy.hold_proxy import ApiKey, HoldProxy
from tests.support.own_broker import JARS
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("local-kafka")]


@pytest.fixture(scope="module")
def advertised_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, advertised_port: int) -> Iterator[LocalKafka]:
    """One broker for all tests that leave a directory that can be started again."""
    directory = tmp_path_factory.mktemp("kafka")
    with LocalKafka(
        directory, jars=JARS, heap_mb=256, jvm_options=QUICK_START, proxy_ports=[advertised_port]
    ) as cluster:
        yield cluster


@pytest.fixture
def kafka(shared: LocalKafka) -> LocalKafka:
    return shared.start()  # a test may have failed with its broker down


@pytest.fixture
def topic() -> str:
    return f"records-{uuid.uuid4()}"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path, 3, jars=JARS, heap_mb=256, jvm_options=QUICK_START) as cluster:
        yield cluster


def _client(kafka: LocalKafka, **settings: str | int | bool) -> dict[str, str | int | float | bool]:
    """Settings of a client that gives up on a paused broker in seconds, not after a minute."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": kafka.bootstrap_servers, "socket.timeout.ms": 5_000, **named}


def _create(kafka: LocalKafka, topic: str) -> None:
    admin = AdminClient(_client(kafka))
    new = NewTopic(topic, num_partitions=1, replication_factor=-1)  # -1: the broker's default
    admin.create_topics([new])[topic].result(PATIENCE_S)


def _produce(kafka: LocalKafka, topic: str, *values: str) -> None:
    failed: list[object] = []
    producer = Producer(_client(kafka, acks="all", request_timeout_ms=5_000, message_timeout_ms=60_000))
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def _values(kafka: LocalKafka, topic: str, count: int) -> list[str]:
    consumer = Consumer(_client(kafka, group_id="observer", enable_auto_commit=False))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=PATIENCE_S)
    finally:
        consumer.close()
    return [value.decode() for message in messages if (value := message.value()) is not None]


def _leader(kafka: LocalKafka, topic: str) -> int:
    admin = AdminClient(_client(kafka))
    leaders: list[int] = []

    def told() -> bool:  # a broker may have yet to hear of a topic that another one has just made
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        leaders.extend(at.leader for at in partitions.values() if at.leader >= 0)
        return bool(leaders)

    assert Deadline(PATIENCE_S).wait_for(told)
    return leaders[0]


def _pids(kafka: LocalKafka) -> list[int]:
    return [broker.pid for broker in kafka.brokers if broker.pid is not None]


def _gone(pids: list[int]) -> bool:
    return Deadline(PATIENCE_S).wait_for(lambda: all(identity_of(pid) is None for pid in pids))


def test_started_cluster_serves_and_a_second_start_changes_nothing(kafka: LocalKafka, topic: str) -> None:
    _create(kafka, topic)
    _produce(kafka, topic, "a", "b")
    pids = _pids(kafka)
    assert len(pids) == 1
    kafka.start()
    assert _pids(kafka) == pids
    assert _values(kafka, topic, 2) == ["a", "b"]
    assert (kafka.data_dir(1) / f"{topic}-0").is_dir()
    assert kafka.brokers[0].log_path.stat().st_size > 0


def test_killed_broker_comes_back_at_its_port_with_its_records(kafka: LocalKafka, topic: str) -> None:
    _create(kafka, topic)
    _produce(kafka, topic, "a")
    before = kafka.brokers[0]
    kafka.kill_broker(1)
    assert kafka.brokers[0].pid is None
    assert not kafka.running
    kafka.restart_broker(1)
    assert kafka.brokers[0].port == before.port
    assert _values(kafka, topic, 1) == ["a"]


@pytest.mark.slow
def test_broker_restarted_by_a_short_lived_thread_stays(kafka: LocalKafka) -> None:
    """Faults are injected from threads; the broker must not end with the thread that started it."""
    thread = threading.Thread(target=kafka.restart_broker, args=[1])
    thread.start()
    thread.join(PATIENCE_S)
    Deadline(1).wait_for(lambda: not kafka.running)
    assert kafka.running


def test_paused_broker_does_not_answer_until_it_is_resumed(kafka: LocalKafka) -> None:
    port = kafka.brokers[0].port
    kafka.pause_broker(1)
    assert brokers.ask(HOST, port, 0.5) is None
    assert kafka.running
    kafka.resume_broker(1)
    assert Deadline(PATIENCE_S).wait_for(lambda: brokers.ask(HOST, port, 2) is not None)


def test_stop_leaves_no_process_and_the_next_start_has_the_records(
    kafka: LocalKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create(kafka, topic)
    _produce(kafka, topic, "a")
    pids, servers = _pids(kafka), kafka.bootstrap_servers
    with pytest.raises(UsageError, match="before wipe"):
        kafka.wipe()
    kafka.stop()
    assert _gone(pids)
    said: list[str] = []
    monkeypatch.setattr(kafka, "_progress", said.append)
    kafka.start()
    assert [line for line in said if "Broker 1" in line] == [], "nothing of a crash"
    assert kafka.bootstrap_servers == servers
    assert _values(kafka, topic, 1) == ["a"]


def test_wiped_cluster_has_no_topics_and_another_id(kafka: LocalKafka, topic: str) -> None:
    _create(kafka, topic)
    former = kafka.cluster_id
    kafka.stop(grace_s=0)
    kafka.wipe()
    kafka.start()
    assert kafka.cluster_id != former
    _create(kafka, topic)  # would fail if it existed


def test_proxied_listener_is_advertised_at_the_proxys_port(kafka: LocalKafka, advertised_port: int) -> None:
    direct = brokers.ask(HOST, kafka.brokers[0].port, PATIENCE_S)
    with HoldProxy(advertised_port, kafka.proxied_listeners[advertised_port]):
        proxied = brokers.ask(*kafka.proxied_listeners[advertised_port], PATIENCE_S)
    assert direct is not None
    assert direct.ports == {1: kafka.brokers[0].port}
    assert proxied is not None
    assert proxied.ports == {1: advertised_port}


def test_each_proxy_of_a_listener_names_itself_in_the_advertised_ports_place(
    kafka: LocalKafka, advertised_port: int
) -> None:
    upstream = kafka.proxied_listeners[advertised_port]
    with (
        HoldProxy(0, upstream, advertised=advertised_port) as one,
        HoldProxy(0, upstream, advertised=advertised_port) as other,
    ):
        asked = brokers.ask(HOST, one.port, PATIENCE_S)
        admin = AdminClient({"bootstrap.servers": other.bootstrap_servers})
        described = admin.describe_cluster(request_timeout=PATIENCE_S).result()
        # A client of a group waits while the coordinator loads its log; the same question of an admin client may end the process then.
        reader = Consumer({"bootstrap.servers": other.bootstrap_servers, "group.id": "group"})
        # That it is not the coordinator any more is an answer, too: it has got the question.
        with contextlib.closing(reader), contextlib.suppress(KafkaException):
            reader.committed([TopicPartition("topic", 0)], timeout=PATIENCE_S)
        coordinator = other.requests(ApiKey.OFFSET_FETCH)
    assert asked is not None
    assert asked.ports == {1: one.port}
    assert [broker.port for broker in described.nodes] == [other.port]
    assert coordinator


def test_broker_of_a_quick_start_has_its_classes_from_the_archive(kafka: LocalKafka) -> None:
    (broker,) = kafka.brokers
    assert ".jsa" in Path(f"/proc/{broker.pid}/maps").read_text()


def test_tools_of_kafka_run_on_the_same_jars(kafka: LocalKafka, topic: str) -> None:
    _create(kafka, topic)
    _produce(kafka, topic, "a", "b")
    log = kafka.data_dir(1) / f"{topic}-0" / "00000000000000000000.log"
    shown = kafka.tool("kafka.tools.DumpLogSegments", "--files", str(log), "--print-data-log")
    assert shown.returncode == 0, shown.stderr
    assert "payload: b" in shown.stdout
    listed = kafka.tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", kafka.bootstrap_servers, "list"
    )
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.startswith("TransactionalId")


def test_bad_property_shows_what_the_broker_said(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path, jars=JARS, properties={"num.io.threads": "none"})
    with pytest.raises(ConfigError, match=r"num\.io\.threads"):
        kafka.start()
    assert not kafka.running


_OTHER_PROCESS = """
    import sys, time
    from eos.local import QUICK_START, LocalKafka
    kafka = LocalKafka({directory!r}, jars={jars!r}, heap_mb=256, jvm_options=QUICK_START, owned={owned})
    print(kafka.start().brokers[0].pid, flush=True)
    time.sleep({stays_s})
"""


def _in_other_process(directory: Path, *, owned: bool, stays_s: int) -> tuple[subprocess.Popen[str], int]:
    code = _OTHER_PROCESS.format(directory=str(directory), jars=str(JARS), owned=owned, stays_s=stays_s)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


@pytest.mark.slow
def test_killed_owner_leaves_no_broker_and_its_directory_starts_again(tmp_path: Path) -> None:
    owner, pid = _in_other_process(tmp_path, owned=True, stays_s=120)
    attached = LocalKafka.attach(tmp_path)
    assert attached is not None
    assert _pids(attached) == [pid]
    with pytest.raises(ConfigError, match="is not ours"):
        LocalKafka(tmp_path, jars=JARS).start()
    owner.kill()
    owner.wait(PATIENCE_S)
    assert _gone([pid])
    assert LocalKafka.attach(tmp_path) is None
    said: list[str] = []
    with LocalKafka(tmp_path, jars=JARS, heap_mb=256, jvm_options=QUICK_START, progress=said.append) as kafka:
        assert kafka.running
    assert f"process id {pid}" in said[0]


def test_background_cluster_outlives_its_starter_and_is_stopped_by_another(tmp_path: Path) -> None:
    starter, pid = _in_other_process(tmp_path, owned=False, stays_s=0)
    assert starter.wait(PATIENCE_S) == 0
    attached = LocalKafka.attach(tmp_path)
    assert attached is not None
    try:
        assert _pids(attached) == [pid]
        assert (
            LocalKafka(tmp_path, jars=JARS, owned=False).start().bootstrap_servers
            == attached.bootstrap_servers
        )
        assert _pids(attached) == [pid]
    finally:
        attached.stop()
    assert _gone([pid])
    assert LocalKafka.attach(tmp_path) is None


@pytest.mark.slow
def test_three_brokers_lose_one_and_no_record(three: LocalKafka, topic: str) -> None:
    """RF 3, min.insync 2: writes go on with two, not with one; what was acknowledged stays."""
    _create(three, topic)
    admin = AdminClient(_client(three))
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(PATIENCE_S)["min.insync.replicas"].value == "2"
    _produce(three, topic, "a")
    leader = _leader(three, topic)
    three.kill_broker(leader)
    _produce(three, topic, "b")
    assert _leader(three, topic) != leader
    assert _values(three, topic, 2) == ["a", "b"]
    three.restart_broker(leader)
    assert elect_preferred_leaders(_client(three)) >= 1
    Deadline(PATIENCE_S).wait_for(lambda: _leader(three, topic) == leader)
    assert _leader(three, topic) == leader
    pids = _pids(three)
    assert len(set(pids)) == 3
    three.stop()
    assert _gone(pids)


@pytest.mark.slow
def test_three_brokers_go_on_while_one_is_paused(three: LocalKafka, topic: str) -> None:
    _create(three, topic)
    leader = _leader(three, topic)
    three.pause_broker(leader)
    _produce(three, topic, "a")
    three.resume_broker(leader)
    assert _values(three, topic, 1) == ["a"]


@pytest.mark.slow
def test_cluster_of_one_does_not_become_a_cluster_of_three(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, jars=JARS, heap_mb=256, jvm_options=QUICK_START):
        pass
    with pytest.raises(ConfigError, match=r"is that of the brokers \[1\], not of \[1, 2, 3\]"):
        LocalKafka(tmp_path, 3, jars=JARS).start()
