"""Failures: an EosError's way from a Spark task to the caller of the run, through whatever Spark wraps it in."""

from __future__ import annotations

import copy
import json
import re
import secrets
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped] # PySpark's way to the JVM has no types

from eos.errors import (
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    UnavailableError,
    UnclassifiedError,
    UsageError,
)
from eos.spark.session.thrown import (
    FOREACH_BATCH,
    JVM_GONE,
    OF_SPARK,
    Thrown,
    is_stop,
    jvm_has_ended,
    thrown,
)

# Spark's texts quote records, which may hold a whole marker, but not the word of this process. Tasks get it with their functions.
WORD = secrets.token_hex(8)
_MARKER = re.compile(rf"eos-failure {WORD} (\{{.*\}})")
# The first line behind a traceback's indented ones names the class. What follows it is its text, which may go on in lines that
# look like all of this again.
_RAISED = re.compile(r"Traceback [^\n]*\n(?:[ \t][^\n]*\n|\n)*([A-Za-z_][\w.]*)(?:: ([^\n]*))?")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+)")
_SHIPPING = (
    "install it there, or ship it: docs/guides/spark-dependencies.md, 'Shipping dependencies to executors'"
)
_WORKER_ENDED = re.compile(r"Python worker (exited unexpectedly|failed to connect back)")
_TASK = re.compile(r"Task \d+ in stage [\d.]+ failed \d+ times")
_EXECUTOR_LOST = re.compile(r"ExecutorLostFailure \(.*\)( Reason: [^\n]*)?")
_INDETERMINATE = re.compile(
    r"stage with indeterminate output was failed and retried|due to indeterminate rollback"
)
_GONE = "KAFKA_DATA_LOSS"
# Spark finds a batch's file that it was about to write: before, or when it writes it. Or a query of the same JVM.
_OF_TWO_DRIVERS = frozenset({"CONCURRENT_STREAM_LOG_UPDATE", "_LEGACY_ERROR_TEMP_2207", "CONCURRENT_QUERY"})
_STOPPED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the sink: java.lang.InterruptedException"
)
# Assertions of Spark's, without a condition.
_OTHER_SOURCES = re.compile(
    r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]"
)
_ACTIVE = "as a query with that name is already active"
_CONTEXT_GONE = "cancelled because SparkContext was shut down"  # as the JVM does while it ends
_FETCHING = "local_connect_and_auth"  # of PySpark
_NOT_REPEATED = "(Spark's text may quote a record, so it is not repeated; Spark's log has it)"


class TaskFailure(Exception):  # noqa: N818 - it is the wrapping of an error
    """An EosError on its way through Spark, which keeps of a task's exception only its text."""

    def __init__(self, error: EosError, word: str) -> None:
        super().__init__(f"{error}\n{marker(error, word)}")


@contextmanager
def marked(word: str) -> Iterator[None]:
    """EosErrors of the block leave it in a form that :func:`from_spark` of the driver with this `WORD` finds again."""
    try:
        yield
    except EosError as error:
        raise TaskFailure(error, word) from error


def marker(error: EosError, word: str) -> str:
    """The text by which :func:`from_spark` of the driver with this `WORD` finds an error, wherever it stands."""
    return f"eos-failure {word} {encoded(error)}"


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
    module = found["module"]
    # A text that quotes a record could name any module.
    kind = getattr(import_module(module), found["class"], None) if module.startswith("eos.") else None
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
        return jvm_has_ended()


def for_foreach_batch(error: EosError) -> EosError:
    """The error as Spark gets it of a function for foreachBatch, which it knows by the text of a Python traceback alone.

    Without causes: in the text of one of Java's, Spark looks by a regular expression for a stop, which overflows the stack of the
    query's thread (1,024 lines on stderr). So a stop is said in the words that it looks for (StreamExecution.PROXY_ERROR).
    """
    short = copy.copy(error)
    with suppress(*JVM_GONE):
        if isinstance(error.__cause__, OF_SPARK) and is_stop(list(thrown(error.__cause__))):
            short.args = (f"{error}\n{_STOPPED}",)
    return short


class CheckpointError(ConfigError):
    """A file of the query's checkpoint cannot be read. Spark seldom says which one; `eos.spark.stream.damaged` does."""


