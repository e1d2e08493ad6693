"""A job that turns records into rows, run by `eos.run` on a real broker and a real database."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import JSON, Column, Connection, Float, Integer, MetaData, Numeric, String, Table, text

import eos
from eos import ConfigError, InputBatch, InputRecord, TransformError, UsageError
from eos.base.deadline import Deadline
from eos.events import Event, RecordDeadLettered, SessionClosed
from eos.offsets import Partition
from eos.records import OutputRefusedError
from eos.settings import Settings
from eos.sql import Delete, Insert, InsertBatch, SqlJob, Upsert, UpsertBatch
from eos.sql.changes import Batch, Change
from eos.sql.tables_report import TablesReport
from eos.sql.verify import verify_tables
from tests.support import by_hand
from tests.support.databases import Database
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, load, unique
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker]

RECORDS, PARTITIONS = 60, 2

metadata = MetaData()
paid = Table("paid", metadata, Column("number", Integer, primary_key=True), Column("name", String(8)))
log = Table("log", metadata, Column("number", Integer, primary_key=True))


# SQLite keeps any text, and checks all but foreign keys at once.
only_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
def books(database: Database) -> Database:
    with database.with_tables().judge.begin() as connection:
        metadata.create_all(connection)
    return database


@pytest.fixture
def source(bootstrap: str) -> str:
    topic = unique("in")
    create_topics(bootstrap, {topic: PARTITIONS})
    load(bootstrap, topic, RECORDS, partitions=range(PARTITIONS))
    return topic


class Runs:
    """Runs of a job over one topic into one database."""

    def __init__(self, bootstrap: str, source: str, books: Database) -> None:
        self.source, self.books = source, books
        self.bootstrap = bootstrap
        self.name = unique("table")
        self.told: list[Event] = []

    def job(
        self, transform: Callable[[InputRecord], Iterable[Change]] | None = None, **others: Any
    ) -> SqlJob:
        return SqlJob(name=self.name, inputs=[self.source], tables=[paid, log], transform=transform, **others)

    def settings(self, **changed: Any) -> Settings:
        return settings_for(self.bootstrap, sql__url=self.books.url, input__fetch_records=7, **changed)

    def run(self, job: SqlJob, **changed: Any) -> None:
        eos.run(job, self.settings(**changed), until_caught_up=True, listener=self.told.append)

    def numbers(self, table: str = "paid") -> list[int]:
        return sorted(row[0] for row in self.books.seen(f"SELECT number FROM {table}"))  # noqa: S608

    def letters(self) -> list[int]:
        """The values of the dead letters."""
        return sorted(
            int(bytes(row[0])) for row in self.books.seen("SELECT record_value FROM eos_dead_letters")
        )

    def position(self) -> int:
        return int(self.books.seen("SELECT coalesce(sum(next_offset), 0) FROM eos_progress")[0][0])


@pytest.fixture
def runs(bootstrap: str, source: str, books: Database) -> Runs:
    return Runs(bootstrap, source, books)


def number_of(record: InputRecord) -> int:
    return int(record.value or b"")


def rows(record: InputRecord) -> list[Change]:
    number = number_of(record)
    return [Insert(log, {"number": number}), Upsert(paid, {"number": number, "name": f"n{number}"})]


def rows_of_batch(batch: InputBatch) -> list[Change]:
    return [change for record in batch for change in rows(record)]


def by_column(batch: InputBatch) -> list[Batch]:
    numbers = [int(value or b"") for value in batch.values]
    return [
        InsertBatch(log, {"number": numbers}),
        UpsertBatch(paid, {"number": numbers, "name": [f"n{number}" for number in numbers]}),
    ]


def own_sql(connection: Connection, batch: InputBatch) -> None:
    for table in ("paid", "log"):
        connection.execute(
            text(f"INSERT INTO {table} (number) VALUES (:number)"),  # noqa: S608
            [{"number": int(value or b"")} for value in batch.values],
        )


@pytest.mark.parametrize(
    "shape",
    [
        {"transform": rows},
        {"transform_batch": rows_of_batch},
        {"transform_batch": by_column},
        {"apply": own_sql},
    ],
    ids=["transform", "transform_batch", "by_column", "apply"],
)
def test_each_shape_of_transform_writes_each_record_once_and_a_restart_goes_on(
    runs: Runs, bootstrap: str, shape: dict[str, Any]
) -> None:
    runs.run(runs.job(**shape))
    assert runs.numbers() == runs.numbers("log") == list(range(RECORDS))
    load(bootstrap, runs.source, 20, "9", partitions=range(PARTITIONS))
    runs.run(runs.job(**shape), input__start="fail")
    more = sorted([*range(RECORDS), *(int(f"9{n}") for n in range(20))])
    assert runs.numbers() == runs.numbers("log") == more
    assert runs.position() == RECORDS + 20


@pytest.mark.parametrize("ends", ["caught up", "refused"])
def test_run_that_has_ended_leaves_no_connection_open(
    bootstrap: str, source: str, postgres: Database, ends: str
) -> None:
    if ends == "caught up":
        metadata.create_all(postgres.with_tables().judge)
    runs = Runs(bootstrap, source, postgres)
    with (
        contextlib.nullcontext()
        if ends == "caught up"
        else pytest.raises(ConfigError, match="eos sql tables")
    ):
        runs.run(runs.job(rows))
    connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
    # A backend leaves a moment after its connection.
    assert Deadline(PATIENCE_S).wait_for(
        lambda: postgres.seen(connections, name=f"eos {runs.name}") == [(0,)]
    )


@only_postgres
def test_partition_that_is_done_before_another_leaves_the_other_its_connection(runs: Runs) -> None:
    """Closed under it, the other's would be dropped open, which psycopg warns of."""

    def slow(connection: Connection, batch: InputBatch) -> None:
        own_sql(connection, batch)
        if {record.partition for record in batch} == {0}:
            Deadline(20).wait_for(lambda: any(isinstance(event, SessionClosed) for event in runs.told))

    by_partition = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        runs.run(runs.job(apply=slow), **by_partition)
        gc.unfreeze()  # a run freezes what there is at its begin
        gc.collect()
    assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
    assert runs.numbers() == list(range(RECORDS))


