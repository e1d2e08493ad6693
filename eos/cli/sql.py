"""`eos sql`: the tables that eos needs in a database of yours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.exit import complain
from eos.cli.help import command
from eos.cli.options import GivenJob, GivenJobOnCluster, Yes, reach
from eos.cli.printing import say
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.base.commands import Started

_AGE = re.compile(r"(\d{1,6})([dhms])", re.ASCII)
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}

commands = typer.Typer(no_args_is_help=True, help="The tables that eos needs in a database of yours.")


@dataclass(frozen=True, kw_only=True)
class GivenTables(GivenJob):
    """Of a command for the tables of a job, or of a session, which has no name to be loaded by."""

    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="The job, for example jobs.books:job. Without: what a SqlSession needs.",
        ),
    ] = ""
    app_dir: Annotated[
        Path,
        typer.Option(
            "--app-dir", metavar="DIR", help="Where the job's module is found; this directory if not given."
        ),
    ] = Path()

    def _started(self) -> Started:
        return super()._started() if self.reference else super()._started()._replace(job="")


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def tables(
    *,
    given: GivenTables,
    apply: Annotated[
        bool, typer.Option("--apply", help="Run the statements. Without it they are only printed.")
    ] = False,
) -> None:
    """Print the statements that create eos's own tables in the database of sql.url, or run them.

    Nothing else creates one. What is there already stays as it is.

    Examples:
      eos sql tables jobs.books:job -c conf/books.toml
      eos sql tables jobs.books:job -c conf/books.toml --apply
    """
    from eos.sql import tables as own
    from eos.sql.job import tables_of
    from eos.sql.making import dialect_of_settings, make

    settings = given.settings()
    wanted = tables_of(given.reference, given.app_dir) if given.reference else own.SINK
    if not apply:
        for statement in own.ddl(dialect_of_settings(settings), wanted):
            say(f"{statement};", lines=True)
        return
    make(settings, wanted)
    complain(f"created where they were missing: {', '.join(table.name for table in wanted)}")


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    ExitCode.OFFSET_GAP,
)
def prune(
    *,
    given: GivenJobOnCluster,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="For example 7d, 12h, 30m or 45s.")
    ],
    yes: Yes = False,
) -> None:
    """Delete the rows of an outbox that were relayed, and are of that age.

    No row is deleted that the committed position does not cover. The relay and
    applications may go on meanwhile: each transaction deletes a few thousand rows.

    Without --yes it counts them, and ends with 0.

    Examples:
      eos sql prune jobs.books:relay --older-than 7d
      eos sql prune jobs.books:relay --older-than 7d --yes
    """
    from eos.cli.bars import bars
    from eos.references import load_named
    from eos.sql.outbox_job import OutboxJob
    from eos.sql.outbox_prune import prune_relayed

    age, settings = _age(older_than), given.settings()
    job = load_named(given.reference, given.app_dir.absolute(), OutboxJob, "eos.sql.OutboxJob")
    reach(settings)
    with bars("rows") as update:
        count = prune_relayed(
            job,
            settings,
            older_than=age,
            act=yes,
            on_progress=lambda rows: update("deleted", rows, 0),
        )
    if yes:
        say(f"{count:,} rows were deleted")
    else:
        say(f"{count:,} rows would be deleted. To do it: --yes")


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than {text!r}: give a number and d, h, m or s. Fix: 7d, for example")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
