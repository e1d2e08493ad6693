"""LocalKafka without a broker: every way in which a start is refused, and what it says then."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.errors import ConfigError, RetriableError, UsageError
from eos.local import LocalKafka, state
from eos.local.lock import locked
from eos.local.ports import HOST, NodePorts, choose_ports, free_port, is_free
from eos.local.process import Identity, identity_of
from eos.local.state import ClusterState, NodeState
from tests.support.patience import PATIENCE_S


@pytest.fixture
def kafka_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked Kafka without a Kafka, and a Java that can only format."""
    _java(tmp_path / "jdk", "echo 'Address in the log'; exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    libs = tmp_path / "home" / "libs"
    libs.mkdir(parents=True)
    (libs / "kafka_2.13-4.2.1.jar").touch()
    return tmp_path / "home"


def _java(home: Path, serve: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"""#!/bin/sh
case "$*" in
  -version) echo 'openjdk version "17.0.1"' >&2;;
  *StorageTool*) exit 0;;
  *kafka.Kafka*) {serve};;
esac
""")
    java.chmod(0o755)


def _kafka(tmp_path: Path, kafka_home: Path, **settings: object) -> LocalKafka:
    return LocalKafka(tmp_path / "eos", kafka_home=kafka_home, **settings)  # type: ignore[arg-type] # any of them


def _state(process: Identity | None, owner: Identity | None = None) -> ClusterState:
    nodes = {1: NodeState(NodePorts(20001, 20002), process)}
    return ClusterState("cluster", "java", Path("/libs"), ("-Xmx512m",), nodes, owner)


def _write(tmp_path: Path, written: ClusterState) -> None:
    path = tmp_path / "eos" / "kafka" / "state.json"
    path.parent.mkdir(parents=True)
    state.save(path, written)


def _me() -> Identity:
    identity = identity_of(os.getpid())
    assert identity is not None
    return identity


@pytest.fixture
def stranger() -> Iterator[Identity]:
    """Another living process."""
    with subprocess.Popen(["sleep", "60"]) as child:
        identity = identity_of(child.pid)
        assert identity is not None
        yield identity
        child.kill()


@pytest.mark.parametrize("brokers", [0, 2, 4])
def test_number_of_brokers_is_one_or_three(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(ConfigError, match=f"brokers = {brokers}"):
        LocalKafka(tmp_path, brokers)


def test_proxy_needs_a_single_broker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="proxy_ports"):
        LocalKafka(tmp_path, 3, proxy_ports=[20001])


def test_use_before_start_says_so(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path)
    assert kafka.brokers == []
    assert not kafka.running
    for use in (lambda: kafka.bootstrap_servers, lambda: kafka.kill_broker(1)):
        with pytest.raises(UsageError, match=r"call start\(\)"):
            use()
    kafka.stop()
    kafka.wipe()


def test_occupied_port_is_named(tmp_path: Path, kafka_home: Path) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is occupied on 127.0.0.1"):
            _kafka(tmp_path, kafka_home, port=port).start()


def test_broker_that_ends_while_starting_shows_its_last_words(tmp_path: Path, kafka_home: Path) -> None:
    _java(tmp_path / "jdk", "echo 'No space left on device'; exit 3")
    kafka = _kafka(tmp_path, kafka_home)
    with pytest.raises(ConfigError, match=r"(?s)broker 1 ended while starting.*server\.log.*No space left"):
        kafka.start()
    assert not kafka.running


def test_broker_that_never_answers_is_ended_at_the_deadline(tmp_path: Path, kafka_home: Path) -> None:
    _java(tmp_path / "jdk", "echo 'still thinking'; exec sleep 60")
    kafka = _kafka(tmp_path, kafka_home)
    with pytest.raises(RetriableError, match=r"(?s)broker 1 was not ready in time.*still thinking"):
        kafka.start(timeout_s=0.2)
    assert not kafka.running


def test_port_taken_between_choice_and_start_is_chosen_anew(tmp_path: Path, kafka_home: Path) -> None:
    """Three times at most, each with other ports."""
    _java(
        tmp_path / "jdk",
        'grep ^listeners server.properties >>../tries; echo "Address already in use"; exit 1',
    )
    with pytest.raises(ConfigError, match="Address already in use"):
        _kafka(tmp_path, kafka_home).start()
    tries = (tmp_path / "eos" / "kafka" / "tries").read_text().splitlines()
    assert len(set(tries)) == 3


def test_directory_that_cannot_be_written_is_named(tmp_path: Path, kafka_home: Path) -> None:
    (tmp_path / "eos").touch()
    with pytest.raises(ConfigError, match=r"cannot run Kafka in .*eos/kafka.*writable directory"):
        _kafka(tmp_path, kafka_home).start()


def test_failed_format_shows_what_kafka_said(tmp_path: Path, kafka_home: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.write_text(
        java.read_text().replace("*StorageTool*) exit 0", "*StorageTool*) echo 'bad property'; exit 1")
    )
    with pytest.raises(ConfigError, match=r"could not format .*broker-1/data: bad property"):
        _kafka(tmp_path, kafka_home).start()


def test_stale_process_id_is_not_attached_to_and_not_ended(tmp_path: Path) -> None:
    """The id is alive, but the process that has it now is another."""
    _write(tmp_path, _state(Identity(os.getpid(), 0.0)))
    assert LocalKafka.attach(tmp_path / "eos") is None
    kafka = LocalKafka(tmp_path / "eos")
    assert [broker.pid for broker in kafka.brokers] == [None]
    kafka.stop(grace_s=0)
    with pytest.raises(UsageError, match="broker 1 is down"):
        kafka.pause_broker(1)


@pytest.mark.parametrize("clean", [False, True])
def test_broker_that_did_not_shut_down_cleanly_is_named_at_the_next_start_and_no_other(
    tmp_path: Path, kafka_home: Path, clean: bool
) -> None:
    """Kafka itself leaves a file behind when it has."""
    _write(tmp_path, _state(Identity(os.getpid(), 0.0)))
    if clean:
        data = tmp_path / "eos" / "kafka" / "broker-1" / "data"
        data.mkdir(parents=True)
        (data / ".kafka_cleanshutdown").touch()
    said: list[str] = []
    with pytest.raises(ConfigError, match="ended while starting"):
        _kafka(tmp_path, kafka_home, progress=said.append).start()
    named = [line for line in said if line.startswith(f"Broker 1 (process id {os.getpid()}) did not shut")]
    assert len(named) == (0 if clean else 1)


def test_cluster_of_another_process_is_neither_used_nor_started_twice(
    tmp_path: Path, kafka_home: Path, stranger: Identity
) -> None:
    _write(tmp_path, _state(stranger, owner=_me()._replace(pid=os.getppid(), started=_started(os.getppid()))))
    with pytest.raises(ConfigError, match=rf"running in .*\[{stranger.pid}\].*not ours.*eos local stop"):
        _kafka(tmp_path, kafka_home).start()


def _started(pid: int) -> float:
    identity = identity_of(pid)
    assert identity is not None
    return identity.started


def test_cluster_in_the_background_is_not_owned_by_a_second_start(
    tmp_path: Path, kafka_home: Path, stranger: Identity
) -> None:
    """Its stop() at the end would take it from whoever started it for longer."""
    _write(tmp_path, _state(stranger))
    with pytest.raises(ConfigError, match="not ours"):
        _kafka(tmp_path, kafka_home, owned=True).start()


def test_background_cluster_is_started_once(tmp_path: Path, kafka_home: Path, stranger: Identity) -> None:
    _write(tmp_path, _state(stranger))
    kafka = _kafka(tmp_path, kafka_home, owned=False).start()
    assert [broker.pid for broker in kafka.brokers] == [stranger.pid]
    assert kafka.bootstrap_servers == "127.0.0.1:20001"


def test_running_cluster_of_another_size_is_refused(
    tmp_path: Path, kafka_home: Path, stranger: Identity
) -> None:
    _write(tmp_path, _state(stranger))
    with pytest.raises(ConfigError, match=r"with 1 broker\(s\), not 3"):
        _kafka(tmp_path, kafka_home, brokers=3, owned=False).start()


def test_wipe_of_a_running_cluster_is_refused(tmp_path: Path, stranger: Identity) -> None:
    _write(tmp_path, _state(stranger))
    with pytest.raises(UsageError, match="before wipe"):
        LocalKafka(tmp_path / "eos").wipe()


def test_unknown_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"broker 4 is unknown: the brokers are \[1, 2, 3\]"):
        LocalKafka(tmp_path, 3).data_dir(4)


@pytest.mark.parametrize("text", ["", "[]", '{"cluster_id": 1}', '{"nodes": {"1": 2}}'])
def test_damaged_state_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "state.json").write_text(text)
    with pytest.raises(ConfigError, match=r"state\.json is not a state file"):
        LocalKafka.attach(tmp_path)


