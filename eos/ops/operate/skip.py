"""One record is taken out of a job's way: it becomes a dead letter, as the loop would have written it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.errors import ConfigError, TransformError, UnavailableError
from eos.events import ignore_event
from eos.group.committed import offsets_at
from eos.group.others import refuse_others
from eos.group.topics import TopicIds, stored_topic_ids
from eos.guards.owners import refuse_moved
from eos.guards.truncated import epochs_before, refuse_truncated
from eos.job import Declaration
from eos.kafka.admin import Mark
from eos.kafka.consumer import lone_reader
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition, next_offset
from eos.ops.operate.choosing import refuse_recreated, refuse_unknown
from eos.ops.operate.in_group import positions_of
from eos.ops.operate.positions import Change, Scope
from eos.ops.operate.target import target_of
from eos.poison import PoisonFilter
from eos.records import InputBatch, InputRecord
from eos.settings import Settings

_POLL_S = 0.5
_BATCH = 1_000
_OPTIONS = {"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 20}


@dataclass(frozen=True, slots=True)
class Skip:
    """What is done to a record.

    Attributes:
        record: which one.
        group: who is to get past it.
        committed: where the group stands: at the record, or in front of it.
        in_front: records between the two, which are processed with it.
        outputs: what these make, in batches.
        letters: the topic or the table that a dead letter is written to; None: nothing is written for the record.
        refused: why it cannot be done now; "" if it can.
        fenced: the transactional.ids that were fenced; none before anything is written.
    """

    record: InputRecord
    group: str
    committed: int
    in_front: int
    outputs: Sequence[Any]
    letters: str | None
    refused: str = ""
    fenced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Skipping:
    """Skips one record of a job.

    The group is to stand at the record. It stands in front of it where the loop has met the record inside a larger transaction
    and stopped: that transaction was aborted, with the records before. Those are transformed here, and what they make is
    written in the same transaction. So c still stands for exactly f(input[0:c]).

    Args:
        settings: of the job.
        job: whose record it is.
        place: where the record stands.
        reason: why it is skipped, for the dead letter.
        without_letter: write no dead letter.

    Raises:
        ConfigError: a letter is to be written, and the job has no topic for it; or the partition is no input of the job.
    """

    def __init__(
        self,
        settings: Settings,
        job: Declaration,
        place: tuple[Partition, int],
        *,
        reason: str,
        without_letter: bool,
    ) -> None:
        self._settings = settings
        self._job = job
        self._target = target_of(job, settings)
        self._positions = positions_of(settings, self._target)
        self._partition, self._offset = place
        self._reason = reason
        refuse_unknown(settings, self._target, [self._partition])
        self._letters = None if without_letter else self._positions.letters
        if self._letters is None and not without_letter:
            raise ConfigError(
                f"{job.name!r} declares no dead-letter topic. Fix: Job(dead_letters='…'), or --without-dead-letter, which leaves "
                "no trace of the record: eos verify will report it"
            )

    def preview(self) -> Skip:
        """What `write` would do now; nothing is written.

        Raises:
            ConfigError: the group does not stand at the record, or there is no such record.
            TransformError: a record in front of it cannot be processed either.
            EosError: as `Positions.commit`.
        """
        made, _ = self._made(self._positions.own([self._partition]))
        return replace(made, refused=self._positions.look(Scope([self._partition])).reason)

    def write(self) -> Skip:
        """Skip it, in the place of the job's owners.

        Raises:
            EosError: as `preview` and `Positions.commit`.
        """
        done: list[Skip] = []

        def change(stored: Mapping[Partition, Committed]) -> Change:
            made, offsets = self._made(stored)
            done.append(made)
            letter = [] if made.letters is None else self._positions.letter(made.record, self._reason)
            return Change(offsets, [*made.outputs, *letter])

        self._made(self._positions.own([self._partition]))  # before an owner is fenced for nothing
        fenced, notes = self._positions.commit(Scope([self._partition]), change)
        return replace(done[-1], fenced=tuple(fenced), notes=tuple(notes))

    # --- inside ------------------------------------------------------------------------------------

    def _made(self, stored: Mapping[Partition, Committed]) -> tuple[Skip, OffsetVector]:
        """What is to be done, and the offset that is committed with it."""
        settings, partition = self._settings, self._partition
        # The next start would take what is committed here for eos's, and for a commit of this group's.
        refuse_moved(self._target.group, stored, self._target.app)
        refuse_others(settings, self._target.group, stored)
        ids = TopicIds(settings).of({partition.topic}, timeout_s=settings.open_timeout_s)
        refuse_recreated(settings, stored_topic_ids(stored), ids)
        refuse_truncated(
            settings, self._target.group, stored_positions(stored), timeout_s=settings.open_timeout_s
        )
        *in_front, record = self._read(stored)
        after = {partition: next_offset(record.offset)}
        epochs = epochs_before(settings, self._target.group, after, timeout_s=settings.open_timeout_s)
        skip = Skip(
            record,
            self._target.group,
            stored[partition].offset,
            len(in_front),
            self._outputs(in_front) if in_front else (),
            self._letters,
        )
        return skip, OffsetVector(after, epochs, ids)

    def _outputs(self, records: Sequence[InputRecord]) -> list[Any]:
        """What the loop makes of these, under the job's poison policy."""
        transform = self._positions.transform(self._job)
        if transform is None:
            raise ConfigError(
                f"{self._partition}: {len(records)} records stand in front of offset {self._offset}, and only a run on Spark can "
                "process them. Fix: one run that ends there (spark.max_records_per_partition)"
            )
        poison = PoisonFilter(
            transform, self._settings.poison.policy, shard=self._target.group, listener=ignore_event
        )
        try:
            return poison.apply(InputBatch.of(records))
        except TransformError as error:
            place = f"{error.topic}:{error.partition}@{error.offset}"
            raise TransformError(
                f"{error.topic}[{error.partition}] offset {error.offset} stands in front of offset {self._offset}, and the job stops "
                f"at it too. Fix: skip that one first ({suggested('skip', place, '--reason', 'WHY', job=True)}), or process it with "
                "poison.policy = 'dead-letter' or 'skip'",
                topic=error.topic,
                partition=error.partition,
                offset=error.offset,
            ) from error

    def _read(self, stored: Mapping[Partition, Committed]) -> list[InputRecord]:
        """The records from the group's place to the one that is skipped."""
        settings, partition, offset = self._settings, self._partition, self._offset
        at = stored.get(partition)
        if at is None:
            raise ConfigError(f"the group {self._target.group!r} has no committed offset of {partition}")
        limit, end = settings.transaction.max_records, offsets_at(settings, Mark.LAST_STABLE, [partition])
        if not at.offset <= offset < end[partition]:
            raise ConfigError(
                f"the group {self._target.group!r} stands at offset {at.offset} of {partition}, and a job can read up to "
                f"{end[partition]}: {offset} is not what it would process next"
            )
        found: list[InputRecord] = []
        reader = lone_reader(settings, self._target.group, stable=True, options=_OPTIONS)
        try:
            reader.incremental_assign(stored_positions({partition: at}))
            deadline = Deadline(settings.open_timeout_s)
            while not found or found[-1].offset < offset:
                if deadline.passed:
                    raise UnavailableError(
                        f"{partition} was not read up to offset {offset} in {deadline.seconds:g} s"
                    )
                fetched = reader.consume(_BATCH, _POLL_S)
                found += InputBatch(fetched.messages)
                if fetched.ends and not fetched.messages:
                    break
                if len(found) > limit and found[limit].offset <= offset:
                    raise ConfigError(
                        f"the group {self._target.group!r} stands at offset {at.offset} of {partition}, more than {limit} records "
                        "in front of this one (transaction.max_records). Fix: let the job process them first, with smaller "
                        "transactions (--set transaction.max_records=100 --set input.fetch_records=100)"
                    )
        finally:
            reader.close()
        kept = [one for one in found if one.offset <= offset]
        if not kept or kept[-1].offset != offset:
            following = next((one.offset for one in found if one.offset > offset), "not there yet")
            raise ConfigError(
                f"{partition} holds no record at offset {offset} that a job could read (a marker, an aborted record, or one that "
                f"compaction removed); the next one is {following}, and the group stands at {at.offset}"
            )
        return kept
