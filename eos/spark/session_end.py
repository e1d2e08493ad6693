"""The end of a session that eos works with: it is stopped, also where its Java machine was killed."""

from __future__ import annotations

import logging
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # PySpark's way to the JVM has no types
from pyspark import SparkContext
from pyspark.sql import SparkSession

from eos.spark.failures import JVM_GONE, java_has_ended

log = logging.getLogger("eos.spark")

_ENDS_S = 5.0  # its sockets are closed before its parent is told
_BY_SIGNAL = 128  # what a shell, or a Java machine's own handler, adds the signal's number to


@contextmanager
def stopping(spark: SparkSession) -> Iterator[None]:
    """A block at whose end the session is stopped, and with it every task.

    Raises:
        UnclassifiedError: the Java machine has ended meanwhile.
    """
    try:
        yield
    except JVM_GONE as error:
        if isinstance(error, Py4JJavaError) or not _has_ended(spark):
            raise
        raise java_has_ended() from error
    finally:
        try:
            spark.stop()
        except JVM_GONE as error:  # what the block raised goes on
            log.warning("session: not stopped in order: %s", type(error).__name__)


def was_killed(error: Exception) -> bool:
    """Whether a session did not start because a signal has ended its Java machine: no setting is wrong then."""
    process = _launched(error)
    if process is None:
        return isinstance(error, JVM_GONE) and not isinstance(error, Py4JJavaError)
    try:
        status = process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        return False
    return status < 0 or status > _BY_SIGNAL


def _launched(error: Exception) -> subprocess.Popen[bytes] | None:
    """The process of the Java machine. Where that did not even say its port, PySpark has no more of it than a local variable."""
    found = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no other way to ask
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "launch_gateway":
            found = frame.f_locals.get("proc", found)
    return found if isinstance(found, subprocess.Popen) else None


def _has_ended(spark: SparkSession) -> bool:
    """Of a Java machine that this process has started. A transform's own connection may have failed."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - PySpark has no other way to ask
    if process is None:
        return True
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        return False
    return True
