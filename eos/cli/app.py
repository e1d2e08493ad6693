"""The command line: its commands and what holds for all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from eos.cli import (
    acl,
    check,
    config,
    hanging,
    init,
    local,
    local_postgres,
    local_spark,
    offsets,
    prove,
    run,
    shard_id,
    show,
    skip,
    spark,
    sql,
    status,
    verify,
)
from eos.cli.aliases import Commands
from eos.cli.exit import Errors
from eos.cli.help import exit_codes, help_of
from eos.exits import ExitCode

app = typer.Typer(
    cls=Commands,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which hold records and secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"eos {version('eos-kafka')}")
        except PackageNotFoundError:
            typer.echo("eos (run from its source tree)")
        raise typer.Exit


@app.callback(
    help=help_of(
        """
        Exactly-once processing on Apache Kafka.

        First steps:
          eos init orders
          eos local start
          eos local topics orders:job
          eos local produce orders-in '{"id": "a", "amount": 700}'
          eos run orders:job -c orders.toml --local --start earliest --until-caught-up
          eos verify orders:job -c orders.toml --local
          eos show orders-out --local

        Settings come from options, EOS_… variables, mounted secret files, and a
        TOML file: see `eos config describe`.
        """
    ),
    epilog=exit_codes(ExitCode),
)
def _main(
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print errors with their traceback.")] = False,
) -> None:
    if debug:
        Errors.with_traceback = True


for one in (init, run, status, show, skip, check, verify, prove, shard_id):
    app.add_typer(one.commands)
for group, name in (
    (offsets, "offsets"),
    (hanging, "transactions"),
    (spark, "spark"),
    (sql, "sql"),
    (local, "local"),
    (acl, "acl"),
    (config, "config"),
):
    app.add_typer(group.commands, name=name)
local.commands.add_typer(local_postgres.commands, name="postgres")
local.commands.add_typer(local_spark.commands, name="spark")
