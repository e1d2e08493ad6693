"""An outbox in a server whose transactions have passed 2^32, where the short numbers have begun anew."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from sqlalchemy import MetaData, text

from eos.local import LocalPostgres
from eos.local.postgres_home import require_postgres
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition
from eos.sql.outbox_read import first_position, read, require_same_database
from tests.support.databases import Database, open_directory
from tests.support.patience import PATIENCE_S

_EPOCH = 5


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    settings = {"fsync": "off", "shared_buffers": "32MB"}
    with open_directory() as directory, LocalPostgres(directory, settings=settings) as server:
        yield server


def test_rows_before_and_after_2_32_transactions_are_relayed_once_and_in_order(server: LocalPostgres) -> None:
    outbox = Outbox(MetaData())
    before = Database(server.url)
    outbox.table.metadata.create_all(before.judge)
    with before.judge.begin() as connection:
        outbox.add(connection, "t", value=b"before")
    with before.judge.connect() as connection:
        first = read(connection, outbox, after=first_position(connection, outbox), limit=10)
    before.close()
    server.stop()
    programs = require_postgres()
    subprocess.run(
        [*server._unprivileged(programs), programs / "pg_resetwal", "-e", str(_EPOCH), "-D", server.data],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    server.start()

    after = Database(server.url)
    with after.judge.connect() as late, late.begin() as transaction:
        outbox.add(late, "t", value=b"late")
        with after.judge.begin() as connection:
            outbox.add(connection, "t", value=b"early")
        with after.judge.connect() as connection:
            require_same_database(connection, outbox, first.position)
            second = read(connection, outbox, after=first.position, limit=10)
        transaction.commit()
    position = OutboxPosition.parse(str(second.position))
    assert position is not None
    with after.judge.connect() as connection:
        third = read(connection, outbox, after=position, limit=10)
        assert connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one() is False
    after.close()
    assert [row.value for page in (first, second, third) for row in page.rows] == [
        b"before",
        b"early",
        b"late",
    ]
    assert all(row.xid >> 32 == _EPOCH for page in (second, third) for row in page.rows)
    assert first.rows[0].xid >> 32 == 0
