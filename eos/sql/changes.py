"""What a job's transform asks of the database: rows to insert, to write over, to delete; pure but for `Rows.apply`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    Connection,
    Date,
    DateTime,
    Integer,
    Interval,
    Numeric,
    String,
    Table,
    Time,
    Uuid,
    and_,
    bindparam,
    delete,
    insert,
)
from sqlalchemy.dialects import postgresql, sqlite

from eos.records import InputBatch, OutputRefusedError
from eos.sql.copying import COPIED_AT_LEAST, copy_into
from eos.sql.dialect import Dialect
from eos.sql.tables import dead_letters

_MAX_SHAPES = 1_000
_BYTES_OF_A_VALUE = 16  # about
# Types whose values are text, numbers and times, which nothing can change. Those of others may be lists, dicts or buffers.
_OF_PLAIN_VALUES = (Boolean, Date, DateTime, Integer, Interval, Numeric, String, Time, Uuid)
_TAKE_EVERY_TEXT = ("UTF8", "SQL_ASCII")  # encodings of a database


class Insert(NamedTuple):
    """A new row. If its key is there already, the database refuses the input record (poison policy)."""

    table: Table
    values: Mapping[str, Any]


class Upsert(NamedTuple):
    """A row, in place of the one with its primary key, if there is one. Columns that are not named stay as they are."""

    table: Table
    values: Mapping[str, Any]


class Delete(NamedTuple):
    """The row with these values is deleted, if it is there; ``key`` names at least the primary key."""

    table: Table
    key: Mapping[str, Any]


class InsertBatch(NamedTuple):
    """New rows, by column: what `Insert` is for one. All columns are of one length."""

    table: Table
    columns: Mapping[str, Sequence[Any]]


class UpsertBatch(NamedTuple):
    """Rows, by column: what `Upsert` is for one."""

    table: Table
    columns: Mapping[str, Sequence[Any]]


class DeleteBatch(NamedTuple):
    """Keys of rows, by column: what `Delete` is for one."""

    table: Table
    columns: Mapping[str, Sequence[Any]]


Change = Insert | Upsert | Delete
Batch = InsertBatch | UpsertBatch | DeleteBatch
_ONE_BY_ONE: dict[type, type[Change]] = {
    Insert: Insert,
    Upsert: Upsert,
    Delete: Delete,
    InsertBatch: Insert,
    UpsertBatch: Upsert,
    DeleteBatch: Delete,
}
_BATCHES = (InsertBatch, UpsertBatch, DeleteBatch)


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one kind to one table and the same columns: one statement.

    Attributes:
        rows: the values of each, in the order of ``columns``.
    """

    kind: type[Change]
    table: Table
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.rows) * len(self.columns) * _BYTES_OF_A_VALUE

    def changes(self) -> Iterator[Change]:
        """One by one."""
        for row in self.rows:
            yield self.kind(self.table, dict(zip(self.columns, row, strict=True)))

    def apply(self, connection: Connection, topic_id_of: Callable[[str], str]) -> int:
        """Run the statement; returns the number of rows."""
        copy = copy_into(connection, self.table, self.columns) if self._may_be_copied else None
        if copy is not None and copy.takes(self.rows):
            copy.run(connection, self.rows)
            return len(self.rows)
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        if self.table is dead_letters:
            for row in rows:
                row["topic_id"] = topic_id_of(row["topic"])
                if not _takes_every_text(connection):
                    row["headers"] = json.dumps(json.loads(row["headers"]))
                    row["reason"] = row["reason"].encode("ascii", "backslashreplace").decode()
        if self.kind is Delete:
            key = and_(*(self.table.c[name] == bindparam(f"key_{name}") for name in self.columns))
            given = [{f"key_{name}": value for name, value in row.items()} for row in rows]
            connection.execute(delete(self.table).where(key), given)
        else:
            connection.execute(self._write(connection), rows)
        return len(rows)

    @property
    def _may_be_copied(self) -> bool:
        return self.kind is Insert and self.table is not dead_letters and len(self.rows) >= COPIED_AT_LEAST

    def _write(self, connection: Connection) -> Any:
        if self.kind is Insert:
            return insert(self.table)
        dialect: Any = postgresql if connection.dialect.name == Dialect.POSTGRESQL else sqlite
        statement = dialect.insert(self.table)
        key = [column.name for column in self.table.primary_key]
        new = {name: statement.excluded[name] for name in self.columns if name not in key}
        if not new:
            return statement.on_conflict_do_nothing(index_elements=key)
        return statement.on_conflict_do_update(index_elements=key, set_=new)


