"""An operator's commands about a job whose positions are in its database: they set these, and never the offsets in Kafka alone."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import eos as library
from eos import ConfigError, FencedError, OffsetGapError, TransformError, UnavailableError
from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.sql.operated import TablePositions
from tests.support.command_line import Ended, Eos
from tests.support.cutting_proxy import CuttingProxy
from tests.support.databases import Database
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    load,
    produce_plain,
    recreate_topic,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

# Dynamic members: one that was stopped has left the group.
GROUP = {"ownership__mode": "group", "ownership__static_membership": False}
PARTITION = {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1}
MODES = {"group": GROUP, "partition": PARTITION}

_MODULE = """\
from sqlalchemy import Column, Integer, MetaData, Table

from eos import Job, OutputRecord
from eos.sql import Insert, SqlJob, Upsert

metadata = MetaData()
paid = Table("paid", metadata, Column("number", Integer, primary_key=True), Column("place", Integer))
log = Table("log", metadata, Column("number", Integer, primary_key=True))
wrong = set()


def rows(record):
    number = int(record.value)
    if number in wrong:
        raise ValueError("not this one")
    return [Upsert(paid, {{"number": number, "place": record.offset}})]


def logged(record):
    return [*rows(record), Insert(log, {{"number": int(record.value)}})]


def copied(record):
    return [OutputRecord({out!r}, record.value)]


job = SqlJob(name={name!r}, inputs=[{source!r}], tables=[paid], transform=rows)
renamed = SqlJob(name={name!r} + "-new", inputs=[{source!r}], tables=[paid], transform=rows)
logging = SqlJob(name={name!r}, inputs=[{source!r}], tables=[paid, log], transform=logged)
lacking = SqlJob(
    name={name!r}, inputs=[{source!r}], tables=[Table("elsewhere", MetaData(), Column("n", Integer, primary_key=True))],
    transform=rows,
)
copy = Job(name={name!r} + "-copy", inputs=[{source!r}], outputs=[{out!r}], transform=copied)
"""


class Operated:
    """A job of two input partitions, ten records in each, and the commands about it."""

    def __init__(
        self, eos: Eos, directory: Path, bootstrap: str, books: Database, changes: dict[str, object]
    ) -> None:
        self.books, self.bootstrap, self.changes = books, bootstrap, changes
        self.source, self.out, self.name = unique("in"), unique("out"), unique("table")
        self.group = self.name
        create_topics(bootstrap, {self.source: 2, self.out: 1})
        load(bootstrap, self.source, 20, partitions=range(2))
        self._eos, self._directory = eos, directory
        self._module = unique("operated").replace("-", "_")
        text = _MODULE.format(name=self.name, source=self.source, out=self.out)
        (directory / f"{self._module}.py").write_text(text)

    def declared(self, name: str) -> Any:
        return getattr(__import__(self._module), name)

    def line(self, *words: str, **others: object) -> list[str]:
        given = {
            "kafka.bootstrap_servers": self.bootstrap,
            "transaction.timeout_ms": 20_000,
            **{name.replace("__", "."): value for name, value in (self.changes | others).items()},
        }
        sets = [
            word
            for name, value in given.items()
            if name != "sql.url"
            for word in ("--set", f"{name}={_text(value)}")
        ]
        named = [
            f"{self._module}:{word.partition(':')[2] or 'job'}" if word.startswith("JOB") else word
            for word in words
        ]
        return [*named, "--app-dir", str(self._directory), *sets]

    def __call__(self, *words: str, **others: object) -> Ended:
        """A command line; JOB stands for the job, JOB:NAME for another one of its module."""
        return self._eos(*self.line(*words, **others))

    def told(self, *words: str) -> dict[str, Any]:
        ended = self(*words, "--json")
        assert ended.code == 0, ended.err
        told: dict[str, Any] = json.loads(ended.out)
        return told

    def run(self, name: str = "job", **others: object) -> None:
        settings = settings_for(self.bootstrap, **({"sql__url": self.books.url} | self.changes | others))
        library.run(self.declared(name), settings, until_caught_up=True)

    def positions(self, group: str = "") -> list[int]:
        found = self.books.seen(
            "SELECT next_offset FROM eos_progress WHERE consumer_group = :g ORDER BY partition",
            g=group or self.group,
        )
        return [row[0] for row in found]

    def mirrored(self) -> list[int | None]:
        partitions = [(self.source, number) for number in range(2)]
        return [offset for offset, _ in committed_offsets(self.bootstrap, self.group, partitions).values()]

    def is_mirrored(self, *offsets: int) -> bool:
        """Whether Kafka has these; an owner sends them and waits for nothing."""
        return Deadline(PATIENCE_S).wait_for(lambda: self.mirrored() == [*offsets])

    def numbers(self, table: str = "paid") -> list[int]:
        return [row[0] for row in self.books.seen(f"SELECT number FROM {table} ORDER BY 1")]  # noqa: S608

    def commit_in_kafka(self, group: str, *offsets: int) -> None:
        """As any consumer would."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            wanted = [TopicPartition(self.source, number, offset) for number, offset in enumerate(offsets)]
            consumer.commit(offsets=wanted, asynchronous=False)
        finally:
            consumer.close()


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


