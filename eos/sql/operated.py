"""TablePositions: the positions of a `SqlJob`, as an operator's commands see and set them.

An operator commits as an owner does: by the same claim, compare-and-set and transaction (`eos.sql.writer`). Nothing has to be read back
afterwards, as it has in Kafka: an owner that comes in between claims the position, and then the transaction is rolled back as a whole.

The group's offsets in Kafka, which repeat the positions, are set with them. A position that goes back comes behind its mirror, because the
other way round an operator's process that ends in between would leave what a database that lost commits looks like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Table

from eos import retry
from eos.core.destination import WriterTransaction
from eos.core.ledger import Ledger, Outcome
from eos.deadletter import SkippedByOperator
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    ConfigError,
    EosError,
    FencedError,
    ReopenError,
    UnavailableError,
)
from eos.events import ignore_event
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.mirror import MIRROR
from eos.group.others import refuse_copied
from eos.guards.owners import refuse_foreign
from eos.identity import Identity
from eos.job import Declaration
from eos.kafka.admin import Admin
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.offsets import Partition
from eos.ops.operate.choosing import all_partitions, stored_of
from eos.ops.operate.in_group import left, unfenced
from eos.ops.operate.owners import look_s, refuse_membership
from eos.ops.operate.positions import Change, Done, MakeChange, Refusal, Scope
from eos.ops.operate.target import metadata_of
from eos.records import InputRecord
from eos.settings import Settings
from eos.shards import StartShard
from eos.sql import progress
from eos.sql.asking import answer
from eos.sql.bound import BoundChanges
from eos.sql.destination import ToDatabase
from eos.sql.engine import engine_of
from eos.sql.fitness import fitness
from eos.sql.mirror import differences, mirrored
from eos.sql.position import Move, Owner, Position
from eos.sql.tables import check, dead_letters
from eos.sql.tables import progress as table
from eos.sql.writer import SqlWriter

T = TypeVar("T")


class TablePositions:
    """The calls of `eos.ops.positions.Kept` and of `eos.ops.operate.positions.Positions`.

    Args:
        settings: of the job.
        target: the job.
        tables: that it changes.
        bound: its transform.
    """

    kept_in = table.name
    letters = dead_letters.name

    def __init__(
        self, settings: Settings, target: Identity, tables: Sequence[Table], bound: BoundChanges
    ) -> None:
        self._settings = settings
        self._target = target
        self._tables = tables
        self._bound = bound
        self._engine = engine_of(settings, app=target.app, keeps=False)

    # --- to look at ----------------------------------------------------------------------------------

    def check(self, *, timeout_s: float) -> list[str]:
        return self._asked(
            lambda connection: fitness(connection, self._tables, self._settings), timeout_s=timeout_s
        )

    def stored(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        found = self._positions(self._target.group)
        return {p: _committed(found[p]) for p in partitions if p in found}

    def remarks(self, stored: Mapping[Partition, Committed]) -> list[str]:
        settings, group = self._settings, self._target.group
        return differences(group, stored, mirrored(settings, group, stored))

    # --- to set --------------------------------------------------------------------------------------

    def own(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        stored = self.stored(partitions)
        mode = OwnershipMode(self._target.mode)
        refuse_foreign(self._settings, self._target.group, stored, mode, self._target.app)
        return stored

    def of_group(self, group: str, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """Its positions in this database; or, of a group that has none there, its offsets in Kafka."""
        found = self._positions(group)
        if found:
            return {p: _committed(found[p]) for p in partitions if p in found}
        copied = stored_of(self._settings, group, partitions)
        refuse_copied(self._settings, group, copied)
        return copied

    def look(self, scope: Scope) -> Refusal:
        others, notes = self._groups_of(scope)
        try:
            self._refuse_live(scope.resting, others)
        except ConfigError as error:
            return Refusal(str(error), notes)
        return Refusal("", notes)

    def commit(self, scope: Scope, change: MakeChange) -> Done:
        partitions = scope.partitions
        others, notes = self._groups_of(scope)
        self.own(partitions)  # refuses those of another job
        self._refuse_live(scope.resting, others)
        shard = StartShard(self._target.app, self._target.group)  # as who writes the first positions
        ledger = Ledger(metadata_of(self._target))
        destination = ToDatabase(self._engine, own_engine=False)
        writer = destination.writer(self._settings, shard, listener=ignore_event, ledger=ledger)
        writer.open()
        try:
            writer.claim(partitions)
            present = all_partitions(self._settings, self._target.group, self._target.inputs)
            writer.none_is_new(present)
            left_by = [writer.owner._replace(group=group) for group in others]
            claimed = [self._claim(owner, partitions) for owner in left_by]
            stored = self.own(partitions)
            ledger.taken_over({p: stored.get(p) for p in partitions})
            made = change(stored)
            for owner, positions in zip(left_by, claimed, strict=True):
                self._move_away(owner, positions)
            self._mirror_first(made, stored)
            self._transaction(writer, made)
            self._asked(lambda one: progress.forget_former(one, writer.owner, made.offsets, present))
        finally:
            writer.close()
        fenced = [
            f"{table.name}, {group}: {partition}"
            for group in (self._target.group, *others)
            for partition in sorted(partitions)
        ]
        return Done(fenced, [*notes, *self._mirror(sorted(made.offsets))])

    def consequences(self, *, again: int, skipped: int) -> list[str]:
        found = []
        if again:
            found.append(
                f"{again:,} offsets are gone back: their records are processed again. An Upsert or a Delete is done once more, over what "
                "later records have made of the row; an Insert whose key is there is refused by the database (poison.policy)"
            )
        if skipped:
            found.append(
                f"{skipped:,} offsets are skipped: the job does not process their records, and eos verify reports their rows as missing"
            )
        return found

    def verify_from(self) -> list[str]:
        """None: the rows of the input before are in the tables too, and only all of it together says what belongs there."""
        return []

    def transform(self, job: Declaration) -> BoundChanges:  # noqa: ARG002 - it is that job's
        """As its owners apply it that look for a record whose row the database refuses."""
        self._bound.try_each(self._engine, self._target.group)
        return self._bound

    def letter(self, record: InputRecord, reason: str) -> list[Any]:
        self._bound.try_each(self._engine, self._target.group)
        return [*self._bound.grouped([self._bound.dead_letter(record, SkippedByOperator(reason))])]

    # --- inside ------------------------------------------------------------------------------------

    def _asked(self, question: Callable[[Connection], T], *, timeout_s: float | None = None) -> T:
        return answer(self._engine, self._settings, question, timeout_s=timeout_s)

    def _positions(self, group: str) -> dict[Partition, Position]:
        def read(connection: Connection) -> dict[Partition, Position]:
            check(connection, [table])
            return progress.positions(connection, group)

        return self._asked(read)

    def _claim(self, owner: Owner, partitions: Collection[Partition]) -> dict[Partition, Position | None]:
        return self._asked(lambda connection: progress.claim(connection, owner, partitions))

    def _move_away(self, owner: Owner, claimed: Mapping[Partition, Position | None]) -> None:
        """Mark the positions of a group that is left as moved: no owner takes them over there any more."""

        def marked(at: Position) -> Move:
            by = OffsetMetadata.parse(at.metadata) or metadata_of(self._target)
            away = replace(by, app=owner.app).moved(self._target.group)
            return Move(at.next_offset, at.next_offset, at.leader_epoch, at.topic_id, str(away))

        if moves := {p: marked(at) for p, at in claimed.items() if at is not None}:
            self._asked(lambda connection: progress.move(connection, owner, moves))

    def _groups_of(self, scope: Scope) -> tuple[list[str], list[str]]:
        """The group that positions are copied from, if its owners would go on with the same work; and what there is to say of it."""
        source, partitions = scope.source, scope.partitions
        if source is None:
            return [], []
        found = self._positions(source)
        apps = {found[p].app for p in partitions if p in found}
        if apps == {self._target.app}:
            return [source], [left(source, self._target.app)]
        if not apps:
            stored = stored_of(self._settings, source, partitions).values()
            apps = {one.app for at in stored if (one := OffsetMetadata.parse(at.metadata)) and one.app}
        return [], [unfenced(self._settings, source, apps)]

    def _refuse_live(self, partitions: Collection[Partition], others: Sequence[str]) -> None:
        """Refuse where an owner is at work: a member of the group; of owners that are none, one whose position moves.

        Raises:
            ConfigError: names it.
            UnavailableError: no answer in time.
        """
        settings, mode = self._settings, OwnershipMode(self._target.mode)
        for group in (self._target.group, *others):
            refuse_membership(settings, group, None if group in others else mode)
            if mode is OwnershipMode.GROUP:
                continue
            before = self._positions(group)
            time.sleep(look_s(settings))
            after = self._positions(group)
            if moved := sorted(p for p in partitions if before.get(p) != after.get(p)):
                raise ConfigError(
                    f"{moved[0]}: its position in {table.name} moves, an owner is at work. Fix: stop it first"
                )

    def _transaction(self, writer: SqlWriter, made: Change) -> None:
        transaction: WriterTransaction = writer.new_transaction()
        try:
            transaction.begin()
            transaction.add(made.outputs)
            transaction.add_offsets(made.offsets, GroupMetadata(self._target.group, None))
            transaction.commit()
        except FencedError as error:
            raise FencedError(
                f"nothing was committed, an owner has come meanwhile: {error}. Fix: stop it, and begin anew"
            ) from error
        except CommitOutcomeUnknownError as error:
            if writer.reopen() is not Outcome.COMMITTED:
                raise UnavailableError(f"nothing was committed: {error}", code=error.code) from error
        except (AbortableError, ReopenError) as error:
            raise UnavailableError(f"nothing was committed: {error}", code=error.code) from error

    def _mirror_first(self, made: Change, stored: Mapping[Partition, Committed]) -> None:
        """The offsets in Kafka of positions that are about to go back."""
        back = [p for p, at in stored.items() if p in made.offsets and made.offsets[p] < at.offset]
        if back:
            self._set_mirror({p: Committed(made.offsets[p], MIRROR, made.offsets.epoch_of(p)) for p in back})

    def _mirror(self, partitions: Sequence[Partition]) -> list[str]:
        """Those of all positions that were set. That they could not be written is only said: the next commit of an owner does."""
        try:
            self._set_mirror(
                {
                    p: Committed(at.offset, MIRROR, at.leader_epoch)
                    for p, at in self.stored(partitions).items()
                }
            )
        except EosError as error:
            return [
                f"the offsets of group {self._target.group!r} in Kafka, a mirror for tools, could not be set: {error}"
            ]
        return []

    def _set_mirror(self, offsets: Mapping[Partition, Committed]) -> None:
        groups, settings = Admin.of(self._settings).groups, self._settings
        retry.ask(
            lambda s: groups.set_offsets(self._target.group, offsets, s), timeout_s=settings.open_timeout_s
        )


def _committed(position: Position) -> Committed:
    return Committed(position.next_offset, position.metadata, position.leader_epoch)
