"""The tables that eos needs in a database of yours: their DDL, and whether they are there in this version.

No owner creates one: where a position is kept is a decision of a person, who runs `eos sql tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect as SqlAlchemyDialect
from sqlalchemy.schema import CreateIndex, CreateTable

from eos.base.commands import suggested
from eos.errors import ConfigError
from eos.sql.dialect import Dialect

# The version of what eos needs to find in its tables. Raised by each change of a column, with a way from the version before.
VERSION = 1
_ADVISORY_LOCK = 0x656F73  # "eos": two that create a table at once would make one of them fail

metadata = MetaData()

tables_table = Table(
    "eos_tables",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

progress = Table(
    "eos_progress",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("app", Text, nullable=False),
    Column("next_offset", BigInteger, CheckConstraint("next_offset >= 0"), nullable=False),
    Column("leader_epoch", Integer),
    Column("topic_id", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# A record that could not be processed, once for each place in the input. Its headers are in the form of `eos.sql.headers`.
dead_letters = Table(
    "eos_dead_letters",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("app", Text, nullable=False),
    Column("topic_id", Text, primary_key=True),
    Column("record_key", LargeBinary),
    Column("record_value", LargeBinary),
    Column("headers", Text, nullable=False),
    Column("timestamp_ms", BigInteger),
    Column("reason", Text, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# How far a relay has read an outbox; see `eos.sql.relay_mark`.
relays = Table(
    "eos_relays",
    metadata,
    Column("consumer_group", Text, primary_key=True),
    Column("shard", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("relayed", BigInteger, CheckConstraint("relayed >= 0"), nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

SINK = (progress, dead_letters)
RELAY = (relays,)


def ddl(dialect: Dialect, wanted: Sequence[Table] = SINK) -> list[str]:
    """The statements that create these tables, and note their version, where they are missing."""
    made: SqlAlchemyDialect = postgresql.dialect() if dialect is Dialect.POSTGRESQL else sqlite.dialect()  # type: ignore[no-untyped-call]
    statements = []
    for table in (tables_table, *wanted):
        statements.append(_sql(CreateTable(table, if_not_exists=True), made))
        statements += [
            _sql(CreateIndex(index, if_not_exists=True), made)
            for index in sorted(table.indexes, key=_name)
            if _meant_for(index, made)
        ]
    # The names are those of tables above, and of one that the application has named.
    statements += [
        f"INSERT INTO eos_tables (name, version) VALUES ('{table.fullname}', {VERSION}) ON CONFLICT (name) DO NOTHING"  # noqa: S608
        for table in wanted
    ]
    return statements


def _meant_for(index: Index, dialect: SqlAlchemyDialect) -> bool:
    """Whether `Index.ddl_if` does not leave it out."""
    condition = index._ddl_if  # noqa: SLF001 - SQLAlchemy looks at it itself only with a connection
    return condition is None or condition.dialect == dialect.name


def _name(index: Index) -> str:
    return str(index.name)


def _sql(statement: CreateTable | CreateIndex, dialect: SqlAlchemyDialect) -> str:
    lines = str(statement.compile(dialect=dialect)).strip().splitlines()
    return "\n".join(line.rstrip().replace("\t", "  ") for line in lines if line.strip())


def create(connection: Connection, wanted: Sequence[Table] = SINK) -> None:
    """Create what is missing, in the transaction of the connection."""
    dialect = Dialect(connection.dialect.name)
    if dialect is Dialect.POSTGRESQL:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    for statement in ddl(dialect, wanted):
        connection.exec_driver_sql(statement)


def check(connection: Connection, wanted: Sequence[Table] = SINK) -> None:
    """Look whether the tables are there, in the version that this eos needs.

    Args:
        connection: to the database.
        wanted: the tables.

    Raises:
        ConfigError: one is missing, or was made for another version of eos.
    """
    fix = f"Fix: {suggested('sql tables', '--apply', job=True)}"
    inspector = inspect(connection)
    missing = [table.fullname for table in wanted if not inspector.has_table(table.name, schema=table.schema)]
    if missing:
        raise ConfigError(f"the database lacks {', '.join(missing)}. {fix}")
    # A table that the migrations of an application have made is not noted there.
    noted = inspector.has_table(tables_table.name)
    rows = connection.execute(select(tables_table.c.name, tables_table.c.version)) if noted else ()
    versions = {name: version for name, version in rows}  # noqa: C416 - of rows, for the type checker
    for table in wanted:
        version = versions.get(table.fullname, VERSION)
        if version > VERSION:
            raise ConfigError(
                f"{table.fullname} is of version {version}, made by a newer eos; this one knows {VERSION}. Fix: the newer eos"
            )
        there = set(connection.execute(select(text("*")).select_from(table).limit(0)).keys())
        lacking = [column.name for column in table.columns if column.name not in there]
        if version < VERSION or lacking:
            without = f", without {', '.join(lacking)}" if lacking else ""
            raise ConfigError(f"{table.fullname} is older than this eos{without}. {fix}")
