"""`eos spark`: run a Spark job exactly once over what is new in its input, and what goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.cli.ending import Errors, complain
from eos.cli.options import (
    AdoptOffsets,
    AppDir,
    Assignments,
    Config,
    Debug,
    Directory,
    Local,
    Start,
    check_cluster,
    load_settings,
    pairs,
)
from eos.cli.spark_run import print_results, run_batch, run_every, run_stream, spark_session
from eos.cli.texts import command, print_table, say
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.settings import Settings
    from eos.spark.job import SparkJob
    from eos.spark.stream_job import StreamJob

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


@command(commands, *(code for code in ExitCode if code is not ExitCode.NOT_EXACTLY_ONCE))
def run(
    *,
    reference: _Reference,
    config: Config = None,
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
    master: Annotated[
        str, typer.Option(metavar="URL", help=r"local\[threads,tries], or spark://host:port.")
    ] = _MASTER,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="One setting of Spark; may be repeated."),
    ] = None,
    local: Local = False,
    debug: Debug = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
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
    from eos.observe import configure_logs, log_start

    spark_conf = dict(pairs("--conf", conf or (), "KEY=VALUE", "spark.driver.memory=2g"))
    options = _options(start, adopt_offsets, max_records_per_partition)
    options["observe.log_level"] = "debug" if debug else None
    settings = load_settings(config, assignments, options, local=local, reference=reference, app_dir=app_dir)
    Errors.in_the_log = configure_logs(settings.observe)
    job = _load(reference, app_dir)
    log_start(librdkafka_version, job=job.name)
    from eos.settings.binding import own_settings
    from eos.spark.job import SparkJob

    if isinstance(job, SparkJob) == (checkpoint is not None):
        raise ConfigError(
            f"{reference} is a {type(job).__name__}: --checkpoint is for a StreamJob, which needs one "
            "(for example --checkpoint .eos/checkpoints/refunds-stream)"
        )
    if every_s is not None and (until_caught_up or checkpoint is not None):
        raise ConfigError(
            "--every: a SparkJob is run again without an end. Fix: leave out --every, or --until-caught-up and --checkpoint"
        )
    own_settings(job, settings)
    jars = _connector(settings)
    check_cluster(job, settings, local=local, reference=reference)
    with spark_session(job.name, master, jars, spark_conf) as spark:
        if isinstance(job, SparkJob):
            if every_s is None:
                print_results(run_batch(job, spark, settings, until_caught_up=until_caught_up))
            else:
                run_every(every_s, job, spark, settings)
        else:
            run_stream(job, spark, settings, checkpoint or "", until_caught_up=until_caught_up)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE, ExitCode.OFFSET_GAP)
def plan(
    *,
    reference: _Reference,
    config: Config = None,
    start: Start = None,
    adopt_offsets: AdoptOffsets = False,
    max_records_per_partition: _MaxRecords = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also print whether the rows are shuffled, and by what. It starts Spark."
        ),
    ] = False,
    local: Local = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Print what a run would read now: an offset range per input partition.

    It commits nothing and applies no start policy. Only --explain needs Java: it
    plans the job's transform on Spark, without reading a record, and says whether
    each partition's rows are written by the task that reads them.

    Examples:
      eos spark plan jobs.refunds_batch:job -c conf/refunds_batch.toml --start earliest
      eos spark plan jobs.refunds_batch:job --explain
    """
    options = _options(start, adopt_offsets, max_records_per_partition)
    settings = load_settings(config, assignments, options, local=local, reference=reference, app_dir=app_dir)
    job = _load(reference, app_dir)
    from eos.spark.job import SparkJob, preview
    from eos.spark.job import explain as explain_job
    from eos.spark.session import interruptible

    if not isinstance(job, SparkJob):
        raise ConfigError(
            f"{reference} is a query, whose plan is in its checkpoint; `plan` is for a SparkJob"
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
    settings = load_settings(None, options={"local.directory": directory})
    say(",".join(map(str, _connector(settings))))


def _load(reference: str, app_dir: Path) -> SparkJob | StreamJob:
    from eos.local.pyspark_home import require_pyspark
    from eos.references import load_named

    require_pyspark()
    from eos.spark.job import SparkJob
    from eos.spark.stream_job import StreamJob

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
