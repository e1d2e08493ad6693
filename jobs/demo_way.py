"""The demonstration's third act, the whole way: from the tables of one database to those of another, through Kafka.

An application writes settlements beside an outbox; a relay, the refunds processor and a sink run meanwhile, as users run them. Each
of the three is killed inside a transaction and started again by its supervisor. At the end the books of both databases are compared.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress, TaskID
from sqlalchemy import Engine

import eos
from eos import OrdinalShard, Settings, UnavailableError
from eos.base.deadline import Deadline
from eos.local import LocalKafka
from eos.ops.check.transactions import TransactionsView
from eos.shards import SinkShard
from jobs import refund_tables, refunds, settlement_outbox
from jobs.demo_books import number
from jobs.demo_databases import Databases
from jobs.demo_process import SESSION_TIMEOUT_MS, Run, running
from jobs.demo_transactions import InKafka, InPostgres, Inside, InSqlite
from jobs.settlements import KeyValue, settlements

SEED = 2  # of the settlements
_CHUNK = 20  # settlements between two looks at the processes; one more is rolled back
_MAX_RECORDS = 100  # small transactions, for many chances of a kill
_ON_THE_WIRE_S = 0.05  # what a stopped process had sent before has arrived by then
_LOOKS = 2
_KILL_DEADLINE_S = 90.0
_QUIET_S = 15.0  # nothing new in the tables for so long: what is missing is missing
_LOOK_EVERY_S = 0.1


@dataclass
class Stage:
    """One of the three processes, and what was done to it.

    Attributes:
        name: for people.
        run: its process.
        inside: how its transactions are seen.
        bar: shows it.
        done: the records that it has processed.
        victim: the worker that was killed.
        seconds: from the kill until the next owner had committed something.
    """

    name: str
    run: Run
    inside: Inside
    bar: TaskID
    done: int = 0
    victim: int = 0
    seconds: float = 0.0
    _killed_at: float = 0.0
    _has_next_owner: bool = False

    def look(self) -> None:
        """Read what its log says."""
        for entry in self.run.new_entries():
            if entry.get("event") == "transaction committed":
                self.done += int(entry["records_in"])
                if self._has_next_owner and not self.seconds and entry["records_in"]:
                    self.seconds = time.monotonic() - self._killed_at
            elif self.victim and entry.get("event") == "session opened":
                self._has_next_owner = True
        if (code := self.run.process.poll()) is not None:
            raise UnavailableError(
                f"{self.name}: eos run ended with exit code {code}; its log: {self.run.log_path}"
            )

    def kill_inside_transaction(self) -> bool:
        """SIGSTOP its worker, look whether its transaction is open, and only then SIGKILL it; False if not so.

        Two looks, because a commit that it had sent may still be on its way at the first.
        """
        pid = self.run.pids[0]
        os.kill(pid, signal.SIGSTOP)
        for _ in range(_LOOKS):
            time.sleep(_ON_THE_WIRE_S)
            if not self.inside.is_open():
                os.kill(pid, signal.SIGCONT)
                return False
        os.kill(pid, signal.SIGKILL)
        self.victim, self._killed_at = pid, time.monotonic()
        return True


@dataclass(frozen=True)
class Outcome:
    """What the act has done.

    Attributes:
        written: settlements of the application that were committed.
        rolled_back: settlements that were rolled back.
        stages: the processes, and the accidents of each.
        exit_codes: of ``eos run``.
    """

    written: int
    rolled_back: int
    stages: Sequence[Stage]
    exit_codes: Sequence[int]


def run_and_kill_each(
    progress: Progress,
    kafka: LocalKafka,
    databases: Databases,
    count: int,
    *,
    logs: Path,
) -> Outcome:
    """Write settlements, kill each process once on the way, and let them process all of it.

    Args:
        progress: shows it.
        kafka: has the topics, which are empty.
        databases: with empty tables.
        count: settlements to write; more, if the kills need longer.
        logs: the directory of the processes' logs.

    Raises:
        UnavailableError: a process ended, or was never found inside a transaction.
    """
    with TransactionsView(_settings(kafka)) as view, ExitStack() as stack:
        bar = progress.add_task(f"settlements into {databases.title}", total=count)
        stages = []
        for name, job, reference, database, inside in _plans(kafka, databases, view):
            run = running(reference, _settings(kafka), [], _environment(job, database), logs / f"{job}.log")
            stages.append(Stage(name, stack.enter_context(run), inside, progress.add_task(name, total=None)))
        written, rolled_back = _write_and_kill(progress, bar, databases, stages, count)
        _wait_for_rows(progress, databases, stages)
        codes = [stage.run.stop() for stage in stages]
    _run_until_caught_up(kafka, databases)
    return Outcome(written, rolled_back, stages, codes)


class _Plan(NamedTuple):
    name: str
    job: str
    reference: str
    database: Engine | None
    inside: Inside


def _plans(kafka: LocalKafka, databases: Databases, view: TransactionsView) -> list[_Plan]:
    relay, processor, sink = settlement_outbox.job, refunds.job, refund_tables.job
    shard_of_relay = SinkShard(relay.name, _group(relay.name), 0).transactional_id
    shard_of_processor = OrdinalShard(processor.name, _group(processor.name), 0).transactional_id
    in_relay = InKafka(view, shard_of_relay, relay.written_topics, kafka)
    in_processor = InKafka(view, shard_of_processor, processor.written_topics, kafka)
    in_tables = (
        InPostgres(databases.tables, f"eos {sink.name}")
        if databases.are_postgresql
        else InSqlite(databases.tables)
    )
    return [
        _Plan("relay", relay.name, "jobs.settlement_outbox:job", databases.application, in_relay),
        _Plan("refunds processor", processor.name, "jobs.refunds:job", None, in_processor),
        _Plan("sink", sink.name, "jobs.refund_tables:job", databases.tables, in_tables),
    ]


def _group(job: str) -> str:
    return f"{job}-way"


def _environment(job: str, database: Engine | None) -> dict[str, str]:
    url = {} if database is None else {"EOS_SQL__URL": _url(database)}
    return {
        "EOS_GROUP": _group(job),
        "EOS_TRANSACTION__MAX_RECORDS": str(_MAX_RECORDS),
        "EOS_OWNERSHIP__SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
        **url,
    }


def _url(database: Engine) -> str:
    return database.url.render_as_string(hide_password=False)


def _write_and_kill(
    progress: Progress, bar: TaskID, databases: Databases, stages: Sequence[Stage], count: int
) -> tuple[int, int]:
    """Write, and kill the first stage behind a quarter of it, the next behind the half, and so on."""
    source = settlements(sys.maxsize, SEED, poison_share=0)
    waiting, deadline = deque(stages), Deadline(_KILL_DEADLINE_S)
    written = rolled_back = 0
    while written < count or waiting:
        written += settlement_outbox.write(databases.application, islice(source, _CHUNK))
        _write_and_roll_back(databases.application, next(source))
        rolled_back += 1
        progress.update(bar, completed=written, total=max(count, written))
        _look(progress, stages)
        share = (len(stages) - len(waiting) + 1) / (len(stages) + 1)
        if waiting and waiting[0].done and written >= share * count and waiting[0].kill_inside_transaction():
            killed = waiting.popleft()
            progress.update(killed.bar, description=f"killed {killed.name} (pid {killed.victim})")
        if written >= count:  # enough, but for the kills: leave the machine to what they wait for
            time.sleep(_LOOK_EVERY_S)
        if deadline.passed:
            names = ", ".join(stage.name for stage in waiting)
            raise UnavailableError(f"not found inside a transaction in {_KILL_DEADLINE_S:.0f} s: {names}")
    return written, rolled_back


def _write_and_roll_back(application: Engine, record: KeyValue) -> None:
    """What an application does that fails in the middle: neither the settlement nor its record is to be seen anywhere."""
    with application.connect() as connection:
        settlement_outbox.add(connection, record)
        connection.rollback()


def _wait_for_rows(progress: Progress, databases: Databases, stages: Sequence[Stage]) -> None:
    """Until each request has a row, and each stage its next owner; or nothing has come for a while."""
    asked = number(databases.application, "SELECT count(*) FROM refund_requests")
    rows, quiet = -1, Deadline(_QUIET_S)
    while not quiet.passed:
        _look(progress, stages)
        found = number(databases.tables, "SELECT count(*) FROM refund_audit")
        if found >= asked and all(stage.seconds for stage in stages):
            break
        if found != rows:
            rows, quiet = found, Deadline(_QUIET_S)
        time.sleep(_LOOK_EVERY_S)
    for stage in stages:
        progress.update(stage.bar, total=stage.done, completed=stage.done)


def _look(progress: Progress, stages: Sequence[Stage]) -> None:
    for stage in stages:
        stage.look()
        progress.update(stage.bar, completed=stage.done)


def _run_until_caught_up(kafka: LocalKafka, databases: Databases) -> None:
    """Once more, from the first to the last: whatever is still under way arrives, also what should not be there."""
    databases_of = {
        settlement_outbox.job.name: databases.application,
        refund_tables.job.name: databases.tables,
    }
    for job in (settlement_outbox.job, refunds.job, refund_tables.job):
        given = {} if job.name not in databases_of else {"sql.url": _url(databases_of[job.name])}
        eos.run(job, _settings(kafka, group=_group(job.name), **given), until_caught_up=True)


def _settings(kafka: LocalKafka, **others: str) -> Settings:
    return Settings.load(overrides={"kafka.bootstrap_servers": kafka.bootstrap_servers, **others})
