"""What the tests of eos.spark share: one small Spark session per run, and a topic's worth of input."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eos.local import QUICK_START
from eos.settings import Settings
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPOSITORY = Path(__file__).parents[2]
MASTER = "local[2,4]"  # two tasks at a time, four tries each
# For every JVM of the tests' Spark, in children too. They live for seconds or minutes: the second compiler took as
# much processor time as all of the rest (46 s against 26 s for one session), and would have paid off later.
_JAVA_OPTIONS = " ".join(QUICK_START)
os.environ["SPARK_SUBMIT_OPTS"] = f'{_JAVA_OPTIONS} "-Dspark.executor.defaultJavaOptions={_JAVA_OPTIONS}"'

_OWN_SPARK = {"test_faults_cluster.py", "test_spark_cli.py"}

Settled = Callable[..., Settings]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests in three processes: two with a Spark session each, whose first test waits for its start.

    The third has the tests that start a Spark, or a cluster, for themselves.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.path.name in _OWN_SPARK:
                group = "spark-own"
            else:
                group = "spark-stream" if "stream" in item.path.name else "spark-batch"
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def connector_jars() -> list[Path]:
    """Spark's Kafka connector, kept in the repository's ``.eos/jars``."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: pip install 'eos-kafka[spark]'")
    from eos.errors import ConfigError
    from eos.local.connector import provide_connector
    from eos.local.jars import jars_root
    from eos.local.java import find_java

    try:
        java = find_java()
    except ConfigError as error:
        pytest.skip(str(error))
    kept = jars_root(_REPOSITORY / ".eos", None)
    return provide_connector(_REPOSITORY / ".eos", java=java, progress=lambda _: None, jars=kept)


@pytest.fixture(scope="session")
def spark(connector_jars: list[Path]) -> Iterator[SparkSession]:
    """One session for all tests of the process; adaptive execution is on, as by default."""
    from eos.spark.session.session import build_session

    before = signal.getsignal(signal.SIGINT)
    session = build_session(
        "eos-tests",
        MASTER,
        connector_jars,
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "4",
            "spark.python.daemon.module": "tests.support.spark_daemon",
            # Clients of brokers that other tests have ended try their ports again, and the JVM would offer results on one of those.
            "spark.python.unix.domain.socket.enabled": "true",
        },
    )
    signal.signal(
        signal.SIGINT, before
    )  # a SparkContext leaves its own, in the tests of this process that follow too
    session.sparkContext.setLogLevel("OFF")  # tests make tasks fail on purpose
    yield session
    session.stop()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows go on to the next operator soon, so that a task can be caught in the middle of its transaction."""
    from tests.support.spark_faults import SMALL_BATCHES

    before = {name: spark.conf.get(name) for name in SMALL_BATCHES}
    for name, value in SMALL_BATCHES.items():
        spark.conf.set(name, value)
    yield
    for name, found in before.items():
        spark.conf.set(name, str(found))


@pytest.fixture
def settled(bootstrap: str) -> Settled:
    """A maker of settings for this run's broker; a group that has no offsets starts at the beginning."""

    def make(**overrides: object) -> Settings:
        return settings_of(bootstrap, **{"input__start": "earliest"} | overrides)

    return make
