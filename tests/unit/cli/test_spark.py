"""`eos spark`: what it says when something is missing, before anything is started."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from eos.cli.spark_run import location_of
from eos.errors import ConfigError
from eos.exits import ExitCode
from tests.support.command_line import Eos

_REPOSITORY = Path(__file__).parents[3]
_APP_DIR = ("--app-dir", str(_REPOSITORY))
_JOB = "tests.support.jobs_for_spark_cli:copying"


@pytest.fixture(autouse=True)
def _logs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eos.ops.observe.configure_logs", lambda _: None)


@pytest.mark.parametrize("command", [("run", _JOB), ("plan", _JOB), ("jars",)])
def test_without_pyspark_the_extra_is_named(
    eos: Eos, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eos.local.pyspark_home.find_pyspark", lambda: None)
    ended = eos("spark", *command)
    assert ended.code == ExitCode.CONFIGURATION
    assert "pip install 'eos-kafka[spark]'" in ended.err


@pytest.mark.parametrize("command", [("run", _JOB, *_APP_DIR), ("jars",)])
def test_without_java_it_is_named(
    eos: Eos, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = eos("spark", *command)
    assert ended.code == ExitCode.CONFIGURATION
    assert "no Java found" in ended.err


@pytest.mark.parametrize("pair", ["spark.driver.memory", "=2g", " =x"])
def test_configuration_of_spark_needs_a_name_and_a_value(eos: Eos, pair: str) -> None:
    ended = eos("spark", "run", _JOB, "--conf", pair)
    assert ended.code == ExitCode.CONFIGURATION
    assert "--conf needs KEY=VALUE" in ended.err


@pytest.mark.parametrize("given", [("copying", "--until-caught-up"), ("streaming", "--checkpoint", "there")])
def test_again_and_again_is_for_a_batch_without_an_end(eos: Eos, given: tuple[str, ...]) -> None:
    pytest.importorskip("pyspark")
    job, *options = given
    reference = f"tests.support.jobs_for_spark_cli:{job}"
    ended = eos("spark", "run", reference, "--every", "1", *options, *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert "--every" in ended.err
    assert "Fix: leave " in ended.err


def test_job_of_the_loop_is_no_spark_job(eos: Eos) -> None:
    pytest.importorskip("pyspark")
    ended = eos("spark", "plan", "tests.support.jobs_for_tests:copying", *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert "no SparkJob or StreamJob named 'copying' ('copying' is a Job); it has none" in ended.err


def test_job_of_spark_is_no_job_of_the_loop(eos: Eos) -> None:
    pytest.importorskip("pyspark")
    ended = eos("run", _JOB, *_APP_DIR)
    assert ended.code == ExitCode.CONFIGURATION
    assert "no eos.Job named 'copying' ('copying' is a SparkJob)" in ended.err


def test_jars_are_printed_as_spark_submit_wants_them(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(
        "eos.local.connector.provide_connector", lambda *_, **__: [Path("/a b/1.jar"), Path("/2.jar")]
    )
    monkeypatch.setattr("eos.local.java.find_java", lambda *_: "java")
    ended = eos("spark", "jars")
    assert (ended.code, ended.out) == (ExitCode.DONE, "/a b/1.jar,/2.jar\n")


def test_directory_of_the_jars_that_cannot_be_used_is_a_wrong_setting(
    eos: Eos, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")

    def refuse(*_: object, **__: object) -> list[Path]:
        raise ConfigError("not writable")

    monkeypatch.setattr("eos.local.connector.provide_connector", refuse)
    monkeypatch.setattr("eos.local.java.find_java", lambda *_: "java")
    assert eos("spark", "jars").code == ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    "given", ["hdfs:/x", "hdfs:///x", "file:/x", "s3a://bucket/x", "abfss://c@a.example/x"]
)
def test_a_checkpoint_that_names_its_file_system_is_left_as_it_is(given: str) -> None:
    """With one slash it became a directory below the working directory."""
    assert location_of(given) == given


@pytest.mark.parametrize("given", ["x", "./a:b", "checkpoints/x", "/data/x", ".eos/checkpoints/a:b"])
def test_a_checkpoint_without_a_file_system_is_a_path_from_here(given: str) -> None:
    assert location_of(given) == str(Path(given).absolute())


def test_transform_that_exits_is_no_run_that_is_done(eos: Eos, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr("eos.cli.spark._connector", lambda _: [])
    monkeypatch.setattr("eos.cli.spark.check_cluster", lambda *_, **__: None)
    monkeypatch.setattr("eos.cli.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("eos.cli.spark.run_and_print", lambda job, *_: job.transformed(None, None))
    ended = eos("spark", "run", "tests.support.jobs_for_spark_cli:exiting", *_APP_DIR)
    assert ended.code == ExitCode.UNEXPECTED
    assert "called sys.exit(0)" in ended.err
    assert "jobs_for_spark_cli.py:" in ended.err
