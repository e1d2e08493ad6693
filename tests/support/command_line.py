"""The `eos` command inside the test's own process: what it printed, and the exit code it ended with."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
import typer.main

from eos.cli.command_line import end_with_code

# Typer builds its commands anew for each call, 10 ms: a process calls once, these tests a hundred times.
_built_once = functools.cache(typer.main.get_command)


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


Eos = Callable[..., Ended]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Eos:
    """A runner of `eos` with the arguments it is given, 80 columns wide, without any setting of this machine."""
    for variable in [name for name in os.environ if name.startswith("EOS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(typer.main, "get_command", _built_once)

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            end_with_code(arguments)
        code = ended.value.code
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    return run
