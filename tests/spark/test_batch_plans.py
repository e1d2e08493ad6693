"""A plan belongs to one job, group and commit unit: two that would not fence each other never both write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import ConfigError, EosError, FencedError, OffsetGapError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.spark.batch.batch import ExactlyOnceBatch
from tests.support import observer
from tests.support.batch_input import BatchRuns
from tests.support.offset_ages import store_offsets
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit

pytestmark = pytest.mark.broker

MEET_S = 10.0  # where the other driver is refused, its tasks never come


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=2)
    made.fill(40)
    return made


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def batch_of(runs: BatchRuns, **others: Any) -> ExactlyOnceBatch:
    given = {"name": runs.name, "inputs": [runs.input], "outputs": runs.topics} | others
    overrides = {"group": runs.name, **given.pop("overrides", {})}
    settings = type(runs)(runs.spark, runs.bootstrap, 1, overrides=overrides).settings
    return ExactlyOnceBatch(runs.spark, settings, **given)


def expect_once(runs: BatchRuns, records: int) -> None:
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == records


# --- a plan in another's hands -----------------------------------------------------------------------------


def test_a_plan_of_the_other_commit_unit_is_refused(runs: BatchRuns) -> None:
    """Its transactional.id does not fence a driver of the unit that the plan was made for."""
    batch = batch_of(runs)
    with pytest.raises(UsageError, match=r"made for commit = 'partition'.*plan=batch\.plan\('batch'\)"):
        batch.run(copied, commit="batch", plan=batch.plan())
    assert (runs.records(), runs.committed()) == ([], [0, 0])
    batch.run(copied, plan=batch.plan())
    expect_once(runs, 40)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "another"}, "made for name = "),
        ({"overrides": {"group": "another"}}, "made for group = "),
        ({"inputs": ["another"]}, "made for inputs = "),
    ],
)
def test_a_plan_of_another_batch_is_refused(runs: BatchRuns, other: dict[str, Any], said: str) -> None:
    """It would write the one's input to the other's outputs and move the one's offsets."""
    plan = batch_of(runs).plan()
    with pytest.raises(UsageError, match=said):
        batch_of(runs, **other).run(copied, plan=plan)
    assert (runs.records(), runs.committed()) == ([], [0, 0])


# --- two at once -------------------------------------------------------------------------------------------


def meeting(flags: Path, mine: str) -> Any:
    """A transform whose tasks wait, with rows written, until those of the other driver have written some as well."""
    timeout_s = MEET_S

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                (flags / mine).touch()
                until = time.monotonic() + timeout_s
                while len(list(flags.iterdir())) < 2 and time.monotonic() < until:
                    time.sleep(0.1)

    def transform(df: DataFrame) -> DataFrame:
        return copied(df).mapInArrow(passed, "shard INT, key BINARY, value BINARY")

    return transform


@pytest.mark.parametrize("at_once", [True, False])
def test_two_first_runs_one_per_commit_unit_never_both_write(
    runs: BatchRuns, tmp_path: Path, at_once: bool
) -> None:
    """Neither fences the other, so the group's first offsets say whose they are."""
    together = threading.Barrier(2)

    def run(commit: Commit) -> str:
        batch = batch_of(runs)
        try:
            plan = None if at_once else batch.plan(commit)
            together.wait(PATIENCE_S)
            batch.run(meeting(tmp_path, commit), commit=commit, plan=plan)
        except EosError as error:
            together.abort()
            return str(error)
        except threading.BrokenBarrierError:
            return "not at once"
        return "done"

    with ThreadPoolExecutor(2) as threads:
        ends = sorted(threads.map(run, ("partition", "batch")))
    if "not at once" in ends:
        ends = [end for end in ends if end != "not at once"]
        batch_of(runs).run(copied, commit="partition" if "runs with 'batch'" in ends[0] else "batch")
        ends.append("done")
    assert [end for end in ends if "must never run side by side" in end or end == "done"] == ends
    assert ends.count("done") == 1
    expect_once(runs, 40)


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_renamed_job_in_the_old_ones_group_is_refused_while_that_one_runs(
    runs: BatchRuns, commit: Commit
) -> None:
    plan = batch_of(runs).plan(commit)
    renamed = batch_of(runs, name=observer.unique("renamed"))
    with pytest.raises(ConfigError, match=rf"committed by the job '{runs.name}'.*--adopt-offsets"):
        renamed.run(copied, commit=commit)
    batch_of(runs).run(copied, commit=commit, plan=plan)
    expect_once(runs, 40)


