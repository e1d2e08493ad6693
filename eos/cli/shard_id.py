"""`eos shard-id`: the transactional.ids of a job, or the meaning of an id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.help import command
from eos.cli.options import AppDir, GivenCluster, load_job
from eos.cli.printing import say
from eos.cli.transactions import meaning
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.job import Job
    from eos.settings import Settings

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE, name="shard-id")
def shard_id(
    *,
    reference: Annotated[
        str | None, typer.Argument(metavar="MODULE:NAME", help="The job, for example jobs.refunds:job.")
    ] = None,
    ordinal: Annotated[int | None, typer.Option(help="The id of this instance.", metavar="N")] = None,
    partition: Annotated[
        str | None, typer.Option(help="The id of this input partition.", metavar="TOPIC:NUMBER")
    ] = None,
    parse: Annotated[str | None, typer.Option(help="Print what this id means.", metavar="ID")] = None,
    given: GivenCluster,
    app_dir: AppDir = Path(),
) -> None:
    """Print a job's transactional.ids, one a line; or parse one.

    Without --ordinal or --partition: the ids of the workers that `eos run` would
    start here (with ownership.mode = "partition" the cluster is asked for the
    partitions). Access rules can name the prefix before the last two parts.

    Examples:
      eos shard-id jobs.refunds:job --ordinal 3
      eos shard-id jobs.refunds:job --partition settlements:0
      eos shard-id --parse refunds.refunds.i.3
    """
    if parse is not None:
        _print_parsed(parse)
        return
    if reference is None:
        raise ConfigError("shard-id needs a job, for example jobs.refunds:job, or --parse ID")
    settings = given.settings()
    for transactional_id in _ids(load_job(reference, app_dir), settings, ordinal, partition):
        say(transactional_id)


def _ids(job: Job, settings: Settings, ordinal: int | None, partition: str | None) -> list[str]:
    from eos.runner.owned import shards_of
    from eos.settings.tables import parse_partition
    from eos.shards import OrdinalShard, PartitionShard

    known = job.identity(settings)
    if partition is not None:
        try:
            return [PartitionShard(known.app, known.group, parse_partition(partition)).transactional_id]
        except ValueError as error:
            raise ConfigError(f"--partition: {error}") from error
    if ordinal is not None:
        return [OrdinalShard(known.app, known.group, ordinal).transactional_id]
    workers = [settings.for_worker(index) for index in range(settings.workers.count)]
    return [shard.transactional_id for worker in workers for shard in shards_of(job, worker)]


def _print_parsed(transactional_id: str) -> None:
    from eos.shards import parse_transactional_id

    shard = parse_transactional_id(transactional_id)
    say(f"app    {shard.app}")
    say(f"group  {shard.group}")
    say(f"shard  {meaning(shard)}")
