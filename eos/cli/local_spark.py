"""`eos local spark`: a standalone Spark cluster on this machine, in the background until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from eos.cli.exit import complain, end_with
from eos.cli.help import command
from eos.cli.local import directory_of, process_columns, require_running, stop_cluster
from eos.cli.options import Directory
from eos.cli.printing import print_table, say
from eos.exits import ExitCode

commands = typer.Typer(
    no_args_is_help=True, help="Run a standalone Spark cluster on this machine, on loopback."
)


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def start(
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Workers.")] = 2,
    directory: Directory = None,
) -> None:
    """Start a Spark master and its workers in the background, and print the master's URL.

    From the installed PySpark. Each worker has one core and 1 GiB. What
    applications leave in the directory is deleted at the next start. It runs
    until `eos local spark stop`.

    Example:
      spark-submit --master "$(eos local spark start)" app.py
      eos local spark start --workers 3
    """
    from eos.local import LocalSpark

    cluster = LocalSpark(directory_of(directory), workers, owned=False, progress=complain)
    say(cluster.start().master_url)


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def stop(directory: Directory = None) -> None:
    """Stop the Spark cluster of a directory with all its executors, also one that another process started.

    Example:
      eos local spark stop
    """
    from eos.local import LocalSpark

    stop_cluster(LocalSpark, directory)


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    unavailable="it does not run, or a process of it is down",
)
def status(directory: Directory = None) -> None:
    """Print the processes of a directory's Spark cluster.

    Example:
      eos local spark status || eos local spark start
    """
    from eos.local import LocalSpark

    cluster = require_running(LocalSpark, directory)
    processes = cluster.processes
    rows = [(one.role, *process_columns(one.pid, one.log_path)) for one in processes]
    print_table(("part", "state", "process", "log"), rows)
    say(f"master {cluster.master_url}, page {cluster.web_url}, executors {len(cluster.executors())}")
    if any(one.pid is None for one in processes):
        end_with(ExitCode.UNAVAILABLE)
