"""An EosError survives what Spark does to a task's exception: only its text arrives."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import warnings

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped] # it has no types
from pyspark.serializers import UTF8Deserializer
from pyspark.util import _load_from_socket

from eos.errors import (
    ConfigError,
    EosError,
    FencedError,
    TransformError,
    UnavailableError,
    UnclassifiedError,
    UsageError,
)
from eos.local.ports import HOST
from eos.spark.stream.log_rules import LedgerChangedError
from eos.spark.write.failures import WORD, TaskFailure, decoded, encoded, from_spark, input_gone, marked


def wrapped(error: EosError) -> Exception:
    """As PySpark shows a task's exception."""
    return RuntimeError(
        f"Job aborted due to stage failure: …\nTraceback …\n{TaskFailure(error, WORD)}\n\tat org.apache…"
    )


def test_class_message_and_fields_arrive() -> None:
    sent = TransformError('a "quoted"\ntext\\', topic="t", partition=1, offset=2)
    found = from_spark(wrapped(sent))
    assert isinstance(found, TransformError)
    assert (str(found), found.topic, found.partition, found.offset) == (str(sent), "t", 1, 2)


def test_the_code_arrives() -> None:
    found = decoded(encoded(FencedError("gone", code="_FENCED")))
    assert (type(found), found.code) == (FencedError, "_FENCED")


def test_a_private_class_arrives_as_its_public_base() -> None:
    class _OwnError(FencedError):
        pass

    assert type(decoded(encoded(_OwnError("x")))) is FencedError


def test_a_public_class_of_sparks_own_arrives() -> None:
    assert type(decoded(encoded(LedgerChangedError("x")))) is LedgerChangedError


def test_errors_of_a_block_leave_it_marked() -> None:
    with pytest.raises(TaskFailure) as caught, marked(WORD):
        raise UsageError("wrong")
    assert isinstance(from_spark(caught.value), UsageError)


def test_a_users_exception_is_named_and_not_quoted() -> None:
    text = "An exception was thrown from the Python worker:\nTraceback …\nKeyError: 'card number 42'"
    found = from_spark(type("PythonException", (Exception,), {})(text))
    assert isinstance(found, UsageError)
    assert "KeyError" in str(found)
    assert "42" not in str(found)


class Thrown:
    """A Java exception as Py4J shows one."""

    def __init__(self, kind: str, text: str, cause: Thrown | None = None, **names: str) -> None:
        self._kind, self._text, self._cause, self._names = kind, text, cause, names

    def getClass(self) -> Thrown:  # noqa: N802 - Java's name
        return self

    def getName(self) -> str:  # noqa: N802
        return self._kind

    def getMessage(self) -> str:  # noqa: N802
        return self._text

    def getCause(self) -> Thrown | None:  # noqa: N802
        return self._cause

    def __getattr__(self, name: str) -> object:
        if name not in self._names:
            raise Py4JError(f"Method {name}([]) does not exist")
        return lambda: self._names[name]


class Gone:
    """A Java exception of a JVM that does not answer."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> object:
        raise self._kind("Answer from Java side is empty")


def of_the_jvm(thrown: Thrown) -> EosError:
    error = RuntimeError("An error occurred while calling o1522.collectToPython.")
    error.java_exception = thrown  # type: ignore[attr-defined] # as Py4JJavaError has it
    return from_spark(error)


TASK = "Job aborted due to stage failure: Task 0 in stage 4.0 failed 4 times, most recent failure: Lost task 0.3 … : "


def test_an_exception_whose_text_may_quote_a_record_is_named_by_its_class() -> None:
    cause = Thrown("java.lang.NumberFormatException", 'For input string: "card 42"')
    found = of_the_jvm(Thrown("org.apache.spark.SparkException", f"{TASK}card 42", cause))
    assert isinstance(found, UnclassifiedError)
    assert str(found) == (
        "Spark failed (Task 0 in stage 4.0 failed 4 times): java.lang.NumberFormatException. Spark's log has the whole of it"
    )


def test_an_exception_of_files_and_connections_keeps_its_first_line() -> None:
    found = of_the_jvm(Thrown("java.io.IOException", 'Cannot run program "python9"\nmore'))
    assert 'java.io.IOException: Cannot run program "python9". Spark' in str(found)


ROW = "a row could not be computed in a task: "


def test_an_exception_of_analysis_that_comes_at_run_time_is_the_transforms_and_is_not_quoted() -> None:
    """to_number() has a state of Spark's analysis, whose texts were repeated."""
    found = of_the_jvm(
        Thrown("x", "The input card 42", getCondition="INVALID_FORMAT.MISMATCH_INPUT", getSqlState="42601")
    )
    assert isinstance(found, UsageError)
    assert f"{ROW}INVALID_FORMAT.MISMATCH_INPUT" in str(found)
    assert "42" not in str(found)


