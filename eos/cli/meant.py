"""Meant: what a command that does not exist is called here, for readers who come from other tools."""

from __future__ import annotations

from typing import Any

import typer.core

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


class Commands(typer.core.TyperGroup):
    """The commands of `eos`: an unknown one is answered with the one that was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of every group; typer itself names those that are written much alike."""
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None:
            meant = f"'eos run {name}'" if ":" in name else _MEANT.get(name)
            if meant is not None:
                ctx.fail(f"No such command {name!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)
