"""Command lines of `eos` as texts show them: whether the command has them as they are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.main import get_command

from eos.cli.app import app

_BLOCK = re.compile(r"^ *```(?:sh|console|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(?:kubectl exec [\w-]+ -- |docker run [^`]*? )?(eos [^`]+)`")
_CALL = re.compile(r"(?:^|\$\(|-- |:dev |[;|&(] *|[A-Z_]+=\S+ )(eos [^)|;&>#]+)")
_PLACE = re.compile(r"[…]|\bMODULE:NAME\b")


def accept(arguments: Sequence[str], *, whole: bool = True) -> None:
    """Parse a command line without running anything.

    Args:
        arguments: what follows ``eos``.
        whole: whether it has to be complete; if not, arguments may be missing, but nothing may be unknown.

    Raises:
        Exception: of the parser: there is no such command or option, or an argument is missing.
    """
    command: Any = get_command(app)
    context: Any = None
    name, rest = "eos", list(arguments)
    while True:
        # Resilient parsing asks for nothing and runs no callback; it still refuses what it does not know.
        context = command.make_context(name, rest, parent=context, resilient_parsing=not whole)
        if not hasattr(command, "get_command"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            if whole:
                raise typer.BadParameter(f"{name} needs a command")
            return
        name = rest.pop(0)
        command = command.get_command(context, name)
        if command is None:
            raise typer.BadParameter(f"there is no command {name!r}")


def whole_lines(markdown: str) -> Iterator[list[str]]:
    """The arguments of each `eos …` in the code blocks of a text, lines that go on put together."""
    for block in _BLOCK.findall(markdown):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            for found in _CALL.findall(line.removeprefix("$ ").strip()):
                if not _PLACE.search(found):
                    yield shlex.split(found)[1:]


def mentions(markdown: str) -> Iterator[list[str]]:
    """The arguments of each `eos …` inside a sentence: often without what a job needs."""
    for found in _INLINE.findall(re.sub(r"\n", " ", _BLOCK.sub("", markdown))):
        if not _PLACE.search(found):
            yield shlex.split(found)[1:]
