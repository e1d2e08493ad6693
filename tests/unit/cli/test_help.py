"""`eos --help`: it teaches, fits 80 columns, and loads no more than it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eos.exits import ExitCode
from tests.support.command_line import Eos

_COMMANDS = [
    "run",
    "init",
    "status",
    "show",
    "check",
    "verify",
    "prove",
    "shard-id",
    "transactions list",
    "transactions explain",
    "transactions end",
    "transactions abort",
    "offsets show",
    "offsets set",
    "offsets copy",
    "skip",
    "local start",
    "local stop",
    "local status",
    "local topics",
    "local produce",
    "local spark start",
    "local spark stop",
    "local spark status",
    "acl show",
    "spark run",
    "spark plan",
    "spark jars",
    "config show",
    "config describe",
]
_COLUMNS = 80
_REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_command_shows_an_example_and_its_exit_codes(eos: Eos, command: str) -> None:
    ended = eos(*command.split(), "--help")
    assert ended.code == ExitCode.DONE
    assert f"  eos {command}" in ended.out
    assert "Exit codes" in ended.out
    assert all(len(line.rstrip()) <= _COLUMNS for line in ended.out.splitlines())


def test_the_help_documents_every_exit_code(eos: Eos) -> None:
    lines = [line.split() for line in eos("--help").out.splitlines()]
    documented = {line[0] for line in lines if line and line[0].isdigit()}
    assert documented == {str(int(code)) for code in ExitCode}


def test_the_help_names_every_command_in_one_line_each(eos: Eos) -> None:
    lines = eos("--help").out.splitlines()
    for command in ("run", "verify", "spark", "shard-id", "local", "acl", "config"):
        (line,) = (line for line in lines if line.startswith(f"│ {command} "))
        assert line.rstrip(" │").endswith(".")


def test_no_command_is_a_usage_error_and_shows_the_help(eos: Eos) -> None:
    ended = eos()
    assert ended.code == ExitCode.CONFIGURATION
    assert "Commands" in ended.out + ended.err


@pytest.mark.parametrize(
    "arguments", [["runn"], ["run"], ["run", "a:b", "--worker", "2"], ["run", "--start", "x"]]
)
def test_a_mistyped_command_line_exits_with_the_code_of_a_wrong_setting(
    eos: Eos, arguments: list[str]
) -> None:
    ended = eos(*arguments)
    assert ended.code == ExitCode.CONFIGURATION
    assert "Error" in ended.err


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("start", "'eos run MODULE:NAME' (a job), or 'eos local start'"),
        ("jobs.refunds:job", "'eos run jobs.refunds:job'"),
        ("lag", "'eos status MODULE:NAME'"),
        ("stauts", "'status'"),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_was_meant(eos: Eos, name: str, meant: str) -> None:
    ended = eos(name)
    assert ended.code == ExitCode.CONFIGURATION
    said = " ".join(ended.err.replace("│", " ").split())
    assert f"No such command '{name}'. Did you mean {meant}" in said


def test_every_command_that_is_proposed_exists(eos: Eos) -> None:
    from eos.cli.aliases import _MEANT

    proposed = {
        found for text in _MEANT.values() for found in re.findall(r"'eos ([a-z ]+?)(?= [A-Z]|')", text)
    }
    assert len(proposed) > 5
    for command in proposed:
        assert eos(*command.split(), "--help").code == ExitCode.DONE


def test_what_stands_in_brackets_is_no_markup(eos: Eos) -> None:
    assert "pip install 'eos-kafka[testing]'" in eos("init", "--help").out


def test_the_version_is_printed(eos: Eos) -> None:
    ended = eos("--version")
    assert (ended.code, ended.out.split()[0]) == (ExitCode.DONE, "eos")