def test_changes_to_one_row_keep_their_order(runs: Runs) -> None:
    def last_of_ten(record: InputRecord) -> list[Change]:
        number = number_of(record)
        key = number % 10 * 2 + record.partition
        if number >= RECORDS - 10:
            return [Upsert(paid, {"number": key, "name": "x"}), Delete(paid, {"number": key})]
        return [Upsert(paid, {"number": key, "name": str(number)})]

    runs.run(runs.job(last_of_ten))
    assert runs.numbers() == []


@pytest.mark.parametrize("policy", ["dead-letter", "skip"])
@pytest.mark.parametrize("shape", ["transform", "transform_batch", "by_column", "apply"])
def test_row_that_the_database_refuses_is_found_and_answered_by_the_policy(
    runs: Runs, policy: str, shape: str
) -> None:
    runs.books.run("INSERT INTO log VALUES (11), (12), (47)")
    given: dict[str, dict[str, Any]] = {
        "transform": {"transform": rows},
        "transform_batch": {"transform_batch": rows_of_batch},
        "by_column": {"transform_batch": by_column},
        "apply": {"apply": own_sql},
    }
    runs.run(runs.job(**given[shape]), poison__policy=policy)
    assert runs.numbers() == [n for n in range(RECORDS) if n not in (11, 12, 47)]
    assert runs.letters() == ([11, 12, 47] if policy == "dead-letter" else [])
    told = [event for event in runs.told if isinstance(event, RecordDeadLettered)]
    assert len({(event.partition, event.offset) for event in told}) == 3
    assert runs.position() == RECORDS