def checkpoint_unreadable(what: str, removable: str = "") -> CheckpointError:
    """The error of a checkpoint of which this cannot be read; ``removable`` says what to remove."""
    first = f"{removable}. Keep a copy: " if removable else ""
    return CheckpointError(
        f"Spark cannot read a file of the query's checkpoint: {what} (a disk that was full, a machine that lost power, a copy). "
        f"Nothing was written. Fix: with every driver stopped, {first}see 'A file of the checkpoint' in docs/operations/spark.md"
    )


class InputGoneError(OffsetGapError):
    """Records that were to be read are not in their log. It says no way out: a batch has another one than a stream."""


def input_gone(error: Exception) -> InputGoneError | None:
    """The error of records that are gone; None if the error is another one."""
    with suppress(*JVM_GONE):
        for one in thrown(error):
            if one.condition.startswith(_GONE):
                reason = " ".join(one.text.partition("Reason: ")[2].split()) or one.condition
                return InputGoneError(
                    f"input is gone (retention, DeleteRecords, or a topic that was deleted): {reason} Nothing is skipped silently."
                )
    return None


def is_of_no_topic(error: Exception) -> bool:
    """Whether Spark's Kafka client does not find a topic, which may have been deleted."""
    with suppress(*JVM_GONE):
        return any(one.is_of_no_topic for one in thrown(error))
    return False


# --- inside ----------------------------------------------------------------------------------------------


def _meaning(error: Exception) -> EosError:
    text = str(error)
    if match := _MARKER.search(text):
        try:
            return decoded(match[1])
        except ValueError:  # Spark cuts long texts
            return UnclassifiedError("a task failed; Spark's log has the whole of it")
    if _was_not_handed_over(error):
        return UnavailableError(
            "Spark's JVM offers a result on a port of its own, and this Python was not the one that was served there: something else had "
            "connected first (a port scan, a client that looks for a server that is gone), or the machine was too slow, or the JVM has ended. What is committed "
            "stands, and the next start goes on behind it. Fix: start it again; without such ports: spark.python.unix.domain.socket.enabled=true "
            "(Spark 4.1 and later)"
        )
    found = list(thrown(error))
    if any(one.condition in _OF_TWO_DRIVERS for one in found):
        return FencedError(
            "another driver works with the query's checkpoint: it has planned a batch that this one was about to plan, has counted as done "
            "the one that this one has run, or has just started the query. What is committed stands, once. Fix: stop one of the two; the "
            "next start goes on behind what is committed"
        )
    if refused := _of_the_start(found):
        return refused
    if row := next((one for one in found if one.is_of_a_row_alone), None):
        return _of_a_row(row)
    if "Python" in type(error).__name__ or "PythonException" in text:
        return _raised(text, "the transform raised", "in a task ")
    if FOREACH_BATCH in text:
        return _raised(text, "the function for foreachBatch raised", "")
    if isinstance(error, Py4JNetworkError | ConnectionError) or _CONTEXT_GONE in text:
        return jvm_has_ended()
    return _from_jvm(found, error)


def _of_the_start(found: Sequence[Thrown]) -> EosError | None:
    """What keeps a query from its place: other sources than it had, another query of its name, or a file that is not whole."""
    if match := next((match for one in found if (match := _OTHER_SOURCES.search(one.text))), None):
        return ConfigError(
            f"the query has {match[2]} sources, and had {match[1]} when the last batch of its checkpoint was planned. Nothing was written. "
            "Fix: as many as before (a read_stream each), with the same topics and in the same order; or a new checkpoint for the new query"
        )
    if any(_ACTIVE in one.text for one in found):
        return UsageError(
            "a query of this name runs already in this Spark session. Nothing was started. Fix: stop the other one first; or, if it is "
            "another query, give this one another name and a checkpoint of its own"
        )
    if file := next((one for one in found if one.is_of_the_checkpoint), None):
        first, *_ = file.text.strip().splitlines() or [file.told]
        return checkpoint_unreadable(f"{first}. It is cut off or gone")
    return None


def _was_not_handed_over(error: Exception) -> bool:
    """Whether PySpark could not fetch a result. Its own clean-up then fails of a name that has no value, and hides why."""
    first = error.__context__ or error
    frames = traceback.walk_tb(first.__traceback__)
    return any(frame.f_code.co_name == _FETCHING for frame, _ in frames)


