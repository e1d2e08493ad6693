"""KafkaCluster does the same whether its brokers are processes or containers; clients that know nothing of it look on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError, TransformError, UnavailableError, UsageError
from eos.job import Job
from eos.offsets import Partition
from eos.records import InputRecord, OutputRecord
from eos.testing import KafkaCluster, assert_exactly_once
from eos.testing.choice import choose
from eos.testing.cluster import unique
from tests.support import observer
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

PROCESS = pytest.param("process", marks=pytest.mark.xdist_group("testing"))
IN_DOCKER = [pytest.mark.docker, pytest.mark.xdist_group("containers")]
DOCKER = pytest.param("docker", marks=IN_DOCKER)
# For what differs little between the two kinds and takes long.
slow_in_docker = pytest.mark.parametrize(
    "cluster", [PROCESS, pytest.param("docker", marks=[*IN_DOCKER, pytest.mark.slow])], indirect=True
)


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[Callable[[str], KafkaCluster]]:
    """One cluster of each kind, started when it is first needed: a random order goes from one to the other and back."""
    clusters: dict[str, KafkaCluster] = {}

    def start(kind: str) -> KafkaCluster:
        if kind not in clusters:
            try:
                choice = choose(kind)
            except ConfigError as error:
                pytest.skip(str(error))
            made = KafkaCluster(kind=choice, jars=request.config.rootpath / ".eos/jars").start()
            clusters[kind] = made
        return clusters[kind]

    yield start
    for cluster in clusters.values():
        cluster.stop()


@pytest.fixture(params=[PROCESS, DOCKER])
def cluster(started: Callable[[str], KafkaCluster], request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    one = started(request.param)
    yield one
    one.heal()


def answers(cluster: KafkaCluster, timeout_s: float = 2) -> bool:
    """Whether a plain client gets an answer."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    try:
        admin.list_topics(timeout=timeout_s)
    except KafkaException:
        return False
    return True


def copying(name: str = "copier") -> Job:
    """A job with topics of its own."""
    source, copies = unique("in"), unique("copies")

    def copy(record: InputRecord) -> list[OutputRecord]:
        if record.value == b"poison":
            raise ValueError("it is poison")
        return [OutputRecord(copies, record.value, record.key)]

    return Job(name=name, inputs=[source], outputs=[copies], transform=copy)


@slow_in_docker
def test_killed_broker_is_silent_and_comes_back_at_its_address_with_its_records(
    cluster: KafkaCluster,
) -> None:
    topic, address = cluster.create_topic(unique("kept")), cluster.bootstrap_servers
    cluster.produce(topic, [b"before"])
    cluster.kill_broker(1)
    assert not answers(cluster)
    cluster.restart_broker(1)
    assert cluster.bootstrap_servers == address
    cluster.produce(topic, [b"after"])
    assert [one.value for one in observer.read_committed(address, topic)] == [b"before", b"after"]


@slow_in_docker
def test_sole_broker_killed_while_it_ends_a_transaction_has_ended_it_once_it_is_back(
    cluster: KafkaCluster,
) -> None:
    """Kafka answers a commit before it writes the markers. Killed then, 4.3.0 to 4.4.0 leave them out (KAFKA-20734)."""
    topic, name = cluster.create_topic(unique("ended"), partitions=3), unique("producer")
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"stable", partition=partition)
    producer.commit_transaction(PATIENCE_S)
    cluster.kill_broker(1)
    cluster.restart_broker(1)
    seen = observer.read_committed(cluster.bootstrap_servers, topic)
    assert [one.value for one in seen] == [b"stable"] * 3


def test_paused_broker_is_silent_until_it_is_resumed(cluster: KafkaCluster) -> None:
    cluster.pause_broker(1)
    assert not answers(cluster)
    cluster.resume_broker(1)
    assert answers(cluster, timeout_s=PATIENCE_S)


@pytest.mark.slow
def test_a_paused_broker_can_be_killed_and_restarted(cluster: KafkaCluster) -> None:
    """A frozen process takes no signal; that must not make an accident, or its end, impossible."""
    cluster.pause_broker(1)
    cluster.kill_broker(1)
    cluster.heal()
    assert answers(cluster, timeout_s=PATIENCE_S)
    cluster.pause_broker(1)
    cluster.restart_broker(1)
    assert answers(cluster, timeout_s=PATIENCE_S)


