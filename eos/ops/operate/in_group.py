"""Positions that are offsets of the job's group: committed in a transaction of Kafka (`commit`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from eos import retry
from eos.deadletter import dead_letter, skipped_by_operator
from eos.errors import ConfigError
from eos.group.committed import offsets_at
from eos.group.metadata import OffsetMetadata
from eos.group.others import refuse_copied
from eos.identity import Identity
from eos.job import Declaration
from eos.kafka.admin import Admin, Mark
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.ops.check.transactions import TransactionsView
from eos.ops.operate.choosing import all_partitions, stored_of
from eos.ops.operate.commit import commit_in_place, owners_of, stored_offsets, why_refused
from eos.ops.operate.owners import Owners
from eos.ops.operate.positions import Done, MakeChange, Positions, Refusal, Scope
from eos.records import InputRecord, by_topic
from eos.settings import Settings
from eos.settings.binding import bind
from eos.transform import Applied


def positions_of(settings: Settings, target: Identity) -> Positions:
    """The positions of a job that an operator may set (`eos.ops.operate.target`).

    Raises:
        ConfigError: the settings do not say where they are.
    """
    if target.positions is None:
        return InGroup(settings, target)
    made: Positions = target.positions(settings)
    return made


class InGroup:
    """See above; the calls of `eos.ops.operate.positions.Positions`."""

    def __init__(self, settings: Settings, target: Identity) -> None:
        self._settings = settings
        self._target = target

    @property
    def letters(self) -> str | None:
        return self._target.dead_letters

    def stored(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        return stored_of(self._settings, self._target.group, partitions)

    def own(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """As of every job; once no transaction is pending on it."""
        return stored_offsets(self._settings, self._target, partitions)

    def of_group(self, group: str, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        copied = stored_of(self._settings, group, partitions)
        refuse_copied(self._settings, group, copied)
        return copied

    def look(self, scope: Scope) -> Refusal:
        with TransactionsView(self._settings) as view:
            reason = why_refused(self._settings, view, self._target, scope.resting)
            others, notes = self._owners_of(view, scope)
            try:
                for owners in others:
                    owners.refuse_live()
            except ConfigError as error:
                reason = reason or str(error)
        return Refusal(reason, notes)

    def commit(self, scope: Scope, change: MakeChange) -> Done:
        with TransactionsView(self._settings) as view:
            others, notes = self._owners_of(view, scope)
            self.own(scope.partitions)  # refuses those of another job
            owners = (owners_of(self._settings, view, self._target, scope.resting), *others)
            fenced = commit_in_place(self._settings, self._target, scope.partitions, change, owners=owners)
        return Done(fenced, notes)

    def consequences(self, *, again: int, skipped: int) -> list[str]:
        found = []
        if again:
            found.append(
                f"{again:,} offsets are gone back: their records are processed again, and what they make is written a second time, "
                "beside what is there"
            )
        if skipped:
            found.append(
                f"{skipped:,} offsets are skipped: the job does not process their records (what a run made of them before stays)"
            )
        if found:
            found.append(
                "the committed offsets no longer stand for the whole output: from then on eos verify needs --input-from and "
                "--output-from"
            )
        return found

    def verify_from(self) -> list[str]:
        settings, target = self._settings, self._target
        stored = self.stored(all_partitions(settings, target.group, target.inputs))
        inputs = {partition: one.offset for partition, one in stored.items()}
        outputs = offsets_at(
            settings, Mark.HIGH_WATERMARK, all_partitions(settings, target.group, target.outputs)
        )
        named: tuple[tuple[str, Mapping[Partition, int]], ...] = (
            ("--input-from", inputs),
            ("--output-from", outputs),
        )
        return [
            word
            for option, offsets in named
            for p, offset in sorted(offsets.items())
            if offset
            for word in (option, f"{p.topic}:{p.number}={offset}")
        ]

    def transform(self, job: Declaration) -> Applied | None:
        if job.applied is None or self._target.kind.on_spark:
            return None
        return bind(job.applied, self._settings)

    def letter(self, record: InputRecord, reason: str) -> list[Any]:
        topic = self._target.dead_letters
        return (
            []
            if topic is None
            else [*by_topic([dead_letter(record, skipped_by_operator(reason), topic=topic)])]
        )

    # --- inside ------------------------------------------------------------------------------------

    def _owners_of(self, view: TransactionsView, scope: Scope) -> tuple[list[Owners], list[str]]:
        """The owners of the source that would go on with the same work, and what there is to say of others."""
        settings, target = self._settings, self._target
        source, partitions = scope.source, scope.resting
        if source is None:
            return [], []
        stored = stored_of(settings, source, partitions)
        of = [one for at in stored.values() if (one := OffsetMetadata.parse(at.metadata)) is not None]
        apps = {one.app or target.app for one in of}
        if target.app in apps:
            owners = Owners(settings, view, app=target.app, group=source, mode=None, partitions=partitions)
            notes = [left(source, target.app)]
            if len(apps) > 1 or len(of) < len(stored):
                notes.append(unfenced(settings, source, apps - {target.app}))
            return [owners], notes
        return [], [unfenced(settings, source, apps)]


def left(group: str, app: str) -> str:
    """What there is to say of a group out of which a job's own positions are copied."""
    return f"{app!r} leaves the group {group!r}, and is refused there from then on: two groups process the same input twice"


def unfenced(settings: Settings, group: str, apps: Collection[str]) -> str:
    """What there is to say of a group of other jobs, or of no job of eos."""
    admin = Admin.of(settings)
    members = retry.ask(lambda s: admin.groups.members(group, s), timeout_s=settings.open_timeout_s)
    whose = f"job {', '.join(sorted(apps))}" if apps else "another program"
    alive = f" It has {len(members)} live members, and goes on." if members else ""
    return f"the group {group!r} is of {whose}, which is not fenced.{alive}"
