"""The poison policy: what happens to a record whose transform raises; decided before anything is produced."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Literal

from eos.deadletter import origin_of
from eos.errors import ProcessDiedError, TransformError, reason_of
from eos.events import Listener, RecordDeadLettered
from eos.headers import UnreadableHeadersError
from eos.offsets import Partition
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRefusedError
from eos.transform import Applied

log = logging.getLogger(__name__)

Policy = Literal["stop", "dead-letter", "skip"]


class PoisonFilter:
    """Applies a transform to batches, with records that raise handled by the policy.

    The policy applies to every exception of the transform, classes of eos too: they say nothing of this process. Only
    OutputRefusedError is not a matter of one record: the transform returned what the job does not declare.

    A batch function that raises is run again record by record, which finds the record at fault; that is why
    it must be a pure map over records.

    Where more than ``max_in_a_row`` records in a row are poison, the next one raises as under ``stop``: the transform is wrong then,
    and would send all of the input to the dead-letter topic. So does one that processes died with behind ``max_died_in_a_row`` of
    them.

    ``stop`` raises with the record's coordinates, ``dead-letter`` writes it to the job's dead-letter topic in the same
    transaction, ``skip`` drops it. The listener gets an event for each dead letter and each skipped record.

    Attributes:
        in_a_row: how many records in a row were poison at the end of the last batch.

    Raises:
        UsageError: the policy is ``dead-letter`` and the job declares no topic for it.
    """

    def __init__(
        self,
        transform: Applied,
        policy: Policy,
        *,
        shard: str,
        listener: Listener,
        max_in_a_row: int = sys.maxsize,
        max_died_in_a_row: int = sys.maxsize,
    ) -> None:
        if policy == "dead-letter":
            transform.require_dead_letters()
        self._transform = transform
        self._policy = policy
        self._shard = shard
        self._listener = listener
        self._max_in_a_row = max_in_a_row
        self._max_died_in_a_row = max_died_in_a_row
        self.in_a_row = 0
        self._poisoned: dict[tuple[Partition, int], Exception] = {}  # of this batch
        self._warned = False  # of a batch function that raises for no record alone

    def apply(self, batch: InputBatch, in_a_row: int | None = None) -> list[Any]:
        """The outputs of a batch, in order.

        Args:
            batch: the records.
            in_a_row: how many records in a row were poison right before them; by default as at the end of the last batch.

        Raises:
            TransformError: a record's transform raised and the policy is ``stop``.
            UsageError: the transform returned or produced what it must not.
        """
        if in_a_row is not None:
            self.in_a_row = in_a_row
        self._poisoned.clear()
        outputs = self._applied(batch)
        if self._poisoned or self.in_a_row:
            self._brake(batch)
        if self._transform.dead_letters is not None:
            self._tell_of_returned_letters(outputs, self._transform.dead_letters)
        return outputs

    def _applied(self, batch: InputBatch) -> list[Any]:
        if self._transform.takes_batches:
            try:
                return self._transform.batch(batch)
            except OutputRefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything; next, find the record
                return self._record_by_record(batch, type(error).__name__)
        return self._transform.records(batch, self._poison)

    def died(self, record: InputRecord, deaths: int, in_a_row: int = 0) -> list[Any]:
        """The outputs of a record with which so many processes have died; its transform is not called.

        Raises:
            ProcessDiedError: the policy is ``stop``, or too many records in a row were poison before.
        """
        self.in_a_row = in_a_row + 1
        error = ProcessDiedError(
            f"{record.topic}[{record.partition}] offset {record.offset}: {deaths} processes in a row died with this record alone "
            "(out of memory, a crash of native code, an endless loop that was ended). Fix: the transform or its limits, and then "
            "one start with poison.max_deaths = 0, which tries the record again; or poison.policy = 'dead-letter' or 'skip'",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
        if self._policy == "stop":
            raise error
        if in_a_row >= min(self._max_died_in_a_row, self._max_in_a_row):
            raise ProcessDiedError(
                f"{record.topic}[{record.partition}] offset {record.offset}: {deaths} processes in a row died with this record "
                f"alone, and the {in_a_row} records before it were poison too (poison.max_died_in_a_row = "
                f"{self._max_died_in_a_row}, poison.max_in_a_row = {self._max_in_a_row}): the transform, or its memory limit, "
                "seems to be wrong, not the records. Fix: the transform or its limits, and then one start with "
                "poison.max_deaths = 0, which tries the record again; or a higher poison.max_died_in_a_row",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            )
        return self._transform.grouped(
            self._instead(record, error, f"{deaths} processes in a row died with it alone", deaths)
        )

    def _tell_of_returned_letters(self, outputs: Sequence[OutputBatch], topic: str) -> None:
        """The events of dead letters that the transform has made itself, by `eos.dead_letter`."""
        for output in outputs:
            if output.topic == topic:
                for origin in filter(None, map(origin_of, output.headers or ())):
                    if (origin.partition, origin.offset) not in self._poisoned:
                        self._listener(RecordDeadLettered(self._shard, *origin))

    def _brake(self, batch: InputBatch) -> None:
        """Count the records in a row that were poison, and raise for one too many."""
        partitions = map(Partition, batch.topics, batch.partitions)
        for partition, offset in zip(partitions, batch.offsets, strict=True):
            error = self._poisoned.get((partition, offset))
            self.in_a_row = 0 if error is None else self.in_a_row + 1
            if self.in_a_row > self._max_in_a_row:
                raise TransformError(
                    f"{partition} offset {offset}: it is the last of {self.in_a_row} records in a row that are poison, and "
                    f"poison.max_in_a_row = {self._max_in_a_row}: the transform seems to be wrong, not the records. Fix: the "
                    "transform, or a higher limit",
                    topic=partition.topic,
                    partition=partition.number,
                    offset=offset,
                ) from error

    def _record_by_record(self, batch: InputBatch, raised: str) -> list[Any]:
        outputs = self._transform.records(batch, self._poison)
        if not self._poisoned and not self._warned:
            self._warned = True
            log.warning(
                "transform_batch raised %s for a batch of %d records and for none of them alone: each batch that it raises "
                "for is made record by record, which is slow. Fix: it must be a map over records",
                raised,
                len(batch),
            )
        return outputs

    def _poison(self, record: InputRecord, error: Exception) -> list[Any]:
        partition = Partition(record.topic, record.partition)
        is_told = (partition, record.offset) in self._poisoned  # the batch is made again
        self._poisoned[partition, record.offset] = error
        reason = reason_of(error)
        if self._policy == "stop":
            raised = (
                str(error)
                if isinstance(error, UnreadableHeadersError)
                else f"{record.topic}[{record.partition}] offset {record.offset}: the transform raised "
                f"{type(error).__name__} (its text may quote the record, so it is not shown)"
            )
            raise TransformError(
                f"{raised}. Fix: the transform, or poison.policy = 'dead-letter' or 'skip'",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            ) from error
        return self._instead(record, error, reason, is_told=is_told)

    def _instead(
        self, record: InputRecord, error: Exception, reason: str, deaths: int = 0, *, is_told: bool = False
    ) -> list[Any]:
        skipped = self._policy == "skip"
        partition = Partition(record.topic, record.partition)
        if not is_told:
            self._listener(RecordDeadLettered(self._shard, partition, record.offset, reason, skipped, deaths))
        return [] if skipped else [self._transform.dead_letter(record, error)]
