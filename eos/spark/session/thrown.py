"""Thrown: the Java exceptions behind a failed call of Spark, and what of their texts may be repeated.

A text of Spark's or of Java's may quote a value, and with it a record: ``The value 'card-4711' of the type "STRING" cannot be cast``,
``For input string: "card-4711"``, a column that a pivot has named after a value. So the rule is a list of what may be repeated:
the names of classes and conditions, Spark's own sentence of a condition before its values are filled in, and the texts of
classes that speak of files, connections and offsets alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # PySpark's way to the JVM has no types
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from eos.errors import UnclassifiedError

# What calls to the driver's JVM may raise when that has ended.
JVM_GONE = (Py4JError, ConnectionError)
# What calls of PySpark raise of what has happened in the JVM; another exception is of the code that calls it.
OF_SPARK = (CapturedException, Py4JError, ConnectionError)

_DEEPEST = 20  # causes of causes, and classes above a class
_FRAMES = 40  # of a stack; a parser that an expression calls is some deep
_LIBRARIES = ("java.", "javax.", "jdk.", "sun.", "scala.")
# Where a row's columns are computed, or what a function in Python has returned of them is taken.
_COMPUTING = (
    "org.apache.spark.sql.catalyst.expressions.",
    "org.apache.spark.sql.catalyst.util.",
    "org.apache.spark.sql.execution.python.",
    "org.apache.spark.sql.vectorized.",
    "org.apache.spark.unsafe.",
)
# SQLSTATE: what rows do not fit (cardinality, data exceptions, a key that is there twice), external routines (a UDF of the
# JVM's), limits of a value's size, and what raise_error() raises.
_OF_A_ROW = ("21", "22", "23", "39", "54", "P0")
# SQLSTATE: a feature that is not supported, syntax and access rules, classes of Java, a view that has changed.
_OF_THE_PLAN = ("0A", "42", "46", "51")
# Where Spark reads the files of a query's checkpoint.
_CHECKPOINTS = ("MetadataLog", "OffsetSeqLog", "CommitLog", "StreamMetadata", "kafka010.JsonUtils")
_MALFORMED = frozenset(
    {
        "java.lang.RuntimeException",
        "com.fasterxml.jackson.core.JacksonException",
        "org.apache.hadoop.fs.ChecksumException",  # an IOException, but of a file that was reached
        "java.io.EOFException",
    }
)
# Where it finds its place by them, and what it throws there itself of files that do not fit each other.
_STREAMS = "org.apache.spark.sql.execution.streaming."
_FINDING_ITS_PLACE = frozenset({"initializeExecution", "populateStartOffsets"})  # Spark 4.2 and 4.1, 4.0
_UNFIT = frozenset({"java.lang.AssertionError", "java.lang.RuntimeException"})
_KAFKAS = "KAFKA_"  # conditions of the connector; they have states of rows
FOREACH_BATCH = "FOREACH_BATCH_USER_FUNCTION_ERROR"  # it holds whatever that function raised
_TELLING = frozenset(
    {
        "java.io.EOFException",
        "java.io.FileNotFoundException",
        "java.io.IOException",
        "java.io.InterruptedIOException",
        "java.io.InvalidClassException",
        "java.io.NotSerializableException",
        "java.lang.ClassNotFoundException",
        "java.lang.NoClassDefFoundError",
        "java.lang.NoSuchMethodError",
        "java.net.BindException",
        "java.net.ConnectException",
        "java.net.NoRouteToHostException",
        "java.net.SocketException",
        "java.net.SocketTimeoutException",
        "java.net.UnknownHostException",
        "java.nio.file.AccessDeniedException",
        "java.nio.file.FileSystemException",
        "java.nio.file.NoSuchFileException",
        "java.util.concurrent.TimeoutException",
        "javax.net.ssl.SSLException",
        "javax.net.ssl.SSLHandshakeException",
        "org.apache.kafka.common.KafkaException",
    }
)
_TELLING_FAMILIES = ("org.apache.kafka.common.errors.", "org.apache.kafka.common.config.")
_UNANSWERED = "org.apache.kafka.common.errors.RetriableException"
_NO_TOPIC = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
_REFUSED = (
    "org.apache.kafka.common.errors.AuthenticationException",
    "org.apache.kafka.common.errors.AuthorizationException",
)
_REFUSED_OPTION = "org.apache.kafka.common.config.ConfigException"
_NO_ADDRESS = (
    "No resolvable bootstrap urls"  # a ConfigException too, and as little of one as a broker that is away
)
_NOT_BROUGHT = "Cannot fetch record"  # of the connector, when a poll has passed
_INTERRUPTED = frozenset(
    {
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    }
)
_CANCELLED = "cancelled part of cancelled job group"
_A_VALUE = re.compile(r"<\w+>")
_OF_PYTHON = "PythonException"  # thrown where a row is computed too, by a function in a worker
_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"


class Thrown:
    """A Java exception. Reading it asks the JVM, and raises what a call to one that has ended raises."""

    def __init__(self, java: Any) -> None:
        self._java = java
        self.kind: str = java.getClass().getName()
        self.condition: str = _called(java, "getCondition") or ""
        self.state: str = _called(java, "getSqlState") or ""
        self.text: str = java.getMessage() or ""

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Its class and those above it."""
        found, kind = {self.kind}, self._java.getClass()
        for _ in range(_DEEPEST):
            kind = _called(kind, "getSuperclass")
            if kind is None:
                break
            found.add(str(kind.getName()))
        return frozenset(found)

    @property
    def is_of_a_row(self) -> bool:
        """Whether a row could not be computed: the transform's code, or its input."""
        if self.condition.startswith(_KAFKAS) or self.condition == FOREACH_BATCH:
            return False
        if self.condition:
            return self.state.startswith(_OF_A_ROW) or (self._computing and not self.is_of_analysis)
        return "java.lang.RuntimeException" in self.kinds and self._computing

    @property
    def is_of_a_row_alone(self) -> bool:
        """Whether its class and its condition say so. Then no text of the chain says more: all of them may quote the row."""
        return self.is_of_a_row and _OF_PYTHON not in self.kind and _OUT_OF_MEMORY not in self.kinds

    @cached_property
    def is_of_the_checkpoint(self) -> bool:
        """Whether a file of the query's checkpoint is missing or malformed; a file system that is away is an IOException."""
        if self.condition.startswith("STREAMING_CHECKPOINT"):
            return True
        if not self.kinds.isdisjoint(_MALFORMED) and self._reads_checkpoints:
            return True
        return (
            not self.kinds.isdisjoint(_UNFIT)
            and self._innermost.startswith(_STREAMS)
            and any(str(frame.getMethodName()) in _FINDING_ITS_PLACE for frame in self._frames)
        )

    @property
    def _reads_checkpoints(self) -> bool:
        return any(name in str(frame.getClassName()) for frame in self._frames for name in _CHECKPOINTS)

    @property
    def is_of_the_plan(self) -> bool:
        """Whether Spark refuses what the transform asks for."""
        return self.state.startswith(_OF_THE_PLAN) and not self.condition.startswith(_KAFKAS)

    @property
    def is_of_analysis(self) -> bool:
        """Whether it was raised when a plan was made, before any row."""
        return "org.apache.spark.sql.AnalysisException" in self.kinds

    @property
    def is_unanswered(self) -> bool:
        """Whether Spark's Kafka client got no answer from the cluster."""
        return (
            _UNANSWERED in self.kinds
            or (self.kind == "java.util.concurrent.TimeoutException" and self.text.startswith(_NOT_BROUGHT))
            or (self.kind == _REFUSED_OPTION and _NO_ADDRESS in self.text)
        )

    @property
    def is_of_no_topic(self) -> bool:
        """Whether a broker does not know a topic: for a moment only, or because it was deleted."""
        return self.kind == _NO_TOPIC

    @property
    def is_refused_login(self) -> bool:
        """Whether the cluster refuses Spark's Kafka client: its login, or a grant."""
        return not self.kinds.isdisjoint(_REFUSED)

    @property
    def is_refused_option(self) -> bool:
        """Whether Spark's Kafka client refuses an option."""
        return self.kind == _REFUSED_OPTION and not self.is_unanswered

    @property
    def is_stop(self) -> bool:
        """Whether a job was cancelled, or its thread interrupted, because the query or the run was stopped."""
        return (
            not self.kinds.isdisjoint(_INTERRUPTED)
            or self.condition.startswith("SPARK_JOB_CANCELLED")
            or _CANCELLED in self.text
        )

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a JVM has no more memory; of a task it may be in the text alone."""
        return _OUT_OF_MEMORY in f"{self.kind} {self.text}"

    @property
    def told(self) -> str:
        """What of it may be repeated: no word that may be a record's."""
        what = f"{self.kind} {self.condition}".strip()
        if (
            self.kind in _TELLING
            or self.kind.startswith(_TELLING_FAMILIES)
            or self.condition.startswith(_KAFKAS)
        ):
            first, *_ = self.text.strip().splitlines() or [""]
            return f"{what}: {first}" if first else what
        return f"{what}: {self.template}" if self.template else what

    @property
    def named(self) -> str:
        """The same in short: the condition, else the class, with the condition's sentence."""
        what = self.condition or self.kind
        return f"{what}, in Spark's words {self.template!r}" if self.template else what

    @cached_property
    def template(self) -> str:
        """Spark's sentence of the condition, with names in the places of values; "" if it has none."""
        jvm: Any = SparkContext._jvm
        if not self.condition or jvm is None:
            return ""
        try:
            reader = jvm.org.apache.spark.SparkThrowableHelper.errorReader()
            sentence = " ".join(str(reader.getMessageTemplate(self.condition)).split())
            return "" if _A_VALUE.fullmatch(sentence) else sentence
        except (Py4JError, TypeError):  # a condition of a connector, or another Spark
            return ""

    @cached_property
    def _computing(self) -> bool:
        """Whether it was thrown where a row is computed."""
        return self._innermost.startswith(_COMPUTING)

    @cached_property
    def _innermost(self) -> str:
        """The class of the innermost frame that is no library's."""
        names = (str(frame.getClassName()) for frame in self._frames)
        own = (one for one in names if not one.startswith((*_LIBRARIES, "org.apache.spark.Spark")))
        return next(own, "")

    @cached_property
    def _frames(self) -> Sequence[Any]:
        return list(_called(self._java, "getStackTrace") or ())[:_FRAMES]


def thrown(error: BaseException) -> Iterator[Thrown]:
    """The Java exceptions behind a Python one, the outermost first."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEEPEST):
        if java is None:
            return
        yield Thrown(java)
        java = java.getCause()


def is_stop(found: Sequence[Thrown]) -> bool:
    """Whether Java exceptions, one the cause of the other, say that the query or the run was stopped."""
    return any(one.is_stop for one in found) and not any(one.is_of_a_row_alone for one in found)


def jvm_has_ended() -> UnclassifiedError:
    """The error of a driver whose JVM is gone."""
    return UnclassifiedError(
        "the driver's JVM has ended, or does not answer: killed (the system's out-of-memory killer, or a "
        "container's), say. What is committed stands, and the next run goes on behind it. Fix: see Spark's log and the "
        "system's; more memory for it is spark.driver.memory"
    )


# --- inside ----------------------------------------------------------------------------------------------


def _called(java: Any, name: str) -> Any:
    try:
        return getattr(java, name)()
    except Py4JError:  # no exception of Spark's own, so it has no such name
        return None
