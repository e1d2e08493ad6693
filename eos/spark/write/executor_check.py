"""Executor check: before anything is written, one small task says what its executor lacks of what the driver has.

The driver's environment does not travel to the executors, nor does its way to the brokers. Without this check both show in
the middle of a run, as a traceback of a task's. What driver and executor lack alike is no difference: the run itself says it.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata

from pyspark.sql import SparkSession

from eos import retry
from eos.errors import ConfigError, EosError
from eos.group.topics import known_partitions
from eos.kafka.admin import Admin, Mark
from eos.settings import Settings
from eos.settings.tables import KafkaSettings
from eos.spark.session.session import step
from eos.spark.write.failures import decoded, encoded, from_spark

log = logging.getLogger("eos.spark")

SHIPPING = "docs/guides/spark-dependencies.md#shipping-dependencies-to-executors"
NEEDS = "docs/reference/spark-clusters.md#what-an-executor-needs"
_NOTHING = "Nothing was read and nothing is written"
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: (\d[\d.]*\d)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
# What a task of eos imports: the module, its distribution, and how many figures of its version must be those of the driver's.
_PACKAGES = (
    ("eos", "eos-kafka", 3),  # what travels is made of its classes
    ("pyarrow", "pyarrow", 1),
    ("confluent_kafka", "confluent-kafka", 0),  # each that it can be installed with
)
_PYTHON = "Python"
# How long each of three answers is waited for. They come in milliseconds; what is silent for longer is a name that does not
# resolve here, or a firewall that drops packets.
_ANSWER_S = 5.0

# What a process has: by "Python" and by module its version, "" where none is known; or "!" and why it cannot be imported.
Found = Mapping[str, str]

_fit: list[tuple[str, str, KafkaSettings]] = []  # what was asked and found fit: once per application
_asking = threading.Lock()


def require_fit_executor(spark: SparkSession, settings: Settings, outputs: Sequence[str], job: str) -> None:
    """Refuse an application whose executor could not do a task's work; asked once per application and cluster.

    The tasks write to the leaders of ``outputs``; ``job`` is for Spark's UI.

    Raises:
        ConfigError: another Python, eos or pyarrow than the driver's, or none; or it does not reach the brokers, which the
            driver does.
        EosError: what else the task failed of.
    """
    context = spark.sparkContext
    asked = (str(context.applicationId), str(context.pythonExec), settings.kafka)
    with _asking:
        if asked in _fit:
            return
        with step(spark, job, "look what an executor has"):
            host, there, problem = _asked(spark, settings, outputs)
        if different := differences(there, _looker()()):
            raise ConfigError(
                f"an executor ({host}) does not fit the driver: {'; '.join(different)}. {_NOTHING}. Fix: one environment for "
                f"both: {SHIPPING}"
            )
        if problem:
            try:
                _reach(settings, outputs)
            except EosError as own:
                log.warning("an executor (%s) does not reach Kafka, and nor does the driver: %s", host, own)
                return
            with step(spark, job, "look whether an executor reaches Kafka by now"):
                host, _, problem = _asked(spark, settings, outputs)
        # Twice, and the driver in between: a broker that was away for a moment is no difference.
        if problem:
            error = decoded(problem)
            raise ConfigError(
                f"an executor ({host}) does not reach Kafka, and the driver does: {error}. {_NOTHING}. Fix: its network, "
                f"names and files: {NEEDS}",
                code=error.code,
            ) from error
        _fit.append(asked)


def differences(there: Found, here: Found) -> list[str]:
    """What an executor has otherwise than the driver, in words."""
    found = []
    for name, figures in ((_PYTHON, 2), *((module, figures) for module, _, figures in _PACKAGES)):
        theirs, ours = there[name], here[name]
        if theirs.startswith("!"):
            found.append(f"no {name} there ({theirs[1:]})")
        elif theirs and ours and theirs.split(".")[:figures] != ours.split(".")[:figures]:
            found.append(f"{name} {theirs} there, {ours} here")
    return found


def unreached(question: bytes) -> str:
    """In a task: why Kafka is out of reach; "" if it is not. A raised error would be tried four times."""
    settings, outputs = pickle.loads(question)  # noqa: S301 - of the driver, as all that a task gets
    try:
        _reach(settings, outputs)
    except EosError as error:
        return encoded(error)
    return ""


# --- inside ----------------------------------------------------------------------------------------------


def _asked(spark: SparkSession, settings: Settings, outputs: Sequence[str]) -> tuple[str, Found, str]:
    """The name of an executor's machine, what it has, and the error of its question to Kafka; "" if that was answered."""
    look, ours, question = _looker(), _looker()()["eos"], pickle.dumps((settings, tuple(outputs)))

    def answer(_: int) -> str:
        there, kafka = look(), ""
        if there["eos"] == ours and not any(version.startswith("!") for version in there.values()):
            from eos.spark.write.executor_check import unreached

            kafka = unreached(question)
        return json.dumps([socket.gethostname(), there, kafka])

    try:
        # Without Arrow, which may be what is missing; and without a plan, which takes as long again.
        [answered] = spark.sparkContext.parallelize([0], 1).map(answer).collect()
    except Exception as error:
        raise _explained(error) from error
    host, there, kafka = json.loads(answered)
    return host, there, kafka


def _looker() -> Callable[[], dict[str, str]]:
    """A function that says what the process has that runs it.

    Spark sends it by value, as all that is made inside of a function: where it runs there may be no eos to import it from.
    """
    python, wanted = _PYTHON, [(module, distribution) for module, distribution, _ in _PACKAGES]

    def look() -> dict[str, str]:
        found = {python: ".".join(map(str, sys.version_info[:3]))}
        for module, distribution in wanted:
            try:
                import_module(module)
                found[module] = metadata.version(distribution)
            except metadata.PackageNotFoundError:  # there, and not installed
                found[module] = ""
            except ImportError as error:
                found[module] = f"!{error}"
        return found

    return look


def _explained(error: Exception) -> EosError:
    """What a task could not even answer for."""
    text = str(error)
    if match := _OTHER_PYTHON.search(text):
        what = f"{_PYTHON} {match[1]} there, {match[2]} here"
    elif match := _NO_PYTHON.search(text):
        what = f"it has no {match[1]!r}, by which its Python is to be started (spark.pyspark.python, PYSPARK_PYTHON)"
    elif "No module named 'pyspark" in text or "No module named pyspark" in text:
        what = "its Python finds no pyspark"
    else:
        return from_spark(error)
    return ConfigError(
        f"an executor does not fit the driver: {what}. {_NOTHING}. Fix: one environment for both: {SHIPPING}"
    )


def _reach(settings: Settings, outputs: Sequence[str]) -> None:
    """Ask the brokers for metadata, and the leaders of the outputs for offsets; an EosError says that they are out of reach.

    A listener that is reachable may name others that are not, and a transaction writes to all of them.
    """
    admin = Admin.of(settings)
    retry.ask(admin.brokers, timeout_s=_ANSWER_S)
    partitions = known_partitions(admin, outputs, timeout_s=_ANSWER_S)
    retry.ask(lambda slice_s: admin.offsets_at(Mark.HIGH_WATERMARK, partitions, slice_s), timeout_s=_ANSWER_S)
