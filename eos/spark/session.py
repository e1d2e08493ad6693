"""Spark sessions: the configuration that eos launches one with, and what it refuses or warns about in any other."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from eos.errors import ConfigError
from eos.settings import Settings, is_sensitive
from eos.spark.classic import require_classic
from eos.spark.failures import JVM_GONE, java_has_ended
from eos.spark.java import java_client_options
from eos.spark.session_end import was_killed

T = TypeVar("T")

log = logging.getLogger("eos.spark")

_JOIN_POLL_S = 0.2
_CANCELLED_S = 10.0  # cancelled tasks end within a second; what does not is left to the session's stop

# Spark's own default (secret|password|token|access key) and the names of Kafka's that it does not cover. What fits
# is hidden in the web UI, in event logs and in plans. A value that fits hides itself too, by its own rule.
REDACTED = r"(?i)secret|password|passphrase|token|access[.]?key|jaas|keystore[.]key|credential"
_SPARKS_REDACTED = "(?i)secret|password|token|access[.]?key"
# The connector keeps the last poll of every partition for 5 minutes, in case the same group reads on. Each batch run has a group of
# its own, so runs of 32 partitions filled 1 GB within 21 runs, and one of 400 partitions 512 MB (polls of 5,000, 200 bytes each).
LAST_POLLS_DROPPED = {
    "spark.kafka.consumer.fetchedData.cache.timeout": "2s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
}
_SOON_S = 10.0
_LOGGING = Path(__file__).with_name("log4j2.properties")
_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
TESTED_VERSIONS = ("4.0.0", "4.1.3", "4.2.0")  # of Spark; one of each line, oldest first
_LOCAL = re.compile(r"local(\[\s*(?P<threads>\*|\d+)\s*(,\s*(?P<failures>\d+)\s*)?\])?")
_DEFAULT_TASK_FAILURES = 4
_DURATION = re.compile(r"\s*(-?\d+)\s*(s|sec|seconds|m|min|h|ms)?\s*", re.IGNORECASE)
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}


def session_conf(
    master: str, jars: Iterable[Path] = (), conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The configuration of a session that eos launches.

    Args:
        master: for example ``local[2,4]``: two threads, and four tries for a task.
        jars: of Spark's Kafka connector.
        conf: the user's own, which goes over all of it.
    """
    own = {
        "spark.master": master,
        "spark.redaction.regex": REDACTED,
        "spark.sql.redaction.options.regex": f"{REDACTED}|url",
        "spark.sql.session.timeZone": "UTC",  # a result must not depend on the machine
        "spark.ui.showConsoleProgress": "false",
        **LAST_POLLS_DROPPED,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }
    if listed := ",".join(map(str, jars)):
        own["spark.jars"] = listed
    if _LOCAL.fullmatch(master):
        own |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return own | dict(conf or {})


def build_session(
    name: str, master: str, jars: Iterable[Path] = (), conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Launch a session, its driver in this process.

    The Python of local tasks is this one, unless PYSPARK_PYTHON says otherwise: Spark would take the first
    ``python3`` on the PATH.

    Raises:
        ConfigError: the JVM did not start, or the session is one of Spark Connect.
        UnclassifiedError: the JVM was killed while it started.
    """
    if _LOCAL.fullmatch(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault(
            "SPARK_LOCAL_IP", "127.0.0.1"
        )  # it warns about having to choose an address itself
    builder = SparkSession.builder.appName(name)
    for key, value in session_conf(master, jars, conf).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        if was_killed(error):
            raise java_has_ended() from error
        raise ConfigError(
            f"Spark did not start on {master!r}: {type(error).__name__}: {error}. Its own lines above say more"
        ) from error
    require_classic(spark)
    return spark


def check_session(spark: SparkSession, settings: Settings) -> list[str]:
    """Refuse a session in which a run cannot keep its promise or end; return warnings.

    Raises:
        ConfigError: it is a Spark Connect session, it has no Kafka connector, or it kills tasks that wait.
    """
    require_classic(spark)
    if not _has_class(spark, _KAFKA_SOURCE):
        raise ConfigError(
            f'the session has no Kafka connector ({_KAFKA_SOURCE}). Fix: spark-submit --jars "$(eos spark jars)", or '
            "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:<version of Spark>"
        )
    conf = _Conf(spark)
    _refuse_idle_kill(conf, settings)
    return [
        *_untested(spark.version),
        *_retries(conf),
        *_speculation(conf, settings),
        *_memory(conf),
        *_shown_secrets(conf, settings),
    ]


def warn_of_session(spark: SparkSession, settings: Settings) -> None:
    """Refuse or warn as `check_session` does; the warnings go to the log.

    Raises:
        ConfigError: as `check_session`.
    """
    for warning in check_session(spark, settings):
        log.warning("session: %s", warning)


def drops_last_polls(spark: SparkSession) -> bool:
    """Whether a session drops what was read soon after it was: then a poll may be a large one."""
    conf = _Conf(spark)
    return all(0 < _seconds(conf.get(name)) <= _SOON_S for name in LAST_POLLS_DROPPED)


def interruptible(spark: SparkSession, work: Callable[[], T]) -> T:
    """Do what works with a session in a thread of its own, so that a signal ends it: its jobs are cancelled.

    An exception that a signal handler raises inside a call to the JVM would leave the thread's connection with
    an unread answer, and the session could not even be stopped through it (measured).

    Raises:
        BaseException: what the work raised, or what a signal handler raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="eos-spark", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_JOIN_POLL_S)
    except BaseException:
        with suppress(*JVM_GONE):
            spark.sparkContext.cancelAllJobs()
            thread.join(_CANCELLED_S)
        raise
    if errors:
        raise errors[0]
    return results[0]


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """(tasks that have ended well, tasks) of the stages that run now: how far a run is."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


class _Conf:
    """A session's configuration: what was set on the session goes over what its context was started with."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext.getConf()
        self.master = str(spark.sparkContext.master)

    def get(self, name: str, default: str = "") -> str:
        return str(self._spark.conf.get(name, None) or self._context.get(name, None) or default)

    def is_true(self, name: str) -> bool:
        return self.get(name).strip().lower() == "true"