@slow_in_docker
def test_accidents_of_brokers_that_are_not_there_or_down_are_usage_errors(cluster: KafkaCluster) -> None:
    with pytest.raises(UsageError, match=r"broker 2 is unknown: the brokers are \[1\]"):
        cluster.kill_broker(2)
    cluster.kill_broker(1)
    with pytest.raises(UsageError, match="broker 1"):
        cluster.pause_broker(1)


def test_a_job_runs_to_the_end_and_its_offsets_and_output_are_seen_from_outside(
    cluster: KafkaCluster,
) -> None:
    job = copying()
    cluster.create_topics(job, partitions=3)
    values = [b"v%d" % i for i in range(300)]
    assert cluster.produce(job.inputs[0], values) == 300
    cluster.run(job)
    assert_exactly_once(job, cluster, records=300)
    seen = observer.read_committed(cluster.bootstrap_servers, job.outputs[0])
    assert sorted(one.value or b"" for one in seen) == sorted(values)
    assert cluster.read_committed(job.outputs[0]) == [InputRecord(*one) for one in seen]
    offsets = cluster.committed(job)
    assert sum(offsets.values()) == 300
    assert min(offsets.values()) > 0, "records without a key are spread over the partitions"
    assert cluster.committed(cluster.group_of(job)) == offsets


@slow_in_docker
def test_topics_made_anew_are_empty_and_the_job_begins_anew(cluster: KafkaCluster) -> None:
    job = copying()
    for value in (b"first", b"second"):
        cluster.create_topics(job)
        cluster.produce(job.inputs[0], [value])
        cluster.run(job)
        assert_exactly_once(job, cluster, records=1)
        assert [one.value for one in cluster.read_committed(*job.outputs)] == [value]
        assert cluster.committed(job) == {Partition(job.inputs[0], 0): 1}


def test_a_topic_that_is_there_already_is_refused(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(unique("twice"))
    with pytest.raises(UsageError, match=f"topic '{topic}' is there already. Fix:"):
        cluster.create_topic(topic)


def test_a_record_for_another_topic_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(UsageError, match="a record is for 'other'"):
        cluster.produce(unique("any"), [OutputRecord("other", b"x")])


def test_reading_waits_for_open_transactions_and_names_the_partition_that_stays_open(
    cluster: KafkaCluster,
) -> None:
    topic = cluster.create_topic(unique("open"))
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": unique("id"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"pending")
    producer.flush(PATIENCE_S)
    with pytest.raises(UnavailableError, match=rf"{topic}\[0\] \(LSO 0, high watermark 1\)"):
        cluster.read_committed(topic, timeout_s=5)
    producer.abort_transaction(PATIENCE_S)
    assert cluster.read_committed(topic) == []


def test_an_error_of_the_job_is_the_test_s_error(cluster: KafkaCluster) -> None:
    job = copying()
    cluster.create_topics(job)
    cluster.produce(job.inputs[0], [b"good", b"poison"])
    with pytest.raises(TransformError, match=r"offset 1: the transform raised ValueError"):
        cluster.run(job)
    with pytest.raises(TransformError, match="offset 1"), cluster.running(job) as run:
        run.wait_for_records(2)


def test_a_job_that_does_not_catch_up_in_time_is_said_to_run_on(cluster: KafkaCluster) -> None:
    job = copying()
    cluster.create_topics(job)
    cluster.produce(job.inputs[0], [b"x"])
    cluster.pause_broker(1)
    with pytest.raises(UnavailableError, match="'copier' still runs after 1 s"):
        cluster.run(job, timeout_s=1)
    cluster.resume_broker(1)


@slow_in_docker
def test_a_broker_killed_while_the_job_runs_leaves_the_output_exactly_once(cluster: KafkaCluster) -> None:
    job = copying()
    cluster.create_topics(job, partitions=2)
    cluster.produce(job.inputs[0], [b"v%d" % i for i in range(5_000)])
    settings = cluster.settings(job, {"transaction.interval_ms": 20, "input.fetch_records": 50})
    with cluster.running(job, settings) as run:
        run.wait_for_records(100)
        cluster.kill_broker(1)
        cluster.restart_broker(1)
        run.wait_for_records(1_000)
    cluster.run(job)
    assert_exactly_once(job, cluster, records=5_000)


def test_two_or_no_brokers_are_refused() -> None:
    with pytest.raises(ConfigError, match="brokers = 2: a test cluster has 1 broker, or 3"):
        KafkaCluster(2, kind="process")


def test_nothing_listens_any_more_once_it_was_stopped() -> None:
    with KafkaCluster(kind="process") as cluster:
        address = cluster.bootstrap_servers
        assert answers(cluster, timeout_s=PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
