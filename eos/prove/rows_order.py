"""Rows order: whether the records of an outbox's rows are in the order that a relay promises.

Records of one key keep the order in which their transactions depend on each other: if one had committed before another one began
its insert, its record comes first; and rows of one transaction keep the order of their ids. Neither can be seen in the rows. So who
writes them says in a table beside what had committed when a transaction began its insert.

The comparison is the database's: what is compared may be more than fits into memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.prove.trial_database import TrialDatabase

_TABLES = (
    # ``began``: how many transactions had committed, as the writers knew, before the first insert; ``ended``: the how manieth it was
    # itself, and null where no writer has had the answer to its COMMIT.
    "CREATE TABLE eos_prove_written (xid xid8 PRIMARY KEY DEFAULT pg_current_xact_id(), began bigint NOT NULL, ended bigint)",
    "CREATE UNLOGGED TABLE eos_prove_records (topic text, part int, place bigint, key bytea, content bytea)",
)
_CONTENT = """sha256(convert_to(topic, 'UTF8') || '\\x00' || "key" || '\\x00' || coalesce("value", ''))"""
# Rows that are alike cannot be told apart. Together they count as one that began first and ended last, so that no order is asked for
# which some relay that is right would not keep.
_COMPARED = f"""
WITH known AS (
    SELECT {_CONTENT} AS content, count(*) AS alike, min(id) AS id, min(CAST(CAST(xid AS text) AS bigint)) AS xid,
        min(coalesce(began, 0)) AS began, max(coalesce(ended, 9223372036854775807)) AS ended
    FROM {{table}} LEFT JOIN eos_prove_written USING (xid) WHERE "key" IS NOT NULL GROUP BY 1
), compared AS (
    SELECT topic, part, place, ended, alike, known.id,
        max(began) OVER (PARTITION BY topic, part, key ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS behind,
        max(known.id) FILTER (WHERE alike = 1) OVER
            (PARTITION BY topic, part, key, xid ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM eos_prove_records JOIN known USING (content)
)
SELECT topic, part, place, alike, (ended <= behind OR (alike = 1 AND id < before)) IS TRUE FROM compared
"""  # noqa: S608 - a name of the job's own
_SUMMARY = "SELECT count(*) FILTER (WHERE alike = 1), count(*) FILTER (WHERE late) FROM ({compared}) AS each(topic, part, place, alike, late)"
_EXAMPLES = "SELECT topic, part, place FROM ({compared}) AS each(topic, part, place, alike, late) WHERE late ORDER BY 1, 2, 3 LIMIT 5"


class OrderFound(NamedTuple):
    """What a comparison has found.

    Attributes:
        compared: records with a key whose row is known for certain.
        late: records behind one that depends on them.
        examples: of these, in words.
    """

    compared: int
    late: int
    examples: Sequence[str]


class RowsOrder:
    """Notes what the writers know, and compares.

    Args:
        database: of the trial.
        table: the outbox.
    """

    def __init__(self, database: TrialDatabase, table: str) -> None:
        self._database, self._table = database, table
        self._committed = 0
        self._lock = threading.Lock()
        with database.connected() as connection, connection.begin():
            for statement in _TABLES:
                connection.exec_driver_sql(statement)

    @contextmanager
    def noted(self, connection: Any) -> Iterator[None]:
        """Put the inserts and the end of a transaction into the block, which is begun and not noted yet."""
        with self._lock:
            began = self._committed
        insert = "INSERT INTO eos_prove_written (began) VALUES (%s) RETURNING CAST(xid AS text)"
        xid = connection.exec_driver_sql(insert, (began,)).scalar_one()
        yield
        with self._lock:
            self._committed += 1
            ended = self._committed
        with connection.begin():  # of one that was rolled back there is no row
            connection.exec_driver_sql(
                "UPDATE eos_prove_written SET ended = %s WHERE xid = CAST(%s AS xid8)", (ended, xid)
            )

    def compare(self, reader: LogReader, ranges: Mapping[Partition, Range]) -> OrderFound:
        """Read these records, and compare."""
        with self._database.connected() as connection, connection.begin():
            connection.exec_driver_sql("TRUNCATE eos_prove_records")
            with (
                connection.connection.driver_connection.cursor() as cursor,
                cursor.copy("COPY eos_prove_records FROM STDIN") as copy,
            ):
                for one in reader.records(ranges):
                    if one.key is not None:
                        content = sha256(b"\0".join((one.topic.encode(), one.key, one.value or b""))).digest()
                        copy.write_row((one.topic, one.partition, one.offset, one.key, content))
            compared = _COMPARED.format(table=self._table)
            known, late = connection.exec_driver_sql(_SUMMARY.format(compared=compared)).one()
            examples = connection.exec_driver_sql(_EXAMPLES.format(compared=compared)).all() if late else []
        return OrderFound(
            known,
            late,
            [
                f"{topic}[{part}] offset {place}: behind a record of its key that was inserted later"
                for topic, part, place in examples
            ],
        )
