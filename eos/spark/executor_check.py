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
from typing import NamedTuple

from pyspark.sql import SparkSession

from eos.errors import ConfigError, EosError
from eos.settings import Settings
from eos.settings.tables import KafkaSettings
from eos.spark.failures import decoded, from_spark
from eos.spark.reach import reach
from eos.spark.steps import step

log = logging.getLogger("eos.spark")

SHIPPING = "docs/SPARK.md#shipping-dependencies-to-executors"
NEEDS = "docs/SPARK.md#what-an-executor-needs"
_NOTHING = "Nothing was read and nothing is written"
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S+) than that in driver: (\d[\d.]*\d)")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')


class _Package(NamedTuple):
    """A package that a task of eos imports, and how many figures of its version must be those of the driver's."""

    module: str
    distribution: str
    figures: int


_PACKAGES = (
    _Package("eos", "eos-kafka", 3),  # what travels is made of its classes
    _Package("pyarrow", "pyarrow", 1),
    _Package("confluent_kafka", "confluent-kafka", 0),  # each that it can be installed with
)
_PYTHON = "Python"

# What a process has: by "Python" and by module its version, "" where none is known; or "!" and why it cannot be imported.
Found = Mapping[str, str]

_fit: list[tuple[str, str, KafkaSettings]] = []  # what was asked and found fit: once per application
_asking = threading.Lock()


def require_fit_executor(spark: SparkSession, settings: Settings, outputs: Sequence[str], job: str) -> None:
    """Refuse an application whose executor could not do a task's work; asked once per application and cluster.

    Args:
        spark: the session.
        settings: how the tasks reach the cluster.
        outputs: the topics whose leaders the tasks write to.
        job: its name, for Spark's UI.

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
            host, there, unreached = _asked(spark, settings, outputs)
        if different := differences(there, _looker()()):
            raise ConfigError(
                f"an executor ({host}) does not fit the driver: {'; '.join(different)}. {_NOTHING}. Fix: one environment for "
                f"both: {SHIPPING}"
            )
        if unreached:
            try:
                reach(settings, outputs)
            except EosError as own:
                log.warning("an executor (%s) does not reach Kafka, and nor does the driver: %s", host, own)
                return
            with step(spark, job, "look whether an executor reaches Kafka by now"):
                host, _, unreached = _asked(spark, settings, outputs)
        if (
            unreached
        ):  # twice, and the driver in between: a broker that was away for a moment is no difference
            error = decoded(unreached)
            raise ConfigError(
                f"an executor ({host}) does not reach Kafka, and the driver does: {error}. {_NOTHING}. Fix: its network, "
                f"names and files: {NEEDS}",
                code=error.code,
            ) from error
        _fit.append(asked)


def differences(there: Found, here: Found) -> list[str]:
    """What an executor has otherwise than the driver, in words."""
    found = []
    for name, figures in ((_PYTHON, 2), *((package.module, package.figures) for package in _PACKAGES)):
        theirs, ours = there[name], here[name]
        if theirs.startswith("!"):
            found.append(f"no {name} there ({theirs[1:]})")
        elif theirs and ours and theirs.split(".")[:figures] != ours.split(".")[:figures]:
            found.append(f"{name} {theirs} there, {ours} here")
    return found


# --- inside ----------------------------------------------------------------------------------------------


def _asked(spark: SparkSession, settings: Settings, outputs: Sequence[str]) -> tuple[str, Found, str]:
    """The name of an executor's machine, what it has, and the error of its question to Kafka; "" if that was answered."""
    look, ours, question = _looker(), _looker()()["eos"], pickle.dumps((settings, tuple(outputs)))

    def answer(_: int) -> str:
        there, kafka = look(), ""
        if there["eos"] == ours and not any(version.startswith("!") for version in there.values()):
            from eos.spark.reach import unreached

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
    python, wanted = _PYTHON, [(package.module, package.distribution) for package in _PACKAGES]

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
