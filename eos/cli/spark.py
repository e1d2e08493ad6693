"""`eos spark`: run a Spark job exactly once over what is new in its input, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from eos.cli.exit import Errors, complain
from eos.cli.help import command
from eos.cli.options import (
    AdoptOffsets,
    Directory,
    Given,
    GivenJobOnCluster,
    GivenRun,
    Start,
    check_cluster,
    pairs,
)
from eos.cli.printing import print_table, say
from eos.cli.spark_run import location_of, run_and_print, spark_session
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.settings import Settings
    from eos.spark.jobs import SparkJob, StreamJob

commands = typer.Typer(
    no_args_is_help=True, help="Run Spark jobs: output and input offsets in one transaction."
)

_Reference = Annotated[
    str,
    typer.Argument(metavar="MODULE:NAME", help="The SparkJob, for example jobs.refunds_batch:job."),
]
_MaxRecords = Annotated[
    int | None,
    typer.Option("--max-records", metavar="N", help="Offsets of a partition that a run takes at most."),
]

_MASTER = "local[*,4]"


@dataclass(frozen=True, kw_only=True)
class _GivenRun(GivenRun):
    reference: _Reference


@dataclass(frozen=True, kw_only=True)
class _GivenPlan(GivenJobOnCluster):
    BACK: ClassVar[tuple[str, ...]] = ("local", *Given.BACK)

    reference: _Reference


@command(commands, *(code for code in ExitCode if code is not ExitCode.NOT_EXACTLY_ONCE))
def run(
    *,
    given: _GivenRun,
    start: Start = None,
    adopt_offsets: AdoptOffsets = False,
    max_records_per_partition: _MaxRecords = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Run on until all present input is processed, then end.")
    ] = False,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="SECONDS", min=0, help="Of a SparkJob: run again so long after each run."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Of a StreamJob: where its query keeps its place.")
    ] = None,
    max_offsets_per_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Of a StreamJob: offsets that a batch takes at most.")
    ] = None,
    adopt: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Of a StreamJob, once: what a refusal said to pass.")
    ] = None,
    skip_deleted: Annotated[
        bool,
        typer.Option(
            "--skip-deleted", help="Of a StreamJob, once: go on behind input that was deleted unread."
        ),
    ] = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help=r"local\[threads,tries], or spark://host:port.")
    ] = _MASTER,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="One setting of Spark; may be repeated."),
    ] = None,
) -> None:
    r"""Run a SparkJob once over what is new in its input, or a StreamJob's query.

    A batch plans offset ranges from the group's committed offsets to the last
    stable offset, and returns when all of them are committed. Run it again for
    what came since; --until-caught-up does so until all that is below the last
    stable offsets of now is done, and --every goes on in the same session: a stream
    of batches whose place is in Kafka alone. A query goes on from its --checkpoint
    until it is stopped, or has caught up. Ctrl-C or SIGTERM ends either at once, but
    with --every the first SIGTERM lets the run at work end before; the next run goes
    on where it stood.

    The driver is this process. With the default master so are the tasks:
    local\[*,4] is a thread per core, and four tries for a task. Jars of Spark's
    Kafka connector are fetched at the first run.

    Examples:
      eos spark run jobs.refunds_batch:job -c conf/refunds_batch.toml --start earliest
      eos spark run jobs.refunds_batch:job --local --master "local\[2,4]"
      eos spark run jobs.settlement_report:job --conf spark.driver.memory=2g
      eos spark run jobs.refunds_stream:job --checkpoint /data/refunds-stream
    """
    from eos.kafka.librdkafka import librdkafka_version
    from eos.ops.observe import configure_logs, log_start

    spark_conf = dict(pairs("--conf", conf or (), "KEY=VALUE", "spark.driver.memory=2g"))
    # Tasks of this machine import the job's functions from where the driver does.
    spark_conf.setdefault("spark.executorEnv.PYTHONPATH", str(given.app_dir.absolute()))
    settings = given.settings(_options(start, adopt_offsets, max_records_per_partition))
    Errors.in_the_log = configure_logs(settings.observe)
    job = _load(given.reference, given.app_dir)
    log_start(librdkafka_version, job=job.name)
    from eos.settings.binding import own_settings
    from eos.spark.running import RunOptions

    how = RunOptions(
        until_caught_up=until_caught_up,
        every_s=every_s,
        checkpoint=None if checkpoint is None else location_of(checkpoint),
        max_offsets_per_batch=max_offsets_per_batch,
        adopt=adopt,
        skip_deleted=skip_deleted,
    )
    how.require_fit(job)
    own_settings(job, settings)
    jars = _connector(settings)
    check_cluster(job, settings, local=given.local, reference=given.reference)
    with spark_session(job.name, master, jars, spark_conf) as spark:
        run_and_print(job, spark, settings, how)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE, ExitCode.OFFSET_GAP)
def plan(
    *,
    given: _GivenPlan,
    start: Start = None,
    adopt_offsets: AdoptOffsets = False,
    max_records_per_partition: _MaxRecords = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also print whether the rows are shuffled, and by what. It starts Spark."
        ),
    ] = False,
) -> None:
    """Print what a run would read now: an offset range per input partition.

    It commits nothing and applies no start policy. Only --explain needs Java: it
    plans the job's transform on Spark, without reading a record, and says whether
    each partition's rows are written by the task that reads them.

    Examples:
      eos spark plan jobs.refunds_batch:job -c conf/refunds_batch.toml --start earliest
      eos spark plan jobs.refunds_batch:job --explain
    """
    settings = given.settings(_options(start, adopt_offsets, max_records_per_partition))
    job = _load(given.reference, given.app_dir)
    from eos.identity import Kind
    from eos.spark.running import explain as explain_job
    from eos.spark.running import preview
    from eos.spark.session.session import interruptible

    if job.kind is Kind.STREAM:
        raise ConfigError(
            f"{given.reference} is a query, whose plan is in its checkpoint; `plan` is for a SparkJob"
        )

    jars = _connector(settings) if explain else []
    head, *rows, foot = preview(job, settings).table()
    print_table(head, rows, foot=foot, figures=True)
    if explain:
        with spark_session(job.name, _MASTER, jars, {}) as spark:
            placement = interruptible(spark, lambda: explain_job(job, spark, settings))
        say(f"rows: {placement}")


@command(commands, ExitCode.DONE, ExitCode.UNEXPECTED, ExitCode.CONFIGURATION)
def jars(
    directory: Directory = None,
) -> None:
    """Print the paths of the jars that let Spark read Kafka, with commas between.

    They are fetched at the first call (by Maven, or by the Ivy inside PySpark).

    Example:
      eos spark jars
      spark-submit --jars "$(eos spark jars)" jobs/refunds_batch.py
    """
    settings = Given().settings({"local.directory": directory})
    say(",".join(map(str, _connector(settings))))


def _load(reference: str, app_dir: Path) -> SparkJob | StreamJob:
    from eos.local.pyspark_home import require_pyspark
    from eos.references import load_named

    require_pyspark()
    from eos.spark.jobs import SparkJob, StreamJob

    kinds: Any = SparkJob | StreamJob
    found: SparkJob | StreamJob = load_named(reference, app_dir.absolute(), kinds, "SparkJob or StreamJob")
    return found


def _connector(settings: Settings) -> list[Path]:
    from eos.local.connector import provide_connector
    from eos.local.java import find_java
    from eos.local.pyspark_home import require_pyspark

    require_pyspark()
    local = settings.local
    return provide_connector(local.directory, java=find_java("Spark"), progress=complain, jars=local.jars)


def _options(start: str | None, adopt_offsets: bool, max_records: int | None) -> dict[str, object]:
    return {
        "input.start": start,
        "ownership.adopt_offsets": adopt_offsets or None,
        "spark.max_records_per_partition": max_records,
    }
