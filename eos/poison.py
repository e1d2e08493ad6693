"""The poison policy: what happens to a record whose transform raises; decided before anything is produced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter, countOf, itemgetter
from typing import Any, Literal

from eos.deadletter import origin_of
from eos.errors import TransformError
from eos.events import Listener, RecordDeadLettered
from eos.headers import UnreadableHeadersError
from eos.offsets import Partition
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord, OutputRefusedError
from eos.transform import BoundTransform

_topic_of_record = itemgetter(OutputRecord._fields.index("topic"))  # half the cost of attrgetter
_topic_of_batch = attrgetter("topic")

log = logging.getLogger(__name__)

Policy = Literal["stop", "dead-letter", "skip"]


class PoisonFilter:
    """Applies a transform to batches, with records that raise handled by the policy.

    The policy applies to every exception of the transform, classes of eos too: they say nothing of this process. Only
    OutputRefusedError is not a matter of one record: the transform returned what the job does not declare.

    A batch function that raises is run again record by record, which finds the record at fault; that is why
    it must be a pure map over records.

    ``stop`` raises with the record's coordinates, ``dead-letter`` writes it to the job's dead-letter topic in the same
    transaction, ``skip`` drops it. The listener gets an event for each dead letter and each skipped record.

    Raises:
        UsageError: the policy is ``dead-letter`` and the job declares no topic for it.
    """

    def __init__(self, transform: BoundTransform, policy: Policy, *, shard: str, listener: Listener) -> None:
        if policy == "dead-letter":
            transform.require_dead_letters()
        self._transform = transform
        self._policy = policy
        self._shard = shard
        self._listener = listener
        self._poisoned = 0
        self._told = set[tuple[Partition, int]]()  # dead letters of this batch that the policy has made
        self._warned = False  # of a batch function that raises for no record alone

    def apply(self, batch: InputBatch) -> Sequence[OutputBatch] | Sequence[OutputRecord]:
        """The outputs of a batch, in order.

        Raises:
            TransformError: a record's transform raised and the policy is ``stop``.
            UsageError: the transform returned or produced what it must not.
        """
        self._told.clear()
        outputs = self._applied(batch)
        if self._transform.dead_letters is not None:
            self._tell_of_returned_letters(outputs, self._transform.dead_letters)
        return outputs

    def _applied(self, batch: InputBatch) -> list[OutputBatch] | list[OutputRecord]:
        if self._transform.takes_batches:
            try:
                return self._transform.batch(batch)
            except OutputRefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything; next, find the record
                return self._record_by_record(batch, type(error).__name__)
        return self._transform.records(batch, self._poison)

    def _tell_of_returned_letters(
        self, outputs: Sequence[OutputBatch] | Sequence[OutputRecord], topic: str
    ) -> None:
        """The events of dead letters that the transform has made itself, by `eos.dead_letter`."""
        topic_of: Callable[[Any], object] = (
            _topic_of_batch if outputs and isinstance(outputs[0], OutputBatch) else _topic_of_record
        )
        if countOf(map(topic_of, outputs), topic) == len(self._told):
            return
        for output in outputs:
            if output.topic == topic:
                made = [output.headers] if isinstance(output, OutputRecord) else output.headers or ()
                for origin in filter(None, map(origin_of, made)):
                    if (origin.partition, origin.offset) not in self._told:
                        self._listener(RecordDeadLettered(self._shard, *origin))

    def _record_by_record(self, batch: InputBatch, raised: str) -> list[OutputRecord]:
        before = self._poisoned
        outputs = self._transform.records(batch, self._poison)
        if self._poisoned == before and not self._warned:
            self._warned = True
            log.warning(
                "transform_batch raised %s for a batch of %d records and for none of them alone: each batch that it raises "
                "for is made record by record, which is slow. Fix: it must be a map over records",
                raised,
                len(batch),
            )
        return outputs

    def _poison(self, record: InputRecord, error: Exception) -> list[OutputRecord]:
        self._poisoned += 1
        reason = f"{type(error).__name__}: {error}"
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
        skipped = self._policy == "skip"
        partition = Partition(record.topic, record.partition)
        if not skipped:
            self._told.add((partition, record.offset))
        self._listener(RecordDeadLettered(self._shard, partition, record.offset, reason, skipped))
        return [] if skipped else [self._transform.dead_letter(record, error)]