@dataclass(frozen=True, slots=True)
class Call:
    """SQL of the job's own for a batch."""

    function: Callable[[Connection, InputBatch], object]
    batch: InputBatch
    size = 0

    def __len__(self) -> int:
        """How many rows it writes is not known."""
        return 0

    def apply(self, connection: Connection, _: Callable[[str], str]) -> int:
        """Call it."""
        self.function(connection, self.batch.as_received())
        return 0


def checked(
    name: str, tables: Sequence[Table], made: object, known: dict[object, Sequence[str]] | None = None
) -> list[Change | Batch]:
    """What a transform has returned, if it is a list of changes to declared tables; in rows, columns and values of its own.

    A transform may use them again for the next change.

    Args:
        name: the job's.
        tables: declared.
        made: returned.
        known: the kinds of changes, with table and columns, that were found right in earlier calls; for each the columns whose
            values can be changed.

    Raises:
        OutputRefusedError: it is not.
        ValueError: a change lacks a column of its table's primary key, or names one that the table does not have; or the columns of a
            batch differ in length.
    """
    if not isinstance(made, Iterable) or isinstance(made, (*_ONE_BY_ONE, str, bytes, Mapping)):
        raise OutputRefusedError(
            f"SqlJob {name!r}: the transform returned {type(made).__name__}, not a list of changes. Fix: return [Upsert(…), …], or []"
        )
    changes: list[Change | Batch] = []
    known = {} if known is None or len(known) > _MAX_SHAPES else known
    for change in made:
        if type(change) not in _ONE_BY_ONE:
            raise OutputRefusedError(
                f"SqlJob {name!r}: the transform returned {type(change).__name__} in its list, not Insert, Upsert or Delete"
            )
        table, given = change
        if (shape := (change.__class__, table, *given)) not in known:
            if table not in tables:
                raise OutputRefusedError(
                    f"SqlJob {name!r} changes {table}, which is not declared. Fix: add it to tables "
                    f"(now: {', '.join(table.name for table in tables)})"
                )
            _require_columns(change)
            known[shape] = _with_values_that_change(table, given)
        if change.__class__ in _BATCHES:
            if len({len(column) for column in given.values()}) > 1:
                raise ValueError(
                    f"{type(change).__name__} of {table.name}: its columns differ in length: "
                    + ", ".join(f"{column} has {len(values)}" for column, values in given.items())
                )
            own: dict[str, Any] = {column: list(values) for column, values in given.items()}
            for column in known[shape]:
                own[column] = list(map(_own, own[column]))
        else:
            own = dict(given)
            for column in known[shape]:
                own[column] = _own(own[column])
        changes.append(change.__class__(table, own))
    return changes


def _own(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray | memoryview) else deepcopy(value)


def _with_values_that_change(table: Table, columns: Iterable[str]) -> list[str]:
    return [name for name in columns if not isinstance(table.columns[name].type, _OF_PLAIN_VALUES)]


def _takes_every_text(connection: Connection) -> bool:
    """Whether the database's encoding has all characters. A dead letter that is refused would be tried for ever."""
    if connection.dialect.name != Dialect.POSTGRESQL:
        return True
    driver: Any = connection.connection.driver_connection
    return driver.info.parameter_status("server_encoding") in _TAKE_EVERY_TEXT


def _require_columns(change: Change | Batch) -> None:
    columns, given = change.table.columns, change[1]
    if unknown := [name for name in given if name not in columns]:
        raise ValueError(f"{change.table.name} has no column {', '.join(map(str, unknown))}")
    if _ONE_BY_ONE[type(change)] is not Insert and (
        lacking := [column.name for column in change.table.primary_key if column.name not in given]
    ):
        raise ValueError(
            f"{type(change).__name__} of {change.table.name}: it lacks {', '.join(lacking)} of the primary key"
        )


def grouped(changes: Iterable[Change | Batch], order: Sequence[Table]) -> list[Rows]:
    """Statements for them: table by table, in the order of the declaration, so that a referenced row comes first; per table in order."""
    found: dict[Table, list[Rows]] = {table: [] for table in (*order, dead_letters)}
    last: Rows | None = None  # of any table: a run of changes of one shape costs little
    for change in changes:
        table, given = change
        kind, columns = _ONE_BY_ONE[change.__class__], tuple(given)
        if last is None or last.table is not table or last.kind is not kind or last.columns != columns:
            of_table = found[table]
            last = of_table[-1] if of_table else None
            if last is None or last.kind is not kind or {*last.columns} != {*columns}:
                of_table.append(last := Rows(kind, table, columns, []))
        if change.__class__ in _BATCHES:
            last.rows.extend(zip(*(given[name] for name in last.columns), strict=True))
        elif last.columns == columns:
            last.rows.append(tuple(given.values()))
        else:
            last.rows.append(tuple(given[name] for name in last.columns))
    # Without rows SQLAlchemy would insert one of defaults.
    return [one for of_table in found.values() for one in of_table if one.rows]
