"""Meant: what a command that does not exist is called here, for readers who come from other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer.core

from eos.base.printable import printable_lines

_MEANT = {
    "start": "'eos run MODULE:NAME' (a job), or 'eos local start' (a Kafka on this machine)",
    "stop": "Ctrl-C or SIGTERM to 'eos run', or 'eos local stop' (the Kafka on this machine)",
    "consume": "'eos show TOPIC'",
    "cat": "'eos show TOPIC'",
    "read": "'eos show TOPIC'",
    "produce": "'eos local produce TOPIC VALUE'",
    "topics": "'eos local topics MODULE:NAME'",
    "create": "'eos init NAME' (a job), or 'eos local topics MODULE:NAME' (its topics)",
    "new": "'eos init NAME'",
    "lag": "'eos status MODULE:NAME'",
    "ps": "'eos status MODULE:NAME'",
    "describe": "'eos status MODULE:NAME'",
    "preflight": "'eos check MODULE:NAME'",
    "doctor": "'eos check MODULE:NAME'",
    "test": "'eos prove MODULE:NAME', or 'eos verify MODULE:NAME'",
    "submit": "'eos spark run MODULE:NAME'",
    "reset": "'eos offsets set MODULE:NAME', while the job is stopped",
    "help": "'eos --help'",
    "version": "'eos --version'",
}


@contextmanager
def _printable_answers() -> Iterator[None]:
    """What the command line's words are answered with quotes them: pasted ones may hold escape sequences."""
    try:
        yield
    except Exception as error:
        if isinstance(said := getattr(error, "message", None), str) and hasattr(
            error, "format_message"
        ):  # of click
            error.message = printable_lines(said)  # type: ignore[attr-defined]
        raise


class Commands(typer.core.TyperGroup):
    """The commands of `eos`: an unknown one is answered with the one that was meant, and no answer drives a terminal."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """As of every group."""
        with _printable_answers():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """As of every group; a subcommand's words are parsed in it."""
        with _printable_answers():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of every group; typer itself names those that are written much alike."""
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None:
            meant = f"'eos run {name}'" if ":" in name else _MEANT.get(name)
            if meant is not None:
                ctx.fail(f"No such command {name!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)