@pytest.mark.parametrize("state", ["21000", "22003", "23505", "39000", "54000", "0A000", "46103", "P0001"])
def test_an_error_of_a_row_or_of_its_function_is_the_transforms(state: str) -> None:
    found = of_the_jvm(Thrown("x", "card 42", getCondition="ANY_OF_IT", getSqlState=state))
    assert isinstance(found, UsageError)
    assert "card 42" not in str(found)


def test_a_condition_that_nobody_knows_is_named_without_its_text() -> None:
    found = of_the_jvm(Thrown("x", "card 42", getCondition="SOME_OTHER", getSqlState="58030"))
    assert isinstance(found, UnclassifiedError)
    assert "card 42" not in str(found)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("org.apache.kafka.common.config.ConfigException", "No resolvable bootstrap urls given"),
        ("java.util.concurrent.TimeoutException", "Cannot fetch record for offset 12 in 30000 milliseconds"),
    ],
)
def test_a_cluster_that_does_not_answer_sparks_client_is_unavailable(kind: str, text: str) -> None:
    found = of_the_jvm(Thrown("org.apache.spark.SparkException", TASK, Thrown(kind, text)))
    assert isinstance(found, UnavailableError)
    assert text in str(found)


@pytest.mark.parametrize(
    ("condition", "state"),
    [
        ("CONCURRENT_STREAM_LOG_UPDATE", "40000"),
        ("_LEGACY_ERROR_TEMP_2207", ""),  # both have looked before either wrote the file
        ("CONCURRENT_QUERY", "0A000"),
    ],
)
def test_a_second_driver_of_a_query_that_spark_sees_is_another_owner(condition: str, state: str) -> None:
    cause = Thrown("x", "offsets/3", getCondition=condition, getSqlState=state)
    found = of_the_jvm(Thrown("y", "z", cause, getCondition="STREAM_FAILED", getSqlState="XXKST"))
    assert isinstance(found, FencedError)
    assert "another driver works with the query's checkpoint" in str(found)


def test_a_second_driver_whose_file_is_read_half_written_is_no_damaged_checkpoint() -> None:
    """Each of two drivers was told that the checkpoint is damaged, and to remove a file of it."""
    damaged = Thrown(
        "org.apache.spark.SparkException", "…", getCondition="STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
    )
    found = of_the_jvm(
        Thrown(
            "org.apache.spark.SparkException",
            "…",
            damaged,
            getCondition="CONCURRENT_STREAM_LOG_UPDATE",
        )
    )
    assert isinstance(found, FencedError)


@pytest.mark.parametrize(
    "kind",
    [
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    ],
)
def test_an_interruption_is_a_stop(kind: str) -> None:
    found = of_the_jvm(Thrown("java.lang.RuntimeException", "…", Thrown(kind, "")))
    assert type(found) is UnclassifiedError
    assert "was stopped" in str(found)


def test_lost_files_of_a_shuffle_that_cannot_be_made_again_say_nondeterminism() -> None:
    """Spark's own advice, to checkpoint the RDD, is what eos refuses."""
    said = (
        "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and retried. However, Spark "
        "cannot rollback the ResultStage 5 to re-process the input data, and has to fail this job. Please eliminate the "
        "indeterminacy by checkpointing the RDD before repartition and try again."
    )
    found = of_the_jvm(Thrown("org.apache.spark.SparkException", said))
    assert isinstance(found, UsageError)
    assert "not deterministic" in str(found)
    assert "rand()" in str(found)
    assert "checkpoint" not in str(found)


def test_the_name_of_a_users_exception_is_not_taken_from_its_text() -> None:
    text = "PythonException: \nTraceback (most recent call last):\n  File x\nKeyError: 'a\nCard42Error: x'"
    found = from_spark(type("PythonException", (Exception,), {})(text))
    assert "raised KeyError" in str(found)


def test_a_text_that_looks_like_an_error_of_eos_imports_no_other_module() -> None:
    assert "antigravity" not in sys.modules
    found = from_spark(
        RuntimeError(f'eos-failure {WORD} {{"module":"antigravity","class":"x","message":"m","state":{{}}}}')
    )
    assert type(found) is UnclassifiedError
    assert "antigravity" not in sys.modules


def test_a_data_exception_is_the_transforms_and_is_not_quoted() -> None:
    thrown = Thrown("x", "'card 42'", getCondition="CAST_INVALID_INPUT", getSqlState="22018")
    found = of_the_jvm(Thrown("org.apache.spark.SparkException", TASK, thrown))
    assert isinstance(found, UsageError)
    assert "CAST_INVALID_INPUT" in str(found)
    assert "42" not in str(found)


