"""A job from topics to tables, as a trial sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eos.base.listing import counted
from eos.offsets import Partition
from eos.ops.verifier.verify import OnMade
from eos.prove.compared import Compared
from eos.prove.source import Source
from eos.prove.trial import Trial
from eos.prove.trial_database import TrialDatabase
from eos.prove.tried import JUDGED_S, FromTopics
from eos.settings import Settings

if TYPE_CHECKING:
    from eos.sql.job import SqlJob
    from eos.sql.tables_report import TableCount

_POSITIONS = "SELECT topic, partition, next_offset FROM eos_progress WHERE consumer_group = %s"


class OfTables(FromTopics):
    """Its place is its position in the database. Of a program that keeps none there, it is the committed offset of its group."""

    def __init__(
        self, trial: Trial, job: SqlJob, settings: Settings, source: Source, database: TrialDatabase
    ) -> None:
        super().__init__(trial, settings, source)
        self._job, self.database, self._server = job, database, database

    def compared(self, on_made: OnMade) -> Compared:  # noqa: ARG002 - a row is its record's by itself
        from eos.sql.verify import verify_tables

        places = None if self._trial.runtime.is_eos else self._stored(self.gauge.inputs)
        report = verify_tables(self._job, self._server.settings, timeout_s=JUDGED_S, places=places)
        counts = [
            f"{one.name}: {count:,} {what}" for one in report.tables for what, count in _differences(one)
        ]
        if report.failed:
            counts.append(f"{counted(report.failed, 'record')} for which the transform raises")
        return Compared(
            records=report.records,
            complete=report.complete,
            against=[*counts, *report.problems, *report.examples],
            shown=[(f"rows of {one.name}", _expected(one)) for one in report.tables],
            committed={one.partition: one.committed for one in report.inputs if one.committed is not None},
            empty=not any(one.keys for one in report.tables),
        )

    def _stored(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        rows = self._server.ask(_POSITIONS, self._group)
        positions = {Partition(topic, number): offset for topic, number, offset in rows}
        return positions if self._trial.runtime.is_eos else {**super()._stored(partitions), **positions}


def _differences(table: TableCount) -> list[tuple[str, int]]:
    counts = {
        "missing": table.missing,
        "changed": table.changed,
        "not deleted": table.undeleted,
        "not made by the input": table.extra,
    }
    return [(what, count) for what, count in counts.items() if count]


def _expected(table: TableCount) -> str:
    undecided = f"; {table.undecided:,} more are changed from several partitions, and not compared"
    return f"{table.expected:,} expected{undecided if table.undecided else ''}"
