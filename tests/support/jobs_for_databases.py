"""Jobs with a database at one end, for tests that run `eos run` in a process of its own: numbers of a topic into a table, and an outbox."""

from __future__ import annotations

import os

from sqlalchemy import BigInteger, Column, MetaData, Table, Text

from eos import InputRecord
from eos.sql import Insert, Outbox, OutboxJob, SqlJob

_NAME, _TOPIC = os.environ.get("TEST_NAME", "numbers"), os.environ.get("TEST_TOPIC", "numbers")

numbers = Table(
    "numbers",
    MetaData(),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("pad", Text),
)


def rows(record: InputRecord) -> list[Insert]:
    """A number, and as many bytes as the environment says."""
    pad = "x" * int(os.environ.get("TEST_PAD", "1"))
    return [Insert(numbers, {"n": int(record.value or b""), "pad": pad})]


sink = SqlJob(name=_NAME, inputs=[_TOPIC], tables=[numbers], transform=rows)
relay = OutboxJob(name=_NAME, outbox=Outbox(MetaData()), outputs=[_TOPIC])