def test_key_that_comes_twice_in_one_batch_is_found(runs: Runs) -> None:
    def twice(record: InputRecord) -> list[Change]:
        number = number_of(record)
        return [Insert(log, {"number": 8 if number == 10 else number})]

    runs.run(runs.job(twice), poison__policy="dead-letter")
    assert len(runs.letters()) == 1
    assert runs.letters()[0] in (8, 10)
    assert runs.numbers("log") == [n for n in range(RECORDS) if n != 10]


def test_refused_row_ends_the_job_by_default_with_its_place_and_nothing_of_the_transaction(
    runs: Runs,
) -> None:
    runs.books.run("INSERT INTO log VALUES (47)")
    with pytest.raises(TransformError, match=rf"{runs.source}\[1\] offset 23") as raised:
        runs.run(runs.job(rows))
    # The record's value is in no text; a topic's drawn name may have these figures.
    assert "47" not in str(raised.value).replace(f"{runs.source}[1] offset 23", "")
    assert len(runs.numbers()) == runs.position() < RECORDS


@only_postgres
def test_constraint_that_is_checked_at_commit_is_found(runs: Runs) -> None:
    runs.books.run(
        "ALTER TABLE paid ADD CONSTRAINT named_once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED",
        "INSERT INTO paid VALUES (-1, 'n31')",
    )
    runs.run(runs.job(rows), poison__policy="dead-letter")
    assert runs.letters() == [31]
    assert runs.numbers("log") == [n for n in range(RECORDS) if n != 31]


@only_postgres
def test_rows_that_the_database_refuses_only_in_the_order_of_the_tables_are_written_record_by_record(
    runs: Runs,
) -> None:
    runs.books.run("ALTER TABLE log ADD CONSTRAINT of FOREIGN KEY (number) REFERENCES paid ON DELETE CASCADE")

    def made_and_deleted(record: InputRecord) -> list[Change]:
        number = number_of(record)
        if number % 4 < PARTITIONS:
            return [Insert(paid, {"number": number}), Insert(log, {"number": number})]
        return [Delete(paid, {"number": number - PARTITIONS})]

    runs.run(runs.job(made_and_deleted), poison__policy="dead-letter")
    assert runs.numbers() == runs.numbers("log") == runs.letters() == []
    assert runs.position() == RECORDS


@only_postgres
@pytest.mark.parametrize("policy", ["dead-letter", "skip"])
def test_connection_that_is_lost_while_the_refused_record_is_looked_for_makes_no_other_one_poison(
    runs: Runs, policy: str
) -> None:
    runs.books.run("INSERT INTO log VALUES (11)")
    seen, ended = set[int](), list[int]()

    def ends_the_trial(record: InputRecord) -> list[Change]:
        number = number_of(record)
        if number in seen and not ended:  # the second time is in a trial
            count = runs.books.seen(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND state = 'idle in transaction'"
            )
            ended.extend([number] * count[0][0])
        seen.add(number)
        return rows(record)

    runs.run(runs.job(ends_the_trial), poison__policy=policy)
    assert ended, "nothing was lost"
    assert runs.numbers() == [n for n in range(RECORDS) if n != 11]
    assert runs.letters() == ([11] if policy == "dead-letter" else [])


@only_postgres
@pytest.mark.parametrize("value", ["much too long", "a\0b"])
def test_value_that_does_not_fit_is_poison(runs: Runs, value: str) -> None:
    def unfit(record: InputRecord) -> list[Change]:
        number = number_of(record)
        return [Insert(paid, {"number": number, "name": value if number == 30 else "ok"})]

    runs.run(runs.job(unfit), poison__policy="dead-letter")
    assert runs.letters() == [30]
    assert runs.numbers() == [n for n in range(RECORDS) if n != 30]


def test_transform_that_raises_is_answered_by_the_policy(runs: Runs) -> None:
    def raises(record: InputRecord) -> list[Change]:
        if number_of(record) % 20 == 5:
            raise ValueError("not this one")
        return rows(record)

    runs.run(runs.job(raises), poison__policy="dead-letter")
    assert runs.letters() == [5, 25, 45]
    assert len(runs.numbers()) == RECORDS - 3


