"""Verification of an outbox: the committed positions say which rows are relayed  ⇔  the topics hold exactly one record of each.

Rows and records are compared by their contents, as multisets: a record does not say which row it was made of. Where relayed rows
were pruned, the records of those that are left are still looked for, and the number of all records is compared with that of all rows
that the offsets count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b

from sqlalchemy import Connection

from eos.errors import UnavailableError
from eos.offsets import Partition
from eos.ops.check.held_back import OnHeldBack, telling
from eos.ops.verifier.logs import LogReader, OnWait, Range
from eos.ops.verifier.watch import OnProgress, Watch
from eos.records import InputRecord
from eos.settings import Settings
from eos.sql.dialect import begin_snapshot
from eos.sql.engine import engine_of
from eos.sql.meaning import explained
from eos.sql.outbox_job import OutboxJob
from eos.sql.outbox_read import OutboxRow, every_row
from eos.sql.outbox_report import OutboxReport
from eos.sql.relay_entry import RelayEntry
from eos.sql.relays import committed_entries, require_kept
from eos.sql.tables import RELAY, check

_DEADLINE_S = 3600.0
_AT_A_TIME = 1_000_000  # contents that are compared in one pass; 150 bytes each
_EXAMPLES = 5


def verify_outbox(
    job: OutboxJob,
    settings: Settings,
    *,
    timeout_s: float = _DEADLINE_S,
    on_progress: OnProgress = lambda _stage, _done, _total: None,
    keeps_position: bool = True,
    on_held_back: OnHeldBack = lambda _one: None,
) -> OutboxReport:
    """Compare the rows that are relayed with the records in the topics, from outside. It only reads.

    Only this job may write to its topics: another writer's records are more than the rows. Where retention has deleted records, a
    row without a record is no fault, and their number is not compared; where rows were pruned as well, nothing is shown.

    Args:
        job: what was relayed.
        settings: the settings that the job ran with.
        timeout_s: seconds for all of it.
        on_progress: as of `eos.verify`.
        keeps_position: whether it was relayed by eos. Of another program every committed row counts as relayed.
        on_held_back: as of `eos.verify`.

    Raises:
        ConfigError: a topic or a table does not exist, or an offset is none of this job's.
        OffsetGapError: it is another database than the one that was relayed, or an earlier state of it.
        UnavailableError: the cluster or the database did not answer, the deadline passed, or the relay went on meanwhile.
    """
    watch = Watch(timeout_s, on_progress)
    on_wait = telling(settings, watch.deadline, on_held_back)
    return watch.keep(lambda: _verified(job, settings, watch, on_wait, keeps_position=keeps_position))


def _verified(
    job: OutboxJob, settings: Settings, watch: Watch, on_wait: OnWait, *, keeps_position: bool
) -> OutboxReport:
    target = job.identity(settings)
    engine = engine_of(settings, app=job.name, waits_s=watch.deadline.left_s)
    group = target.group

    def entries() -> dict[int, RelayEntry] | None:
        if not keeps_position:
            return None
        return committed_entries(settings, target, job.relayed, timeout_s=watch.deadline.left_s)

    watch.at("state", 0, 1)
    try:
        before = entries()
        with (
            LogReader(settings, group, watch.deadline) as reader,
            explained(),
            engine.connect() as connection,
        ):
            ranges = reader.settled(reader.partitions(job.outputs), on_wait)
            if entries() != before:
                raise UnavailableError(
                    f"{job.name!r} has relayed rows while its topics were looked at. Fix: let it catch up, or stop it, and verify then"
                )
            begin_snapshot(connection)
            check(connection, (job.outbox.table, *RELAY))
            for number, entry in (before or {}).items():
                require_kept(connection, target, job.relayed, number, entry)
            watch.at("state", 1, 1)
            skips = settings.poison.policy == "skip"
            return _compared(
                job, group, before, ranges, watch, skips=skips, reader=reader, connection=connection
            )
    finally:
        engine.dispose()


class _Contents:
    """How many more rows than records there are of each content, of those that fall into one pass of several."""

    def __init__(self, turn: int, passes: int) -> None:
        self._turn, self._passes = turn, passes
        self.more_rows: Counter[bytes] = Counter()
        self._shown: dict[bytes, str] = {}  # of records

    def count(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: object,
        *,
        add: int,
        record: InputRecord | None = None,
    ) -> None:
        digest = blake2b(repr((topic, key, value, headers)).encode(), digest_size=16).digest()
        if int.from_bytes(digest[:4]) % self._passes != self._turn:
            return
        self.more_rows[digest] += add
        if not self.more_rows[digest]:
            del self.more_rows[digest]
        elif record is not None and self.more_rows[digest] < 0 and len(self._shown) < _EXAMPLES:
            place = f"{record.topic}[{record.partition}] offset {record.offset}"
            self._shown[digest] = f"{place}: no row has its content"

    def examples(self) -> Iterator[str]:
        """Records that no row has."""
        for digest, place in self._shown.items():
            if self.more_rows.get(digest, 0) < 0:
                yield place


def _compared(
    job: OutboxJob,
    group: str,
    entries: Mapping[int, RelayEntry] | None,
    ranges: Mapping[Partition, Range],
    watch: Watch,
    *,
    skips: bool,
    reader: LogReader,
    connection: Connection,
) -> OutboxReport:
    relayed = sum(entry.relayed for entry in (entries or {}).values())
    passes = 1 + max(relayed, sum(one.end - one.start for one in ranges.values())) // _AT_A_TIME
    missing = unexpected = records = 0
    seen: Counter[str] = Counter()
    examples: list[str] = []
    for turn in range(passes):
        contents, seen, records = _Contents(turn, passes), Counter(), 0
        for row, shard in every_row(connection, job.outbox, job.shards):
            kind = _kind(
                row, job.outputs, waits=entries is not None and not _is_relayed(row, entries.get(shard))
            )
            seen[kind] += 1
            if kind == "relayed":
                contents.count(row.topic, row.key, row.value, row.headers, add=1)
        for record in reader.records(ranges, partial(watch.at, "output")):
            records += 1
            contents.count(
                record.topic, record.key, record.value, tuple(record.headers), add=-1, record=record
            )
        missing += sum(count for count in contents.more_rows.values() if count > 0)
        unexpected -= sum(count for count in contents.more_rows.values() if count < 0)
        examples += contents.examples()
    return OutboxReport(
        group=group,
        relayed=relayed if entries is not None else seen["relayed"] + seen["left out"],
        present=seen["relayed"] + seen["left out"],
        left_out=seen["left out"],
        waiting=seen["waiting"],
        records=records,
        missing=missing,
        unexpected=unexpected,
        whole=all(one.start == 0 for one in ranges.values()),
        skips=skips,
        examples=tuple(examples[:_EXAMPLES]),
    )


def _is_relayed(row: OutboxRow, entry: RelayEntry | None) -> bool:
    return entry is not None and entry.position.relayed(row.xid, row.id)


def _kind(row: OutboxRow, outputs: Sequence[str], *, waits: bool) -> str:
    return "waiting" if waits else "relayed" if row.topic in outputs and _legible(row) else "left out"


def _legible(row: OutboxRow) -> bool:
    try:
        return row.headers is not None
    except ValueError:
        return False
