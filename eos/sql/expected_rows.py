"""The rows that a job's input makes of one table, and how the table differs from them.

The changes are folded in a temporary table of the same database, so that values are compared as it keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    case,
    cast,
    false,
    func,
    inspect,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite

from eos.base.printable import printable
from eos.offsets import Partition
from eos.sql.changes import Change, Delete
from eos.sql.dialect import Dialect
from eos.sql.tables_report import TableCount

_ROWS_AT_A_TIME = 1_000
_EXAMPLES = 5


class ExpectedRows:
    """What the input makes of one table."""

    def __init__(self, connection: Connection, table: Table, number: int) -> None:
        self._connection = connection
        self._table = table
        self._key = [column.name for column in table.primary_key]
        self._others = [column.name for column in table.columns if column.name not in self._key]
        self._named: set[str] = set()
        self.lacks_key = False  # an Insert leaves its key to the database, so nothing says which row is its
        self._waiting: list[dict[str, Any]] = []
        self._shape: tuple[object, ...] = ()
        # Where a change does not name such a column, the database or SQLAlchemy fills it. Each has a flag: whether a change did.
        self._filled = {name: f"eos_named_{i}" for i, name in enumerate(_with_default(connection, table))}
        self._rows = Table(
            f"eos_expected_{number}",
            MetaData(),
            *(Column(column.name, column.type) for column in table.columns),
            Column("eos_partition", Text),
            Column("eos_deleted", Boolean),
            Column("eos_once_deleted", Boolean),  # by any change to its key
            Column(
                "eos_shared", Integer
            ),  # several input partitions change its key, in an order that is not known
            *(Column(flag, Boolean) for flag in self._filled.values()),
        )
        self._create()

    def _create(self) -> None:
        """With the types and collations that the columns have in the database, by which values are rounded, padded, and equal."""
        names, run = self._connection.dialect.identifier_preparer, self._connection.exec_driver_sql
        mine, theirs = names.format_table(self._rows), names.format_table(self._table)
        key = ", ".join(map(names.quote, self._key))
        if self._connection.dialect.name == Dialect.SQLITE:  # what it makes of a query has no collation
            columns = ", ".join(_declared(self._connection, self._table, [*self._key, *self._others]))
            run(f"CREATE TEMPORARY TABLE {mine} ({columns})")
        else:
            columns = ", ".join(names.quote(name) for name in (*self._key, *self._others))
            run(f"CREATE TEMPORARY TABLE {mine} AS SELECT {columns} FROM {theirs} WHERE 1 = 0")  # noqa: S608 - quoted names of tables
        for column in list(self._rows.columns)[len(self._table.columns) :]:
            run(f"ALTER TABLE {mine} ADD COLUMN {column.name} {column.type}")
        run(f"CREATE UNIQUE INDEX {mine}_key ON {mine} ({key})")

    def fold(self, partition: Partition, change: Change) -> None:
        """The next change, in the order of its input partition."""
        if any(name not in change[1] for name in self._key):
            self.lacks_key = True
            return
        deletes = isinstance(change, Delete)
        row = {
            **change[1],
            "eos_partition": str(partition),
            "eos_deleted": deletes,
            "eos_once_deleted": deletes,
            "eos_shared": 0,
            **{flag: not deletes and name in change[1] for name, flag in self._filled.items()},
        }
        if not deletes:
            self._named.update(name for name in change[1] if name not in self._key)
        shape = (deletes, *sorted(row))
        if shape != self._shape or len(self._waiting) >= _ROWS_AT_A_TIME:
            self._flush()
            self._shape = shape
        self._waiting.append(row)

    def _flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        dialect: Any = postgresql if self._connection.dialect.name == Dialect.POSTGRESQL else sqlite
        statement = dialect.insert(self._rows)
        new, had = statement.excluded, self._rows.c
        deletes, given = self._shape[0], [name for name in self._others if name in self._shape]
        changed: dict[str, Any]
        if deletes:
            # The row with these values, not with this key alone.
            its = and_(true(), *(_as_text(had[name]) == _as_text(new[name]) for name in given))
            changed = {"eos_deleted": case((its, true()), else_=had.eos_deleted)}
        else:
            was = {name: case((had.eos_deleted, null()), else_=had[name]) for name in self._others}
            changed = was | {name: new[name] for name in given} | {"eos_deleted": false()}
            changed |= {
                flag: or_(new[flag], and_(had[flag], not_(had.eos_deleted))) for flag in self._filled.values()
            }
        changed |= {
            "eos_partition": new.eos_partition,
            "eos_once_deleted": or_(had.eos_once_deleted, new.eos_once_deleted),
            "eos_shared": case((had.eos_partition != new.eos_partition, 1), else_=had.eos_shared),
        }
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=self._key, set_=changed), rows
        )

    def compared(self) -> tuple[TableCount, list[str]]:
        """How the table differs, with a few examples."""
        self._flush()
        ours, theirs = self._rows.c, self._table.c
        same = and_(*(ours[name] == theirs[name] for name in self._key))
        there = self._rows.join(self._table, same)
        other = or_(
            false(),
            *(
                and_(
                    ours[self._filled[name]] if name in self._filled else true(),
                    _as_text(ours[name]).is_distinct_from(_as_text(theirs[name])),
                )
                for name in sorted(self._named)
            ),
        )
        alone = ours.eos_shared == 0
        kept = and_(alone, ours.eos_deleted == false())
        gone = and_(alone, ours.eos_deleted == true())
        # Of a key that no change deletes, the row is there, whichever change came last.
        lasting = and_(not_(alone), ours.eos_once_deleted == false())
        left = self._rows.outerjoin(self._table, same)
        no_actual, no_expected = theirs[self._key[0]].is_(None), ours[self._key[0]].is_(None)
        counts: dict[str, tuple[Any, Any, Any]] = {
            "missing": (left, and_(or_(kept, lasting), no_actual), ours),
            "changed": (there, and_(kept, other), ours),
            "not deleted": (there, gone, ours),
            "not made by the input": (self._table.outerjoin(self._rows, same), no_expected, theirs),
        }
        found = {what: self._count(source, where) for what, (source, where, _) in counts.items()}
        examples = [
            f"{self._table.name}: {what}: "
            + printable(", ".join(f"{name}={value!r}" for name, value in zip(self._key, key, strict=True)))
            for what, (source, where, columns) in counts.items()
            if found[what]
            for key in self._keys(source, where, columns)
        ]
        return (
            TableCount(
                name=self._table.name,
                keys=self._count(self._rows, true()),
                expected=self._count(self._rows, kept),
                missing=found["missing"],
                changed=found["changed"],
                undeleted=found["not deleted"],
                extra=found["not made by the input"],
                undecided=self._count(self._rows, ours.eos_shared == 1),
            ),
            examples,
        )

    def _count(self, source: Any, where: Any) -> int:
        return int(
            self._connection.execute(select(func.count()).select_from(source).where(where)).scalar_one()
        )

    def _keys(self, source: Any, where: Any, columns: Any) -> Sequence[Any]:
        wanted = [columns[name] for name in self._key]
        return self._connection.execute(
            select(*wanted).select_from(source).where(where).limit(_EXAMPLES)
        ).all()


def _declared(connection: Connection, table: Table, names: Sequence[str]) -> Iterator[str]:
    """Columns as SQLite has them: name, type, and the collation of its key."""
    quote, run = connection.dialect.identifier_preparer.quote, connection.exec_driver_sql
    where = "main" if table.schema is None else table.schema
    types = {
        row.name.lower(): row.type for row in run(f"PRAGMA {quote(where)}.table_xinfo({quote(table.name)})")
    }
    indexes = run(f"PRAGMA {quote(where)}.index_list({quote(table.name)})").all()
    of_key = [one.name for one in indexes if one.origin == "pk"]
    collations = {
        row.name.lower(): row.coll
        for index in of_key
        for row in run(f"PRAGMA {quote(where)}.index_xinfo({quote(index)})")
        if row.name is not None  # its own number
    }
    for name in names:
        collation = f" COLLATE {quote(collations[name.lower()])}" if name.lower() in collations else ""
        yield f"{quote(name)} {types[name.lower()]}{collation}"


def _with_default(connection: Connection, table: Table) -> list[str]:
    """Columns that are not NULL in a new row that does not name them: by SQLAlchemy, or by the database."""
    declared = {
        one.name for one in table.columns if one.default or one.server_default or one.computed or one.identity
    }
    there = inspect(connection).get_columns(table.name, schema=table.schema)
    made = {one["name"] for one in there if one.get("default") or one.get("computed") or one.get("identity")}
    return [one.name for one in table.columns if one.name in declared | made]


def _as_text(column: Any) -> Any:
    """json has no equality in PostgreSQL."""
    return cast(column, Text) if isinstance(column.type, JSON) else column
