"""Accidents of the streaming sink's tasks, for tests: a ledger store that has them, on chosen shards and tries.

Spark's workers cannot import the tests, so this module goes to them by value (``ship``).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle

from eos.errors import AbortableError, CommitOutcomeUnknownError
from eos.kafka.producer import TransactionalClient
from eos.offsets import OffsetVector
from eos.shards import SinkShard
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_entry import LogEntry
from eos.spark.stream.sink import ExactlyOnceSink
from tests.support.patience import PATIENCE_S

_NOW = "eos_shard"  # of the task's context: which shard it writes


class Accident(StrEnum):
    """When a task has its accident."""

    BEFORE_COMMIT = "raises when everything is written"
    DIES_BEFORE_COMMIT = "its process ends when everything is written"
    DIES_AFTER_COMMIT = "its process ends right after its commit"
    UNANSWERED = "its commit happens, but the answer is lost"
    PAUSED = "it pauses when everything is written, until told to go on"
    PAUSED_IN_COMMIT = (
        "it pauses with its offsets in the transaction, right before that ends, until told to go on"
    )


@dataclass(frozen=True, slots=True)
class FaultyStore(CommitLog):
    """A ledger store whose tasks have an accident.

    Args:
        accident: which.
        shards: of these shards.
        tries: so many of a task's tries have it; later ones don't.
        batch: of this batch alone.
        flag: a file: while paused, ``<flag>.<shard>`` exists; it goes on when ``<flag>.go`` does.
    """

    accident: Accident = Accident.BEFORE_COMMIT
    shards: tuple[int, ...] = ()
    tries: int = 1
    batch: int = 0
    flag: str = ""

    def shard(self, number: int) -> SinkShard:
        """A task asks for it when it begins with a shard."""
        if (context := TaskContext.get()) is not None:
            context.__dict__[_NOW] = number
        return CommitLog.shard(self, number)

    def offsets(self, entry: LogEntry) -> OffsetVector:
        """A task asks for them when everything is written."""
        if self._strikes(entry):
            if self.accident is Accident.BEFORE_COMMIT:
                raise AbortableError("an accident before the commit")
            if self.accident is Accident.DIES_BEFORE_COMMIT:
                os._exit(1)
            if self.accident is Accident.PAUSED:
                _pause(self.flag)
            else:
                _arm(self.accident, self.flag)
        return CommitLog.offsets(self, entry)

    def _strikes(self, entry: LogEntry) -> bool:
        context = TaskContext.get()
        return (
            context is not None
            and context.attemptNumber() < self.tries
            and context.__dict__[_NOW] in self.shards
            and entry.next_batch == self.batch + 1
        )


def _pause(flag: str) -> None:
    context = TaskContext.get()
    assert context is not None
    Path(f"{flag}.{context.__dict__[_NOW]}").touch()
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not Path(f"{flag}.go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _arm(accident: Accident, flag: str) -> None:
    """The next commit of this worker process happens, and then the accident."""
    commit = TransactionalClient.commit

    def committed(client: TransactionalClient, timeout_s: float, last_look: Any = None) -> None:
        TransactionalClient.commit = commit  # type: ignore[method-assign] # as it was
        if accident is Accident.PAUSED_IN_COMMIT:
            _pause(flag)
        commit(client, timeout_s, last_look)
        if accident is Accident.PAUSED_IN_COMMIT:
            return
        if accident is Accident.DIES_AFTER_COMMIT:
            os._exit(1)
        raise CommitOutcomeUnknownError("an accident: no answer")

    TransactionalClient.commit = committed  # type: ignore[assignment, method-assign] # in this worker


def with_accident(
    sink: ExactlyOnceSink,
    accident: Accident,
    *shards: int,
    tries: int = 1,
    batch: int = 0,
    flag: str = "",
) -> ExactlyOnceSink:
    """A sink whose tasks have an accident."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # not ours
    given = {field.name: getattr(sink._log.store, field.name) for field in fields(CommitLog)}
    sink._log.store = FaultyStore(
        **given, accident=accident, shards=shards, tries=tries, batch=batch, flag=flag
    )
    return sink
