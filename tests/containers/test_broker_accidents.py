"""Three brokers in containers: the loop comes through the accidents of its brokers, as it does with processes.

A subset of tests/faults, over the same interface that users have.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError
from eos.testing import KafkaCluster
from eos.testing.choice import choose
from eos.testing.containers import LABEL
from tests.support.docker_cli import docker
from tests.support.jobs_for_faults import fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, produce_plain
from tests.support.patience import PATIENCE_S
from tests.support.processes import running

pytestmark = [
    pytest.mark.docker,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("containers"),
]

RECORDS = 12_000


@pytest.fixture(scope="module")
def image() -> str:
    try:
        choice = choose("docker")
    except ConfigError as error:
        pytest.skip(str(error))
    assert choice.image is not None
    return choice.image


@pytest.fixture(scope="module")
def three(image: str) -> Iterator[KafkaCluster]:
    with KafkaCluster(3, kind="docker", image=image) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: KafkaCluster) -> Iterator[KafkaCluster]:
    yield three
    three.heal()


def leader_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return admin.list_topics(topic, timeout=20).topics[topic].partitions[partition].leader


@pytest.mark.parametrize("accident", ["kill", "pause"])
def test_broker_lost_in_the_middle_of_transactions_leaves_the_output_exactly_once(
    cluster: KafkaCluster, accident: str
) -> None:
    """The other two go on; the one that was lost joins again at its old address."""
    bootstrap = cluster.bootstrap_servers
    job = fault_job(bootstrap, partitions=4, rf=3, batch=True, pause_ms=20)
    records = [PlainRecord(b"a%d" % i, partition=i % 4) for i in range(RECORDS)]
    produce_plain(bootstrap, job.inputs[0], records, timeout_s=PATIENCE_S)
    changes = {"transaction__interval_ms": 50, "input__fetch_records": 100, "transaction__timeout_ms": 60_000}
    with in_thread(job, settings_for(bootstrap, **changes)) as run:
        run.wait_for_commits(500)
        broker = leader_of(cluster, job.out)
        if accident == "kill":
            cluster.kill_broker(broker)
        else:
            cluster.pause_broker(broker)
            time.sleep(8)  # longer than the broker's session: its leaders move
        run.wait_for_commits(run.committed_records + 500)
        cluster.heal()
        assert cluster.bootstrap_servers == bootstrap
        produce_plain(bootstrap, job.inputs[0], [b"behind the accident"] * 100, timeout_s=PATIENCE_S)
        run.stop(PATIENCE_S)
    run_to_end(job, settings_for(bootstrap, transaction__timeout_ms=60_000), timeout_s=PATIENCE_S)
    assert job.check(bootstrap, timeout_s=PATIENCE_S).processed == RECORDS + 100


STARTS = """
import signal, sys, time
from eos.testing import KafkaCluster
from eos.testing.containers import ContainerKafka
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
brokers = int(sys.argv[2])
kafka = ContainerKafka(sys.argv[1], brokers)
with KafkaCluster(brokers, backend=kafka):
    print("label", kafka._label[1], flush=True)
    time.sleep(300)
"""


def left_over(label: str) -> list[str]:
    """Containers and networks of a cluster, as the engine has them."""
    wanted = ("--quiet", "--filter", f"label={LABEL}={label}")
    return [*docker("ps", "--all", *wanted).split(), *docker("network", "ls", *wanted).split()]


@pytest.mark.parametrize(
    ("number", "brokers", "things"),
    [
        (signal.SIGINT, 1, 1),
        (signal.SIGTERM, 1, 1),
        (signal.SIGKILL, 1, 1),
        (signal.SIGKILL, 3, 4),  # three containers and their network
    ],
)
def test_nothing_is_left_when_the_process_that_started_them_ends(
    image: str, number: signal.Signals, brokers: int, things: int
) -> None:
    """Ctrl-C, and ends that no code of the process sees."""
    with running(STARTS, image, str(brokers)) as child:
        label = child.wait_line("^label ", PATIENCE_S).split()[1]
        assert len(left_over(label)) == things
        child.signal(number)
        child.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while left_over(label) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left_over(label) == []


def test_ports_are_published_on_loopback_only(cluster: KafkaCluster) -> None:
    shown = docker("ps", "--filter", f"label={LABEL}", "--format", "{{.Ports}}")
    for address in cluster.bootstrap_servers.split(","):
        host, _, port = address.partition(":")
        assert host == "127.0.0.1"
        assert re.findall(rf"\S+:{port}->", shown) == [f"127.0.0.1:{port}->"]
