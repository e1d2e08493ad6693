"""Checkpoint: the directory in which Spark keeps a streaming query's place, looked at through Spark's file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from eos.errors import ConfigError, UsageError
from eos.spark.session.thrown import OF_SPARK, is_stop, thrown

# A local property of the thread that runs a query, which calls foreachBatch (StreamExecution.QUERY_ID_KEY). The id
# is made with the checkpoint and kept in it.
_QUERY_ID = "sql.streaming.queryId"
_CHECKSUM = "ChecksumException"
# Of the newest files: the last batch's, and the plan of the one before it (Spark 4.2 starts with `commits/0` cut off).
_READ_AT_A_START = {"offsets": 2, "commits": 1}
_VERSION = re.compile(r"v\d+")


class UnreadableError(ConfigError):
    """A file of a checkpoint is not whole."""


class Checkpoint:
    """A query's checkpointLocation, on whatever file system it is; a ConfigError says that it cannot be reached."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = location

    def __str__(self) -> str:
        return self.location

    def has_batches(self) -> bool:
        """Whether a batch was planned: only then does the checkpoint say where the query goes on.

        Spark writes the query's id (``metadata``) before it asks for the input, so the id alone proves nothing. The
        first plans are not looked for by their number: Spark deletes old ones.
        """
        return bool(self.batches("offsets"))

    def query_id(self) -> str | None:
        """Of the query whose place it is; None: it has none yet. Raises UnreadableError."""
        text = self.text("metadata")
        return None if text is None else str(self.parsed(text, "metadata")["id"])

    def next_batch(self) -> int:
        """The number of the batch that the query runs next, as new or once more."""
        return max(self.batches("commits"), default=-1) + 1

    def names(self, folder: str = ".") -> list[str]:
        """The names of what is in the directory, or in one of its folders."""
        system, path = self._at(folder)
        with self._reached():
            there = system.listStatus(path) if system.exists(path) else ()
            return sorted(str(status.getPath().getName()) for status in there)

    def damaged(self) -> Iterator[tuple[str, str]]:
        """The files by which Spark finds a query's place at a start that are not whole, and what is wrong with each."""
        files = [
            f"{folder}/{number}"
            for folder, most in _READ_AT_A_START.items()
            for number in self.batches(folder)[-most:]
        ]
        # Where each source began; read where no batch is planned.
        files = files or [f"sources/{source}/0" for source in self.names("sources")]
        for name in ["metadata", *files]:
            try:
                text = self.text(name)
            except ConfigError as error:
                yield name, "does not match its checksum" if _CHECKSUM in str(error) else "cannot be read"
            else:
                if text is not None and (wrong := _what_is_wrong(text)):
                    yield name, wrong

    def batches(self, folder: str) -> list[int]:
        """The numbers of the batches that ``offsets`` or ``commits`` has a file of."""
        return sorted(int(name) for name in self.names(folder) if name.isdigit())

    def delete(self, name: str) -> None:
        """Remove a file, if there is one."""
        system, path = self._at(name)
        with self._reached():
            system.delete(path, False)

    def text(self, name: str) -> str | None:
        """What is in a file; None if there is none."""
        system, path = self._at(name)
        with self._reached():
            if not system.exists(path):
                return None
            file = system.open(path)
            try:
                return bytes(file.readAllBytes()).decode()
            finally:
                file.close()

    def parsed(self, text: str, name: str) -> Any:
        """What a part of a file says, which is JSON. Raises UnreadableError."""
        try:
            return json.loads(text)
        except ValueError as error:
            raise UnreadableError(f"{self}/{name} is not whole: {error}") from error

    def write(self, name: str, text: str) -> None:
        """Make a file. Spark ignores those that it does not know."""
        system, path = self._at(name)
        with self._reached():
            file = system.create(path, True)
            try:
                file.write(bytearray(text.encode()))
            finally:
                file.close()

    def _at(self, name: str) -> tuple[Any, Any]:
        """The file system and the path: PySpark itself has no way to either."""
        jvm: Any = self._spark._jvm
        with self._reached():
            hadoop = self._spark._jsparkSession.sessionState().newHadoopConf()
            path = jvm.org.apache.hadoop.fs.Path(self.location, name)
            return path.getFileSystem(hadoop), path

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, OF_SPARK) and is_stop(list(thrown(error))):
                raise
            kind = UnreadableError if _CHECKSUM in str(error) else ConfigError
            raise kind(
                f"the checkpoint {self.location!r} cannot be reached: {type(error).__name__}: {error}"
            ) from error


def _what_is_wrong(text: str) -> str:
    """With the text of one of Spark's files, in which each line is a version, JSON, maybe behind a name, or "-" for nothing."""
    lines = text.strip("\0\n ").splitlines()
    if not lines:
        return "is empty"
    try:
        for line in lines:
            if not _VERSION.fullmatch(line) and line != "-":
                json.loads(line[max(line.find("{"), 0) :])
    except ValueError:
        return "is cut off, or holds something else"
    return "is cut off" if len(lines) == 1 and _VERSION.fullmatch(lines[0]) else ""


class RunningQuery(NamedTuple):
    """The streaming query that calls foreachBatch.

    Attributes:
        id: it lives in the checkpoint, so a query that is started again keeps it.
        run: each start has another one.
        checkpoint: where it keeps its place.
        execution: Spark's IncrementalExecution of the batch that runs.
    """

    id: str
    run: str
    checkpoint: Checkpoint
    execution: Any


def running_query(frame: DataFrame) -> RunningQuery:
    """The query whose foreachBatch has got this frame.

    Raises:
        UsageError: it is not called by foreachBatch, or in another thread.
    """
    session = frame.sparkSession
    name = session.sparkContext.getLocalProperty(_QUERY_ID)
    jvm: Any = session._jvm
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    query = running.get(jvm.java.util.UUID.fromString(name)) if name else None
    if query is None:
        raise UsageError(
            "exactly_once_sink was called outside of a streaming query: give it to writeStream.foreachBatch, or call it "
            "in the function that you give there, in the same thread"
        )
    location = str(query.resolvedCheckpointRoot())
    checkpoint = Checkpoint(session, location)
    return RunningQuery(str(name), query.runId().toString(), checkpoint, query.lastExecution())
