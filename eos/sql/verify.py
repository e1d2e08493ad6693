"""Verification of tables: position of p = c  ⇔  the tables hold exactly what f(input[p][0:c]) makes.

The changes are folded in temporary tables of the same database, so that values are compared as it keeps them, in the one snapshot in which the
positions are read: the job may go on meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from sqlalchemy import Connection, select

from eos.base.printable import printable
from eos.errors import reason_of
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.check.held_back import held_back
from eos.ops.verifier.logs import LogReader, Range
from eos.ops.verifier.report import InputCount
from eos.ops.verifier.state import gone, input_ranges, waiting
from eos.ops.verifier.watch import OnProgress, Watch
from eos.records import InputBatch, InputRecord, OutputRefusedError
from eos.settings import Settings
from eos.sql import progress
from eos.sql.bound import BoundChanges
from eos.sql.changes import Change
from eos.sql.dialect import begin_snapshot
from eos.sql.engine import engine_of
from eos.sql.expected_rows import ExpectedRows
from eos.sql.job import SqlJob
from eos.sql.meaning import explained
from eos.sql.position import Position
from eos.sql.tables import check, dead_letters
from eos.sql.tables_report import TablesReport
from eos.transform import refuse_limit

_DEADLINE_S = 3600.0
_EXAMPLES = 5
_FROM_THE_FIRST = (
    "--input-from with the first offset that is left; rows of the input before it are then not made by it"
)


def verify_tables(
    job: SqlJob,
    settings: Settings,
    *,
    timeout_s: float = _DEADLINE_S,
    on_progress: OnProgress = lambda _stage, _done, _total: None,
    input_from: Mapping[Partition, int] | None = None,
    places: Mapping[Partition, int] | None = None,
) -> TablesReport:
    """Compare a job's tables with its input up to the positions, from outside. It only reads, but for temporary tables.

    A row is looked at in the columns that the transform names. Only this job may write these rows: another writer's are *not made by
    the input*. So are those of input that was deleted since, if ``input_from`` leaves it out.

    Args:
        job: its transform must be deterministic. One with ``apply=`` can't be judged: nothing says which rows its SQL makes.
        settings: the settings that the job ran with.
        timeout_s: seconds for all of it.
        on_progress: as of `eos.verify`.
        input_from: per input partition, where the group began, if not at 0.
        places: where a program is that keeps its place elsewhere than in ``eos_progress``.

    Raises:
        OffsetGapError: input has been deleted, and nothing says where to begin.
        UnavailableError: the cluster or the database did not answer, or the deadline passed.
        ConfigError: a topic or a table does not exist.
    """
    watch = Watch(timeout_s, on_progress)
    return watch.keep(lambda: _verified(job, settings, watch, input_from or {}, places))


def _verified(
    job: SqlJob,
    settings: Settings,
    watch: Watch,
    input_from: Mapping[Partition, int],
    places: Mapping[Partition, int] | None,
) -> TablesReport:
    group, engine = (
        job.identity(settings).group,
        engine_of(settings, app=job.name, waits_s=watch.deadline.left_s),
    )
    watch.at("state", 0, 1)
    try:
        with (
            LogReader(settings, group, watch.deadline) as reader,
            explained(),
            engine.connect() as connection,
        ):
            begin_snapshot(connection)
            check(connection)
            return _compared(job, settings, watch, input_from, places, reader=reader, connection=connection)
    finally:
        engine.dispose()


def _compared(
    job: SqlJob,
    settings: Settings,
    watch: Watch,
    input_from: Mapping[Partition, int],
    places: Mapping[Partition, int] | None,
    *,
    reader: LogReader,
    connection: Connection,
) -> TablesReport:
    group, partitions = job.identity(settings).group, reader.partitions(job.inputs)
    positions = progress.positions(connection, group)
    # High watermarks first: what is below one and not below an LSO read afterwards is held back.
    ends, starts, lsos = (
        reader.offsets_at(mark, partitions) for mark in (Mark.HIGH_WATERMARK, Mark.START, Mark.LAST_STABLE)
    )
    logs = {p: Range(starts[p], lsos[p]) for p in partitions}
    ids = {topic: shape.topic_id for topic, shape in reader.shapes(job.inputs).items()}
    problems = list(_contradictions(partitions, positions, lsos, ids))
    stored = {p: one.next_offset for p, one in positions.items()} if places is None else places
    processed = input_ranges(logs, stored, input_from, fix=_FROM_THE_FIRST)
    lettered = _lettered(connection, group, ids)
    problems += _letters_ahead(lettered, stored)
    watch.at("state", 1, 1)
    records, applied = Counter[Partition](), _Applied(job.bound(), settings.poison.policy)
    expected = {table: ExpectedRows(connection, table, n) for n, table in enumerate(job.tables)}
    if job.apply is not None:
        problems.append(
            "apply= runs SQL of its own, and nothing says which rows it makes: they are not compared"
        )
    for record in reader.records(processed, partial(watch.at, "input")):
        partition = Partition(record.topic, record.partition)
        records[partition] += 1
        if (partition, record.offset) in lettered or job.apply is not None:
            continue
        watch.record = record
        changes = applied.to(record)
        watch.record = None
        for change in changes:
            expected[change.table].fold(partition, change)
    watch.at("compare", 0, 1)
    problems += [
        f"table {table.name}: an Insert leaves the primary key to the database, and nothing says which row it made: it is not compared"
        for table, one in expected.items()
        if one.lacks_key
    ]
    compared = [one.compared() for one in expected.values() if job.apply is None and not one.lacks_key]
    watch.at("compare", 1, 1)
    watch.at("rest", 0, 1)
    rest = waiting(reader, logs, processed)
    watch.at("rest", 1, 1)
    return TablesReport(
        group=group,
        inputs=tuple(
            InputCount(p, processed[p].start, stored.get(p), records[p], rest[p], gone(logs[p], processed[p]))
            for p in partitions
        ),
        tables=tuple(count for count, _ in compared),
        letters=len(lettered),
        skipped=applied.skipped,
        failed=applied.failed,
        problems=tuple(problems),
        examples=(*applied.examples, *(text for _, texts in compared for text in texts)),
        held_back=held_back(settings, lsos, ends, watch.deadline),
    )


class _Applied:
    """The transform with the poison policy around it, as the job applies both; of records without a dead letter."""

    def __init__(self, transform: BoundChanges, policy: str) -> None:
        self._transform, self._policy = transform, policy
        self.skipped = self.failed = 0
        self.examples: list[str] = []

    def to(self, record: InputRecord) -> list[Change]:
        try:
            made = self._transform.grouped(self._transform.changes_of(record))
            return [change for rows in made for change in rows.changes()]
        except OutputRefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            place = InputBatch.of([record]).place
            refuse_limit(error, place)
            if self._policy == "skip":
                self.skipped += 1
                return []
            self.failed += 1
            if len(self.examples) < _EXAMPLES:
                without = ", and it has no dead letter" if self._policy == "dead-letter" else ""
                self.examples.append(
                    printable(
                        f"failed: {place}: the transform raised {reason_of(error)}{without}. poison.policy is {self._policy!r} "
                        "here: verify with the one that the job ran with"
                    )
                )
            return []


def _contradictions(
    partitions: Iterable[Partition],
    positions: Mapping[Partition, Position],
    lsos: Mapping[Partition, int],
    ids: Mapping[str, str],
) -> Iterator[str]:
    for partition in partitions:
        position = positions.get(partition)
        if position is None:
            continue
        if position.topic_id and ids.get(partition.topic) not in ("", position.topic_id):
            yield f"{partition}: the topic was deleted and created anew since the position was written"
        elif position.next_offset > lsos[partition]:
            yield (
                f"{partition}: the position {position.next_offset} lies behind the end of the input ({lsos[partition]}): input was lost "
                "(truncated, or the cluster is another one), or the position was set by hand"
            )


def _lettered(connection: Connection, group: str, ids: Mapping[str, str]) -> set[tuple[Partition, int]]:
    """The places of dead letters; not those in a topic that was deleted and created anew since."""
    columns = dead_letters.c
    rows = connection.execute(
        select(columns.topic, columns.partition, columns.record_offset, columns.topic_id).where(
            columns.consumer_group == group
        )
    )
    return {
        (Partition(topic, number), offset)
        for topic, number, offset, topic_id in rows
        if not topic_id or ids.get(topic) in ("", topic_id)
    }


def _letters_ahead(
    lettered: Iterable[tuple[Partition, int]], stored: Mapping[Partition, int]
) -> Iterator[str]:
    """A dead letter is written with the position that passes its record."""
    if ahead := sorted(place for place in lettered if place[1] >= stored.get(place[0], 0)):
        partition, offset = ahead[0]
        yield f"{len(ahead):,} dead letters are of records that are not processed; the first: {partition} offset {offset}"