def test_a_lost_executor_keeps_its_reason() -> None:
    lost = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: OOM"
    assert str(
        of_the_jvm(Thrown("org.apache.spark.SparkException", f"{TASK}{lost}\nDriver stacktrace:"))
    ).endswith(lost)


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'eos'",
        "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] eos >= 1 must be installed; however, it was not found.",
    ],
)
def test_a_module_that_is_missing_is_named(text: str) -> None:
    found = from_spark(type("PythonException", (Exception,), {})(f"Traceback …\n{text}"))
    assert isinstance(found, ConfigError)
    assert "no module 'eos'" in str(found)
    assert "docs/guides/spark-dependencies.md" in str(found)


@pytest.mark.parametrize("kind", [Py4JError, ConnectionRefusedError])
def test_a_jvm_that_ends_before_its_exception_is_looked_at_is_named(kind: type[Exception]) -> None:
    """A run raised ConnectionRefusedError, which is no error of eos."""
    error = RuntimeError("gone")
    error.java_exception = Gone(kind)  # type: ignore[attr-defined] # as above
    assert "the driver's JVM has ended" in str(from_spark(error))
    assert input_gone(error) is None


def test_an_error_of_a_task_is_found_without_asking_a_jvm_that_has_ended() -> None:
    error = wrapped(FencedError("another owner"))
    error.java_exception = Gone(ConnectionRefusedError)  # type: ignore[attr-defined] # as above
    assert isinstance(from_spark(error), FencedError)


def test_an_exception_whose_text_only_a_jvm_that_has_ended_knows_is_no_crash() -> None:
    class AsksTheJvmError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111)

    assert "the driver's JVM has ended" in str(from_spark(AsksTheJvmError()))


def test_jobs_that_end_with_their_context_say_so() -> None:
    ended = Thrown("org.apache.spark.SparkException", "Job 3 cancelled because SparkContext was shut down")
    error = RuntimeError("Job 3 cancelled because SparkContext was shut down")
    error.java_exception = ended  # type: ignore[attr-defined] # as above
    assert "the driver's JVM has ended" in str(from_spark(error))


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown("org.apache.spark.SparkException", f"{TASK}java.lang.OutOfMemoryError: Java heap space"),
        Thrown(
            "org.apache.spark.SparkException", TASK, Thrown("java.lang.OutOfMemoryError", "Java heap space")
        ),
    ],
    ids=["in the text", "as the cause"],
)
def test_memory_that_ran_out_is_named_with_the_settings(thrown: Thrown) -> None:
    found = of_the_jvm(thrown)
    assert type(found) is UnclassifiedError
    assert "spark.executor.memory" in str(found)
    assert "max.poll.records" in str(found)


def test_an_option_that_javas_client_refuses_is_a_mistake_in_the_settings() -> None:
    """A supervisor that goes by the exit code would start the job again for ever."""
    refused = "Invalid value x for configuration max.poll.records: Not a number of type INT"
    found = of_the_jvm(Thrown("x", TASK, Thrown("org.apache.kafka.common.config.ConfigException", refused)))
    assert type(found) is ConfigError
    assert refused in str(found)
    assert "[spark.client]" in str(found)


def test_no_jvm_is_no_crash() -> None:
    assert isinstance(from_spark(RuntimeError("no JVM at all")), UnclassifiedError)


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111)]
)
def test_a_jvm_that_was_killed_is_named_with_what_to_look_at(error: Exception) -> None:
    """It was "Spark failed: ConnectionRefusedError"."""
    assert "the driver's JVM has ended" in str(from_spark(error))
    assert "spark.driver.memory" in str(from_spark(error))


def test_a_marker_that_was_cut_is_no_crash() -> None:
    assert isinstance(
        from_spark(RuntimeError(f'eos-failure {WORD} {{"class": "FencedErr}}')), UnclassifiedError
    )


def _answering(*answer: bytes) -> int:
    """The port of a server that gives its first client this answer, and hangs up."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"".join(answer))

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "answer", [(b"\x00\x00\x00\x03", b"err"), ()], ids=["served to another one", "hung up"]
)
def test_result_that_spark_handed_to_a_stranger_is_unavailable_and_named(answer: tuple[bytes, ...]) -> None:
    """It was "UnboundLocalError", exit code 1. PySpark's own clean-up hides the reason, and leaves the socket open."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        found = from_spark(_failed_to_fetch(_answering(*answer)))
        gc.collect()
    assert isinstance(found, UnavailableError)
    assert "something else had connected first" in str(found)
    assert "Fix: start it again" in str(found)


def _failed_to_fetch(port: int) -> Exception:
    deserializer = UTF8Deserializer()  # type: ignore[no-untyped-call] # PySpark's own
    with pytest.raises(UnboundLocalError) as caught, _load_from_socket((port, "word"), deserializer):
        pass
    return caught.value


def test_an_unbound_name_of_a_users_own_is_no_lost_result() -> None:
    assert isinstance(from_spark(UnboundLocalError("sockfile")), UnclassifiedError)