@pytest.mark.parametrize("limit", [5, None])
@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_task_that_finds_another_jobs_offsets_writes_nothing_and_does_not_count_them_as_its_own(
    runs: BatchRuns, commit: Commit, limit: int | None
) -> None:
    """Adopted between its plan and its work, wherever they stand: at the start, in the middle, at the end."""
    old = batch_of(runs)
    plan = old.plan(commit)
    renamed = batch_of(
        runs,
        name=observer.unique("renamed"),
        overrides={"ownership.adopt_offsets": True, "spark.max_records_per_partition": limit},
    )
    adopted = renamed.plan(commit)
    with pytest.raises(FencedError, match=r"after this run was planned, job 'renamed-\w+' with ownership"):
        old.run(copied, commit=commit, plan=plan)
    assert runs.records() == []
    renamed.run(copied, commit=commit, plan=adopted)
    with pytest.raises(FencedError, match=r"after this run was planned, job 'renamed-\w+' with ownership"):
        old.run(copied, commit=commit, plan=plan)
    expect_once(runs, 10 if limit else 40)


def test_a_task_that_finds_the_other_commit_units_offsets_writes_nothing(runs: BatchRuns) -> None:
    old = batch_of(runs)
    plan = old.plan()
    batch_of(runs, overrides={"ownership.adopt_offsets": True}).run(copied, commit="batch")
    runs.fill(20)
    with pytest.raises(FencedError, match=r"with ownership 'batch' has committed offset 20"):
        old.run(copied, plan=plan)
    expect_once(runs, 40)


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_group_whose_offsets_were_copied_to_another_one_is_refused_by_a_plan_and_by_a_task(
    runs: BatchRuns, commit: Commit
) -> None:
    """They are the same, so a run that was planned before took them for its own."""
    batch = batch_of(runs)
    plan = batch.plan(commit)
    moved = str(OffsetMetadata(OwnershipMode(commit), "#0", app=runs.name).moved("second"))
    store_offsets(runs.bootstrap, runs.name, runs.input, {0: (0, moved), 1: (0, moved)})
    for given in (plan, None):
        with pytest.raises(
            ConfigError, match="were copied to the group 'second', and this job goes on there"
        ):
            batch.run(copied, commit=commit, plan=given)
    assert (runs.records(), runs.committed()) == ([], [0, 0])


# --- group and topic between plan and run ------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_group_that_was_deleted_after_the_plan_is_refused_with_the_offsets_to_set(
    runs: BatchRuns, commit: Commit
) -> None:
    """Only the plan still knows them: a next run with --start earliest would write all output again."""
    runs.run(copied, commit)
    runs.fill(40)
    batch = batch_of(runs)
    plan = batch.plan(commit)
    runs.forget_group()
    with pytest.raises(FencedError, match=rf"--to {runs.input}:0@20\).*earliest all output"):
        batch.run(copied, commit=commit, plan=plan)
    before = {(runs.input, one.number): offset for one, offset in plan.starts.items()}
    observer.alter_offsets(runs.bootstrap, runs.name, before)
    with pytest.raises(ConfigError, match="has the offset 20, which eos has not committed"):
        batch.run(copied, commit=commit)
    batch_of(runs, overrides={"ownership.adopt_offsets": True}).run(copied, commit=commit)
    expect_once(runs, 80)


@pytest.mark.parametrize("records", [6, 100])
def test_a_topic_that_was_created_anew_between_plan_and_run_is_refused_at_once(
    runs: BatchRuns, records: int
) -> None:
    """With fewer records, Spark would wait for the planned ones for minutes; with more, take others for them."""
    batch = batch_of(runs)
    plan = batch.plan()
    runs.recreate(records)
    began = time.monotonic()
    with pytest.raises(OffsetGapError, match="the topic was deleted and created anew"):
        batch.run(copied, plan=plan)
    assert time.monotonic() - began < 60
    assert runs.records() == []


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_topic_that_was_created_anew_while_its_records_were_read_is_not_committed(
    runs: BatchRuns, commit: Commit
) -> None:
    """The task asks under its own fence, right before it commits."""

    def transform(df: DataFrame) -> DataFrame:
        runs.recreate(100)
        return copied(df)

    with pytest.raises(OffsetGapError, match="the topic was deleted and created anew"):
        runs.run(transform, commit)
    assert runs.records() == []
    assert runs.committed() == [None, None]  # Kafka forgets them with the topic