def _refuse_idle_kill(conf: _Conf, settings: Settings) -> None:
    # Measured with Spark 4.2: a task whose Python side is silent for longer is killed, and so is each of its
    # retries. A writing task is silent while it commits, and while it waits for its twin.
    for prefix in ("spark.sql.execution.pyspark.udf", "spark.python.worker"):
        if not conf.is_true(f"{prefix}.killOnIdleTimeout"):
            continue
        idle_s = _seconds(conf.get(f"{prefix}.idleTimeoutSeconds", "0"))
        longest_s = max(settings.twin_wait_s, settings.transaction.commit_timeout_s)
        if 0 < idle_s <= longest_s:
            raise ConfigError(
                f"{prefix}.idleTimeoutSeconds = {idle_s:g} with {prefix}.killOnIdleTimeout = true would kill a task "
                f"that commits or waits for its twin, which may take {longest_s:g} s, and each of its retries. "
                f"Fix: more than {longest_s:g}, or killOnIdleTimeout = false"
            )


def _untested(version: str) -> Iterator[str]:
    lines = {tuple(tested.split(".")[:2]) for tested in TESTED_VERSIONS}
    if tuple(version.split(".")[:2]) not in lines:
        # What a new line may change: the names in physical plans, by which eos sees that a shard is in one task.
        yield (
            f"Spark {version} is not tested with eos; {', '.join(TESTED_VERSIONS)} are. Fix: install one of these "
            f"(pip install 'pyspark=={TESTED_VERSIONS[-1]}'), or test the job on {version} and check its outputs "
            "with eos verify"
        )


def _retries(conf: _Conf) -> Iterator[str]:
    tries, fix = _task_tries(conf)
    if tries <= 1:
        yield f"a task that fails once ends the run (nothing is lost, the next run goes on). Fix: {fix}"


def _task_tries(conf: _Conf) -> tuple[int, str]:
    local = _LOCAL.fullmatch(conf.master)
    if local is None:
        return int(
            conf.get("spark.task.maxFailures", str(_DEFAULT_TASK_FAILURES))
        ), "spark.task.maxFailures = 4"
    # SparkContext.createTaskScheduler: a local master takes no spark.task.maxFailures.
    threads = local["threads"] or "1"
    return int(local["failures"] or 1), f"master local[{threads},4] in the place of {conf.master}"


def _speculation(conf: _Conf, settings: Settings) -> Iterator[str]:
    if conf.is_true("spark.speculation"):
        yield (
            "spark.speculation = true: the copy of a slow task fences it, so what that one has written is aborted and "
            f"written again, and it waits up to {settings.twin_wait_s:g} s in its slot. Nothing is doubled or lost. "
            "Fix, if that is too dear: spark.speculation = false"
        )


def _memory(conf: _Conf) -> Iterator[str]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    if int(conf.get(name, "10000")) <= 0:
        yield f"{name} = {conf.get(name)}: no limit, so a task holds all its rows at once. Fix: 10000"


def _shown_secrets(conf: _Conf, settings: Settings) -> Iterator[str]:
    options = java_client_options(settings)
    patterns = [
        conf.get("spark.redaction.regex", _SPARKS_REDACTED),
        conf.get("spark.sql.redaction.options.regex"),
    ]
    shown = [
        name
        for name, value in options.items()
        if is_sensitive(name) and not any(_found(pattern, name, value) for pattern in patterns)
    ]
    if shown:
        yield (
            f"{', '.join(shown)} would be readable in Spark's web UI and event logs. Fix: "
            f"spark.redaction.regex = {REDACTED}"
        )


def _found(pattern: str, *texts: str) -> bool:
    """Whether a pattern of Java's is found, as far as Python's patterns are the same; a doubt is a warning."""
    try:
        return bool(pattern) and any(re.search(pattern, text) for text in texts)
    except re.error:
        return False


def _has_class(spark: SparkSession, name: str) -> bool:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to ask
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    resource = name.replace(".", "/") + ".class"
    return loader.getResource(resource) is not None


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _SECONDS[(match[2] or "").lower()] if match else 0.0
