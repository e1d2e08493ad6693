"""`eos local spark`: a standalone Spark cluster on this machine, in the background until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.ending import complain
from eos.cli.options import load_settings
from eos.cli.texts import exit_codes, help_of
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.local import LocalSpark

_app = typer.Typer(no_args_is_help=True, help="Run a standalone Spark cluster on this machine, on loopback.")
_Directory = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Where its logs and files are; .eos if not given."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(_app, name="spark")


@_app.command(
    help=help_of(
        """
        Start a Spark master and its workers in the background, and print the master's URL.

        From the installed PySpark. Each worker has one core and 1 GiB. What
        applications leave in the directory is deleted at the next start. It runs
        until `eos local spark stop`.

        Example:
          spark-submit --master "$(eos local spark start)" app.py
          eos local spark start --workers 3
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION),
)
def start(
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Workers.")] = 2,
    directory: _Directory = None,
) -> None:
    """Start a local Spark."""
    from eos.local import LocalSpark

    cluster = LocalSpark(_where(directory), workers, owned=False, progress=complain)
    typer.echo(cluster.start().master_url)


@_app.command(
    help=help_of(
        """
        Stop the Spark cluster of a directory, whoever started it, with all its executors.

        Example:
          eos local spark stop
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION),
)
def stop(directory: _Directory = None) -> None:
    """Stop a local Spark."""
    cluster, where = _attached(directory)
    if cluster is None:
        complain(f"no Spark runs in {where}")
        return
    cluster.stop()
    complain(f"stopped the Spark of {where}")


@_app.command(
    help=help_of(
        """
        Print the processes of a directory's Spark cluster.

        Example:
          eos local spark status || eos local spark start
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.CONFIGURATION)
    + f"\n  {int(ExitCode.UNAVAILABLE)}  it does not run, or a process of it is down",
)
def status(directory: _Directory = None) -> None:
    """Show a local Spark."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cluster, where = _attached(directory)
    if cluster is None:
        complain(f"no Spark runs in {where}")
        raise typer.Exit(int(ExitCode.UNAVAILABLE))
    processes = cluster.processes
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("part", "state", "process", "log"):
        table.add_column(column, overflow="fold")
    for part in processes:
        log = part.log_path
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        table.add_row(part.role, "down" if part.pid is None else "up", str(part.pid or "-"), str(shown))
    console = Console()
    console.print(table)
    console.print(
        f"master {cluster.master_url}, page {cluster.web_url}, executors {len(cluster.executors())}"
    )
    if any(part.pid is None for part in processes):
        raise typer.Exit(int(ExitCode.UNAVAILABLE))


def _where(directory: Path | None) -> Path:
    return load_settings(None, options={"local.directory": directory}).local.directory.absolute()


def _attached(directory: Path | None) -> tuple[LocalSpark | None, Path]:
    from eos.local import LocalSpark

    where = _where(directory)
    return LocalSpark.attach(where), where
