"""The body of a script that spark-submit runs: its options, its log, its session, and the exit codes of `eos run`."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import pyspark
from pyspark.sql import SparkSession

from eos.errors import EosError
from eos.events import Event, OffsetsAdopted, StartPolicyApplied, TransactionCommitted
from eos.exits import ExitCode, exit_code_of
from eos.identity import Kind
from eos.kafka.librdkafka import librdkafka_version
from eos.pages import page_of
from eos.references import jobs_code_without_exit
from eos.settings import Settings
from eos.settings.binding import own_settings
from eos.spark.batch.batch import BatchResult
from eos.spark.events import BatchResumed, InputPlanned, LedgerSharded
from eos.spark.jobs import SparkJob, StreamJob
from eos.spark.running import RunOptions, run, summary
from eos.spark.session.session import stopping, submitted_session

log = logging.getLogger("eos.spark")


def main(job: SparkJob | StreamJob, arguments: Sequence[str] | None = None) -> NoReturn:
    """The body of a script for ``spark-submit``: run the job in the session that it was submitted with, and exit.

    Settings come from options, ``EOS_…`` variables, mounted secret files and ``--config``; exit codes are those of
    `eos run`.

    >>> if __name__ == "__main__":  # doctest: +SKIP
    ...     eos.spark.main(job)

    Raises:
        SystemExit: always.
    """
    given = _parser(job).parse_args(arguments)

    def load() -> Settings:
        settings = Settings.load(given.config, _settings_in(given))
        own_settings(job, settings)
        return settings

    def done(result: BatchResult) -> None:
        log.info("run done: %s", summary(result))

    def work(spark: SparkSession, settings: Settings) -> None:
        run(job, spark, settings, _options_in(given), listener=_logged, on_result=done)

    run_submitted(job.name, load, work, lambda: _options_in(given).require_fit(job))


def run_submitted(
    name: str,
    load: Callable[[], Settings],
    work: Callable[[SparkSession, Settings], None],
    check: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Load the settings, do the work in the session that the script was submitted with, and exit.

    Args:
        name: of the job, and of the application unless spark-submit names it.
        load: the settings, checked: a mistake in them is said before Spark starts.
        work: what the script is for.
        check: raises for options that do not fit, before all else.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    log.info("started: %s, pyspark %s, librdkafka %s", name, pyspark.__version__, librdkafka_version())
    try:
        check()
        with jobs_code_without_exit():
            settings = load()
            with stopping(spark := submitted_session(name)):
                work(spark, settings)
    except EosError as error:
        code = exit_code_of(error)
        log.error("%s\n  see %s", error, page_of(code, str(error)))  # noqa: TRY400 - the traceback may quote records
        sys.exit(int(code))
    sys.exit(int(ExitCode.DONE))


# --- inside ----------------------------------------------------------------------------------------------


def _parser(job: SparkJob | StreamJob) -> ArgumentParser:
    is_stream = job.kind is Kind.STREAM
    what = "each record's outputs exactly once" if is_stream else "exactly once over what is new in its input"
    begins = (
        "a query begins whose checkpoint has no batch yet" if is_stream else "a group without offsets begins"
    )
    options = ArgumentParser(description=f"Run {job.name}{':' if is_stream else ''} {what}.")
    options.add_argument("--config", "-c", type=Path, metavar="FILE", help="TOML file of settings")
    options.add_argument("--start", choices=("earliest", "latest"), help=f"once: where {begins}")
    if is_stream:
        options.add_argument("--checkpoint", metavar="DIR", help="where the query keeps its place")
        options.add_argument("--max-offsets-per-batch", type=int, metavar="N")
        options.add_argument("--adopt", metavar="TOKEN", help="once: what a refusal said to pass")
        options.add_argument(
            "--skip-deleted",
            action="store_true",
            help="once: go on behind input that was deleted before it was read",
        )
    else:
        options.add_argument(
            "--adopt-offsets",
            action="store_true",
            help="once: take over offsets of another mode of ownership",
        )
        options.add_argument(
            "--max-records", type=int, metavar="N", help="of a partition, that a run takes at most"
        )
        options.add_argument(
            "--every", type=float, metavar="SECONDS", dest="every_s", help="run again so long after each run"
        )
    options.add_argument(
        "--until-caught-up", action="store_true", help="end when all present input is processed"
    )
    return options


def _settings_in(given: Namespace) -> dict[str, object]:
    return {
        "input.start": given.start,
        "ownership.adopt_offsets": getattr(given, "adopt_offsets", None) or None,
        "spark.max_records_per_partition": getattr(given, "max_records", None),
    }


def _options_in(given: Namespace) -> RunOptions:
    """The options that this kind of job has."""
    names = [field.name for field in fields(RunOptions)]
    return RunOptions(**{name: getattr(given, name) for name in names if hasattr(given, name)})


def _logged(event: Event) -> None:
    """The lines that a submitted job writes. `eos spark run` and a listener of one's own have more."""
    match event:
        case InputPlanned():
            offsets = sum(event.ends.values()) - sum(event.positions.values())
            new, partitions = len(event.ends), len(event.partitions)
            log.info("input planned: %d of %d partitions, %d offsets", new, partitions, offsets)
        case StartPolicyApplied():
            log.warning("start policy applied: %s, %d partitions", event.policy, len(event.positions))
        case OffsetsAdopted():
            log.warning("another program's offsets adopted: %d partitions", len(event.positions))
        case TransactionCommitted():
            log.info("committed: %s, %d records, %.3f s", event.shard, event.records_out, event.seconds)
        case BatchResumed():
            log.warning("batch %d resumed: shards %s are written", event.batch, list(event.written))
        case LedgerSharded():
            where = " in place" if event.in_place else ""
            log.warning(
                "ledger begins with batch %d: %d shards%s (were %d)",
                event.batch,
                event.shards,
                where,
                event.was,
            )
