"""`eos acl`: the access that a job needs on a cluster that allows nothing by default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eos.cli.ending import complain
from eos.cli.options import AppDir, Assignments, Config, JobReference, load_settings
from eos.cli.texts import command, print_table, say
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.check.grants import Declared, Grant, Shape
    from eos.settings import Settings

_UNKNOWN = "User:PRINCIPAL"

commands = typer.Typer(
    no_args_is_help=True, help="Show the access that a job needs: its grants, and no more."
)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION)
def show(
    *,
    reference: JobReference,
    config: Config = None,
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
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
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
    from eos.check.grants import Purpose, as_commands, as_json, grants_for

    settings = load_settings(config, assignments, reference=reference, app_dir=app_dir)
    job, shape = _load(reference, app_dir)
    grants = grants_for(Purpose(purpose), job, settings, shape=shape)
    whose = principal or _of_login(settings)
    if form == "json":
        typer.echo(as_json(grants, whose))
    elif form == "kafka-acls":
        say(as_commands(grants, whose), lines=True)
    else:
        _print(grants, whose)
    if whose == _UNKNOWN:
        complain("whose grants? Fix: --principal, for example --principal User:refunds")


def _load(reference: str, app_dir: Path) -> tuple[Declared, Shape]:
    from eos.check.grants import Declared, Shape
    from eos.job import Job
    from eos.references import load_named

    kind: type[Declared] = Declared  # type: ignore[type-abstract]  # it is only asked whether an object fits
    job = load_named(reference, app_dir.absolute(), kind, "job")
    if isinstance(job, Job):
        return job, Shape.LOOP
    # A job of Spark has imported what it is made of already; only a batch says what its commit is.
    return job, Shape.BATCH if hasattr(job, "commit") else Shape.STREAM


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
