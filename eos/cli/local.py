"""`eos local`: a real Kafka on this machine, in the background until it is stopped; and Spark beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from eos.base.listing import counted
from eos.cli.exit import complain, end_with
from eos.cli.help import command
from eos.cli.options import AppDir, Directory, Given, load_declaration
from eos.cli.printing import print_table, say
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.local import LocalKafka
    from eos.local.local_cluster import LocalCluster

Cluster = TypeVar("Cluster", bound="LocalCluster[Any, Any]")

commands = typer.Typer(no_args_is_help=True, help="Run a real Apache Kafka on this machine, on loopback.")


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def start(
    brokers: Annotated[int | None, typer.Option(metavar="1|3", help="Brokers; 1 if not given.")] = None,
    directory: Directory = None,
) -> None:
    """Start Kafka in the background, and print its bootstrap servers.

    The jars are fetched at the first start (by Maven, or by the Ivy inside
    PySpark, or taken from EOS_LOCAL__KAFKA_HOME). Records of earlier runs are
    there again. It runs until `eos local stop`.

    Example:
      export EOS_KAFKA__BOOTSTRAP_SERVERS=$(eos local start)
      eos local start --brokers 3      # replication 3, for failover
    """
    from eos.local import LocalKafka

    local = Given().settings({"local.brokers": brokers, "local.directory": directory}).local
    cluster = LocalKafka(
        local.directory,
        local.brokers,
        kafka_home=local.kafka_home,
        jars=local.jars,
        owned=False,
        progress=complain,
    )
    say(cluster.start().bootstrap_servers)


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def stop(directory: Directory = None) -> None:
    """Stop the Kafka of a directory, also one that another process started. Its records stay.

    Example:
      eos local stop
    """
    from eos.local import LocalKafka

    stop_cluster(LocalKafka, directory)


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    unavailable="it does not run, or a broker of it is down",
)
def status(directory: Directory = None) -> None:
    """Print the brokers of a directory's Kafka.

    Example:
      eos local status && eos run jobs.refunds:job --local
    """
    from eos.local import LocalKafka

    cluster = require_running(LocalKafka, directory)
    rows = [
        (str(one.id), f"{one.host}:{one.port}", *process_columns(one.pid, one.log_path))
        for one in cluster.brokers
    ]
    print_table(("broker", "address", "state", "process", "log"), rows)
    if any(broker.pid is None for broker in cluster.brokers):
        end_with(ExitCode.UNAVAILABLE)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def topics(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:NAME|TOPIC[:N]…",
            help="A job, all of whose topics are meant; or topics, each with its number of partitions.",
        ),
    ],
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="Partitions of each.")] = 4,
    directory: Directory = None,
    app_dir: AppDir = Path(),
) -> None:
    """Create topics that are missing in a directory's Kafka: those of a job, or by their names.

    Only here: on a cluster of yours, topics are your decision, and eos creates none.

    Examples:
      eos local topics jobs.refunds:job --partitions 4
      eos local topics orders:12 shipments
    """
    from eos.local.topics import create_topics

    wanted: dict[str, int] = {}
    for name in names:
        topic, _, number = name.rpartition(":")
        if topic and number.isdecimal() and int(number):
            wanted[topic] = int(number)
        elif ":" in name:
            job = load_declaration(name, app_dir)
            wanted |= dict.fromkeys(job.read_topics | job.written_topics, partitions)
        else:
            wanted[name] = partitions
    for name in create_topics(_attached(directory), dict(sorted(wanted.items()))):
        say(name)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE…", help="A record each; else the lines of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Of all of them; none if not given.")] = None,
    directory: Directory = None,
) -> None:
    """Write records to a topic of a directory's Kafka.

    Examples:
      eos local produce whispers psst "over here"
      eos local produce orders --key 7 < orders.txt
    """
    from eos.errors import AbortableError, RecordRefusedError, UnavailableError
    from eos.kafka.topics import produce_plain
    from eos.records import OutputRecord

    servers = _attached(directory).bootstrap_servers
    texts = values or (line.rstrip("\n") for line in sys.stdin)
    raw_key = None if key is None else key.encode()
    records = (OutputRecord(topic, text.encode(errors="surrogateescape"), raw_key) for text in texts)
    # A topic that is missing is named at once; librdkafka would look for it for 30 s.
    config = {"bootstrap.servers": servers, "topic.metadata.propagation.max.ms": 1_000}
    try:
        count = produce_plain(config, records)
    except RecordRefusedError as error:  # also where there is no such topic
        raise ConfigError(str(error)) from error
    except AbortableError as error:
        raise UnavailableError(
            f"{error}. Fix: eos local status, and the log of the broker that is down"
        ) from error
    say(counted(count, "record"))


def _attached(directory: Path | None) -> LocalKafka:
    from eos.local import LocalKafka

    return require_running(LocalKafka, directory)


# --- for Kafka and for Spark ------------------------------------------------------------------------------


def directory_of(directory: Path | None) -> Path:
    """The directory of the option or of the settings."""
    return Given().settings({"local.directory": directory}).local.directory.absolute()


def stop_cluster(kind: type[Cluster], directory: Path | None) -> None:
    """Stop the cluster of a directory, if it runs, and say what was done."""
    where = directory_of(directory)
    if (cluster := kind.attach(where)) is None:
        complain(f"no {kind.title} runs in {where}")
    else:
        cluster.stop()
        complain(f"stopped the {kind.title} of {where}")


def require_running(kind: type[Cluster], directory: Path | None) -> Cluster:
    """The cluster of a directory; without one, the command ends with the code for what does not answer."""
    where = directory_of(directory)
    if (cluster := kind.attach(where)) is None:
        end_with(ExitCode.UNAVAILABLE, f"no {kind.title} runs in {where}. Fix: {kind.start_command}")
    return cluster


def process_columns(pid: int | None, log: Path) -> tuple[str, str, str]:
    """State, process id and log file of a process, for a table."""
    shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
    return "down" if pid is None else "up", str(pid or "-"), str(shown)
