"""Failures: an EosError's way from a Spark task to the caller of the run, through whatever Spark wraps it in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NamedTuple

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped] # PySpark's way to the JVM has no types

from eos.errors import ConfigError, EosError, OffsetGapError, UnclassifiedError, UsageError

_MARKER = re.compile(r"eos-failure (\{.*\})")
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit))\b", re.MULTILINE)

_NO_MODULE = re.compile(r"No module named '([\w.]+)'|PACKAGE_NOT_INSTALLED\] (\w+)")
_SHIPPING = "install it there, or ship it: docs/SPARK.md, 'Shipping dependencies to executors'"
_WORKER_ENDED = re.compile(r"Python worker (exited unexpectedly|failed to connect back)")
_TASK = re.compile(r"Task \d+ in stage [\d.]+ failed \d+ times")
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \(.*\)( Reason: [^\n]*)?")
_OF_A_ROW = ("22", "P0001")  # SQLSTATE: data exceptions, and what raise_error() raises
_GONE = "KAFKA_DATA_LOSS"
_OF_THE_QUERY = "42"  # what Spark's analysis refuses
# Whose texts speak of files, connections and offsets. Others may quote a value: NumberFormatException does.
_QUOTES_NO_RECORD = ("java.io.", "java.net.", "java.util.concurrent.", "javax.net.", "org.apache.kafka.")
_REFUSED_OPTION = "org.apache.kafka.common.config.ConfigException"
_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_CONTEXT_GONE = "cancelled because SparkContext was shut down"  # as the JVM does while it ends
_DEEPEST = 20  # causes of causes
# What calls to the driver's Java machine may raise when that has ended.
JVM_GONE = (Py4JError, ConnectionError)


class TaskFailure(Exception):  # noqa: N818 - it is the wrapping of an error
    """An EosError on its way through Spark, which keeps of a task's exception only its text."""

    def __init__(self, error: EosError) -> None:
        super().__init__(f"{error}\n{marker(error)}")


@contextmanager
def marked() -> Iterator[None]:
    """EosErrors of the block leave it in a form that :func:`from_spark` finds again."""
    try:
        yield
    except EosError as error:
        raise TaskFailure(error) from error


def marker(error: EosError) -> str:
    """The text by which :func:`from_spark` finds an error, wherever it stands."""
    return f"eos-failure {encoded(error)}"


def encoded(error: EosError) -> str:
    """An EosError as one line of text."""
    state = {
        name: value for name, value in vars(error).items() if not (name.startswith("__") or name == "outputs")
    }
    public = next(kind for kind in type(error).__mro__ if _is_public(kind))
    named = {"module": public.__module__, "class": public.__qualname__}
    return json.dumps(named | {"message": str(error), "state": state}, default=str)


def _is_public(kind: type) -> bool:
    return kind.__module__.startswith("eos.") and kind.__qualname__.isidentifier() and kind.__name__[0] != "_"