@only_postgres
@pytest.mark.parametrize("reason", ["a\0b", "\udcff"])
def test_reason_that_is_no_text_for_the_database_is_kept_in_a_dead_letter(runs: Runs, reason: str) -> None:
    def raises(record: InputRecord) -> list[Change]:
        if number_of(record) == 5:
            raise ValueError(reason)
        return rows(record)

    runs.run(runs.job(raises), poison__policy="dead-letter")
    assert runs.letters() == [5]
    assert len(runs.numbers()) == RECORDS - 1


def test_change_of_another_table_or_column_is_refused(runs: Runs) -> None:
    other = Table("other", MetaData(), Column("number", Integer, primary_key=True))
    with pytest.raises(OutputRefusedError, match="not declared"):
        runs.run(runs.job(lambda _: [Insert(other, {"number": 1})]))
    with pytest.raises(OutputRefusedError, match="not a list"):
        one: Any = Insert(log, {"number": 1})
        runs.run(runs.job(lambda _: one))
    with pytest.raises(TransformError):
        runs.run(runs.job(lambda _: [Insert(log, {"nummer": 1})]))
    assert runs.position() == 0


def test_declaration_that_contradicts_itself() -> None:
    with pytest.raises(UsageError, match="exactly one of"):
        SqlJob(name="a", inputs=["in"], tables=[paid])
    with pytest.raises(UsageError, match="tables="):
        SqlJob(name="a", inputs=["in"], transform=rows)
    keyless = Table("keyless", MetaData(), Column("number", Integer))
    with pytest.raises(UsageError, match="keyless has no primary key"):
        SqlJob(name="a", inputs=["in"], tables=[keyless], transform=rows)


