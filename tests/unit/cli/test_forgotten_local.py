"""Who forgets ``--local`` while a Kafka of `eos local start` runs is told so, by every command that has the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from tests.support.command_line import Eos

_REPOSITORY = Path(__file__).parents[3]
_JOB = ("tests.support.jobs_for_tests:copying", "--app-dir", str(_REPOSITORY))
_COMMANDS = {
    "run": ("run", *_JOB),
    "check": ("check", *_JOB),
    "verify": ("verify", *_JOB),
    "status": ("status", *_JOB),
    "show": ("show", "topic"),
    "shard-id": (
        "shard-id",
        *_JOB,
        "--set",
        "ownership.mode=partition",
        "--set",
        "ownership.ordinal=0",
        "--set",
        "ownership.instances=2",
    ),
    "offsets show": ("offsets", "show", *_JOB),
    "offsets set": ("offsets", "set", *_JOB, "--to", "latest"),
    "offsets copy": ("offsets", "copy", *_JOB, "--from-group", "other"),
    "skip": ("skip", _JOB[0], "topic:0@1", *_JOB[1:], "--reason", "x"),
    "transactions list": ("transactions", "list"),
    "transactions explain": ("transactions", "explain", "id"),
    "transactions end": ("transactions", "end", "id"),
    "transactions abort": ("transactions", "abort", "--topic", "t", "--partition", "0", "--offset", "0"),
}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a Kafka that seems to run."""
    directory = tmp_path / ".eos"
    directory.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eos.local.LocalKafka.attach", lambda _: object())
    return directory


@pytest.mark.parametrize("words", _COMMANDS.values(), ids=_COMMANDS)
def test_a_command_that_is_told_of_no_kafka_names_the_one_that_runs(
    eos: Eos, running: Path, words: tuple[str, ...]
) -> None:
    ended = eos(*words)
    assert ended.code == ExitCode.CONFIGURATION
    assert f"Fix: --local, for the Kafka of `eos local start` that runs in {running}; or EOS_" in ended.err


@pytest.mark.parametrize(
    "words", [_COMMANDS["status"], _COMMANDS["show"], _COMMANDS["check"]], ids=lambda words: words[0]
)
def test_a_command_whose_brokers_do_not_answer_names_the_one_that_runs(
    eos: Eos, running: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eos.ops.check.reach.Deadline", lambda _: Deadline(0.2))
    ended = eos(*words, "--set", "kafka.bootstrap_servers=127.0.0.1:9")
    assert ended.code == ExitCode.UNAVAILABLE
    assert f"Fix: --local, for the Kafka of `eos local start` that runs in {running}; or another" in ended.err


def test_a_directory_of_something_else_is_no_kafka(
    eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".eos").mkdir()
    (tmp_path / ".eos/state.json").write_text("something else")
    ended = eos("show", "topic")
    assert ended.code == ExitCode.CONFIGURATION
    assert "nothing says where Kafka is. Fix: EOS_KAFKA__BOOTSTRAP_SERVERS" in ended.err
