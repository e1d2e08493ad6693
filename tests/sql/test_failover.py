"""A replica takes over without the last commits: the job ends with 6, and what the messages say then works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.local import LocalPostgres
from eos.prove.database_proxy import DatabaseProxy
from tests.support.database_runs import DatabaseRun, Which, ended
from tests.support.databases import Database, open_directory
from tests.support.patience import PATIENCE_S
from tests.support.replicas import Replica

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CONSUMER_GROUPS = (
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"  # what kafka-consumer-groups.sh runs
)
FIRST, LOST, NEXT, NEW = range(40), range(40, 80), range(80, 90), range(100, 140)


class Failover:
    """A job, its database, and the replica of that; the job finds the one that is the primary."""

    def __init__(
        self, which: Which, bootstrap: str, primary: LocalPostgres, directory: Path, logs: Path
    ) -> None:
        self.primary = primary
        self.database = Database(primary.url)
        self.run = DatabaseRun(which, bootstrap, self.database, logs)
        (directory / "replica").mkdir()
        self.replica = Replica(primary, directory / "replica")
        self.port = primary.port
        self.proxy = DatabaseProxy(lambda: self.port)
        self.run.url = make_url(primary.url).set(port=self.proxy.port).render_as_string(hide_password=False)

    def lose_the_last_commits(self) -> int:
        """What was committed behind FIRST is on the primary alone, which is gone then. Returns how the job ended that ran."""
        run = self.run
        run.feed(*FIRST)
        assert run.catch_up() == ExitCode.DONE, run.said()
        self.replica.wait_for_all()
        self.replica.fall_behind()
        run.feed(*LOST)
        process = run.start()
        run.wait_for(len(FIRST) + len(LOST))
        self.primary.kill()
        self.replica.take_over()
        self.port = self.replica.port
        self.database.close()
        run.database = self.database = Database(self.replica.url)
        if run.which == "sink":  # which asks the database nothing while there is no input
            run.feed(*NEXT)
        return ended(process)

    def close(self) -> None:
        self.run.close()
        self.database.close()
        self.proxy.__exit__()
        self.replica.stop()


@pytest.fixture
def failover(request: pytest.FixtureRequest, bootstrap: str, tmp_path: Path) -> Iterator[Failover]:
    with (
        open_directory() as directory,
        LocalPostgres(directory / "primary", settings={"fsync": "off"}) as primary,
    ):
        made = Failover(request.param, bootstrap, primary, directory, tmp_path)
        with made.proxy:
            try:
                yield made
            finally:
                made.close()


@pytest.mark.parametrize("failover", ["sink"], indirect=True)
def test_a_sink_on_a_replica_without_the_last_commits_is_refused_and_goes_on_when_it_is_told_to(
    failover: Failover,
) -> None:
    assert failover.lose_the_last_commits() == ExitCode.OFFSET_GAP, failover.run.said()
    run = failover.run
    assert run.catch_up() == ExitCode.OFFSET_GAP
    run.assert_exact(FIRST)

    # Its tables went back together with the positions.
    places = ",".join(f"{run.topic}:{partition}@{len(FIRST) // 2}" for partition in range(2))
    job = "tests.support.jobs_for_databases:sink"
    assert f"eos offsets set {job} --to {places}" in run.said()
    assert Deadline(PATIENCE_S).wait_for(  # until its members have left the group
        lambda: ended(run.eos("offsets", "set", job, "--to", places, "--yes")) == ExitCode.DONE
    ), run.said()
    assert run.catch_up() == ExitCode.DONE, run.said()
    run.assert_exact([*FIRST, *LOST, *NEXT])


@pytest.mark.parametrize("failover", ["relay"], indirect=True)
def test_a_relay_on_a_replica_without_the_last_commits_is_refused_also_when_new_rows_have_the_old_ids(
    failover: Failover,
) -> None:
    assert failover.lose_the_last_commits() == ExitCode.OFFSET_GAP, failover.run.said()
    run = failover.run
    run.feed(*NEW)  # some with ids and numbers of what was lost
    assert run.catch_up() == ExitCode.OFFSET_GAP
    assert "went back" in run.said()
    run.assert_exact([*FIRST, *LOST])

    # Which of the rows do the topics hold already? Those that were there before. The others are relayed under a new group.
    numbers = ", ".join(f"'{n}'" for n in FIRST)
    failover.database.run(f"DELETE FROM eos_outbox WHERE convert_from(value, 'UTF8') IN ({numbers})")  # noqa: S608
    assert run.catch_up(group=f"{run.name}-again") == ExitCode.DONE, run.said()
    run.assert_exact([*FIRST, *LOST, *NEW])
