"""The image of Spark: the driver, the master and the worker of a standalone cluster, each a container of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.kafka.topics import create_topics
from eos.ops.verifier.verify import verify
from eos.settings import Settings
from eos.spark.session.session import session_conf
from jobs import refunds
from jobs.settlements import settlements
from tests.support import observer
from tests.support.docker_cli import (
    KAFKA_IMAGE,
    SPARK_IMAGE,
    Broker,
    Container,
    broker,
    container,
    missing,
    network,
    wait_for,
)
from tests.support.observer import PlainRecord

_REASON = missing(SPARK_IMAGE, KAFKA_IMAGE)
pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("spark-image"),
    pytest.mark.skipif(bool(_REASON), reason=_REASON),
]

_REPOSITORY = Path(__file__).parents[2]
_PARTITIONS = 4
_RECORDS = 5_000
_WAIT_S = 360.0  # a run takes 30 s; on a machine with 30 times the load that it can bear, 240 s were seen
# Nothing but /tmp can be written; Spark's native libraries are unpacked and loaded there.
_SCRATCH = "/tmp:exec"  # noqa: S108 - of the container alone
_LOCKED_DOWN = (
    "--read-only",
    "--tmpfs",
    _SCRATCH,
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
)
_SMALL = ("--conf", "spark.driver.memory=512m", "--conf", "spark.executor.memory=512m")
_JOB = ("jobs/refunds_batch.py", "--config", "conf/refunds_batch.toml")
_ASK_MASTER = (
    "import urllib.request as u; print(u.urlopen('http://localhost:8080/json/', timeout=5).read().decode())"
)


@pytest.fixture(scope="module")
def bridge() -> Iterator[str]:
    with network() as found:
        yield found


@pytest.fixture(scope="module")
def kafka_container(bridge: str) -> Iterator[Broker]:
    with broker(bridge) as running:
        yield running


@pytest.fixture(scope="module")
def master(bridge: str) -> Iterator[str]:
    """A master and a worker; yields the master's URL."""
    options = (*_LOCKED_DOWN, "--network", bridge)
    small = {"SPARK_DAEMON_MEMORY": "256m"}
    url = "spark://spark-master:7077"
    with (
        container(
            SPARK_IMAGE, "master", options=(*options, "--hostname", "spark-master"), environment=small
        ) as first,
        container(
            SPARK_IMAGE, "worker", "--cores", "2", "--memory", "1g", url, options=options, environment=small
        ) as second,
    ):
        wait_for(
            lambda: _workers(first) == 1,
            _WAIT_S,
            lambda: f"{first.last_words()}\n{second.last_words()}",
        )
        yield url


def _workers(of_master: Container) -> int:
    """How many the master counts."""
    try:
        known = json.loads(of_master.run("python", "-c", _ASK_MASTER))["workers"]
    except AssertionError:
        return 0  # it does not answer yet
    return len([worker for worker in known if worker["state"] == "ALIVE"])


@pytest.mark.slow
def test_batch_runs_on_a_cluster_of_this_image_exactly_once(
    kafka_container: Broker, master: str, bridge: str
) -> None:
    """The driver is a container beside master and worker."""
    _load(kafka_container, seed=21)
    submit = ("spark-submit", "--master", master, *_SMALL, *_JOB, "--start", "earliest")
    _run(kafka_container, *submit, options=("--network", bridge, "--hostname", "driver"))


@pytest.mark.slow
def test_batch_runs_as_the_cron_job_has_it_exactly_once(kafka_container: Broker, bridge: str) -> None:
    """The tasks are in the driver; what the configuration says of the start is a mounted file."""
    _load(kafka_container, seed=22)
    mounted = ("--network", bridge, "--volume", f"{_REPOSITORY / 'conf'}:/etc/eos:ro")
    _run(kafka_container, *_cron_job(), "--start", "earliest", options=mounted)


def _load(at: Broker, seed: int) -> None:
    topics = dict.fromkeys(refunds.job.read_topics | refunds.job.written_topics, _PARTITIONS)
    create_topics({"bootstrap.servers": at.outside}, topics)
    records = [PlainRecord(value, key) for key, value in settlements(_RECORDS, seed=seed)]
    observer.produce_plain(at.outside, refunds.SETTLEMENTS, records, timeout_s=60)


def _run(at: Broker, *command: str, options: tuple[str, ...]) -> None:
    """The tests of this file share a broker and a group: what was loaded before counts as well."""
    environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": at.inside}
    with container(
        SPARK_IMAGE, *command, options=(*_LOCKED_DOWN, *options), environment=environment
    ) as driver:
        assert driver.wait(_WAIT_S) == 0, driver.last_words()
    given = {"kafka.bootstrap_servers": at.outside}
    settings = Settings.load(_REPOSITORY / "conf/refunds_batch.toml", given, {})
    report = verify(refunds.job, settings, timeout_s=_WAIT_S)
    assert report.exactly_once, report
    assert report.records == len(observer.read_committed(at.outside, refunds.SETTLEMENTS)) >= _RECORDS


def _cron_job() -> list[str]:
    """The arguments of the container, as the manifest has them."""
    manifests = yaml.safe_load_all((_REPOSITORY / "docker/kubernetes/refunds-batch.yaml").read_text())
    (pod,) = [one["spec"]["jobTemplate"]["spec"]["template"] for one in manifests if one["kind"] == "CronJob"]
    return list(pod["spec"]["containers"][0]["args"])


def test_exit_code_of_a_job_is_that_of_spark_submit() -> None:
    """What a CronJob decides by: a wrong setting is not tried again."""
    wrong = {"EOS_GRUOP": "refunds-batch"}
    submit = ("spark-submit", "--master", "local[1]", *_SMALL, *_JOB)
    with container(SPARK_IMAGE, *submit, options=_LOCKED_DOWN, environment=wrong) as refused:
        assert refused.wait(_WAIT_S) == 2, refused.last_words()
        assert "EOS_GROUP" in refused.logs()


def test_image_needs_no_network_to_find_the_connector() -> None:
    with container(
        SPARK_IMAGE, "eos", "spark", "jars", options=(*_LOCKED_DOWN, "--network", "none")
    ) as asked:
        assert asked.wait(_WAIT_S) == 0, asked.last_words()
        found = asked.logs().strip().split(",")
    assert len(found) == len(set(found)) == 4
    assert all(path.startswith("/opt/jars/spark-kafka-") for path in found)


def test_defaults_of_the_image_are_those_of_sessions_that_eos_launches() -> None:
    lines = (_REPOSITORY / "docker/spark/spark-defaults.conf").read_text().splitlines()
    given = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    launched = session_conf("spark://host:7077")
    assert given == {name: launched[name] for name in given}
    assert "spark.redaction.regex" in given


def test_image_runs_as_a_user_without_rights() -> None:
    with container(SPARK_IMAGE, "id", "-u", options=_LOCKED_DOWN) as asked:
        assert asked.wait(_WAIT_S) == 0
        assert asked.logs().strip() == "10001"