NewOperated = Callable[..., Operated]


@pytest.fixture
def operated(
    bootstrap: str, eos: Eos, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> NewOperated:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("EOS_SQL__URL", database.url)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(mode: str = "group", **changes: object) -> Operated:
        one = Operated(eos, tmp_path, bootstrap, database, {**MODES[mode], **changes})
        database.with_tables()
        with database.judge.begin() as connection:
            one.declared("metadata").create_all(connection)
        return one

    return make


only_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


# --- offsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(MODES))
def test_job_that_is_set_back_processes_these_records_again_and_no_others(
    operated: NewOperated, mode: str
) -> None:
    one = operated(mode)
    one.run()
    assert one.is_mirrored(10, 10)
    before = one.books.seen("SELECT * FROM eos_progress ORDER BY partition")

    dry = one("offsets", "set", "JOB", "--to", f"{one.source}:1@7")
    assert dry.code == ExitCode.DONE, dry.err
    for part in ("-3 (again)", "3 offsets are gone back", "nothing was written. To do it: --yes"):
        assert part in dry.out
    assert one.books.seen("SELECT * FROM eos_progress ORDER BY partition") == before
    assert one.mirrored() == [10, 10]

    ended = one("offsets", "set", "JOB", "--to", f"{one.source}:1@7", "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert (one.positions(), one.mirrored()) == ([10, 7], [10, 7])
    assert "from here on" not in ended.out
    shown = one.told("offsets", "show", "JOB")["partitions"]
    assert [(p["committed"], p["app"], p["mode"]) for p in shown] == [
        (10, one.name, mode),
        (7, one.name, mode),
    ]
    assert shown[1]["shard"] == "operator"
    assert before[0] == one.books.seen("SELECT * FROM eos_progress ORDER BY partition")[0]

    one.books.run("DELETE FROM paid")
    one.run(input__start="fail")
    assert one.numbers() == [15, 17, 19]
    assert one.positions() == [10, 10]


def test_job_that_is_set_forward_skips_records_and_verify_names_them(operated: NewOperated) -> None:
    one = operated()
    one.run()
    load(one.bootstrap, one.source, 10, "9", partitions=range(2))
    told = one.told("offsets", "set", "JOB", "--to", "latest", "--only", f"{one.source}:0", "--yes")
    assert [(p["partition"], p["committed"], p["to"], p["difference"]) for p in told["partitions"]] == [
        (0, 10, 15, 5)
    ]
    assert "5 offsets are skipped" in " ".join(told["notes"])
    one.run()
    assert (one.positions(), len(one.numbers())) == ([15, 15], 25)
    assert one.is_mirrored(15, 15)
    verified = one("verify", "JOB")
    assert verified.code == ExitCode.NOT_EXACTLY_ONCE
    assert "5 missing" in verified.out


def test_positions_that_are_set_before_the_first_start_are_where_it_begins(operated: NewOperated) -> None:
    """One partition's alone: nothing says where to start in the other one."""
    one = operated()
    ended = one("offsets", "set", "JOB", "--to", f"{one.source}:1@4", "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    assert f"{one.source}[0]: no committed offset either" in ended.out
    with pytest.raises(OffsetGapError, match=r"\[0\]: eos_progress has no position .* or it was never set"):
        one.run(input__start="fail")
    assert one("offsets", "set", "JOB", "--to", f"{one.source}:0@0", "--yes").code == ExitCode.DONE
    one.run(input__start="fail")
    assert one.numbers() == sorted([*range(0, 20, 2), *range(9, 20, 2)])


@pytest.mark.parametrize(("start", "begins"), [("earliest", 0), ("latest", 15)])
def test_positions_that_are_all_gone_do_not_begin_elsewhere_than_they_ended(
    operated: NewOperated, start: str, begins: int
) -> None:
    """Their mirror in Kafka tells. From the end of the input, ten records were never processed, and the run ended with 0."""
    one = operated()
    one.run()
    one.books.run("DELETE FROM eos_progress")
    load(one.bootstrap, one.source, 10, "9", partitions=range(2))
    with pytest.raises(OffsetGapError, match=rf"up to 10 before .*To begin at {begins} would .*Fix: "):
        one.run(input__start=start)
    places = ",".join(f"{one.source}:{n}@10" for n in range(2))
    assert one("offsets", "set", "JOB", "--to", places, "--yes").code == ExitCode.DONE
    one.run(input__start="fail")
    assert (one.positions(), len(one.numbers())) == ([15, 15], 30)


def test_added_partition_whose_position_is_gone_is_not_new_beside_its_mirror(operated: NewOperated) -> None:
    """The other partitions' positions did not count it yet: its eight records were processed twice, and the run ended with 0."""
    one = operated()
    one.run()
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    admin.create_partitions([NewPartitions(one.source, 3)])[one.source].result(PATIENCE_S)
    load(one.bootstrap, one.source, 8, "9", partitions=[2])
    one.run()
    one.books.run("DELETE FROM eos_progress WHERE partition = 2")
    with pytest.raises(
        OffsetGapError, match=r"\[2\]: eos_progress has no position of it, and .* up to 8 before"
    ):
        one.run(input__start="fail")
    assert one("offsets", "set", "JOB", "--to", f"{one.source}:2@8", "--yes").code == ExitCode.DONE
    one.run(input__start="fail")
    assert len(one.numbers()) == 28


def test_input_that_is_created_anew_with_fewer_partitions_begins_where_the_refusal_says(
    operated: NewOperated,
) -> None:
    """The old topic's positions still counted its partitions: each start waited for the one that is gone, and ended with 5."""
    one = operated()
    one.run()
    recreate_topic(one.bootstrap, one.source, 1)
    load(one.bootstrap, one.source, 4, "9", partitions=[0])
    with pytest.raises(OffsetGapError, match=r"created anew.*Fix: .*--to earliest"):
        one.run(input__start="fail")
    ended = one("offsets", "set", "JOB", "--to", "earliest", "--only", one.source, "--yes")
    assert ended.code == ExitCode.DONE, ended.err
    one.run(input__start="fail")
    assert len(one.numbers()) == 24
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    admin.create_partitions([NewPartitions(one.source, 2)])[one.source].result(PATIENCE_S)
    load(one.bootstrap, one.source, 3, "8", partitions=[1])
    one.run(input__start="fail")  # the added one is new, whatever the former topic's was
    assert (one.positions(), len(one.numbers())) == ([4, 3], 27)


def test_backup_is_restored(operated: NewOperated, tmp_path: Path) -> None:
    one = operated()
    one.run()
    backup = tmp_path / "positions.json"
    backup.write_text(one("offsets", "show", "JOB", "--json").out)
    assert one("offsets", "set", "JOB", "--to", "earliest", "--yes").code == ExitCode.DONE
    assert one.positions() == [0, 0]
    assert one("offsets", "set", "JOB", "--to", str(backup), "--yes").code == ExitCode.DONE
    assert one.positions() == [10, 10]


@contextlib.contextmanager
def at_work(one: Operated) -> Iterator[Any]:
    """The job in a thread, once it has caught up."""
    from tests.support.jobs_for_faults import Running

    settings = settings_for(one.bootstrap, sql__url=one.books.url, **one.changes)
    running = Running(one.declared("job"), settings, until_caught_up=False)
    try:
        assert Deadline(PATIENCE_S).wait_for(lambda: one.positions() == [10, 10])
        yield running
    finally:
        running.ask_to_stop()
        with contextlib.suppress(BaseException):
            running.wait()


def test_nothing_is_set_while_members_live(operated: NewOperated) -> None:
    one = operated()
    with at_work(one):
        assert one.is_mirrored(10, 10)
        dry = one("offsets", "set", "JOB", "--to", f"{one.source}:1@7")
        assert (dry.code, "it would be refused now" in dry.err) == (ExitCode.DONE, True)
        refused = one("offsets", "set", "JOB", "--to", f"{one.source}:1@7", "--yes")
        assert refused.code == ExitCode.CONFIGURATION
        assert "live members" in refused.err
        assert (one.positions(), one.mirrored()) == ([10, 10], [10, 10])


def test_idle_owner_of_partitions_is_fenced_and_ends_at_its_next_commit(operated: NewOperated) -> None:
    one = operated("partition")
    with at_work(one) as owner:
        ended = one("offsets", "set", "JOB", "--to", f"{one.source}:0@7", "--yes")
        assert ended.code == ExitCode.DONE, ended.err
        load(one.bootstrap, one.source, 2, "9", partitions=range(2))
        with pytest.raises(FencedError, match="another owner has taken it over"):
            owner.wait(PATIENCE_S)
        assert one.positions()[0] == 7


def test_member_that_joins_behind_the_look_is_fenced_or_nothing_is_set(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group takes no offsets from outside then: a position that would go back stays, because its mirror would not."""
    one = operated()
    monkeypatch.setattr("eos.sql.operated.refuse_membership", lambda *_, **__: None)
    with at_work(one) as owner:
        assert one.is_mirrored(10, 10)
        back = one("offsets", "set", "JOB", "--to", f"{one.source}:0@7", "--yes")
        assert (back.code, "has got live members" in back.err) == (ExitCode.CONFIGURATION, True), back.err
        assert (one.positions(), one.mirrored()) == ([10, 10], [10, 10])
        load(one.bootstrap, one.source, 10, "9", partitions=range(2))
        with pytest.raises(FencedError, match="another owner has taken it over"):
            owner.wait(PATIENCE_S)
    load(one.bootstrap, one.source, 4, "8", partitions=range(2))
    one.run()
    assert one.positions() == [17, 17]
    assert one.numbers() == sorted([*range(20), *range(90, 100), *range(80, 84)])


def test_owner_that_comes_between_the_claim_and_the_commit_wins(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = operated()
    one.run()
    assert one.is_mirrored(10, 10)

    def comes(*_: object) -> None:
        one.books.run("UPDATE eos_progress SET owner = '#0 another'")

    monkeypatch.setattr(TablePositions, "_mirror_first", comes)
    refused = one("offsets", "set", "JOB", "--to", "earliest", "--yes")
    assert refused.code == ExitCode.FENCED
    assert "nothing was committed" in refused.err
    assert (one.positions(), one.mirrored()) == ([10, 10], [10, 10])


def test_process_that_dies_before_its_commit_leaves_a_job_that_starts(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position that went back is told by its mirror, so the mirror goes first."""
    one = operated()
    one.run()
    assert one.is_mirrored(10, 10)

    def dies(*_: object) -> None:
        raise UnavailableError("here")

    with monkeypatch.context() as patched:
        patched.setattr(TablePositions, "_transaction", dies)
        assert one("offsets", "set", "JOB", "--to", "earliest", "--yes").code == ExitCode.UNAVAILABLE
    assert (one.positions(), one.mirrored()) == ([10, 10], [0, 0])
    said = one("status", "JOB").out
    assert f"are behind the positions: {one.source}[0] by 10, {one.source}[1] by 10" in said
    load(one.bootstrap, one.source, 2, "9", partitions=range(2))
    one.run()
    assert one.positions() == [11, 11]


@only_postgres
@pytest.mark.parametrize("arrives", [True, False])
def test_commit_that_is_not_answered_is_read_back(
    operated: NewOperated, postgres: Database, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    one = operated()
    one.run()
    assert one.is_mirrored(10, 10)
    url = postgres.judge.url
    with CuttingProxy(url.port or 0) as proxy:
        monkeypatch.setenv("EOS_SQL__URL", url.set(port=proxy.port).render_as_string(hide_password=False))
        monkeypatch.setattr(
            TablePositions, "_mirror_first", lambda *_: proxy.cut_at(b"COMMIT", arrives=arrives)
        )
        ended = one("offsets", "set", "JOB", "--to", f"{one.source}:1@7", "--yes")
    if arrives:
        assert (ended.code, one.positions(), one.mirrored()) == (ExitCode.DONE, [10, 7], [10, 7]), ended.err
    else:
        assert (ended.code, one.positions(), one.mirrored()) == (ExitCode.UNAVAILABLE, [10, 10], [10, 10])
        assert "nothing was committed" in ended.err


@only_postgres
def test_database_that_does_not_answer_leaves_kafka_as_it_is(
    operated: NewOperated, postgres: Database
) -> None:
    one = operated(transaction__timeout_ms=1_000, transaction__interval_ms=100)
    one.run()
    assert one.is_mirrored(10, 10)
    with postgres.judge.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM eos_progress FOR UPDATE")
        refused = one("offsets", "set", "JOB", "--to", "earliest", "--yes")
        assert refused.code == ExitCode.UNAVAILABLE, refused.err
    assert (one.positions(), one.mirrored()) == ([10, 10], [10, 10])


@pytest.mark.parametrize("sql_url", ["", "mysql://root@localhost/books"])
def test_job_whose_database_is_not_known_is_refused(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch, sql_url: str
) -> None:
    one = operated()
    one.commit_in_kafka(one.group, 3, 3)
    monkeypatch.setenv("EOS_SQL__URL", sql_url) if sql_url else monkeypatch.delenv("EOS_SQL__URL")
    for words in (
        ("offsets", "show"),
        ("offsets", "set", "--to", "latest", "--yes"),
        ("status",),
        ("check",),
    ):
        refused = one(*words, "JOB")
        assert (refused.code, "sql.url" in refused.err) == (ExitCode.CONFIGURATION, True), refused.err
    assert one.mirrored() == [3, 3]


# --- a renamed job, and another group's positions ----------------------------------------------------------


def test_positions_of_another_job_are_refused_until_they_are_adopted(operated: NewOperated) -> None:
    one = operated(group=unique("shared"))
    one.group = str(one.changes["group"])
    one.run()
    for words in (
        ("set", "JOB:renamed", "--to", "earliest"),
        ("set", "JOB:renamed", "--to", "earliest", "--yes"),
    ):
        refused = one("offsets", *words)
        assert (refused.code, "--adopt-offsets" in refused.err) == (ExitCode.CONFIGURATION, True)
    with pytest.raises(ConfigError, match=r"committed by the job .* \(--adopt-offsets\)"):
        one.run("renamed")
    assert one.positions() == [10, 10]

    adopted = one("offsets", "set", "JOB:renamed", "--to", f"{one.source}:0@8", "--adopt-offsets", "--yes")
    assert adopted.code == ExitCode.DONE, adopted.err
    assert one.positions() == [8, 10]
    with pytest.raises(ConfigError, match=f"belongs to job '{one.name}-new'|committed by the job"):
        one.run("job")
    one.run("renamed", ownership__adopt_offsets=True)
    one.run("renamed")
    apps = one.books.seen("SELECT DISTINCT app FROM eos_progress")
    assert (one.positions(), apps) == ([10, 10], [(f"{one.name}-new",)])


def test_run_that_adopts_the_positions_of_a_renamed_job_goes_on_where_that_stood(
    operated: NewOperated,
) -> None:
    one = operated(group=unique("shared"))
    one.group = str(one.changes["group"])
    one.run()
    load(one.bootstrap, one.source, 2, "9", partitions=range(2))
    one.books.run("DELETE FROM paid")
    one.run("renamed", ownership__adopt_offsets=True)
    assert (one.numbers(), one.positions()) == ([90, 91], [11, 11])
    one.run("renamed")  # adopted once


def test_positions_of_another_mode_of_ownership_are_refused_before_an_owner_is_fenced(
    operated: NewOperated,
) -> None:
    one = operated("partition")
    one.run()
    owners = one.books.seen("SELECT owner FROM eos_progress ORDER BY partition")
    changes: dict[str, object] = {**GROUP, "ownership__ordinal": 0, "ownership__instances": 1}
    set_back = ("offsets", "set", "JOB", "--to", "earliest", "--yes")
    refused = one(*set_back, **changes)
    assert (refused.code, "--adopt-offsets" in refused.err) == (ExitCode.CONFIGURATION, True), refused.err
    assert one.books.seen("SELECT owner FROM eos_progress ORDER BY partition") == owners
    assert one(*set_back, "--adopt-offsets", **changes).code == ExitCode.DONE
    assert one.positions() == [0, 0]


def test_positions_are_copied_from_another_group_of_the_database(operated: NewOperated) -> None:
    one = operated()
    one.run()
    one.commit_in_kafka(one.group, 1, 1)  # no owner begins there, so nothing is copied from there
    told = json.loads(
        one("offsets", "copy", "JOB", "--from-group", one.group, "--yes", "--json", group="second").out
    )
    assert [p["to"] for p in told["partitions"]] == [10, 10]
    assert "two groups process the same input twice" in " ".join(told["notes"])
    assert (one.positions("second"), one.positions()) == ([10, 10], [10, 10])
    owners = {row[0] for row in one.books.seen("SELECT owner FROM eos_progress")}
    assert len(owners) == 1, "the owners of the first group are not fenced"


@pytest.mark.parametrize("mode", list(MODES))
def test_job_that_starts_in_the_group_that_it_has_left_is_refused_until_its_positions_are_copied_back(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Also while they are copied: the copy ended with 0, and both groups processed the same input."""
    one = operated(mode)
    one.run()
    transaction = TablePositions._transaction

    def refused() -> None:
        with pytest.raises(ConfigError, match=r"were copied to the group 'second'.*--from-group second"):
            one.run()

    def meanwhile(*given: Any) -> None:
        monkeypatch.setattr(TablePositions, "_transaction", transaction)
        produce_plain(one.bootstrap, one.source, [PlainRecord(b"100", partition=0)])
        refused()
        transaction(*given)

    monkeypatch.setattr(TablePositions, "_transaction", meanwhile)
    copied = one("offsets", "copy", "JOB", "--from-group", one.group, "--yes", group="second")
    assert copied.code == ExitCode.DONE, copied.err
    assert (one.positions(), one.positions("second")) == ([10, 10], [10, 10])
    refused()
    assert one("offsets", "copy", "JOB", "--from-group", "second", "--yes").code == ExitCode.DONE
    one.run()
    assert (one.positions(), one.positions("second")) == ([11, 10], [10, 10])
    assert len(one.numbers()) == 21


@pytest.mark.parametrize("mode", list(MODES))
def test_owner_that_starts_before_its_positions_are_moved_wins(
    operated: NewOperated, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    one = operated(mode)
    one.run()
    move_away = TablePositions._move_away

    def behind_it(*given: Any) -> None:
        monkeypatch.setattr(TablePositions, "_move_away", move_away)
        produce_plain(one.bootstrap, one.source, [PlainRecord(b"100", partition=0)])
        one.run()
        move_away(*given)

    monkeypatch.setattr(TablePositions, "_move_away", behind_it)
    copied = one("offsets", "copy", "JOB", "--from-group", one.group, "--yes", group="second")
    assert copied.code == ExitCode.FENCED, copied.err
    assert "another owner has taken it over" in copied.err
    assert (one.positions(), one.positions("second")) == ([11, 10], [])


def test_offsets_of_a_consumer_are_copied_and_a_mirror_is_not(operated: NewOperated) -> None:
    one = operated()
    former = unique("former")
    one.commit_in_kafka(former, 4, 6)
    copy = ("offsets", "copy", "JOB", "--from-group", former, "--yes")
    assert "which eos has not committed" in one(*copy).err
    assert one(*copy, "--adopt-offsets").code == ExitCode.DONE
    assert one.positions() == [4, 6]
    one.run()
    assert len(one.numbers()) == 20 - 4 - 6
    assert one.is_mirrored(10, 10)
    for words in (("JOB:copy",), ("JOB:copy", "--yes")):
        refused = one("offsets", "copy", *words, "--from-group", one.group)
        assert (refused.code, "only repeats a position of a database" in refused.err) == (
            ExitCode.CONFIGURATION,
            True,
        )


# --- skip ------------------------------------------------------------------------------------------------


def stopped_at(one: Operated, number: int, name: str = "job") -> None:
    """The job has met a record that its transform raises for, in a transaction with all others, and stopped."""
    one.declared("wrong").add(number)
    with pytest.raises(TransformError):
        # No commit of the other partition alone, which may be fetched first.
        one.run(name, transaction__interval_ms=30_000, transaction__timeout_ms=120_000)
    assert one.positions() == [0, 0]


def test_skipped_record_becomes_a_dead_letter_with_the_records_in_front_of_it_processed(
    operated: NewOperated,
) -> None:
    one = operated()
    stopped_at(one, 11)
    place = f"{one.source}:1@5"
    dry = one("skip", "JOB", place, "--reason", "no amount")
    assert dry.code == ExitCode.DONE, dry.err
    assert "5 records in front of it are processed with it: 5 outputs" in dry.out
    assert "becomes a dead-letter record in eos_dead_letters" in dry.out
    assert (one.positions(), one.numbers()) == ([0, 0], [])

    done = one("skip", "JOB", place, "--reason", "no amount", "--yes")
    assert done.code == ExitCode.DONE, done.err
    assert (one.positions(), one.numbers()) == ([0, 6], [1, 3, 5, 7, 9])
    assert one.mirrored() == [None, 6]  # nobody has committed the other one
    letters = one.books.seen(
        "SELECT consumer_group, app, partition, record_offset, reason FROM eos_dead_letters"
    )
    assert letters == [(one.group, one.name, 1, 5, "SkippedByOperator: no amount")]
    one.run()
    assert one.numbers() == [n for n in range(20) if n != 11]
    verified = one("verify", "JOB")
    assert verified.code == ExitCode.DONE, verified.out


def test_record_is_skipped_without_a_trace_and_verify_reports_it(operated: NewOperated) -> None:
    one = operated()
    stopped_at(one, 0)
    place = f"{one.source}:0@0"
    done = one("skip", "JOB", place, "--reason", "no amount", "--without-dead-letter", "--yes")
    assert done.code == ExitCode.DONE, done.err
    one.run()
    one.declared("wrong").clear()
    assert one.books.seen("SELECT * FROM eos_dead_letters") == []
    verified = one("verify", "JOB")
    assert (verified.code, "1 missing" in verified.out) == (ExitCode.NOT_EXACTLY_ONCE, True)


@pytest.mark.parametrize("policy", ["stop", "dead-letter"])
def test_record_in_front_whose_row_the_database_refuses_is_answered_by_the_policy(
    operated: NewOperated, policy: str
) -> None:
    one = operated()
    one.books.run("INSERT INTO log VALUES (3)")
    stopped_at(one, 11, "logging")
    done = one("skip", "JOB:logging", f"{one.source}:1@5", "--reason", "x", "--yes", poison__policy=policy)
    if policy == "stop":
        assert (done.code, f"{one.source}[1] offset 1 stands in front" in done.err) == (ExitCode.POISON, True)
        assert (one.positions(), one.numbers()) == ([0, 0], [])
    else:
        assert done.code == ExitCode.DONE, done.err
        assert one.positions() == [0, 6]
        letters = one.books.seen("SELECT record_offset, consumer_group FROM eos_dead_letters ORDER BY 1")
        assert letters == [(1, one.group), (5, one.group)]
        assert one.numbers() == [1, 5, 7, 9]


# --- looks -----------------------------------------------------------------------------------------------


def test_what_shows_a_job_s_place_shows_the_position_and_says_where_the_mirror_is(
    operated: NewOperated,
) -> None:
    one = operated()
    one.run()
    assert one.is_mirrored(10, 10)
    assert one.told("status", "JOB")["remarks"] == one.told("offsets", "show", "JOB")["remarks"] == []
    one.commit_in_kafka(one.group, 2, 10)
    for words in (("status",), ("offsets", "show")):
        told = one.told(*words, "JOB")
        assert [p["committed"] for p in told["partitions"]] == [10, 10]
        assert f"{one.source}[0] at 2" in " ".join(told["remarks"])
    assert "positions in eos_progress" in one("status", "JOB").out
    # As of a dump of an earlier time.
    one.run()
    load(one.bootstrap, one.source, 2, "9", partitions=range(2))
    one.run()
    assert one.is_mirrored(11, 11)
    one.books.run("UPDATE eos_progress SET next_offset = 4 WHERE partition = 1")
    assert f"{one.source}[1] by 7. The database is a copy from an earlier time" in one("status", "JOB").out


# --- check -----------------------------------------------------------------------------------------------


def test_check_of_a_database_that_fits(operated: NewOperated) -> None:
    ended = operated()("check", "JOB")
    assert ended.code == ExitCode.DONE, ended.err
    assert "the cluster fits" in ended.out


def test_check_refuses_a_database_without_tables_and_names_the_command(
    operated: NewOperated, database: Database
) -> None:
    one = operated()
    refused = one("check", "JOB:lacking")
    assert (refused.code, "lacks elsewhere" in refused.err) == (ExitCode.CONFIGURATION, True)
    database.run("DROP TABLE eos_progress")
    for words in (("check",), ("status",), ("offsets", "show")):
        refused = one(*words, "JOB")
        assert refused.code == ExitCode.CONFIGURATION, refused.err
        assert "lacks eos_progress. Fix: eos sql tables" in refused.err
        assert "--apply" in refused.err
    database.with_tables().run("UPDATE eos_tables SET version = 99 WHERE name = 'eos_progress'")
    refused = one("check", "JOB")
    assert (refused.code, "made by a newer eos" in refused.err) == (ExitCode.CONFIGURATION, True)


@only_sqlite
def test_check_refuses_a_file_that_can_only_be_read(
    operated: NewOperated, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = operated()
    file = database.url.removeprefix("sqlite:///")
    monkeypatch.setenv("EOS_SQL__URL", f"sqlite:///file:{file}?mode=ro&uri=true")
    refused = one("check", "JOB")
    assert (refused.code, "can only be read" in refused.err) == (ExitCode.CONFIGURATION, True), refused.err


@only_postgres
class TestRights:
    """Of a user that is no superuser."""

    @pytest.fixture
    def limited(
        self, operated: NewOperated, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Operated]:
        one = operated()
        role = unique("r").replace("-", "_")
        database.run(
            f"CREATE ROLE {role} LOGIN PASSWORD '{role}'",
            f"GRANT SELECT, INSERT, UPDATE ON eos_progress, paid TO {role}",
            f"GRANT SELECT, INSERT ON eos_dead_letters TO {role}",
            f"GRANT SELECT ON eos_tables TO {role}",
        )
        url = database.judge.url.set(username=role, password=role)
        monkeypatch.setenv("EOS_SQL__URL", url.render_as_string(hide_password=False))
        self.role = role
        yield one
        database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    def test_enough(self, limited: Operated) -> None:
        """What is asked for is what a run, and an operator, need."""
        ended = limited("check", "JOB", poison__policy="dead-letter")
        assert ended.code == ExitCode.DONE, ended.err
        assert "lacks" not in ended.out
        limited.declared("wrong").add(11)
        limited.run(sql__url=os.environ["EOS_SQL__URL"], poison__policy="dead-letter")
        assert limited.positions() == [10, 10]
        assert limited.books.seen("SELECT record_offset FROM eos_dead_letters") == [(5,)]
        assert limited("offsets", "set", "JOB", "--to", "earliest", "--yes").code == ExitCode.DONE
        assert limited.positions() == [0, 0]

    @pytest.mark.parametrize(
        ("right", "table"),
        [
            ("UPDATE", "eos_progress"),
            ("INSERT", "eos_progress"),
            ("SELECT", "eos_tables"),
            ("SELECT", "eos_dead_letters"),
        ],
    )
    def test_of_eos_s_own_tables_one_is_lacking(self, limited: Operated, right: str, table: str) -> None:
        limited.books.run(f"REVOKE {right} ON {table} FROM {self.role}")
        refused = limited("check", "JOB")
        assert refused.code == ExitCode.CONFIGURATION
        assert f"lacks {right}. Fix: GRANT {right} ON {table} TO {self.role}" in refused.err

    def test_dead_letters_are_needed_where_the_policy_writes_them(self, limited: Operated) -> None:
        limited.books.run(f"REVOKE INSERT ON eos_dead_letters FROM {self.role}")
        assert limited("check", "JOB").code == ExitCode.DONE
        refused = limited("check", "JOB", poison__policy="dead-letter")
        assert (refused.code, "eos_dead_letters" in refused.err) == (ExitCode.CONFIGURATION, True)

    def test_of_the_job_s_tables_one_is_lacking(self, limited: Operated) -> None:
        limited.books.run(
            f"REVOKE UPDATE ON paid FROM {self.role}", f"GRANT UPDATE (place) ON paid TO {self.role}"
        )
        assert "lacks" not in limited("check", "JOB").out
        limited.books.run(f"REVOKE UPDATE (place) ON paid FROM {self.role}")
        ended = limited("check", "JOB")
        assert (ended.code, f"GRANT UPDATE ON paid TO {self.role}" in ended.out) == (ExitCode.DONE, True)

    def test_only_reading(self, limited: Operated) -> None:
        limited.books.run(f"ALTER ROLE {self.role} SET default_transaction_read_only = on")
        refused = limited("check", "JOB")
        assert (refused.code, "default_transaction_read_only" in refused.err) == (
            ExitCode.CONFIGURATION,
            True,
        )

    def test_crash_that_takes_commits_back(self, limited: Operated) -> None:
        limited.books.run(f"ALTER ROLE {self.role} SET synchronous_commit = off")
        assert "synchronous_commit = off" in limited("check", "JOB").out


@only_postgres
def test_check_of_a_database_that_is_away(operated: NewOperated, monkeypatch: pytest.MonkeyPatch) -> None:
    one = operated()
    monkeypatch.setattr("eos.cli.check.PREFLIGHT_S", 5.0)
    monkeypatch.setenv("EOS_SQL__URL", "postgresql://postgres:secret@127.0.0.1:1/books")
    refused = one("check", "JOB")
    assert refused.code == ExitCode.UNAVAILABLE, refused.err
    assert 'connection to server at "127.0.0.1", port 1 failed' in refused.err
    assert "secret" not in refused.err
