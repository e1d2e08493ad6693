"""SparkJob: a declaration that contradicts itself is refused, and a script ends with the codes of `eos run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from eos.errors import ConfigError, UsageError
from eos.exits import ExitCode
from eos.job import Declaration
from eos.offsets import OffsetVector, Partition
from eos.settings.binding import own_settings

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from eos.spark.batch.batch import BatchResult
from eos.spark.jobs import SparkJob, SparkRun, StreamJob
from eos.spark.plan import InputPlan, OffsetRange
from eos.spark.running import summary
from eos.spark.stream.sink import exactly_once_sink
from eos.spark.submitted import main
from eos.spark.transform import FrameTransform
from eos.spark.write.writer import ShardResult, ShardState
from tests.support.settings import settings_of

PLAN = InputPlan("g", (Partition("in", 0),), (OffsetRange(Partition("in", 0), 0, 5),), "job", "partition")


class Own(BaseModel):
    most: int = 3


def same(run: SparkRun) -> FrameTransform:
    return lambda frame: frame


def declared(**changes: Any) -> SparkJob:
    given: dict[str, Any] = {"name": "j", "inputs": ["in"], "outputs": ["out"], "transform_factory": same}
    return SparkJob(**given | changes)


def test_declaration_says_what_is_read_and_written() -> None:
    job = declared(inputs=["in", "more"], snapshots=["merchants"], outputs=["out"])
    assert isinstance(job, Declaration)
    assert job.inputs == ("in", "more")
    assert job.read_topics == {"in", "more", "merchants"}
    assert job.written_topics == {"out"}
    assert job.commit == "partition"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a.b"}, "Job name"),
        ({"inputs": "in"}, "is a list of topics"),
        ({"inputs": []}, "at least one topic"),
        ({"outputs": ["a", "a"]}, "each named once"),
        ({"snapshots": ["a b"]}, "are not topic names"),
        ({"outputs": ["in"]}, "feed itself"),
        ({"snapshots": ["out"]}, "feed itself"),
        ({"commit": "task"}, "'partition' nor 'batch'"),
        ({"transform": lambda frame: frame}, "exactly one of transform= and transform_factory="),
        ({"transform_factory": None}, "exactly one of transform= and transform_factory="),
        (
            {"transform": lambda frame: frame, "transform_factory": None, "settings": Own},
            "does not get settings=. Fix: transform_factory=",
        ),
    ],
)
def test_declaration_that_contradicts_itself_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        declared(**changes)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["a", "b"], r"\['b'\] are inputs and outputs.*Fix: .*a topic of its own"),
        ("a", "is a list of topics"),
    ],
)
def test_sink_whose_inputs_are_outputs_too_is_refused_with_the_way_out(inputs: Any, said: str) -> None:
    """The ledger stands on an output's partition 0, and in its group an input has a mark in the same place."""
    with pytest.raises(UsageError, match=said):
        exactly_once_sink(settings_of("none:1"), name="sink", outputs=["b", "c"], inputs=inputs)


def test_stream_follows_the_same_rules() -> None:
    job = StreamJob(name="s", inputs=["in"], outputs=["out"], transform=lambda frame: frame)
    assert isinstance(job, Declaration)
    assert job.inputs == ("in",)
    assert job.read_topics == {"in"}
    assert job.written_topics == {"out"}
    with pytest.raises(UsageError, match="StreamJob 's': give exactly one"):
        StreamJob(name="s", inputs=["in"], outputs=["out"])


def test_factory_that_is_given_as_the_transform_is_named() -> None:
    """What makes a transform was called `transform` here before."""
    job = declared(transform=same, transform_factory=None)
    with pytest.raises(
        UsageError, match=r"SparkJob 'j': the transform returned function.*transform_factory="
    ):
        job.transformed(cast("DataFrame", object()), cast("SparkRun", None))


def test_own_settings_are_validated_by_the_jobs_model() -> None:
    told = settings_of(job__most=5)
    assert own_settings(declared(settings=Own), told) == Own(most=5)
    assert own_settings(declared(), settings_of()) is None
    with pytest.raises(ConfigError, match="declares no settings"):
        own_settings(declared(), told)


def test_snapshot_that_is_not_declared_is_refused() -> None:
    run = SparkRun(cast("SparkSession", None), None, PLAN, settings_of(), declared())
    with pytest.raises(UsageError, match=r"'merchants', which is not declared.*snapshots"):
        run.snapshot("merchants")


def test_run_is_one_line() -> None:
    def shard(state: ShardState, records: int) -> ShardResult:
        return ShardResult("j.g.p.in.0", state, OffsetVector(), records, 0.1, 0.1)

    shards = (shard(ShardState.COMMITTED, 3), shard(ShardState.COMMITTED, 4), shard(ShardState.SKIPPED, 0))
    assert summary(BatchResult(PLAN, shards, 2.0)) == "2 committed, 1 skipped; 7 records written; 2.0 s"
    assert summary(BatchResult(PLAN, (), 0.1)) == "nothing new; 0 records written; 0.1 s"


@pytest.mark.parametrize(
    "arguments", [["--config", "nowhere.toml"], ["--max-records", "0"], ["--start", "today"]]
)
def test_script_with_a_wrong_setting_ends_before_spark_starts(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SparkSession, "builder", None)
    with pytest.raises(SystemExit) as ended:
        main(declared(), arguments)
    assert ended.value.code == ExitCode.CONFIGURATION


def test_transform_of_a_job_is_typed_as_a_function_of_frames() -> None:
    frame = cast("DataFrame", object())
    run = SparkRun(cast("SparkSession", None), None, PLAN, settings_of(), declared())
    assert same(run)(frame) is frame
