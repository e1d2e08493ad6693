"""Read an outbox from a position, and say whether its database is the one that the position was made in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from eos.errors import ConfigError, OffsetGapError, RecordRefusedError
from eos.headers import Headers
from eos.sql.dialect import Dialect
from eos.sql.headers import from_json
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition
from eos.sql.snapshot import Snapshot

_NO_HEADERS = "[]"
_ROWS_AT_A_TIME = 1_000
WAY_OUT = (
    "Fix: find out which of its rows the topics hold already, and delete those; then relay the rest under a new group (the setting "
    "group)"
)


class OutboxRow(NamedTuple):
    """One record to relay."""

    id: int
    xid: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers_json: str

    @property
    def headers(self) -> Headers:
        """Read only when they are asked for: those that were written by hand may be in no form that is known.

        Raises:
            ValueError: they are.
        """
        return () if self.headers_json == _NO_HEADERS else from_json(self.headers_json)


def columns_of(
    rows: Sequence[OutboxRow], outputs: Collection[str]
) -> list[tuple[str, list[Any], list[Any], dict[str, Any]]]:
    """The records of rows, by topic: their values, keys and headers.

    Raises:
        RecordRefusedError: one names a topic that is no output, or has headers in no form that is known.
    """
    by_topic: dict[str, list[OutboxRow]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
    if undeclared := sorted(by_topic.keys() - set(outputs)):
        raise RecordRefusedError(f"it names the topic {undeclared[0]!r}, which outputs= does not")
    try:
        return [
            (topic, [row.value for row in some], [row.key for row in some], {"headers": _headers_of(some)})
            for topic, some in by_topic.items()
        ]
    except ValueError as error:
        raise RecordRefusedError(f"its headers are in no form that is known: {error}") from error


def _headers_of(rows: Sequence[OutboxRow]) -> list[list[Any]] | None:
    """The headers of each row, as confluent-kafka takes them; None where no row has any. Raises ValueError."""
    if all(row.headers_json == _NO_HEADERS for row in rows):
        return None
    found = [[*row.headers] for row in rows]
    return found if any(found) else None


class Part(NamedTuple):
    """One of ``of`` parts of an outbox, by the hash of the key: each is relayed by itself, and rows of one key are in one part.

    Rows without a key have no order among each other, and are dealt out by their ids. SQLite cannot hash: there it is one part.
    """

    number: int = 0
    of: int = 1

    def require(self, dialect: Dialect) -> None:
        """Look whether such a database can be read in parts.

        Raises:
            ConfigError: it cannot.
        """
        if self.of > 1 and dialect is Dialect.SQLITE:
            raise ConfigError("SQLite cannot hash a key, so an outbox there has one shard. Fix: shards=1")

    def where(self) -> tuple[str, dict[str, int]]:
        """A condition for the rows of this part, with its values."""
        if self.of == 1:
            return "", {}
        return f" AND {_PART} = :part", {"parts": self.of, "part": self.number}


WHOLE = Part()
_PART = (
    '(CASE WHEN "key" IS NULL THEN id ELSE '
    'get_byte(sha256("key"), 0) * 65536 + get_byte(sha256("key"), 1) * 256 + get_byte(sha256("key"), 2) END) % :parts'
)


class Page(NamedTuple):
    """Rows in the order of relaying, and the position behind them.

    The position may have moved where there are no rows: what ended since the last round had none.

    Attributes:
        full: there may be more.
        held_back: there are no rows but committed ones, of transactions that began while too many others were open, and are.
    """

    rows: list[OutboxRow]
    position: OutboxPosition
    full: bool = False
    held_back: bool = False


def first_position(connection: Connection, outbox: Outbox) -> OutboxPosition:
    """The position before every row.

    Raises:
        ConfigError: the connection is to a standby.
    """
    return OutboxPosition(_database(connection, outbox))


def end_position(connection: Connection, outbox: Outbox) -> OutboxPosition:
    """The position behind every row that is committed now."""
    if connection.dialect.name == Dialect.SQLITE:
        last = connection.execute(text(f"SELECT max(id) FROM {outbox.table.fullname}")).scalar()  # noqa: S608 - a name of the application's own
        return OutboxPosition(_database(connection, outbox), last=int(last or 0))
    return OutboxPosition(_database(connection, outbox), _snapshot(connection))


def require_same_database(connection: Connection, outbox: Outbox, position: OutboxPosition) -> None:
    """Look whether the numbers of a position mean in this database what they meant when it was made.

    Raises:
        ConfigError: the connection is to a standby.
        OffsetGapError: another database (a restored dump, a logical replica), or this one at an earlier time.
    """
    found = _database(connection, outbox)
    if found != position.database:
        raise OffsetGapError(
            f"the position of the relay was made in another table than this {outbox.table.name} (then {position.database}, now "
            f"{found}): a dump that was restored, a logical replica, or a table that was made anew. What its rows have for numbers "
            f"says nothing here. {WAY_OUT}"
        )
    if connection.dialect.name == Dialect.SQLITE:
        drawn = connection.execute(
            text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": outbox.table.name}
        ).scalar()
        now, then = int(drawn or 0), position.last
    else:
        until = position.until or position.seen
        now, then = _snapshot(connection).xmax, until.xmax
    if now < then:
        raise OffsetGapError(
            f"{outbox.table.name} went back: the relay has seen transactions up to {then}, and the database has come to {now}. It is "
            f"a copy from an earlier time, in which new rows would look like relayed ones. {WAY_OUT}"
        )


def read(
    connection: Connection, outbox: Outbox, *, after: OutboxPosition, limit: int, part: Part = WHOLE
) -> Page:
    """The next rows behind a position, at most ``limit``; each is committed, and none comes before them later.

    No rows: there were none when this was called.
    """
    table = outbox.table.fullname
    if connection.dialect.name == Dialect.SQLITE:
        rows = _rows(connection, table, "id > :last", {"last": after.last}, limit)
        return Page(rows, after.after(rows[-1].id if rows else None, all_read=False), len(rows) == limit)
    # Two statements: the second one sees all that had ended for the first one, and leaves out what has ended since.
    now = _snapshot(connection)
    begun = after.begun(now)
    until = begun.until
    assert until is not None  # noqa: S101 - for the type checker: `begun` sets it
    where = "xid < CAST(:until_max AS xid8) AND NOT xid = ANY(CAST(:until_open AS xid8[])) AND id > :last"
    values: dict[str, Any] = {
        "until_max": str(until.xmax),
        "until_open": array(until.open),
        "last": begun.last,
    }
    if (
        begun.seen.xmax
    ):  # else a backlog is read, and without statistics PostgreSQL would sort all of it for each page
        where += " AND (xid >= CAST(:seen_max AS xid8) OR xid = ANY(CAST(:seen_open AS xid8[])))"
        values |= {"seen_max": str(begun.seen.xmax), "seen_open": array(begun.seen.open)}
    of_part, its_values = part.where()
    rows = _rows(connection, table, where + of_part, values | its_values, limit)
    full = len(rows) == limit
    page = Page(rows, begun.after(rows[-1].id if rows else None, all_read=not full), full)
    if not rows and after.until is not None:  # that round is over, and more may have come since it began
        return read(connection, outbox, after=page.position, limit=limit, part=part)
    if not rows and until.xmax < now.xmax:
        behind, values = (
            f"xid >= CAST(:until_max AS xid8){of_part}",
            {"until_max": str(until.xmax), **its_values},
        )
        return page._replace(held_back=bool(_rows(connection, table, behind, values, 1)))
    return page


def every_row(connection: Connection, outbox: Outbox, parts: int) -> Iterator[tuple[OutboxRow, int]]:
    """All rows that the transaction sees, in no order, with the number of their part. Not all at once in memory."""
    part, values = ("0", {}) if parts == 1 else (_PART, {"parts": parts})
    statement = text(f"SELECT {_columns(connection)}, {part} FROM {outbox.table.fullname}")  # noqa: S608 - a name of the application's own
    found = connection.execution_options(stream_results=True, yield_per=_ROWS_AT_A_TIME)
    for row in found.execute(statement, values):
        yield OutboxRow(*row[:6]), int(row[6])


def _rows(
    connection: Connection, table: str, where: str, values: Mapping[str, Any], limit: int
) -> list[OutboxRow]:
    statement: TextClause = text(
        f"SELECT {_columns(connection)} FROM {table} WHERE {where} ORDER BY id LIMIT :limit"  # noqa: S608 - a name of the application's own
    )
    values = {**values, "limit": limit}
    if connection.dialect.name == Dialect.SQLITE:
        return [*starmap(OutboxRow, connection.execute(statement, values).all())]
    # By the driver's own cursor, all at once and without a text for each value: a quarter of the time of SQLAlchemy's rows.
    driver: Any = connection.connection.driver_connection
    with driver.cursor(binary=True) as cursor:
        cursor.execute(str(statement.compile(dialect=connection.dialect)), values)
        return [*starmap(OutboxRow, cursor.fetchall())]


def _columns(connection: Connection) -> str:
    if (
        connection.dialect.name == Dialect.SQLITE
    ):  # which stores a text or a number in any column that is given one
        return 'id, CAST(xid AS INTEGER), topic, CAST("key" AS BLOB), CAST("value" AS BLOB), headers'
    return 'id, CAST(CAST(xid AS text) AS bigint), topic, "key", "value", headers'


def _database(connection: Connection, outbox: Outbox) -> str:
    """What names the table in its database: of the server, the database in it, and the table in that."""
    if connection.dialect.name == Dialect.SQLITE:
        return f"sqlite.{outbox.table.fullname}"
    row = connection.execute(
        text(
            "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
            "CAST(CAST(:name AS regclass) AS oid), pg_is_in_recovery() FROM pg_control_system()"
        ),
        {"name": outbox.table.fullname},
    ).one()
    if row[3]:
        raise ConfigError(
            "sql.url leads to a standby, whose rows may be behind, and which can be ended by a failover. Fix: the URL of the "
            "primary, for example with target_session_attrs=read-write"
        )
    return f"{row[0]}.{row[1]}.{row[2]}"


def _snapshot(connection: Connection) -> Snapshot:
    return Snapshot.of_postgresql(
        str(connection.execute(text("SELECT CAST(pg_current_snapshot() AS text)")).scalar_one())
    )


def array(xids: tuple[int, ...]) -> str:
    """Numbers of transactions, as PostgreSQL reads an array."""
    return "{" + ",".join(map(str, xids)) + "}"
