"""Outbox: a table of records to send, which an application writes to in its own transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Identity,
    Index,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    insert,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import UserDefinedType

from eos.errors import UsageError
from eos.headers import Headers
from eos.records import not_writable
from eos.sql.headers import to_json

ParamStyle = Literal["format", "qmark", "named", "pyformat", "numeric_dollar"]
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_COLUMNS = ("topic", "key", "value", "headers")
_MARKS: dict[ParamStyle, str] = {
    "format": "%s",
    "qmark": "?",
    "named": ":{name}",
    "pyformat": "%({name})s",
    "numeric_dollar": "${number}",
}


class _Xid(UserDefinedType[str]):
    """The full number of a transaction; as text in Python."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


@compiles(_Xid, "sqlite")
def _xid_in_sqlite(_type: _Xid, _compiler: Any, **_: Any) -> str:
    return "BIGINT"


class _CurrentXid(GenericFunction[str]):
    """The number of the transaction that inserts the row, also inside a savepoint."""

    name = "pg_current_xact_id"
    inherit_cache = True


@compiles(_CurrentXid, "sqlite")
def _current_xid_in_sqlite(_function: _CurrentXid, _compiler: Any, **_: Any) -> str:
    return "0"


class Outbox:
    """The table ``eos_outbox``.

    ::

        outbox = Outbox(metadata)
        with engine.begin() as connection:
            connection.execute(update(accounts)...)
            outbox.add(connection, "settlements", key=b"42", value=b"...")

    A record is relayed if and only if the transaction commits, and once. Records of transactions that depend on each other (the
    second one begins its insert when the first has committed, as where both change one row) keep their order.

    Args:
        metadata: of the application's tables, so that its migrations make this one too.
        name: of the table, in the schema of the metadata.

    Raises:
        UsageError: it is a name that needs quotes.
    """

    def __init__(self, metadata: MetaData, name: str = "eos_outbox") -> None:
        for given in (name, *([metadata.schema] if metadata.schema else [])):
            if not _NAME.fullmatch(given):
                raise UsageError(
                    f"an outbox's table and schema have names that need no quotes, so that any driver can write to it; {given!r} does. "
                    "Fix: small letters, digits and '_'"
                )
        self.table = Table(
            name,
            metadata,
            Column(
                "id",
                BigInteger().with_variant(Integer, "sqlite"),
                Identity(always=True),
                primary_key=True,
            ),
            Column("xid", _Xid, nullable=False, server_default=_CurrentXid()),
            Column("topic", Text, nullable=False),
            Column("key", LargeBinary),
            Column("value", LargeBinary),
            Column("headers", Text, nullable=False, server_default="[]"),
            Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
            # What is no JSON is refused where it is inserted, and not when it is relayed.
            CheckConstraint("json_typeof(headers::json) IN ('array', 'object')").ddl_if("postgresql"),
            CheckConstraint("json_type(headers) IN ('array', 'object')").ddl_if("sqlite"),
            # An id that was pruned is not given out again.
            sqlite_autoincrement=True,
        )
        Index(f"{name}_xid", self.table.c.xid).ddl_if(dialect="postgresql")

    def add(
        self,
        connection: Connection | Session,
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] = (),
    ) -> None:
        """Insert a record, in the transaction of the connection (or of a session of SQLAlchemy's ORM).

        Raises:
            UsageError: the record is not one.
        """
        connection.execute(self.statement(topic, key, value, headers))

    def statement(
        self,
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] = (),
    ) -> Insert:
        """The statement of `add`, for an asynchronous connection: ``await connection.execute(outbox.statement(...))``."""
        values = dict(zip(_COLUMNS, self.parameters(topic, key, value, headers), strict=True))
        return insert(self.table).values(values).inline()

    def sql(self, style: ParamStyle = "format") -> str:
        """The same statement for any other driver, in its ``paramstyle``.

        ``cursor.execute(outbox.sql("qmark"), outbox.parameters("settlements", key, value))``
        """
        marks = [_MARKS[style].format(name=name, number=number) for number, name in enumerate(_COLUMNS, 1)]
        return f'INSERT INTO {self.table.fullname} ("topic", "key", "value", "headers") VALUES ({", ".join(marks)})'  # noqa: S608 - a name of the application's own

    @staticmethod
    def parameters(
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | Mapping[str, bytes | None] = (),
    ) -> tuple[str, bytes | None, bytes | None, str]:
        """What `sql` takes, in its order.

        Raises:
            UsageError: the record is not one.
        """
        if not isinstance(topic, str) or not topic:
            raise UsageError(f"a record goes to a topic, not to {topic!r}")
        for what, given in (("key", key), ("value", value)):
            if given is not None and not isinstance(given, bytes):
                raise UsageError(f"the {what} of a record is bytes or None, not {type(given).__name__}")
        pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
        if wrong := [pair for pair in pairs if not _is_header(pair)]:
            raise UsageError(f"a header is a name and bytes or None, not {wrong[0]!r}")
        if (unfit := not_writable(None, None, [pairs])) is not None:
            raise UsageError(unfit[1])
        return topic, key, value, to_json(pairs)


def _is_header(pair: object) -> bool:
    match pair:
        case (str(), None | bytes()):
            return True
    return False
