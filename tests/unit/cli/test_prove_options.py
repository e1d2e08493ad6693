"""What `eos prove` refuses before it starts anything, of jobs with a database at one end."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from eos.cli.prove_options import judge_of, kinds
from eos.errors import ConfigError
from eos.job import Declaration
from eos.prove.ends import ENDS
from eos.prove.faults import FaultKind
from eos.prove.runtime import EOS_RUN
from eos.settings import Settings
from eos.sql import Outbox, OutboxJob, SqlJob

ROOT = Path(__file__).parents[3]
_table = Table("numbers", MetaData(), Column("n", Integer, primary_key=True))
relay = OutboxJob(name="relay", outbox=Outbox(MetaData()), outputs=["out"])
sink = SqlJob(name="sink", inputs=["in"], tables=[_table], transform=lambda _: [])
own_sql = SqlJob(name="own-sql", inputs=["in"], apply=lambda _connection, _batch: None)


@pytest.mark.parametrize("job", [relay, sink], ids=["relay", "sink"])
def test_a_job_with_a_database_at_one_end_is_judged_by_itself(job: Declaration) -> None:
    name = {"relay": "relay", "sink": "sink"}[job.name]
    judged_by = job.identity(Settings()).judged_by
    assert judge_of(job, judged_by, f"{__name__}:{name}", None, ROOT) is not None
    with pytest.raises(ConfigError, match="leave --judge-by out"):
        judge_of(job, judged_by, f"{__name__}:{name}", "other:job", ROOT)


def test_a_job_with_sql_of_its_own_cannot_be_judged() -> None:
    with pytest.raises(ConfigError, match=r"apply= runs SQL of its own.*--run"):
        judge_of(own_sql, "tables", f"{__name__}:own_sql", None, ROOT)


@pytest.mark.parametrize(
    ("judged_by", "kind"),
    [
        ("topics", "database"),
        ("tables", "late"),
        ("tables", "drop"),
        ("tables", "expiry"),
        ("rows", "input"),
        ("rows", "rebalance"),
    ],
)
def test_a_fault_that_cannot_happen_to_such_a_job_is_refused_and_not_drawn(judged_by: str, kind: str) -> None:
    ends = {str(name): one for name, one in ENDS.items()}[judged_by]
    with pytest.raises(ConfigError, match=f"--only {kind}: .*Fix: leave it out"):
        kinds(kind, Settings(), EOS_RUN, ends)
    drawn, _ = kinds(None, Settings(), EOS_RUN, ends)
    assert FaultKind(kind) not in drawn
