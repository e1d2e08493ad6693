"""`eos acl`: the access that a job needs on a cluster that allows nothing by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eos.cli.exit import complain
from eos.cli.help import command
from eos.cli.options import GivenJob
from eos.cli.printing import print_table, say
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.ops.check.grants import Grant
    from eos.settings import Settings

_UNKNOWN = "User:PRINCIPAL"

commands = typer.Typer(
    no_args_is_help=True, help="Show the access that a job needs: its grants, and no more."
)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def show(
    *,
    given: GivenJob,
    purpose: Annotated[
        Literal["run", "preflight", "verify", "status", "offsets", "transactions"],
        typer.Option("--for", metavar="PURPOSE", help="What the access is for (above)."),
    ] = "run",
    principal: Annotated[
        str | None,
        typer.Option(metavar="TYPE:NAME", help="Whose grants; if not given, that of the settings' login."),
    ] = None,
    form: Annotated[
        Literal["table", "kafka-acls", "json"],
        typer.Option("--format", metavar="table|kafka-acls|json", help="How they are printed."),
    ] = "table",
) -> None:
    """Print the grants that a job needs, derived from its declaration and settings.

    For a loop, a SparkJob or a StreamJob. Nothing is asked of a cluster.
    'run' is what it fails without. 'preflight' adds what is looked at before a
    run; without it there are warnings. 'verify' is for `eos verify`, by a
    principal of its own: it only reads. 'status' is for `eos status`. 'offsets' is for
    `eos offsets`; `eos skip` needs what 'run' has. 'transactions' is for `eos
    transactions`. What begins with a prefix ends in *.

    Examples:
      eos acl show jobs.refunds:job -c conf/refunds.toml --principal User:refunds
      eos acl show jobs.refunds:job --for verify --principal User:auditor
      eos acl show jobs.refunds:job --format kafka-acls > grants.sh
    """
    from eos.ops.check.grants import Purpose, as_commands, as_json, grants_for

    settings = given.settings()
    grants = grants_for(Purpose(purpose), given.declaration().identity(settings))
    whose = principal or _of_login(settings)
    if form == "json":
        typer.echo(as_json(grants, whose))
    elif form == "kafka-acls":
        say(as_commands(grants, whose), lines=True)
    else:
        _print(grants, whose)
    if whose == _UNKNOWN:
        complain("whose grants? Fix: --principal, for example --principal User:refunds")


def _of_login(settings: Settings) -> str:
    user = settings.kafka.sasl_username
    return f"User:{user}" if user else _UNKNOWN


def _print(grants: Sequence[Grant], principal: str) -> None:
    say(f"{principal} is to be allowed, from any host:")
    rows = [
        (
            grant.resource,
            f"{grant.name}*" if grant.is_prefix else grant.name,
            ", ".join(grant.operations),
            grant.why if grant.needed else f"{grant.why} (a check)",
        )
        for grant in grants
    ]
    print_table(("resource", "name", "operations", "what for"), rows)
