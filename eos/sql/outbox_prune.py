"""Prune an outbox: delete rows that were relayed some time ago, and no other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, text

from eos.settings import Settings
from eos.sql.dialect import Dialect
from eos.sql.engine import engine_of
from eos.sql.limits import Limits, limit
from eos.sql.meaning import explained
from eos.sql.outbox import Outbox
from eos.sql.outbox_job import OutboxJob
from eos.sql.outbox_position import OutboxPosition
from eos.sql.outbox_read import WHOLE, Part, array
from eos.sql.relays import committed_entries, require_kept

_BATCH_ROWS = 5_000
_LIMITS = Limits(lock_s=30.0, transaction_s=3600.0)  # a table without statistics is read as a whole for each


def prune(
    connection: Connection,
    outbox: Outbox,
    *,
    older_than: timedelta,
    committed: OutboxPosition,
    batch: int,
    part: Part = WHOLE,
) -> int:
    """Delete relayed rows of a certain age: at most ``batch``, so that the transaction stays short.

    Args:
        connection: to the database.
        outbox: the table.
        older_than: the age.
        committed: the position that the relay has committed; no row behind it is deleted.
        batch: the number of rows.
        part: whose position it is.

    Returns:
        How many were deleted; fewer than ``batch``: there are no more.
    """
    table = outbox.table.fullname
    prunable, values = _prunable(connection, older_than, committed, part)
    # Of two that prune, none waits for the other.
    skip = "" if connection.dialect.name == Dialect.SQLITE else " FOR UPDATE SKIP LOCKED"
    statement = f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {prunable} ORDER BY id LIMIT :batch{skip})"  # noqa: S608 - a name of the application's own
    return connection.execute(text(statement), values | {"batch": batch}).rowcount


def count_prunable(
    connection: Connection,
    outbox: Outbox,
    *,
    older_than: timedelta,
    committed: OutboxPosition,
    part: Part = WHOLE,
) -> int:
    """How many rows `prune` would delete, batch by batch."""
    prunable, values = _prunable(connection, older_than, committed, part)
    statement = f"SELECT count(*) FROM {outbox.table.fullname} WHERE {prunable}"  # noqa: S608 - as above
    return int(connection.execute(text(statement), values).scalar_one())


def prune_relayed(
    job: OutboxJob,
    settings: Settings,
    *,
    older_than: timedelta,
    act: bool,
    on_progress: Callable[[int], None] = lambda _rows: None,
) -> int:
    """Delete the rows of a job's outbox that are relayed and of a certain age, in short transactions.

    Args:
        job: whose outbox.
        settings: those that the job runs with.
        older_than: the age.
        act: delete them; else they are only counted.
        on_progress: called behind each transaction with the number of rows until then.

    Returns:
        The number of rows.

    Raises:
        ConfigError: nothing was relayed yet, or an offset is none of this job's.
        OffsetGapError: it is another database than the one that was relayed, or an earlier state of it.
        UnavailableError: the cluster or the database did not answer.
    """
    target = job.identity(settings)
    entries = committed_entries(settings, target, job.relayed)
    engine = engine_of(settings, app=job.name, waits_s=_LIMITS.transaction_s)
    done = 0
    try:
        with explained(), engine.connect() as connection:
            for number, entry in entries.items():
                part, position = Part(number, job.shards), entry.position
                if not act:
                    with connection.begin():
                        limit(connection, _LIMITS)
                        require_kept(connection, target, job.relayed, number, entry)
                        done += count_prunable(
                            connection, job.outbox, older_than=older_than, committed=position, part=part
                        )
                deleted = _BATCH_ROWS if act else 0
                while deleted == _BATCH_ROWS:
                    with connection.begin():
                        limit(connection, _LIMITS)
                        require_kept(connection, target, job.relayed, number, entry)
                        deleted = prune(
                            connection,
                            job.outbox,
                            older_than=older_than,
                            committed=position,
                            batch=_BATCH_ROWS,
                            part=part,
                        )
                    done += deleted
                    on_progress(done)
    except Exception as error:
        if done and act:
            error.add_note(f"{done:,} rows were deleted before")
        raise
    finally:
        engine.dispose()
    return done


def _prunable(
    connection: Connection, older_than: timedelta, committed: OutboxPosition, part: Part
) -> tuple[str, dict[str, Any]]:
    """The condition for rows that were relayed and are of that age, with its values."""
    seconds = int(older_than.total_seconds())
    values: dict[str, Any] = {"last": committed.last}
    if connection.dialect.name == Dialect.SQLITE:
        relayed = "id <= :last AND created_at < datetime('now', :age)"
        values["age"] = f"{-seconds} seconds"
    else:
        relayed = "xid < CAST(:seen_max AS xid8) AND NOT xid = ANY(CAST(:seen_open AS xid8[]))"
        if (until := committed.until) is not None:
            relayed = (
                f"({relayed} OR id <= :last AND xid < CAST(:until_max AS xid8) "
                "AND NOT xid = ANY(CAST(:until_open AS xid8[])))"
            )
            values |= {"until_max": str(until.xmax), "until_open": array(until.open)}
        relayed += " AND created_at < now() - make_interval(secs => :seconds)"
        values |= {
            "seen_max": str(committed.seen.xmax),
            "seen_open": array(committed.seen.open),
            "seconds": seconds,
        }
    of_part, its_values = part.where()
    return relayed + of_part, values | its_values
