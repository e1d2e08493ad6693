"""Databases of other encodings, and values at the edges of their types: what does not fit is one record's fault, and the job goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

import eos
from eos import InputRecord
from eos.local import LocalPostgres
from eos.sql import Insert, SqlJob
from eos.sql.verify import verify_tables
from tests.support.databases import Database, database_of
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, load, unique
from tests.support.patience import PATIENCE_S
from tests.support.relays import Books

pytestmark = [pytest.mark.broker]

odd = Table(
    "odd",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("words", Text),
    Column("moment", DateTime(timezone=True)),
    Column("local", DateTime),
    Column("day", Date),
    Column("amount", Numeric),
    Column("cents", BigInteger),
    Column("real", Float),
    Column("bytes", LargeBinary),
    Column("numbers", ARRAY(Integer)),
    Column("document", JSONB),
)
FITS: list[dict[str, Any]] = [
    {"words": ""},
    {"words": "\\N\t\n\\."},
    {"words": "\x7f\x01"},
    {"moment": datetime.max.replace(tzinfo=UTC)},
    {"moment": datetime(1, 1, 2, tzinfo=UTC)},
    {"moment": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))},  # in the year 10000
    {"local": datetime.min},  # noqa: DTZ901 - of a column without a time zone
    {"local": datetime.max},  # noqa: DTZ901 - likewise
    {"day": date.min},
    {"day": date.max},
    {"amount": Decimal("NaN")},
    {"amount": Decimal("sNaN")},
    {"amount": Decimal("-Infinity")},
    {"amount": Decimal("1E-16383")},
    {"amount": Decimal("1E+131071")},
    {"cents": 2**63 - 1},
    {"cents": -(2**63)},
    {"real": float("nan")},
    {"real": float("-inf")},
    {"real": 5e-324},
    {"bytes": bytes(range(256))},
    {"numbers": []},
    {"numbers": [1, None, -(2**31)]},
    {"numbers": [[1, 2], [3, 4]]},
    {"document": {"a": [None, 1e300, "\u007f"]}},
]
UNFIT: list[dict[str, Any]] = [
    {"words": "nul \0"},
    {"words": "half \ud800"},
    {"moment": "no time"},
    {"local": "0000-00-00"},
    {"day": "2026-02-30"},
    {"amount": Decimal("1E+131072")},
    {"amount": "12,5"},
    {"cents": 2**63},
    {"cents": 10**1000},
    {"real": "x"},
    {"bytes": "text"},
    {"numbers": [2**31]},
    {"numbers": [[1], [2, 3]]},
    {"numbers": ["x"]},
    {"numbers": 7},
    {"document": {"nul": "\0"}},
    {"document": {"half": "\ud800"}},
    {"document": float("nan")},
    {"document": {1, 2}},
    {"words": object()},
]
BEYOND_LATIN = [{"words": "€"}, {"words": "\U0001f600"}]


@pytest.fixture(params=["UTF8", "LATIN1", "SQL_ASCII"])
def encoded(request: pytest.FixtureRequest, postgres_server: LocalPostgres) -> Iterator[Database]:
    """A database of each encoding."""
    with database_of(postgres_server.url, f"ENCODING '{request.param}' TEMPLATE template0") as database:
        yield database


def encoding(database: Database) -> str:
    return str(database.seen("SELECT current_setting('server_encoding')")[0][0])


def test_each_value_that_does_not_fit_is_one_dead_letter_and_the_others_are_rows(
    bootstrap: str, encoded: Database
) -> None:
    with encoded.with_tables().judge.begin() as connection:
        odd.create(connection)
    plain = [{"words": "é"}] * 40  # enough for COPY
    values = [*plain, *FITS, *UNFIT, *BEYOND_LATIN]
    topic, name = unique("in"), unique("odd")
    create_topics(bootstrap, {topic: 1})
    load(bootstrap, topic, len(values), partitions=[0])

    def rows(record: InputRecord) -> list[Insert]:
        number = int(record.value or b"")
        return [Insert(odd, {"number": number, **values[number]})]

    job = SqlJob(name=name, inputs=[topic], tables=[odd], transform=rows)
    settings = settings_for(
        bootstrap,
        sql__url=encoded.url,
        input__fetch_records=50,
        poison__policy="dead-letter",
        poison__max_in_a_row=100,
    )
    eos.run(job, settings, until_caught_up=True)
    fits = range(len(plain) + len(FITS))
    if encoding(encoded) != "LATIN1":
        fits_too = range(len(values) - len(BEYOND_LATIN), len(values))
    else:
        fits_too = range(0)
    there = [n for (n,) in encoded.seen("SELECT number FROM odd ORDER BY 1")]
    assert {n: values[n] for n in {*there} ^ {*fits, *fits_too}} == {}
    letters = encoded.seen("SELECT convert_from(record_value, 'UTF8') FROM eos_dead_letters")
    assert sorted(int(value) for (value,) in letters) == [
        n for n in range(len(values)) if n not in fits and n not in fits_too
    ]
    report = verify_tables(job, settings, timeout_s=PATIENCE_S)
    assert report.exactly_once, report.rows()


def test_a_dead_letter_keeps_what_its_database_can_and_shows_the_rest(
    bootstrap: str, encoded: Database
) -> None:
    encoded.with_tables()
    with encoded.judge.begin() as connection:
        odd.create(connection)
    topic, name = unique("in"), unique("odd")
    create_topics(bootstrap, {topic: 1})
    load(bootstrap, topic, 3, partitions=[0])

    def rows(record: InputRecord) -> list[Insert]:
        raise ValueError("é costs 5 €")

    job = SqlJob(name=name, inputs=[topic], tables=[odd], transform=rows)
    settings = settings_for(bootstrap, sql__url=encoded.url, poison__policy="dead-letter")
    eos.run(job, settings, until_caught_up=True)
    reasons = {reason for (reason,) in encoded.seen("SELECT reason FROM eos_dead_letters")}
    shown = "\\xe9 costs 5 \\u20ac" if encoding(encoded) == "LATIN1" else "é costs 5 €"
    assert [one.endswith(shown) for one in reasons] == [True], reasons


def test_an_outbox_of_any_encoding_is_relayed_as_it_was_written(bootstrap: str, encoded: Database) -> None:
    books = Books(bootstrap, encoded)
    headers = {"é": "é".encode(), "half": b"\xff"}
    with encoded.judge.begin() as connection:
        books.outbox.add(connection, books.topic, bytes(range(256)), "é€".encode(), headers)
        connection.exec_driver_sql(
            "INSERT INTO eos_outbox (topic, headers) VALUES (%s, %s)", (books.topic, json.dumps([["€", "€"]]))
        )
    books.run()
    found = {record.value: record for record in books.records()}
    assert found["é€".encode()].key == bytes(range(256))
    assert dict(found["é€".encode()].headers or ()) == headers
    assert dict(found[None].headers or ()) == {"€": "€".encode()}
