"""A command line of hostile words: no command's answer drives the terminal, whatever word it quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from eos.base.deadline import Deadline
from eos.cli.app import app
from tests.support.command_line import Eos

# ESC and C1, a window title, a change of direction, a line that looks like one of ours.
HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\u2028\nInfo: transaction committed\r"
_DANGEROUS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if (under := getattr(command, "commands", None)) is None:
        yield words, command
        return
    for name, one in under.items():
        yield from _commands(one, (*words, name))


_ALL = dict(_commands(typer.main.get_command(app)))
# They start a server of this machine; their words are paths only.
_WITHOUT = {("local", "start"), ("local", "postgres", "start"), ("local", "spark", "start")}


def test_the_walk_knows_every_command() -> None:
    assert len(_ALL) > 20
    assert set(_ALL) > _WITHOUT


@pytest.mark.parametrize("words", [one for one in _ALL if one not in _WITHOUT], ids="-".join)
def test_hostile_words_drive_nothing(
    eos: Eos, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eos.ops.check.reach.Deadline", lambda _: Deadline(0.1))
    arguments = [one for one in _ALL[words].params if one.param_type_name == "argument"]
    options = [
        one
        for one in _ALL[words].params
        if one.param_type_name == "option" and not one.is_flag and one.name != "help"
    ]
    lines = [(HOSTILE,) * len(arguments), (f"--{HOSTILE}",), (HOSTILE,) * (len(arguments) + 1)]
    lines += [(*(HOSTILE for _ in arguments), one.opts[0], HOSTILE) for one in options]
    for line in lines:
        ended = eos(*words, *line, "--set", "kafka.bootstrap_servers=127.0.0.1:9")
        shown = ended.out + ended.err
        assert not (found := _DANGEROUS.search(shown)), (line, shown[max(0, found.start() - 200) :])
        forged = [one for one in shown.splitlines() if one.startswith("Info:")]
        assert not forged, (line, shown)


def test_a_command_that_does_not_exist_drives_nothing(eos: Eos) -> None:
    for group in ((), ("offsets",), ("local",), ("config",)):
        ended = eos(*group, HOSTILE)
        assert not _DANGEROUS.search(ended.out + ended.err)