def decoded(text: str) -> EosError:
    """The EosError that :func:`encoded` made the text of."""
    found: dict[str, Any] = json.loads(text)
    kind = getattr(import_module(found["module"]), found["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, EosError)):
        kind = UnclassifiedError
    error: EosError = kind.__new__(kind)
    error.args = (found["message"],)
    vars(error).update({"code": None} | found["state"])
    return error


def from_spark(error: Exception) -> EosError:
    """What a failed Spark action means: the EosError of a task if one is in its text, else what can be said.

    The text of an exception that a row made is not repeated: it may quote the record.
    """
    try:
        return _meaning(error)
    except JVM_GONE:  # some exceptions ask the JVM for their text, and all of them for their causes
        return java_has_ended()


def java_has_ended() -> UnclassifiedError:
    """The error of a driver whose Java machine is gone."""
    return UnclassifiedError(
        "the driver's Java machine has ended, or does not answer: killed (the system's out-of-memory killer, or a "
        "container's), say. What is committed stands, and the next run goes on behind it. Fix: see Spark's log and the "
        "system's; more memory for it is spark.driver.memory"
    )


class InputGoneError(OffsetGapError):
    """Records that were to be read are not in their log. It says no way out: a batch has another one than a stream."""


def input_gone(error: Exception) -> InputGoneError | None:
    """The error of records that are gone; None if the error is another one."""
    with suppress(*JVM_GONE):
        for one in _thrown(error):
            if one.condition.startswith(_GONE):
                reason = " ".join(one.text.partition("Reason: ")[2].split()) or one.condition
                return InputGoneError(
                    f"input is gone (retention, DeleteRecords, or a topic that was deleted): {reason} Nothing is skipped silently."
                )
    return None


# --- inside ----------------------------------------------------------------------------------------------


def _meaning(error: Exception) -> EosError:
    text = str(error)
    if match := _MARKER.search(text):
        try:
            return decoded(match[1])
        except ValueError:  # Spark cuts long texts
            return UnclassifiedError("a task failed; Spark's log has the whole of it")
    if match := _NO_MODULE.search(text):
        return ConfigError(
            f"the Python of the tasks has no module {match[1] or match[2]!r}: the driver's environment does not travel to "
            f"the executors. Nothing was committed by those tasks. Fix: {_SHIPPING}"
        )
    if "Python" in type(error).__name__ or "PythonException" in text:
        raised = _PYTHON_ERROR.findall(text)
        name = raised[-1] if raised else "an exception"
        return UsageError(
            f"the transform raised {name} in a task (its text may quote a record, so it is not repeated; Spark's "
            "log has it). Nothing of that task's shards was committed. Fix: the transform"
        )
    if isinstance(error, Py4JNetworkError | ConnectionError) or _CONTEXT_GONE in text:
        return java_has_ended()
    return _from_jvm(list(_thrown(error)), error)


class _Thrown(NamedTuple):
    """A Java exception: its class, Spark's own name of its cause where it has one, and its text."""

    kind: str
    condition: str
    state: str
    text: str


def _thrown(error: Exception) -> Iterator[_Thrown]:
    """The Java exceptions behind a Python one, the outermost first. Raises one of JVM_GONE if the JVM has ended meanwhile."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEEPEST):
        if java is None:
            return
        kind = java.getClass().getName()
        yield _Thrown(
            kind, _asked(java, "getCondition"), _asked(java, "getSqlState"), java.getMessage() or ""
        )
        java = java.getCause()


def _asked(java: Any, name: str) -> str:
    try:
        return getattr(java, name)() or ""
    except Py4JError:  # no exception of Spark's own, so it has no such name
        return ""


def _from_jvm(thrown: list[_Thrown], error: Exception) -> EosError:
    everything = " ".join(one.text for one in thrown)
    task = f" ({match[0]})" if (match := _TASK.search(everything)) else ""
    if _WORKER_ENDED.search(everything):
        return UnclassifiedError(
            f"the Python process of a task ended before its work{task}: killed (the system's out-of-memory killer, or a "
            "container's), or ended by the code that ran in it (os._exit, a C library). Nothing of that task's shards was "
            "committed. Fix: see the executor's log and the system's; more memory for Python beside the JVM is "
            "spark.executor.memoryOverhead"
        )
    if any(_OUT_OF_MEMORY in f"{one.kind} {one.text}" for one in thrown):
        return UnclassifiedError(
            f"a Java machine ran out of memory{task}. What is committed stands, and the next run goes on behind it. Fix: more of it "
            "(spark.executor.memory; where tasks run in the driver, spark.driver.memory), or for large records that compress well "
            'a smaller "max.poll.records" in the table [spark.client]'
        )
    for one in thrown:
        if one.kind == _REFUSED_OPTION:
            return ConfigError(
                f"Spark's Kafka client refuses an option: {one.text.strip()}. Fix: the table [spark.client]"
            )
        if one.state.startswith(_OF_A_ROW) or one.condition.startswith("MALFORMED_RECORD"):
            return UsageError(
                f"a row could not be computed in a task: {one.condition} (Spark's text may quote a record, so it is not "
                "repeated; Spark's log has it). Nothing of that task's shards was committed. Fix: the transform, for "
                "example with try_cast, or a filter before it"
            )
    if match := _EXECUTOR_LOST.search(everything):
        return UnclassifiedError(f"Spark failed{task}: {match[0]}")
    if not thrown:
        return UnclassifiedError(f"Spark failed: {type(error).__name__}; Spark's log has the whole of it")
    last = thrown[-1]
    what = f"{last.kind} {last.condition}".strip()
    if last.kind.startswith(_QUOTES_NO_RECORD) or last.state.startswith(_OF_THE_QUERY):
        first, *_ = last.text.strip().splitlines() or [""]
        what = f"{what}: {first}"
    return UnclassifiedError(f"Spark failed{task}: {what}. Spark's log has the whole of it")
