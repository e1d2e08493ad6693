"""A Spark session that eos works with: launched, its jobs named, interrupted by a signal, and stopped."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # PySpark's way to the JVM has no types
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from eos.errors import ConfigError
from eos.spark.session.checks import LAST_POLLS_DROPPED, LOCAL, REDACTED, require_classic
from eos.spark.session.thrown import JVM_GONE, jvm_has_ended

T = TypeVar("T")

log = logging.getLogger("eos.spark")

_LOGGING = Path(__file__).parents[1] / "log4j2.properties"
_JOIN_POLL_S = 0.2
_CANCELLED_S = 10.0  # cancelled tasks end within a second; what does not is left to the session's stop
_ENDS_S = 5.0  # its sockets are closed before its parent is told
_BY_SIGNAL = 128  # what a shell, or a JVM's own handler, adds the signal's number to
_counts: dict[tuple[str, str], count[int]] = {}
# Local properties of a thread (SparkContext.setJobGroup).
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


def session_conf(
    master: str, jars: Iterable[Path] = (), conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The configuration of a session that eos launches, with the connector's jars; the user's ``conf`` goes over it."""
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
    if LOCAL.fullmatch(master):
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
    if LOCAL.fullmatch(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Else it warns about having to choose an address itself.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    for key, value in session_conf(master, jars, conf).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        if _was_killed(error):
            raise jvm_has_ended() from error
        raise ConfigError(
            f"Spark did not start on {master!r}: {type(error).__name__}: {error}. Its own lines above say more"
        ) from error
    require_classic(spark)
    return spark


def submitted_session(name: str) -> SparkSession:
    """The session that a script was submitted with."""
    # Before the JVM is known, a SparkConf does not see what spark-submit was given.
    SparkContext._ensure_initialized()
    builder, submitted = SparkSession.builder.appName(name), SparkConf()
    for option, value in LAST_POLLS_DROPPED.items():
        builder = builder.config(option, submitted.get(option, value))
    spark = builder.getOrCreate()
    require_classic(spark)
    return spark


@contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """A block at whose end the session is stopped, and with it every task.

    Raises:
        UnclassifiedError: the JVM has ended meanwhile.
    """
    try:
        yield
    except JVM_GONE as error:
        if isinstance(error, Py4JJavaError) or not _has_ended(spark):
            raise
        raise jvm_has_ended() from error
    finally:
        try:
            spark.stop()
        except JVM_GONE as error:  # what the block raised goes on
            log.warning("session: not stopped in order: %s", type(error).__name__)


def interruptible(spark: SparkSession, work: Callable[[], T]) -> T:
    """Do what works with a session in a thread of its own, so that a signal ends it: its jobs are cancelled.

    An exception that a signal handler raises inside a call to the JVM would leave the thread's connection with
    an unread answer, and the session could not even be stopped through it (measured).

    Raises:
        BaseException: what the work raised, or what a signal handler raised.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

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
    return future.result()


def tasks_done(spark: SparkSession) -> tuple[int, int]:
    """(tasks that have ended well, tasks) of the stages that run now: how far a run is."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


@contextmanager
def step(spark: SparkSession, job: str, what: str) -> Iterator[None]:
    """Jobs of the block are described as ``eos JOB: WHAT``, and are in the group ``eos JOB`` if the thread has none.

    A group that is there stays: a query is stopped by its own one, and a caller may mean to cancel by theirs.
    """
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    try:
        context.setLocalProperty(_DESCRIPTION, f"eos {job}: {what}")
        if before[_GROUP] is None:
            context.setLocalProperty(_GROUP, f"eos {job}")
        yield
    finally:
        # What the block has committed stands, whether the JVM is still there or not.
        with suppress(*JVM_GONE):
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None takes it away


def run_name(spark: SparkSession, name: str) -> str:
    """``run 3 of NAME``: the application's third run of that batch."""
    application = str(spark.sparkContext.applicationId)
    return f"run {next(_counts.setdefault((application, name), count(1)))} of {name}"


# --- inside ----------------------------------------------------------------------------------------------


def _was_killed(error: Exception) -> bool:
    """Whether a session did not start because a signal has ended its JVM: no setting is wrong then."""
    process = _launched(error)
    if process is None:
        return isinstance(error, JVM_GONE) and not isinstance(error, Py4JJavaError)
    status = _status_of(process)
    return status is not None and (status < 0 or status > _BY_SIGNAL)


def _launched(error: Exception) -> subprocess.Popen[bytes] | None:
    """The process of the JVM. Where that did not even say its port, PySpark has no more of it than a local variable."""
    found = getattr(SparkContext._gateway, "proc", None)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "launch_gateway":
            found = frame.f_locals.get("proc", found)
    return found if isinstance(found, subprocess.Popen) else None


def _has_ended(spark: SparkSession) -> bool:
    """Of a JVM that this process has started. A transform's own connection may have failed."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or _status_of(process) is not None


def _status_of(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process, which may be about to end; None if it goes on."""
    try:
        return process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        return None
