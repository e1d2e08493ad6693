"""The rows that changes of several input partitions make, against a table to which they were applied in any order that can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    select,
    update,
)

from eos.offsets import Partition
from eos.sql.changes import Change, Delete, Upsert, grouped
from eos.sql.expected_rows import ExpectedRows
from eos.sql.tables_report import TableCount

KEYS = ("x", "X", "y", "z")
_values = st.fixed_dictionaries(
    {}, optional={"a": st.sampled_from([None, 1, 2]), "b": st.sampled_from([None, "p", "q"])}
)
_changes = st.lists(
    st.tuples(
        st.integers(0, 1),  # the input partition
        st.sampled_from([Upsert, Upsert, Delete]),
        st.sampled_from(KEYS),
        _values,
    ),
    max_size=10,
)


def table_of(collation: str | None) -> Table:
    columns = Column("a", Integer), Column("b", String(4), server_default="d")
    return Table("kept", MetaData(), Column("k", String(8, collation=collation), primary_key=True), *columns)


@contextmanager
def applied(table: Table, changes: Sequence[tuple[int, Change]]) -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        for _, change in changes:
            for rows in grouped([change], [table]):
                rows.apply(connection, lambda _: "")
        yield connection
    engine.dispose()


def compared(connection: Connection, table: Table, changes: Sequence[tuple[int, Change]]) -> TableCount:
    """The changes come partition by partition, as far as a reader can tell."""
    expected = ExpectedRows(connection, table, 0)
    for number, change in sorted(changes, key=lambda one: one[0]):
        expected.fold(Partition("in", number), change)
    count, _ = expected.compared()
    connection.exec_driver_sql("DROP TABLE eos_expected_0")
    return count


@pytest.mark.parametrize("collation", [None, "NOCASE"])
@given(made=_changes, damage=st.sampled_from(["deleted", "changed"]), at=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_what_was_applied_is_right_and_a_row_that_was_damaged_since_is_found(
    collation: str | None, made: list[tuple[int, type, str, dict[str, Any]]], damage: str, at: int
) -> None:
    table = table_of(collation)
    changes = [(number, kind(table, {"k": key, **values})) for number, kind, key, values in made]
    with applied(table, changes) as connection:
        count = compared(connection, table, changes)
        assert not count.differs, count
        keys = connection.execute(select(table.c.k)).scalars().all()
        if not keys:
            return
        key = keys[at % len(keys)]
        same = [(number, one) for number, one in changes if is_of(one, key, collation)]
        if damage == "deleted":
            connection.execute(delete(table).where(table.c.k == key))
            is_known = len({number for number, _ in same}) == 1 or not any(
                isinstance(one, Delete) for _, one in same
            )
        else:
            connection.execute(update(table).where(table.c.k == key).values(a=9))
            is_known = len({number for number, _ in same}) == 1
            is_known &= any(isinstance(one, Upsert) and "a" in one.values for _, one in changes)
        assert compared(connection, table, changes).differs or not is_known


def is_of(change: Change, key: str, collation: str | None) -> bool:
    own = str(change[1]["k"])
    return own == key if collation is None else own.lower() == key.lower()
