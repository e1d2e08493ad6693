"""What eos says of a real session, and to a real Java client."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from eos.spark.session.java_options import _EQUAL, java_client_options
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_that_eos_launches_is_one_that_it_accepts(spark: SparkSession) -> None:
    from eos.spark.session.checks import REDACTED, check_session
    from eos.spark.session.session import tasks_done

    secret = {
        "kafka.bootstrap_servers": "a:1",
        "kafka.security_protocol": "SASL_PLAINTEXT",
        "kafka.sasl_mechanism": "PLAIN",
        "kafka.sasl_username": "u",
        "kafka.sasl_password": "p",
    }
    assert check_session(spark, settings_of(**secret)) == []
    assert spark.sparkContext.getConf().get("spark.redaction.regex") == REDACTED
    assert tasks_done(spark) == (0, 0)


def test_ctrl_c_in_later_tests_of_the_process_is_not_sparks(spark: SparkSession) -> None:
    """A SparkContext installs a handler that cancels its jobs, and leaves it."""
    assert "SparkContext" not in getattr(signal.getsignal(signal.SIGINT), "__qualname__", "")


def test_options_that_are_carried_over_exist_in_javas_client(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    known = set(jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames())
    assert set(_EQUAL) <= known


@pytest.mark.parametrize("password", ['a"b\\c;d=e\n\r\té€ //*', "plain"])
def test_login_is_read_by_java_as_it_was_written(spark: SparkSession, password: str) -> None:
    settings = settings_of(
        "a:1",
        kafka__security_protocol="SASL_PLAINTEXT",
        kafka__sasl_mechanism="SCRAM-SHA-512",
        kafka__sasl_username='us"er',
        kafka__sasl_password=password,
    )
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    given = jvm.java.util.HashMap()
    text = java_client_options(settings)["sasl.jaas.config"]
    given.put("sasl.jaas.config", jvm.org.apache.kafka.common.config.types.Password(text))
    context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(given)
    (entry,) = context.configurationEntries()
    assert dict(entry.getOptions()) == {"username": 'us"er', "password": password}


def test_values_that_spark_hashes_to_each_task_are_found_whichever_hash_int_java_lists_first(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is static, one is not; py4j looks at the first one only when it is asked for a static one."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    from eos.spark.write.endmarks import _hashed_to_each

    py4j = pytest.importorskip("py4j.java_gateway")
    static = py4j.JavaClass.__getattr__

    def not_first(java_class: object, name: str) -> object:
        if name == "hashInt":
            raise py4j.Py4JError("hashInt does not exist in the JVM")
        return static(java_class, name)

    monkeypatch.setattr(py4j.JavaClass, "__getattr__", not_first)
    _hashed_to_each.cache_clear()
    values = _hashed_to_each(spark.sparkContext._jvm, 7)
    placed = spark.createDataFrame([(value,) for value in values], "value int")
    tasks = placed.select(F.pmod(F.hash("value"), F.lit(7)).alias("task")).collect()
    assert [row.task for row in tasks] == list(range(7))
