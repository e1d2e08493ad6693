"""Faults in the tasks of a batch: transforms that fail or stall, and a writer that dies around its commit.

Spark's workers cannot import the tests, so this module goes to them by value.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle

from eos.core.producer import ShardProducer
from eos.offsets import Partition
from eos.settings import Settings
from eos.shards import PartitionShard
from eos.spark.write.writer import Writing
from tests.support.patience import PATIENCE_S

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # PySpark's copy

Batches = Iterator[Any]


def attempt() -> int:
    """How many tries of this task there were before."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def raises_after(batches: int) -> Callable[[Batches], Batches]:
    """Passes on some batches of its input at the first try, then raises; the whole of it at the next."""

    def passed(given: Batches) -> Batches:
        for number, batch in enumerate(given):
            if attempt() == 0 and number == batches:
                raise RuntimeError("the first try fails")
            yield batch

    return passed


def late_first_try(settings: Settings, name: str, topic: str, tries: Path) -> Callable[[Batches], Batches]:
    """The first try fails; while the second writes, the first one's init arrives, and nothing more of it.

    Args:
        settings: of the job.
        name: of the job and its group.
        topic: the input.
        tries: a directory that gets a file for each try that came to its end.
    """

    def passed(given: Batches) -> Batches:
        for number, batch in enumerate(given):
            if attempt() == 0 and number == 5:
                raise RuntimeError("the first try fails")
            if attempt() == 1 and number == 15:
                time.sleep(4.0)  # the writer has begun with what came before
                partition = Partition(topic, batch.column("shard")[0].as_py())
                ShardProducer(settings, PartitionShard(name, name, partition)).open()
            yield batch
        (tries / f"{attempt()}").touch()

    return passed


def stalls_after(batches: int, flag: Path) -> Callable[[Batches], Batches]:
    """Passes on some batches, makes a file, and goes on when ``<flag>.go`` is there."""

    def passed(given: Batches) -> Batches:
        for number, batch in enumerate(given):
            if number == batches and not flag.exists():
                flag.touch()
                deadline = time.monotonic() + 2 * PATIENCE_S
                while not flag.with_name(f"{flag.name}.go").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
            yield batch

    return passed


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class DyingWriting(Writing):
    """A writer whose worker process is killed at its first try, before, in or after the commit."""

    when: str = ""

    def __call__(self, batches: Batches) -> Batches:
        """Write, and die as told."""
        if attempt() == 0:
            self._arm()
        yield from Writing.__call__(self, batches)
        if attempt() == 0:
            _die()

    def _arm(self) -> None:
        from eos.kafka.producer import TransactionalClient

        commit = TransactionalClient.commit

        def dying(client: TransactionalClient, timeout_s: float, last_look: Any = None) -> None:
            if self.when == "after":
                commit(client, timeout_s, last_look)
            _die()  # "before": the records are delivered or not, the offsets are sent

        if self.when:
            TransactionalClient.commit = dying  # type: ignore[assignment, method-assign] # in this worker, which dies
