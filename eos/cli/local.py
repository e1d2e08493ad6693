"""`eos local`: a real Kafka on this machine, in the background until it is stopped; and Spark beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli import local_spark
from eos.cli.ending import complain
from eos.cli.options import AppDir, JobReference, load_settings
from eos.cli.texts import exit_codes, help_of
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.local import LocalKafka

_app = typer.Typer(no_args_is_help=True, help="Run a real Apache Kafka on this machine, on loopback.")
_Directory = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Where its jars, data and logs are; .eos if not given."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    local_spark.add_to(_app)
    app.add_typer(_app, name="local")


@_app.command(
    help=help_of(
        """
        Start Kafka in the background, and print its bootstrap servers.

        The jars are fetched at the first start (by Maven, or by the Ivy inside
        PySpark, or taken from EOS_LOCAL__KAFKA_HOME). Records of earlier runs are
        there again. It runs until `eos local stop`.

        Example:
          export EOS_KAFKA__BOOTSTRAP_SERVERS=$(eos local start)
          eos local start --brokers 3      # replication 3, for failover
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION),
)
def start(
    brokers: Annotated[int | None, typer.Option(metavar="1|3", help="Brokers; 1 if not given.")] = None,
    directory: _Directory = None,
) -> None:
    """Start a local Kafka."""
    from eos.local import LocalKafka

    local = load_settings(None, options={"local.brokers": brokers, "local.directory": directory}).local
    cluster = LocalKafka(
        local.directory,
        local.brokers,
        kafka_home=local.kafka_home,
        jars=local.jars,
        heap_mb=local.heap_mb,
        owned=False,
        progress=complain,
    )
    typer.echo(cluster.start().bootstrap_servers)


@_app.command(
    help=help_of(
        """
        Stop the Kafka of a directory, whoever started it. Its records stay.

        Example:
          eos local stop
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION),
)
def stop(directory: _Directory = None) -> None:
    """Stop a local Kafka."""
    cluster, where = _attached(directory)
    if cluster is None:
        complain(f"no Kafka runs in {where}")
        return
    cluster.stop()
    complain(f"stopped the Kafka of {where}")


@_app.command(
    help=help_of(
        """
        Print the brokers of a directory's Kafka.

        Example:
          eos local status && eos run jobs.refunds:job --local
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.CONFIGURATION)
    + f"\n  {int(ExitCode.UNAVAILABLE)}  it does not run, or a broker of it is down",
)
def status(directory: _Directory = None) -> None:
    """Show a local Kafka."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cluster, where = _attached(directory)
    if cluster is None:
        complain(f"no Kafka runs in {where}")
        raise typer.Exit(int(ExitCode.UNAVAILABLE))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("broker", "state", "address", "process", "log"):
        table.add_column(column, overflow="fold")
    for broker in cluster.brokers:
        state = "down" if broker.pid is None else "up"
        log = broker.log_path
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        table.add_row(
            str(broker.id), state, f"{broker.host}:{broker.port}", str(broker.pid or "-"), str(shown)
        )
    Console().print(table)
    if any(broker.pid is None for broker in cluster.brokers):
        raise typer.Exit(int(ExitCode.UNAVAILABLE))


@_app.command(
    help=help_of(
        """
        Create the topics of a job that are missing in a directory's Kafka.

        Only here: on a cluster of yours, topics are your decision, and eos creates none.

        Example:
          eos local topics jobs.refunds:job --partitions 4
        """
    ),
    epilog=exit_codes(ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE),
)
def topics(
    reference: JobReference,
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="Partitions of each.")] = 4,
    directory: _Directory = None,
    app_dir: AppDir = Path(),
) -> None:
    """Create the topics of a job."""
    from eos.job import Declaration
    from eos.local.topics import create_topics
    from eos.references import load_named

    kind: type[Declaration] = Declaration  # type: ignore[type-abstract]  # it is only asked whether an object fits
    job = load_named(reference, app_dir.absolute(), kind, "job")
    cluster, where = _attached(directory)
    if cluster is None:
        raise ConfigError(f"no Kafka runs in {where}. Fix: eos local start")
    for name in create_topics(
        cluster, dict.fromkeys(sorted(job.read_topics | job.written_topics), partitions)
    ):
        typer.echo(name)


def _attached(directory: Path | None) -> tuple[LocalKafka | None, Path]:
    from eos.local import LocalKafka

    where = load_settings(None, options={"local.directory": directory}).local.directory.absolute()
    return LocalKafka.attach(where), where
