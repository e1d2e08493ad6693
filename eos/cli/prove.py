"""`eos prove`: torment a job on a throw-away cluster, and judge what it wrote."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.ending import complain, end_with
from eos.cli.options import AppDir, Assignments, Config, JobReference, Partitioner, load_settings
from eos.cli.texts import command, print_table, say
from eos.cli.tried import (
    COPIED,
    SAMPLE_INPUT,
    declared,
    feed_of_source,
    feed_of_topics,
    judge_of,
    kinds,
    on_spark,
)
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.prove.trial import Proof

_MASTER = "local-cluster[2,1,1024]"
_FAULTS = 20
_SEEDS = 10_000

commands = typer.Typer()


@command(
    commands,
    ExitCode.DONE,
    ExitCode.UNEXPECTED,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    ExitCode.NOT_EXACTLY_ONCE,
)
def prove(
    *,
    reference: JobReference,
    config: Config = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Decides input and faults; else drawn.")
    ] = None,
    faults: Annotated[
        int | None, typer.Option(metavar="N", min=1, help=f"How many happen; {_FAULTS} if not given.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", min=0.1, help="Instead: for how long they happen.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,…",
            help="Of kill, term, pause, late, drop, error, zombie, input, broker, rebalance, expiry; else all. "
            "KIND/WAY is one of its ways alone: broker/paused.",
        ),
    ] = None,
    brokers: Annotated[int, typer.Option(metavar="1|3", help="Brokers of the cluster.")] = 1,
    partitions: Annotated[int, typer.Option(metavar="N", min=1, help="Of each topic.")] = 4,
    rate: Annotated[int, typer.Option(metavar="N", min=1, help="Input records per second.")] = 500,
    quiet: Annotated[
        float,
        typer.Option(metavar="FACTOR", min=0.0, help="Times the quiet between faults, which is 0.5 to 8 s."),
    ] = 1.0,
    each: Annotated[
        bool,
        typer.Option("--each", help="Judge after each fault, too: input waits until the job has caught up."),
    ] = False,
    feed: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE|MODULE:FUNCTION",
            help=f"The input's values, one a line, or records as .jsonl; or what makes it from a seed; else {SAMPLE_INPUT} in the "
            "job's module.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--input-topic",
            metavar="TOPIC[=INPUT]",
            help="Instead: a copy of this topic, of the cluster in the settings; may be repeated.",
        ),
    ] = None,
    copied: Annotated[
        int | None,
        typer.Option(
            "--input-records", metavar="N", min=1, help=f"Of it, the newest ones; {COPIED:,} if not given."
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="Torment this program instead of `eos run`: the job says its inputs, outputs and transform.",
        ),
    ] = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Of a job for Spark: as of `eos spark run`.")
    ] = _MASTER,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="One setting of Spark; may be repeated."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge-by",
            metavar="MODULE:NAME",
            help="Of a job for Spark: the eos.Job that makes the same of each record, if it does not name one.",
        ),
    ] = None,
    partitioner: Partitioner = "murmur2_random",
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Keep an HTML report and the logs there.")
    ] = None,
    written: Annotated[
        Path | None, typer.Option("--figures", metavar="FILE", help="Write the figures there, as JSON.")
    ] = None,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Show a job under fire: is its output exactly once, whatever happens?

    Starts a cluster of its own, feeds the job, and lets accidents happen by a seeded
    schedule: workers are killed at the edges of their requests or asked to end, paused until
    they are zombies, requests arrive late, twice or never, are answered by errors, brokers fail,
    workers join and leave, transactions expire, input is deleted or held back. Then all is
    healed, the job catches up, and its output is compared with its input as by `eos verify`;
    what its workers were told must fit.

    The input is made by a function of a seed that yields values (bytes), (key, value)
    pairs, or eos.OutputRecord for a certain topic; or it is a file, or a copy of a topic,
    which are fed again and again. Your cluster is not touched: of --input-topic it is only
    read, and the job's processes know neither its address nor its login.

    Any other program can be tried with --run, a loop of your own for example. The job is
    what it is judged by. A shell starts it, as often as there are workers, with the
    cluster's address, the group and the settings in EOS_… variables and with EOS_ORDINAL;
    it is started again when it ends with anything but 0. If it writes by librdkafka's own
    partitioner, as plain confluent-kafka does, say --partitioner consistent_random.

    A SparkJob is run again and again, a StreamJob from a checkpoint on: tasks, executors and
    drivers are killed and paused, and drivers that end are started again. There is no zombie
    and no rebalance, and no input of a query is deleted.

    Examples:
      eos prove jobs.refunds:job -c conf/refunds.toml
      eos prove jobs.refunds:job -c conf/refunds.toml --seed 7 --minutes 10 --report proof
      eos prove jobs.refunds:job -c conf/refunds.toml --only kill,late --faults 50
      eos prove jobs.refunds:job -c conf/refunds.toml --input-topic settlements --input-records 5000
      eos prove relay:job --input values.txt --run "python loop.py"
      eos prove jobs.refunds_batch:job -c conf/refunds_batch.toml --only kill --faults 100
    """
    from eos.cli.progress import bars
    from eos.local.jars import jars_root
    from eos.prove import proving
    from eos.prove.report import figures, replay_line, require_plots, rows, write_report
    from eos.prove.trial import SPARK_SETTINGS, TRIAL_SETTINGS, Trial

    if faults is not None and minutes is not None:
        raise ConfigError("--faults and --minutes: one of the two says how long. Fix: leave one out")
    if report is not None:
        require_plots()
    if topics and feed is not None:
        raise ConfigError(
            "--input and --input-topic: one of the two says what the input is. Fix: leave one out"
        )
    if copied is not None and not topics:
        raise ConfigError("--input-records: of which topic? Fix: --input-topic TOPIC, or leave it out")
    tried = declared(reference, app_dir, program)
    judged_by = judge_of(tried, reference, judge, app_dir)
    given = {option.partition("=")[0] for option in assignments or ()}
    wanted = TRIAL_SETTINGS if tried is judged_by else TRIAL_SETTINGS | SPARK_SETTINGS
    trial_settings = {  # the logs are those of the job's processes
        name: value for name, value in wanted.items() if name not in given and not name.startswith("observe.")
    }
    trial_settings |= {"input.start": "earliest", "ownership.ordinal": 0}
    settings = load_settings(config, assignments, trial_settings)
    spark = on_spark(tried, settings, master, conf or (), judge)
    chosen, ways = kinds(only, settings, spark)
    if topics:
        source = feed_of_topics(topics, copied, judged_by, settings, partitions)
    else:
        source = feed_of_source(feed, reference, app_dir, judged_by)
    trial = Trial(
        reference=reference,
        app_dir=app_dir.absolute(),
        options=_options(config, assignments or ()),
        seed=random.randrange(_SEEDS) if seed is None else seed,  # noqa: S311 - no secret
        faults=None if minutes is not None else faults or _FAULTS,
        minutes=minutes,
        kinds=chosen,
        ways=ways,
        quiet=quiet,
        each=each,
        brokers=brokers,
        partitions=partitions,
        rate=rate,
        directory=report or Path(),
        jars=jars_root(settings.local.directory, settings.local.jars),
        command=program,
        source=feed,
        topics=topics or (),
        copied=copied,
        spark=spark,
        partitioner=partitioner,
    )
    with _kept(report) as directory:
        trial = replace(trial, directory=directory)
        complain(f"seed {trial.seed}; logs in {directory}")
        with bars() as update:
            proof = proving.prove(trial, judged_by, settings, source, update)
        print_table(("", ""), rows(proof))
        if written is not None:
            written.write_text(json.dumps(figures(proof), indent=1) + "\n")
        if report is not None:
            write_report(proof, report / "report.html")
            say(f"report: {report / 'report.html'}")
        _end(proof, replay_line(proof))


@contextmanager
def _kept(report: Path | None) -> Iterator[Path]:
    """Where the trial keeps its files. Of one without a report nothing stays if all is well, and the logs stay if not."""
    if report is not None:
        yield report
        return
    directory = Path(tempfile.mkdtemp(prefix="eos-prove-"))
    try:
        yield directory
    except KeyboardInterrupt:
        rmtree(directory, ignore_errors=True)
        raise
    except BaseException:  # its message, or the verdict, names a log
        for of_the_cluster in ("kafka", "spark", "checkpoint"):
            rmtree(directory / of_the_cluster, ignore_errors=True)
        raise
    rmtree(directory, ignore_errors=True)


def _end(proof: Proof, again: str) -> None:
    from eos.prove.report import verdict_of

    if proof.exactly_once:
        return
    for one in proof.verdict.against:
        say(one)
    end_with(ExitCode.NOT_EXACTLY_ONCE, f"{verdict_of(proof)}. Again: {again}")


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """Of every `eos run`: what was given here."""
    configured = [] if config is None else ["--config", str(config.absolute())]
    return [*configured, *(word for one in assignments for word in ("--set", one))]
