"""What eos launches Spark with, and what it refuses or warns about in a session of somebody else's."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from eos.errors import ConfigError
from eos.local.versions import SPARK_VERSIONS
from eos.settings import Settings

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from eos.spark.session.checks import (
    LAST_POLLS_DROPPED,
    REDACTED,
    TESTED_VERSIONS,
    check_session,
    drops_last_polls,
)
from eos.spark.session.session import interruptible, session_conf
from tests.support.settings import settings_of

PASSWORD = {
    "kafka.security_protocol": "SASL_PLAINTEXT",
    "kafka.sasl_mechanism": "PLAIN",
    "kafka.sasl_username": "u",
    "kafka.sasl_password": "p",
}


class _Session:
    """As much of a session as is asked."""

    def __init__(
        self, master: str = "local[2,4]", *, connector: bool = True, version: str = "4.2.0", **conf: str
    ) -> None:
        self.values = {name.replace("__", "."): value for name, value in conf.items()}
        self.conf = self.sparkContext = self
        self.master = master
        self.version = version
        self.cancelled = False
        self._connector = connector

    def __getattr__(self, name: str) -> Any:
        """``_jvm.java.lang.Thread.currentThread().getContextClassLoader()``."""
        if name in ("_jvm", "java", "lang", "Thread"):
            return self
        raise AttributeError(name)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def getConf(self) -> _Session:  # noqa: N802 - Spark's name
        return self

    def currentThread(self) -> _Session:  # noqa: N802 - Java's name
        return self

    def getContextClassLoader(self) -> _Session:  # noqa: N802 - Java's name
        return self

    def getResource(self, path: str) -> str | None:  # noqa: N802 - Java's name
        return path if self._connector else None

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        self.cancelled = True


def settings(**overrides: object) -> Settings:
    return settings_of("a:1", **overrides)


def checked(session: _Session, told: Settings | None = None) -> list[str]:
    return check_session(cast("SparkSession", session), told or settings())


@pytest.mark.parametrize("version", [*TESTED_VERSIONS, "4.0.2", "4.2.1-vendor-3"])
def test_every_release_of_a_tested_line_starts_without_a_warning(version: str) -> None:
    assert checked(_Session(version=version)) == []


@pytest.mark.parametrize("version", ["4.3.0", "5.0.0-preview1", "3.5.6"])
def test_spark_of_another_line_starts_with_a_warning_that_names_what_was_tested(version: str) -> None:
    (warning,) = checked(_Session(version=version))
    assert warning.startswith(f"Spark {version} is not tested with eos; {', '.join(TESTED_VERSIONS)} are")
    assert "Fix: " in warning


def test_tested_versions_are_those_whose_connector_is_pinned() -> None:
    assert TESTED_VERSIONS == SPARK_VERSIONS


def test_session_that_is_fine_has_no_warnings() -> None:
    assert checked(_Session()) == []
    assert checked(_Session("spark://host:7077")) == []
    assert checked(_Session(spark__redaction__regex=REDACTED), settings(**PASSWORD)) == []


def test_session_without_the_connector_is_refused_with_the_option_that_brings_it() -> None:
    with pytest.raises(ConfigError, match=r"no Kafka connector.*--jars .*eos spark jars"):
        checked(_Session(connector=False))


def test_session_of_spark_connect_is_refused() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match="Spark Connect"):
        check_session(remote, settings())


@pytest.mark.parametrize("prefix", ["spark.python.worker", "spark.sql.execution.pyspark.udf"])
@pytest.mark.parametrize(
    ("idle", "kill", "refused"),
    [("30", "true", True), ("30s", "true", True), ("61", "true", False), ("2m", "true", False), ("30", "false", False), ("0", "true", False)],
)  # fmt: skip
def test_session_that_kills_silent_tasks_before_a_commit_may_have_ended_is_refused(
    prefix: str, idle: str, kill: str, refused: bool
) -> None:
    session = _Session()
    session.values |= {f"{prefix}.idleTimeoutSeconds": idle, f"{prefix}.killOnIdleTimeout": kill}
    if refused:
        with pytest.raises(
            ConfigError, match=rf"{re.escape(prefix)}\.idleTimeoutSeconds = 30 .*more than 60"
        ):
            checked(session)
    else:
        assert checked(session) == []


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (_Session("local"), r"fails once ends the run.*local\[1,4\]"),
        (_Session("local[*]"), r"local\[\*,4\] in the place of local\[\*\]"),
        (_Session("local[2, 1]"), "fails once"),
        (_Session("spark://h:1", spark__task__maxFailures="1"), r"spark\.task\.maxFailures = 4"),
        (_Session(spark__speculation="true"), r"waits up to 60 s.*spark\.speculation = false"),
        (
            _Session(spark__sql__execution__arrow__maxRecordsPerBatch="0"),
            r"maxRecordsPerBatch = 0: no limit",
        ),
    ],
)
def test_what_costs_but_breaks_nothing_is_a_warning(session: _Session, said: str) -> None:
    (warning,) = checked(session)
    assert re.search(said, warning), warning


def test_secrets_that_spark_would_show_are_a_warning_that_holds_none() -> None:
    # Spark's own default finds "password" inside the login's value; a pattern that finds neither shows it.
    assert checked(_Session(), settings(**PASSWORD)) == []
    (warning,) = checked(_Session(spark__redaction__regex="(?i)token"), settings(**PASSWORD))
    assert warning.startswith("sasl.jaas.config would be readable")
    assert "LoginModule" not in warning
    (broken,) = checked(_Session(spark__redaction__regex="("), settings(**PASSWORD))
    assert broken.startswith("sasl.jaas.config")


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.key",
        "kafka.ssl.key.password",
        "kafka.ssl.truststore.password",
    ],
)
def test_redaction_that_eos_sets_covers_every_secret_of_kafka(name: str) -> None:
    conf = session_conf("local[1,4]")
    for key in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
        assert re.search(conf[key], name)
    assert not re.search(REDACTED, "kafka.bootstrap.servers")


def test_local_session_listens_on_loopback_and_the_users_configuration_goes_over_it() -> None:
    local = session_conf("local[*,4]", [Path("/a.jar"), Path("/b.jar")], {"spark.ui.enabled": "true"})
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.jars"] == "/a.jar,/b.jar"
    assert local["spark.ui.enabled"] == "true"
    cluster = session_conf("spark://host:7077")
    assert not {"spark.driver.bindAddress", "spark.ui.enabled", "spark.jars"} & cluster.keys()


@pytest.mark.parametrize(
    ("conf", "dropped"),
    [
        (session_conf("spark://host:7077"), True),
        ({}, False),
        (session_conf("local[1,4]", conf={next(iter(LAST_POLLS_DROPPED)): "5m"}), False),
        (dict(list(LAST_POLLS_DROPPED.items())[:1]), False),
    ],
)
def test_polls_are_large_only_where_the_session_does_not_keep_them(
    conf: dict[str, str], dropped: bool
) -> None:
    """Kept for 5 minutes, those of 20 runs over 32 partitions filled a heap of 1 GB."""
    session = _Session()
    session.values = conf
    assert drops_last_polls(cast("SparkSession", session)) is dropped


def test_lines_of_sparks_log_are_told_from_ours_by_a_file_that_is_there() -> None:
    option = session_conf("local[1,4]")["spark.driver.extraJavaOptions"]
    assert Path(option.partition("file://")[2]).read_text().count("appender.stderr") > 1


def test_work_beside_a_session_returns_or_raises_what_it_does() -> None:
    session = cast("SparkSession", _Session())
    assert interruptible(session, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(session, lambda: 1 // 0)


def test_signal_cancels_what_runs_and_is_not_held_up_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eos.spark.session.session._CANCELLED_S", 0.1)
    session = _Session()
    began = time.monotonic()
    ended = threading.Event()

    def work() -> None:
        time.sleep(0.1)  # until the caller waits
        signal.raise_signal(signal.SIGINT)
        ended.wait(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(cast("SparkSession", session), work)
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
    assert session.cancelled
    assert time.monotonic() - began < 30
