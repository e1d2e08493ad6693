"""From the tables of one database to those of another, through Kafka: exact whatever is killed, as plain SQL counts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TaskID
from sqlalchemy import Engine, insert, text

from eos.kafka.topics import delete_topics
from eos.local import LocalKafka, LocalPostgres
from eos.local.topics import empty_topics
from eos.records import InputRecord
from jobs import demo, refund_tables, refunds, settlement_outbox
from jobs.demo_books import compare
from jobs.demo_databases import Databases, in_files, on_server
from jobs.demo_report import show_books
from jobs.demo_way import SEED, Outcome, Stage, run_and_kill_each
from jobs.refund_rules import Decision, decide, parse_settlement
from jobs.settlements import settlements
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S

COUNT = 500
PARTITIONS = 2
FEW = 100


def seen(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.broker
@pytest.mark.parametrize("database", ["postgres", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_relay_processor_and_sink_are_killed_inside_transactions_and_the_tables_are_exact(
    kafka: LocalKafka, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topics = (*refunds.job.inputs, *refunds.job.written_topics)
    empty_topics(kafka, dict.fromkeys(topics, PARTITIONS))
    request.addfinalizer(
        lambda: delete_topics({"bootstrap.servers": kafka.bootstrap_servers}, topics, timeout_s=PATIENCE_S)
    )
    silent = Console(quiet=True)
    progress = Progress(console=silent, disable=True)
    if database == "sqlite":
        new_databases = in_files(tmp_path)
    else:
        server: LocalPostgres = request.getfixturevalue("postgres_server")
        new_databases = on_server(server.url, unique("way").replace("-", "_"))
    with new_databases as databases:
        outcome = run_and_kill_each(progress, kafka, databases, COUNT, logs=tmp_path)

        assert all(stage.victim and stage.seconds for stage in outcome.stages), outcome.stages
        assert [stage.inside.was_undone() for stage in outcome.stages] == [True] * 3
        assert list(outcome.exit_codes) == [0] * 3

        application, tables = databases.application, databases.tables
        written = {settlement for (settlement,) in seen(application, "SELECT settlement_id FROM settlements")}
        assert len(written) == outcome.written >= COUNT
        made = islice(settlements(sys.maxsize, SEED, poison_share=0), outcome.written + outcome.rolled_back)
        parsed = [parse_settlement(record.value) for record in made]
        decisions = [decide(one) for one in parsed if one.settlement_id in written]
        expected = sorted((audit.settlement_id, audit.request_index, audit.decision.value) for one in decisions for audit in one.audits)  # fmt: skip
        assert seen(tables, "SELECT settlement_id, request_index, decision FROM refund_audit ORDER BY 1, 2") == expected  # fmt: skip
        paid = sorted((refund.refund_id, refund.merchant_id, refund.currency, refund.amount_minor) for one in decisions for refund in one.refunds)  # fmt: skip
        assert seen(tables, "SELECT refund_id, merchant_id, currency, amount_minor FROM refunds ORDER BY 1") == paid  # fmt: skip

        books = compare(application, tables)
        assert books.are_exact, books
        show_books(silent, books, outcome)


@contextmanager
def filled(directory: Path) -> Iterator[Databases]:
    """Both databases as they are if nothing goes wrong."""
    with in_files(directory) as databases:
        records = list(settlements(FEW, seed=5, poison_share=0))
        settlement_outbox.write(databases.application, records)
        transform = refunds.refunds(refunds.RefundSettings())
        outputs = [
            output
            for offset, (key, value) in enumerate(records)
            for output in transform(InputRecord(refunds.SETTLEMENTS, 0, offset, key, value))
        ]
        with databases.tables.begin() as connection:
            for offset, output in enumerate(outputs):
                record = InputRecord(output.topic, 0, offset, output.key, output.value)
                for change in refund_tables.rows(record):
                    connection.execute(insert(change.table), change.values)
        yield databases


class TestComparison:
    @pytest.fixture
    def databases(self, tmp_path: Path) -> Iterator[Databases]:
        with filled(tmp_path) as databases:
            yield databases

    def test_whole_books_are_exact(self, databases: Databases) -> None:
        books = compare(databases.application, databases.tables)
        assert books.are_exact, books
        assert books[3:] == (0, 0, 0, 0, 0)
        (asked,) = seen(databases.application, "SELECT count(*), sum(amount_minor) FROM refund_requests")
        assert asked == tuple(map(sum, zip(*books.asked.values(), strict=True)))
        (paid,) = seen(databases.tables, "SELECT count(*), sum(amount_minor) FROM refunds")
        assert paid == tuple(map(sum, zip(*books.refunded.values(), strict=True)))

    @pytest.mark.parametrize(
        ("damage", "found"),
        [
            (
                "DELETE FROM refund_audit WHERE decision = 'rejected' AND settlement_id = {rejected!r}",
                {"differing", "lost"},
            ),
            (
                "DELETE FROM refund_audit WHERE settlement_id = {emitted!r}",
                {"differing", "lost", "torn"},
            ),
            ("DELETE FROM refunds WHERE settlement_id = {emitted!r}", {"differing", "torn"}),
            (
                (
                    "INSERT INTO refunds SELECT partition, 1000000 + record_offset, refund_id, settlement_id, merchant_id, payment_id, "
                    "amount_minor, currency, reason, created_at FROM refunds WHERE settlement_id = {emitted!r}"
                ),
                {"differing", "doubled"},
            ),
            (
                (
                    "INSERT INTO refund_audit SELECT partition, 1000000 + record_offset, settlement_id, request_index, refund_id, "
                    "merchant_id, payment_id, amount_minor, currency, remaining_minor, decision, rejection FROM refund_audit "
                    "WHERE settlement_id = {rejected!r}"
                ),
                {"differing", "doubled"},
            ),
            (
                "UPDATE refund_audit SET request_index = 99 WHERE settlement_id = {emitted!r} AND request_index = 0",
                {"lost", "unasked"},
            ),
            (
                "UPDATE refunds SET amount_minor = amount_minor + 1 WHERE settlement_id = {emitted!r}",
                {"differing", "torn"},
            ),
            (
                "UPDATE refunds SET merchant_id = 'another' WHERE settlement_id = {emitted!r}",
                {"differing", "torn"},
            ),
        ],
        ids=[
            "a rejection is missing",
            "decisions are missing",
            "a refund is missing",
            "a refund is there twice",
            "a decision is there twice",
            "a decision nobody asked for",
            "another amount",
            "another merchant",
        ],
    )
    def test_damage_is_found(self, databases: Databases, damage: str, found: set[str]) -> None:
        one_of = "SELECT min(settlement_id) FROM refund_audit WHERE decision = '{}'"
        settlement_of = {
            decision.value: seen(databases.tables, one_of.format(decision.value))[0][0]
            for decision in Decision
        }
        run(databases.tables, damage.format(**settlement_of))
        books = compare(databases.application, databases.tables)
        assert not books.are_exact
        figures = books._asdict()
        assert {
            name for name in ("differing", "lost", "unasked", "doubled", "torn") if figures[name]
        } == found

    def test_empty_books_are_not_exact(self, tmp_path: Path) -> None:
        with in_files(tmp_path) as databases:
            assert not compare(databases.application, databases.tables).are_exact


class _Seen:
    def __init__(self, *, undone: bool) -> None:
        self._undone = undone

    def is_open(self) -> bool:
        return True

    def was_undone(self) -> bool:
        return self._undone


class TestExitCode:
    """The act of the demonstration, with everything in place of it but the comparison."""

    @pytest.mark.parametrize(
        ("damage", "undone", "code", "expected"),
        [
            ("DELETE FROM refunds WHERE record_offset < 0", True, 0, True),
            (
                "DELETE FROM refunds WHERE record_offset = (SELECT min(record_offset) FROM refunds)",
                True,
                0,
                False,
            ),
            ("DELETE FROM refunds WHERE record_offset < 0", False, 0, False),
            ("DELETE FROM refunds WHERE record_offset < 0", True, 1, False),
        ],
        ids=["exact", "a refund is missing", "a kill met no transaction", "a process failed"],
    )
    def test_act_fails_where_anything_is_wrong(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        damage: str,
        undone: bool,
        code: int,
        expected: bool,
    ) -> None:
        def damaged(
            _progress: Progress, _kafka: object, databases: Databases, *_: object, **__: object
        ) -> Outcome:
            run(databases.tables, damage)
            return Outcome(FEW, 0, [stage], [code])

        unused: Any = None
        stage = Stage("relay", unused, _Seen(undone=undone), TaskID(0), victim=1)
        monkeypatch.setattr(demo, "new_databases", lambda *_: filled(tmp_path))
        monkeypatch.setattr(demo, "empty_topics", lambda *_: None)
        monkeypatch.setattr(demo, "run_and_kill_each", damaged)
        act = demo._Demonstration(Console(quiet=True), 1, tmp_path)
        assert act._third_act(unused) is expected


def test_settlement_its_requests_and_its_record_are_one_transaction(tmp_path: Path) -> None:
    *records, undone = settlements(FEW, seed=5, poison_share=0)
    with in_files(tmp_path) as databases:
        assert settlement_outbox.write(databases.application, records) == FEW - 1
        with databases.application.connect() as connection:
            settlement_outbox.add(connection, undone)
            connection.rollback()

        relayed = seen(databases.application, "SELECT topic, key, value FROM eos_outbox ORDER BY id")
        assert relayed == [(refunds.SETTLEMENTS, *record) for record in records]
        parsed = [parse_settlement(record.value) for record in records]
        rows = seen(
            databases.application, "SELECT settlement_id, amount_minor, status FROM settlements ORDER BY 1"
        )
        assert rows == [(one.settlement_id, one.amount_minor, one.status) for one in parsed]
        requests = seen(databases.application, "SELECT refund_id, amount_minor FROM refund_requests ORDER BY settlement_id, request_index")  # fmt: skip
        assert requests == [
            (asked.refund_id, asked.amount_minor) for one in parsed for asked in one.refund_requests
        ]
