"""A job that relays the rows of an outbox, as a trial sees it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.ops.verifier.verify import OnMade
from eos.prove.catching_up import InputRoom
from eos.prove.compared import Compared
from eos.prove.gauge import CALL_S, Gauge, Sample
from eos.prove.inputs import Inputs
from eos.prove.outbox_writers import OutboxWriters
from eos.prove.rows_order import OrderFound, RowsOrder
from eos.prove.source import Source
from eos.prove.trial import Trial
from eos.prove.trial_database import TrialDatabase
from eos.prove.tried import JUDGED_S, partitions_of
from eos.settings import Settings

if TYPE_CHECKING:
    from eos.sql.outbox_job import OutboxJob

_READ_S = 60.0
_LAST = 5_000  # records among which the one of the newest row is looked for


class OfRows:
    """Its place counts its rows. What is left to do are committed rows without a record that a reader of committed records sees."""

    def __init__(
        self, trial: Trial, job: OutboxJob, settings: Settings, source: Source, database: TrialDatabase
    ) -> None:
        self._trial, self._job, self.database, self._server = trial, job, database, database
        group = next(iter(trial.job.commits))
        # Several shards count on one partition, each in a group of its own: their counts are no places there.
        self.places = frozenset([job.outputs[0]] if job.shards == 1 else [])
        self.gauge = RowsGauge(settings, group, partitions_of(trial)[1], job.outbox.table.fullname, database)
        room = InputRoom(self.gauge).room
        self._order = RowsOrder(database, job.outbox.table.fullname)
        self.load = OutboxWriters(
            database, job.outbox, source, self._order, seed=trial.seed, rate=trial.rate, room=room
        )
        self.inputs = Inputs(settings, group, self.gauge, source.take, self.load.held)

    @property
    def fed(self) -> int:
        return self.gauge.rows()

    def compared(self, on_made: OnMade) -> Compared:  # noqa: ARG002 - a record does not say which row it was made of
        from eos.sql.verify_outbox import verify_outbox

        report = verify_outbox(
            self._job, self._server.settings, timeout_s=JUDGED_S, keeps_position=self._trial.runtime.is_eos
        )
        waits = 0 if self._trial.runtime.is_eos or self.gauge.has_newest() else report.missing
        counts = (
            (report.missing - waits, "row", "without a record"),
            (report.unexpected, "record", "that no row has"),
            (max(0, report.too_many), "record", "more than rows"),
            (max(0, -report.too_many - waits), "record", "fewer than rows"),
            (max(0, -report.pruned), "row", "more than the position counts"),
            (0 if report.skips else report.left_out, "row", "that can be no record"),
        )
        against = (
            [f"{counted(count, of)} {what}" for count, of, what in counts if count] if report.differs else []
        )
        order = self._ordered()
        if order is not None and order.late:
            against = [
                f"{counted(order.late, 'record')} behind one of the same key that depends on it (reordered)",
                *against,
                *order.examples,
            ]
        expected = report.relayed - report.left_out
        return Compared(
            records=report.relayed - waits,
            complete=report.complete and not waits,
            against=[*against, *report.examples],
            shown=[
                ("records in the topics", f"{report.records:,} found, {expected:,} expected"),
                ("order", "not compared" if order is None else f"compared, of {order.compared:,} records"),
            ],
            committed={Partition(topic, 0): report.relayed for topic in self.places},
            empty=not expected,
        )

    def _ordered(self) -> OrderFound | None:
        """None: it was not to be compared."""
        if self._trial.order is False:
            return None
        with LogReader(self._server.settings, self._trial.job.group, Deadline(JUDGED_S)) as reader:
            return self._order.compare(reader, reader.settled(reader.partitions(self._job.outputs)))


class RowsGauge(Gauge):
    """How many rows there are, and how many records."""

    def __init__(
        self, settings: Settings, group: str, outputs: list[Partition], table: str, database: TrialDatabase
    ) -> None:
        super().__init__(settings, group, [], outputs, places=lambda _: {})
        self._database, self._table = database, table
        self._read_to: dict[Partition, int] = {}
        self._records = 0
        self._last: deque[tuple[str, bytes | None, bytes | None]] = deque(maxlen=_LAST)

    def rows(self) -> int:
        """The committed ones."""
        return int(self._database.ask(f"SELECT count(*) FROM {self._table}")[0][0])  # noqa: S608 - a name of the job's own

    def has_newest(self) -> bool:
        """Whether the newest row has a record. Then a program does not only lag behind with those that have none."""
        newest = f'SELECT topic, "key", "value" FROM {self._table} ORDER BY id DESC LIMIT 1'  # noqa: S608 - a name of the job's own
        return any(tuple(row) in self._last for row in self._database.ask(newest))

    def unread(self, partitions: Sequence[Partition] | None = None) -> int:  # noqa: ARG002 - rows are in none
        return self.look().lag

    def look(self) -> Sample:
        rows = self.rows()
        with self.looking:
            lsos, ends = (
                self._admin.offsets_at(mark, self._outputs, CALL_S)
                for mark in (Mark.LAST_STABLE, Mark.HIGH_WATERMARK)
            )
            with LogReader(self._settings, self._group, Deadline(_READ_S)) as log:
                ranges = {p: Range(self._read_to.get(p, 0), lsos[p]) for p in self._outputs}
                for record in log.records(ranges):
                    self._records += 1
                    self._last.append((record.topic, record.key, record.value))
            self._read_to.update(lsos)
            held_back = sum(ends[p] - lsos[p] for p in self._outputs)
            return Sample(
                time.monotonic() - self._began, max(0, rows - self._records), 0, held_back, self._records
            )
