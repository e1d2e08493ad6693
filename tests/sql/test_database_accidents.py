"""What happens to a database while `eos run` works with it: it ends with the right code and text, or goes on, and is exact afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from sqlalchemy import make_url, text

from eos.exits import ExitCode
from eos.local import LocalPostgres
from tests.support.cutting_proxy import CuttingProxy
from tests.support.database_runs import DatabaseRun, ended
from tests.support.databases import Database, open_directory
from tests.support.observer import PlainRecord, create_topics, delete_topic, produce_plain
from tests.support.patience import PATIENCE_S
from tests.support.pgbouncer import pgbouncer

pytestmark = pytest.mark.broker

FIRST, ALL = range(40), range(80)
LATER = ALL[len(FIRST) :]


@pytest.fixture(params=["sink", "relay"])
def run(
    request: pytest.FixtureRequest, bootstrap: str, postgres: Database, tmp_path: Path
) -> Iterator[DatabaseRun]:
    made = DatabaseRun(request.param, bootstrap, postgres, tmp_path)
    yield made
    made.close()


def test_a_server_that_stands_still_for_ever_ends_the_job_with_5_and_all_is_there_afterwards(
    run: DatabaseRun, postgres_server: LocalPostgres
) -> None:
    process = run.at_work(*FIRST)
    postgres_server.pause()
    try:
        if run.which == "sink":  # a relay asks in any case
            run.feed(*LATER)
        assert ended(process) == ExitCode.UNAVAILABLE
    finally:
        postgres_server.resume()
    # A relay may have been connecting: then there was no statement without an answer.
    reasons = ["NoAnswerError: no answer in 8 s", *(["ConnectionTimeout"] if run.which == "relay" else [])]
    assert any(reason in run.said() for reason in reasons)
    if run.which == "relay":
        run.feed(*LATER)
    assert run.catch_up() == ExitCode.DONE
    run.assert_exact(ALL)


@pytest.mark.slow
def test_sigterm_ends_a_job_whose_database_stands_still(
    run: DatabaseRun, postgres_server: LocalPostgres
) -> None:
    process = run.at_work(*FIRST, input__offline_timeout_ms=300_000)
    postgres_server.pause()
    try:
        if run.which == "sink":
            run.feed(*LATER)
        time.sleep(1.0)  # a statement is on its way
        process.terminate()
        ended(process)
    finally:
        postgres_server.resume()
    if run.which == "relay":
        run.feed(*LATER)
    assert run.catch_up() == ExitCode.DONE
    run.assert_exact(ALL)


@pytest.mark.parametrize(
    "arrives",
    [
        pytest.param(False, id="COMMIT", marks=pytest.mark.slow),
        pytest.param(True, id="the answer to COMMIT"),
    ],
)
def test_a_network_that_swallows_packets_costs_nothing_but_time(run: DatabaseRun, arrives: bool) -> None:
    url = make_url(run.url)
    assert url.port is not None
    with CuttingProxy(url.port) as proxy:
        run.url = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        process = run.at_work(*FIRST)
        proxy.swallow_at(b"COMMIT", arrives=arrives)
        run.feed(*LATER)
        run.wait_for(len(ALL))
        process.terminate()
        assert ended(process) == ExitCode.DONE
    run.assert_exact(ALL)


@pytest.mark.slow
def test_a_lock_that_is_held_for_ever_ends_the_job_with_5_and_says_how_to_find_who_holds_it(
    run: DatabaseRun,
) -> None:
    process = run.at_work(*FIRST)
    with run.database.judge.connect() as connection:
        connection.execute(text("LOCK TABLE " + ("numbers" if run.which == "sink" else "eos_relays")))
        run.feed(*LATER)
        assert ended(process) == ExitCode.UNAVAILABLE
    assert "pg_blocking_pids" in run.said()
    assert run.catch_up() == ExitCode.DONE
    run.assert_exact(ALL)


def test_a_server_without_a_free_connection_is_waited_for(run: DatabaseRun) -> None:
    """The job's own connections are lost, and others take their places."""
    process = run.at_work(*FIRST, input__offline_timeout_ms=300_000)
    with contextlib.ExitStack() as others:
        take_every_connection(run, others)
        run.feed(*LATER)
        time.sleep(3.0)
        assert process.poll() is None
        assert len(run.written()) == len(FIRST)
    run.wait_for(len(ALL))
    process.terminate()
    assert ended(process) == ExitCode.DONE
    run.assert_exact(ALL)


@pytest.mark.slow
def test_a_server_that_has_no_free_connection_for_too_long_is_named(run: DatabaseRun) -> None:
    process = run.at_work(*FIRST)
    with contextlib.ExitStack() as others:
        take_every_connection(run, others)
        run.feed(*LATER)
        assert ended(process) == ExitCode.UNAVAILABLE
        assert "too many clients already" in run.said()
    assert run.catch_up() == ExitCode.DONE
    run.assert_exact(ALL)