def _raised(text: str, who: str, where: str) -> EosError:
    """What a function in Python has raised."""
    found = _RAISED.search(text)
    name, said = (found[1], found[2] or "") if found else ("an exception", "")
    if match := _NO_MODULE.match(said):
        return ConfigError(
            f"the Python of the tasks has no module {match[1] or match[2]!r}: the driver's environment does not travel to "
            f"the executors. Nothing was committed by those tasks. Fix: {_SHIPPING}"
        )
    return UsageError(
        f"{who} {name} {where}(its text may quote a record, so it is not repeated; Spark's "
        "log has it). Nothing of that task's shards was committed. Fix: the transform"
    )


def _from_jvm(found: list[Thrown], error: Exception) -> EosError:
    everything = " ".join(one.text for one in found)
    task = f" ({match[0]})" if (match := _TASK.search(everything)) else ""
    if _INDETERMINATE.search(everything):
        return UsageError(
            f"files of a shuffle were lost{task} (an executor has ended, or its disk is gone), and Spark cannot make them again: what "
            "the transform computes before that shuffle comes out otherwise each time. So it is not deterministic, and nothing of it was "
            "committed that is in doubt. Fix: leave out what differs from call to call (rand(), uuid(), current_timestamp(), a clock or "
            "a lookup of its own, first(), collect_list() or limit without an order, repartition(n) without columns): docs/SPARK.md, "
            "'The function must be deterministic'"
        )
    if is_stop(found):
        return UnclassifiedError(
            "Spark's work was cancelled: the query was stopped, or the run was ended. What is committed stands, and the next start goes on "
            "behind it"
        )
    if _WORKER_ENDED.search(everything):
        return UnclassifiedError(
            f"the Python process of a task ended before its work{task}: killed (the system's out-of-memory killer, or a "
            "container's), or ended by the code that ran in it (os._exit, a C library). Nothing of that task's shards was "
            "committed. Fix: see the executor's log and the system's; more memory for Python beside the JVM is "
            "spark.executor.memoryOverhead"
        )
    if any(one.is_out_of_memory for one in found):
        return UnclassifiedError(
            f"a JVM ran out of memory{task}. What is committed stands, and the next run goes on behind it. Fix: more of it "
            "(spark.executor.memory; where tasks run in the driver, spark.driver.memory), or for large records that compress well "
            'a smaller "max.poll.records" in the table [spark.client]'
        )
    for one in found:
        if meaning := _known(one, task):
            return meaning
    if match := _EXECUTOR_LOST.search(everything):
        return UnclassifiedError(f"Spark failed{task}: {match[0]}")
    told = "; ".join(one.told for one in found if one.condition or one is found[-1])
    return UnclassifiedError(
        f"Spark failed{task}: {(told or type(error).__name__).rstrip('.')}. Spark's log has the whole of it"
    )


def _known(one: Thrown, task: str) -> EosError | None:
    """What one of the exceptions means by itself."""
    if one.is_refused_option:
        return ConfigError(
            f"Spark's Kafka client refuses an option: {one.text.strip()}. Fix: the table [spark.client]"
        )
    if one.is_refused_login:
        return ConfigError(
            f"the cluster refuses Spark's Kafka client{task}: {one.told}. Fix: the login's settings or its grants "
            "(docs/SECURITY.md), or the table [spark.client]"
        )
    if one.is_unanswered:
        return UnavailableError(
            f"the cluster did not answer Spark's Kafka client in time{task}: {one.told}. What is committed stands, and the next start "
            "goes on behind it. Fix: see whether the brokers run, and are reached from the driver and from the executors"
        )
    if one.is_of_analysis and one.is_of_the_plan:
        return UsageError(
            f"Spark refuses what the transform asks for: {one.named} (with names in the places of values, which may be a record's; "
            "--debug shows Spark's text). Nothing was committed for it. Fix: the transform"
        )
    if one.is_of_a_row or one.is_of_the_plan or one.condition.startswith("MALFORMED_RECORD"):
        return _of_a_row(one)
    return None


def _of_a_row(one: Thrown) -> UsageError:
    return UsageError(
        f"a row could not be computed in a task: {one.named} {_NOT_REPEATED}. Nothing of that task's shards was committed. "
        "Fix: the transform, for example with try_cast (try_to_number, …), or a filter before it"
    )