def test_state_is_read_back(tmp_path: Path) -> None:
    written = _state(Identity(7, 123.0), owner=Identity(8, 124.0))
    state.save(tmp_path / "state.json", written)
    assert state.load(tmp_path / "state.json", ClusterState) == written


def test_ports_of_the_last_time_are_kept_if_free() -> None:
    last = {1: NodePorts(free_port(), free_port())}
    assert choose_ports([1], last=last) == last
    with socket.create_server((HOST, last[1].client)):
        assert choose_ports([1], last=last)[1].client != last[1].client


def test_chosen_ports_differ_and_avoid_the_proxys() -> None:
    ports = choose_ports([1], last={}, proxies=[20001])[1]
    assert len({ports.client, ports.controller, ports.proxied, 20001}) == 4
    assert ports.proxy == 20001


def test_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert port < 32768
    assert is_free(port)


def test_lock_held_by_another_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock", timeout_s=PATIENCE_S, purpose="testing"):
            held.set()
            release.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE_S)
    with (
        pytest.raises(RetriableError, match="another process has held"),
        locked(tmp_path / "lock", timeout_s=0.1, purpose="testing"),
    ):
        pass
    release.set()
    holder.join(PATIENCE_S)
    with locked(tmp_path / "lock", timeout_s=PATIENCE_S, purpose="testing"):
        pass