class TestVerification:
    """From outside, over tables that were damaged on purpose."""

    def verified(self, runs: Runs, policy: str = "stop", **others: Any) -> TablesReport:
        job = runs.job(**(others or {"transform": rows}))
        return verify_tables(job, runs.settings(poison__policy=policy), timeout_s=PATIENCE_S)

    def test_exact_tables(self, runs: Runs) -> None:
        runs.run(runs.job(rows))
        report = self.verified(runs)
        assert report.exactly_once, report.rows()
        assert report.complete
        assert report.records == RECORDS

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            ("DELETE FROM paid WHERE number = 7", "table paid: 60 rows expected: 1 missing"),
            ("UPDATE paid SET name = 'x' WHERE number = 7", "table paid: 60 rows expected: 1 changed"),
            ("UPDATE paid SET name = NULL WHERE number = 7", "table paid: 60 rows expected: 1 changed"),
            ("INSERT INTO log VALUES (1000)", "table log: 60 rows expected: 1 not made by the input"),
            (
                "UPDATE eos_progress SET next_offset = 20 WHERE partition = 0",
                "table log: 50 rows expected: 10 not made by the input",
            ),
            (
                "UPDATE eos_progress SET next_offset = 1000 WHERE partition = 0",
                "problem: {topic}[0]: the position 1000 lies behind the end of the input (30)",
            ),
            (
                "UPDATE eos_progress SET topic_id = 'another'",
                "problem: {topic}[0]: the topic was deleted and created anew",
            ),
        ],
    )
    def test_damage_is_found(self, runs: Runs, damage: str, says: str) -> None:
        runs.run(runs.job(rows))
        runs.books.run(damage)
        report = self.verified(runs)
        assert not report.exactly_once
        assert any(
            f"{name}: {text}".startswith(says.format(topic=runs.source)) for name, text in report.rows()
        ), report.rows()

    def test_rows_that_were_written_by_column_are_compared(self, runs: Runs) -> None:
        runs.run(runs.job(transform_batch=by_column))
        assert self.verified(runs, transform_batch=by_column).exactly_once
        runs.books.run("DELETE FROM log WHERE number = 31")
        report = self.verified(runs, transform_batch=by_column)
        assert ("table log", "60 rows expected: 1 missing") in report.rows()

    def test_row_that_the_input_deletes_and_that_is_still_there(self, runs: Runs) -> None:
        def deleted(record: InputRecord) -> list[Change]:
            number = number_of(record)
            return [
                Upsert(log, {"number": number}),
                *([Delete(log, {"number": number})] if number % 2 else []),
            ]

        runs.run(runs.job(deleted))
        assert self.verified(runs, transform=deleted).exactly_once
        runs.books.run("INSERT INTO log VALUES (31)")
        report = self.verified(runs, transform=deleted)
        assert ("table log", "30 rows expected: 1 not deleted") in report.rows()

    def test_dead_letters_are_not_expected_as_rows(self, runs: Runs) -> None:
        runs.books.run("INSERT INTO log VALUES (11)")
        runs.run(runs.job(rows), poison__policy="dead-letter")
        runs.books.run("DELETE FROM log WHERE number = 11")
        report = self.verified(runs)
        assert report.exactly_once, report.rows()
        assert report.letters == 1

    def test_key_that_several_partitions_change_is_left_out(self, runs: Runs) -> None:
        def shared(record: InputRecord) -> list[Change]:
            return [Upsert(paid, {"number": number_of(record) // 2, "name": str(number_of(record))})]

        runs.run(runs.job(shared))
        report = self.verified(runs, transform=shared)
        assert report.exactly_once, report.rows()
        assert report.tables[0].undecided == RECORDS // 2

    def test_row_that_several_partitions_write_and_none_deletes_is_missed(self, runs: Runs) -> None:
        """Whichever of them came last, it has left a row."""

        def shared(record: InputRecord) -> list[Change]:
            number, key = number_of(record), {"number": number_of(record) // 2}
            return [Upsert(paid, key), Upsert(log, key), *([Delete(log, key)] if number % 2 else [])]

        runs.run(runs.job(shared))
        runs.books.run("DELETE FROM log")  # of which each is deleted by one of the two partitions
        assert self.verified(runs, transform=shared).exactly_once
        runs.books.run("DELETE FROM paid WHERE number IN (3, 4)")
        report = self.verified(runs, transform=shared)
        assert report.tables[0].missing == 2, report.rows()
        assert report.examples == ("paid: missing: number=3", "paid: missing: number=4")

    @pytest.mark.parametrize(("policy", "right"), [("stop", False), ("dead-letter", False), ("skip", True)])
    def test_record_that_fails_below_the_position_without_a_dead_letter_is_right_under_skip_alone(
        self, runs: Runs, policy: str, right: bool
    ) -> None:
        def raises(record: InputRecord) -> list[Change]:
            if number_of(record) == 7:
                raise ValueError("no")
            return rows(record)

        runs.run(runs.job(raises), poison__policy="skip")
        report = self.verified(runs, policy, transform=raises)
        assert report.exactly_once is right, report.rows()
        assert (report.skipped, report.failed) == ((1, 0) if right else (0, 1))
        assert (
            right
            or f"failed: {runs.source}[1] offset 3: the transform raised ValueError: no" in report.examples[0]
        )

    def test_dead_letter_of_a_record_that_is_not_processed_is_a_problem(self, runs: Runs) -> None:
        runs.books.run("INSERT INTO log VALUES (11)")
        runs.run(runs.job(rows), poison__policy="dead-letter")
        runs.books.run(
            "UPDATE eos_progress SET next_offset = 3 WHERE partition = 1",
            "DELETE FROM paid WHERE number >= 6 AND number % 2 = 1",
            "DELETE FROM log WHERE number >= 6 AND number % 2 = 1",
        )
        report = self.verified(runs)
        assert not report.exactly_once
        assert report.problems == (
            f"1 dead letters are of records that are not processed; the first: {runs.source}[1] offset 5",
        )

    def test_all_is_processed_where_only_aborted_records_follow_and_not_where_a_transaction_is_open(
        self, runs: Runs
    ) -> None:
        runs.run(runs.job(rows))
        producer = by_hand.producer(runs.bootstrap)
        producer.begin_transaction()
        producer.produce(runs.source, b"1000", partition=0)
        producer.flush()
        report = self.verified(runs)
        assert report.exactly_once
        assert not report.complete
        assert report.rows()[-2][0] == "held back"
        assert report.rows()[-1][1].startswith("for what is committed, yes"), report.rows()
        producer.abort_transaction()
        assert Deadline(PATIENCE_S).wait_for(lambda: self.verified(runs).complete)  # once its marker is there

    def test_input_that_was_deleted_before_it_was_processed_is_not_complete_and_no_reason_to_refuse(
        self, runs: Runs
    ) -> None:
        runs.run(runs.job(rows))
        runs.books.run(
            "UPDATE eos_progress SET next_offset = 0 WHERE partition = 1",
            "DELETE FROM paid WHERE number % 2 = 1",
            "DELETE FROM log WHERE number % 2 = 1",
        )
        client = AdminClient({"bootstrap.servers": runs.bootstrap})
        for deleted in client.delete_records([TopicPartition(runs.source, 1, 30)]).values():
            deleted.result(PATIENCE_S)
        report = self.verified(runs)
        assert report.exactly_once, report.rows()
        assert not report.complete

    @pytest.mark.parametrize(("partition", "offset"), [(0, 31), (2, 0), (0, -1)])
    def test_beginning_that_the_input_cannot_have_is_refused(
        self, runs: Runs, partition: int, offset: int
    ) -> None:
        runs.run(runs.job(rows))
        begins = {Partition(runs.source, partition): offset}
        with pytest.raises(UsageError, match="input_from"):
            verify_tables(runs.job(rows), runs.settings(), timeout_s=PATIENCE_S, input_from=begins)

    def test_own_sql_cannot_be_judged_and_says_so(self, runs: Runs) -> None:
        runs.run(runs.job(apply=own_sql))
        report = self.verified(runs, apply=own_sql)
        assert not report.exactly_once
        assert any("apply= runs SQL of its own" in text for text in report.problems)

    def test_json_values_are_compared(self, runs: Runs) -> None:
        kept = Table("kept", MetaData(), Column("number", Integer, primary_key=True), Column("what", JSON))
        with runs.books.judge.begin() as connection:
            kept.create(connection)

        def keep(record: InputRecord) -> list[Change]:
            return [Insert(kept, {"number": number_of(record), "what": {"n": [number_of(record)]}})]

        job = SqlJob(name=runs.name, inputs=[runs.source], tables=[kept], transform=keep)
        runs.run(job)
        assert verify_tables(job, runs.settings(), timeout_s=PATIENCE_S).exactly_once

    @pytest.mark.parametrize(
        "made",
        [
            lambda n: [Upsert(paid, {"number": n, "name": "a"}), Delete(paid, {"number": n}), Upsert(paid, {"number": n})],
            lambda n: [Upsert(paid, {"number": n, "name": "a"}), Delete(paid, {"number": n, "name": "b"})],
            lambda n: [Upsert(paid, {"number": n, "name": None}), Delete(paid, {"number": n, "name": None})],
            lambda n: [Upsert(paid, {"number": n, "name": "a"}), Delete(paid, {"number": n, "name": "a"})],
            lambda n: [Upsert(paid, {"number": n, "name": "a"}), Upsert(paid, {"number": n})],
            lambda n: [Upsert(paid, {"number": n} if n % 2 else {"number": n, "name": "a"})],
        ],
        ids=["deleted in between", "other value", "NULL is no value", "its value", "fewer columns", "some columns"],
    )  # fmt: skip
    def test_changes_that_do_not_name_all_columns(
        self, runs: Runs, made: Callable[[int], list[Change]]
    ) -> None:
        def changes(record: InputRecord) -> list[Change]:
            return made(number_of(record))

        runs.run(runs.job(changes))
        report = self.verified(runs, transform=changes)
        assert report.exactly_once, (report.rows(), report.examples)
        runs.books.run(
            "DELETE FROM paid WHERE number = 7",
            "INSERT INTO paid VALUES (7, 'x')",
        )
        assert not self.verified(runs, transform=changes).exactly_once

    def test_column_that_the_database_fills_is_looked_at_where_a_change_names_it(self, runs: Runs) -> None:
        kept = Table(
            "filled",
            MetaData(),
            Column("number", Integer, primary_key=True),
            Column("a", String(8), server_default="a"),
            Column("b", String(8), default="b"),
        )
        with runs.books.judge.begin() as connection:
            kept.create(connection)

        def keep(record: InputRecord) -> list[Change]:
            number = number_of(record)
            return [Upsert(kept, {"number": number, **({"a": "x", "b": "x"} if number % 2 else {})})]

        job = SqlJob(name=runs.name, inputs=[runs.source], tables=[kept], transform=keep)
        runs.run(job)
        report = verify_tables(job, runs.settings(), timeout_s=PATIENCE_S)
        assert report.exactly_once, (report.rows(), report.examples)
        runs.books.run("UPDATE filled SET b = 'y' WHERE number = 7")
        report = verify_tables(job, runs.settings(), timeout_s=PATIENCE_S)
        assert ("table filled", "60 rows expected: 1 changed") in report.rows()

    @only_postgres
    def test_values_are_compared_as_the_columns_of_the_database_keep_them(self, runs: Runs) -> None:
        runs.books.run(
            "CREATE SCHEMA other",
            "CREATE TABLE other.log (number int PRIMARY KEY, n numeric(10, 2), f real, c char(6), j jsonb)",
        )
        kept = Table(
            "log",
            MetaData(),
            Column("number", Integer, primary_key=True),
            *(Column("n", Numeric), Column("f", Float), Column("c", String), Column("j", JSON)),
            schema="other",
        )

        def keep(record: InputRecord) -> list[Change]:
            number = number_of(record)
            values = {"n": Decimal("1.005"), "f": 0.1, "c": "a", "j": {"bb": 1, "a": None}}
            return [Insert(kept, {"number": number, **values}), Insert(log, {"number": number})]

        job = SqlJob(name=runs.name, inputs=[runs.source], tables=[kept, log], transform=keep)
        runs.run(job)
        report = verify_tables(job, runs.settings(), timeout_s=PATIENCE_S)
        assert report.exactly_once, (report.rows(), report.examples)
        runs.books.run("UPDATE other.log SET n = 1.02 WHERE number = 7")
        assert not verify_tables(job, runs.settings(), timeout_s=PATIENCE_S).exactly_once

    def test_key_that_is_left_to_the_database_is_not_compared_and_says_so(self, runs: Runs) -> None:
        keyed = Table("keyed", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))
        with runs.books.judge.begin() as connection:
            keyed.create(connection)

        def keep(record: InputRecord) -> list[Change]:
            return [Insert(keyed, {"n": number_of(record)})]

        job = SqlJob(name=runs.name, inputs=[runs.source], tables=[keyed], transform=keep)
        runs.run(job)
        report = verify_tables(job, runs.settings(), timeout_s=PATIENCE_S)
        assert not report.exactly_once
        assert any("leaves the primary key to the database" in text for text in report.problems)

    def test_dead_letter_of_a_topic_that_was_created_anew_excuses_no_missing_row(self, runs: Runs) -> None:
        runs.run(runs.job(rows))
        runs.books.run(
            "INSERT INTO eos_dead_letters (consumer_group, topic, partition, record_offset, app, topic_id, headers, reason) "
            "SELECT consumer_group, topic, 1, 3, app, 'another', '[]', '' FROM eos_progress WHERE partition = 1",
            "DELETE FROM paid WHERE number = 7",
            "DELETE FROM log WHERE number = 7",
        )
        report = self.verified(runs)
        assert not report.exactly_once, report.rows()
        assert report.letters == 0
