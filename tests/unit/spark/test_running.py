"""How a job on Spark is run: each option fits its kind of job, and says so before Spark starts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.spark import RunOptions, SparkJob, StreamJob, main, run
from tests.support.command_line import Eos
from tests.support.jobs_for_spark_cli import exiting
from tests.support.settings import settings_of

_APP_DIR = ("--app-dir", str(Path(__file__).parents[3]))
_JOBS = "tests.support.jobs_for_spark_cli"
BATCH = SparkJob(name="batch", inputs=["in"], outputs=["out"], transform=lambda frame: frame)
STREAM = StreamJob(name="stream", inputs=["in"], outputs=["out"], transform=lambda frame: frame)

OF_A_STREAM = {
    "--checkpoint": (RunOptions(checkpoint="there"), ["--checkpoint", "there"]),
    "--max-offsets-per-batch": (RunOptions(max_offsets_per_batch=1), ["--max-offsets-per-batch", "1"]),
    "--adopt": (RunOptions(adopt="token"), ["--adopt", "token"]),
    "--skip-deleted": (RunOptions(skip_deleted=True), ["--skip-deleted"]),
}


@pytest.mark.parametrize("option", OF_A_STREAM)
def test_option_of_a_stream_is_refused_for_a_batch(eos: Eos, option: str) -> None:
    options, arguments = OF_A_STREAM[option]
    with pytest.raises(
        ConfigError, match=f"^SparkJob 'batch': {option} is for a StreamJob.*Fix: leave it out"
    ):
        run(BATCH, cast("SparkSession", None), settings_of(), options)
    ended = eos("spark", "run", f"{_JOBS}:copying", *arguments, *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert f"{option} is for a StreamJob" in ended.err


def test_stream_has_its_options_on_every_way() -> None:
    for options, _ in OF_A_STREAM.values():
        RunOptions(
            checkpoint="there",
            max_offsets_per_batch=options.max_offsets_per_batch,
            adopt=options.adopt,
            skip_deleted=options.skip_deleted,
        ).require_fit(STREAM)


def test_stream_needs_a_checkpoint_and_no_interval(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs a checkpoint. Fix: --checkpoint DIR"):
        RunOptions().require_fit(STREAM)
    with pytest.raises(ConfigError, match="--every is for a SparkJob"):
        RunOptions(checkpoint="there", every_s=1).require_fit(STREAM)
    ended = eos("spark", "run", f"{_JOBS}:streaming", *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert "needs a checkpoint" in ended.err
    monkeypatch.setattr(SparkSession, "builder", None)
    with pytest.raises(SystemExit) as left:
        main(STREAM, [])
    assert left.value.code == ExitCode.CONFIGURATION


def test_batch_again_and_again_has_no_end() -> None:
    with pytest.raises(ConfigError, match="Fix: leave out --every or --until-caught-up"):
        RunOptions(every_s=1, until_caught_up=True).require_fit(BATCH)
    RunOptions(every_s=1).require_fit(BATCH)


@pytest.mark.parametrize("job", [BATCH, STREAM])
def test_script_of_either_kind_has_help(
    job: SparkJob | StreamJob, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(job, ["--help"])
    assert ended.value.code == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "--until-caught-up" in shown
    assert ("--adopt TOKEN" in shown) == (job is STREAM)


def test_submitted_transform_that_exits_is_no_run_that_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eos.spark.submitted.submitted_session", lambda _: None)
    monkeypatch.setattr("eos.spark.submitted.stopping", nullcontext)
    monkeypatch.setattr("eos.spark.submitted.run", lambda job, *_, **__: job.transformed(None, None))
    with pytest.raises(SystemExit) as left:
        main(exiting, [])
    assert left.value.code == ExitCode.UNEXPECTED
    assert "called sys.exit(0)" in caplog.text