def take_every_connection(run: DatabaseRun, others: contextlib.ExitStack) -> None:
    """Those of the job too. One that is just ending is not shown any more, and its place is free a moment later: so places are counted."""
    taken = "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            others.enter_context(psycopg.connect(run.database.url))
            continue
        ours = "FROM pg_stat_activity WHERE application_name = :name"
        full = f"{taken} = current_setting('max_connections')::int"
        if run.database.seen(f"SELECT count(*) = 0 AND {full} {ours}", name=f"eos {run.name}") == [(True,)]:
            return
        run.database.seen(f"SELECT pg_terminate_backend(pid) {ours}", name=f"eos {run.name}")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small one, which the server can write to."""
    with open_directory() as directory:
        mounted = directory / "disk"
        mounted.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(mounted)]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("a file system of its own needs root, and the right to mount")
        try:
            yield mounted
        finally:
            subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.fixture
def sink_on_disk(bootstrap: str, postgres: Database, tmp_path: Path, disk: Path) -> Iterator[DatabaseRun]:
    """Its table is on that disk."""
    run = DatabaseRun("sink", bootstrap, postgres, tmp_path)
    place = disk / "space"
    place.mkdir()
    place.chmod(0o777)  # the server may run as another user
    space = f"s{run.name.replace('-', '_')}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE {space} LOCATION '{place}'".encode())
        connection.execute(f"ALTER TABLE numbers SET TABLESPACE {space}".encode())
        connection.execute("ALTER TABLE numbers ALTER pad SET STORAGE PLAIN")
    yield run
    run.close()
    postgres.run("DROP TABLE numbers")
    postgres.close()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP TABLESPACE {space}".encode())


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_inside_a_transaction_is_waited_for_and_the_position_stays(
    sink_on_disk: DatabaseRun, disk: Path
) -> None:
    run = sink_on_disk
    process = run.at_work(*FIRST, pad=2_000, input__offline_timeout_ms=300_000)
    filler = fill(disk)
    run.feed(*LATER)
    deadline = time.monotonic() + PATIENCE_S
    while "DiskFull (53100)" not in run.said():
        assert time.monotonic() < deadline, run.said()
        time.sleep(0.2)
    places = run.database.seen("SELECT sum(next_offset) FROM eos_progress")
    assert places == [(len(run.written()),)]
    filler.unlink()
    run.wait_for(len(ALL))
    process.terminate()
    assert ended(process) == ExitCode.DONE
    run.assert_exact(ALL)


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_job_with_5(sink_on_disk: DatabaseRun, disk: Path) -> None:
    run = sink_on_disk
    run.feed(*FIRST)
    assert run.catch_up(pad=2_000) == ExitCode.DONE
    filler = fill(disk)
    run.feed(*LATER)
    assert run.catch_up(pad=2_000) == ExitCode.UNAVAILABLE
    assert "DiskFull (53100)" in run.said()
    filler.unlink()
    assert run.catch_up(pad=2_000) == ExitCode.DONE
    run.assert_exact(ALL)


def test_behind_a_pooler_each_transaction_may_have_another_connection(run: DatabaseRun) -> None:
    with open_directory() as directory, pgbouncer(run.url, directory) as run.url:
        run.feed(*FIRST)
        assert run.catch_up() == ExitCode.DONE
        process = run.start()
        run.feed(*LATER)
        run.wait_for(len(ALL))
        # What it asks of a connection that is lost it asks of another one.
        run.database.seen(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND datname = current_database()"
        )
        run.database.judge.dispose()
        run.feed(*range(100, 140))
        run.wait_for(len(ALL) + 40)
        process.terminate()
        assert ended(process) == ExitCode.DONE
        for command in ("check", "verify", "status"):
            job = f"tests.support.jobs_for_databases:{run.which}"
            assert ended(run.eos(command, job)) == ExitCode.DONE, run.said()
    run.assert_exact([*ALL, *range(100, 140)])


@pytest.fixture
def relay(bootstrap: str, postgres: Database, tmp_path: Path) -> Iterator[DatabaseRun]:
    made = DatabaseRun("relay", bootstrap, postgres, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "anew",
    [
        pytest.param(False, id="deleted", marks=pytest.mark.slow),
        pytest.param(True, id="deleted and created anew"),
    ],
)
def test_a_relay_whose_topic_is_deleted_while_it_runs_says_that_its_offset_is_gone(
    relay: DatabaseRun, anew: bool
) -> None:
    relay.feed(*FIRST)
    process = relay.start()
    relay.wait_for(len(FIRST))
    delete_topic(relay.bootstrap, relay.topic)
    if anew:
        create_topics(relay.bootstrap, {relay.topic: 2})
    relay.feed(*LATER)
    assert ended(process) == ExitCode.OFFSET_GAP, relay.said()
    assert "Kafka drops one with its topic" in relay.said()
    assert "another owner" not in relay.said().splitlines()[-2]
    if not anew:
        create_topics(relay.bootstrap, {relay.topic: 2})
    assert relay.catch_up() == ExitCode.OFFSET_GAP
    relay.assert_exact([])

    # The topic holds none of its rows: all of them are relayed under a new group.
    assert relay.catch_up(group=f"{relay.name}-again") == ExitCode.DONE
    relay.assert_exact(ALL)


@pytest.mark.slow
def test_a_topic_that_gets_more_partitions_while_the_job_runs_costs_nothing(run: DatabaseRun) -> None:
    process = run.at_work(*FIRST)
    client = AdminClient({"bootstrap.servers": run.bootstrap})
    client.create_partitions([NewPartitions(run.topic, 5)])[run.topic].result(PATIENCE_S)
    run.feed(*LATER)
    run.wait_for(len(ALL))
    process.terminate()
    assert ended(process) == ExitCode.DONE
    if run.which == "sink":
        produce_plain(
            run.bootstrap, run.topic, [PlainRecord(b"%d" % n, partition=n % 5) for n in range(90, 100)]
        )
    else:
        run.feed(*range(90, 100))
    assert run.catch_up() == ExitCode.DONE
    run.assert_exact([*ALL, *range(90, 100)])
