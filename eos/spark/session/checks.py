"""What eos asks of a session that it is given: it refuses those that cannot keep its promise, and warns of others."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator
from typing import NoReturn

from pyspark.sql import SparkSession

from eos.errors import ConfigError
from eos.settings import Settings, is_sensitive
from eos.spark.session.java_options import java_client_options
from eos.spark.session.jvm import has_class

log = logging.getLogger("eos.spark")

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
_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
TESTED_VERSIONS = ("4.0.0", "4.1.3", "4.2.0")  # of Spark; one of each line, oldest first
LOCAL = re.compile(r"local(\[\s*(?P<threads>\*|\d+)\s*(,\s*(?P<failures>\d+)\s*)?\])?")
_DEFAULT_TASK_FAILURES = 4
_DURATION = re.compile(r"\s*(-?\d+)\s*(s|sec|seconds|m|min|h|ms)?\s*", re.IGNORECASE)
_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}
_CONNECT = "pyspark.sql.connect"
_FIX = (
    "Fix: run the driver with the cluster (spark-submit, or a session without SPARK_REMOTE and spark.remote)"
)


class SentAwayError(ConfigError, pickle.PicklingError):
    """What works in the driver's process alone was to be sent to another one. PySpark lets pickle's own errors pass as they are."""


def require_classic(given: object) -> None:
    """Refuse a session, or a frame, of Spark Connect.

    Its client has no physical plan to look at, so a shard that is split over two tasks would not be seen, and no JVM to
    ask for checkpoints and batches.

    Raises:
        ConfigError: it is one.
    """
    if type(given).__module__.startswith(_CONNECT):
        raise ConfigError(
            "this is a Spark Connect session, in which the physical plan cannot be looked at, and with it not whether "
            f"every row of a shard reaches one task. {_FIX}"
        )


def refuse_sending(what: str) -> NoReturn:
    """Refuse to be pickled.

    Raises:
        SentAwayError: always.
    """
    raise SentAwayError(
        f"{what} works in the driver's process alone, and was to be sent to another one. Spark Connect sends there what foreachBatch is "
        f"given, and a task what its function names. {_FIX}; and in a function of a task no sink"
    )


def check_session(spark: SparkSession, settings: Settings) -> list[str]:
    """Refuse a session in which a run cannot keep its promise or end; return warnings.

    Raises:
        ConfigError: it is a Spark Connect session, it has no Kafka connector, or it kills tasks that wait.
    """
    require_classic(spark)
    if not has_class(spark, _KAFKA_SOURCE):
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


# --- inside ----------------------------------------------------------------------------------------------


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
    # SparkContext.createTaskScheduler: a local master takes no spark.task.maxFailures.
    if local := LOCAL.fullmatch(conf.master):
        tries = int(local["failures"] or 1)
        fix = f"master local[{local['threads'] or '1'},4] in the place of {conf.master}"
    else:
        tries = int(conf.get("spark.task.maxFailures", str(_DEFAULT_TASK_FAILURES)))
        fix = "spark.task.maxFailures = 4"
    if tries <= 1:
        yield f"a task that fails once ends the run (nothing is lost, the next run goes on). Fix: {fix}"


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


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _SECONDS[(match[2] or "").lower()] if match else 0.0
