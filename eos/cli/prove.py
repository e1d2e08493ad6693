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

from eos.cli.exit import complain, end_with
from eos.cli.help import command
from eos.cli.options import Given, GivenJob
from eos.cli.printing import print_table, say
from eos.cli.prove_options import connector_of, declared, feed_of_source, feed_of_topics, judge_of, kinds
from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.prove.trial_options import FAULTS, TrialOptions

if TYPE_CHECKING:
    from eos.prove.trial import Proof

_SEEDS = 10_000

commands = typer.Typer()


@command(
    commands,
    ExitCode.DONE,
    ExitCode.UNEXPECTED,
    ExitCode.CONFIGURATION,
    ExitCode.UNAVAILABLE,
    ExitCode.NOT_EXACTLY_ONCE,
    unavailable="the cluster did not start, or the job did not finish: it did not catch up, or ended for good",
)
def prove(
    *,
    given: GivenJob,
    asked: TrialOptions,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Keep an HTML report and the logs there.")
    ] = None,
    written: Annotated[
        Path | None, typer.Option("--figures", metavar="FILE", help="Write the figures there, as JSON.")
    ] = None,
) -> None:
    """Inject faults into a job: is its output exactly once all the same?

    Starts a cluster of its own, feeds the job, and injects faults by a seeded
    schedule. Workers are killed at the edges of their requests, asked to end, or paused until
    they are zombies; they join and leave. Requests arrive late, twice or never, or are answered
    by errors. Brokers fail, transactions expire, input is deleted or held back. Then all is
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

    A job with a database at one end gets a PostgreSQL of its own, with its tables. Of an outbox the
    input is rows: writers insert them in transactions of their own, of which some are rolled back.

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
    from eos.cli.bars import bars
    from eos.local.jars import jars_root
    from eos.ops.verifier.placement import require_partitioner
    from eos.prove import proving
    from eos.prove.ends import ENDS
    from eos.prove.runtime import runtime_of
    from eos.prove.trial import Trial
    from eos.prove.trial_report import figures, require_plots, rows, write_report

    if asked.faults is not None and asked.minutes is not None:
        raise ConfigError("--faults and --minutes: one of the two says how long. Fix: leave one out")
    if report is not None:
        require_plots()
    if asked.topics and asked.source is not None:
        raise ConfigError(
            "--input and --input-topic: one of the two says what the input is. Fix: leave one out"
        )
    if asked.copied is not None and not asked.topics:
        raise ConfigError("--input-records: of which topic? Fix: --input-topic TOPIC, or leave it out")
    require_partitioner(asked.partitioner)
    reference, app_dir = given.reference, given.app_dir
    tried = declared(given, asked.command)
    named = {option.partition("=")[0] for option in given.assignments or ()}
    runtime = runtime_of(asked.command, on_spark=tried.kind.on_spark)
    trial_settings = {  # the logs are those of the job's processes
        name: value
        for name, value in runtime.settings.items()
        if name not in named and not name.startswith("observe.")
    }
    trial_settings |= {"input.start": "earliest", "ownership.ordinal": 0}
    settings = Given(config=given.config, assignments=given.assignments).settings(trial_settings)
    job = tried.identity(settings)
    if (
        ENDS[job.judged_by].has_shards and "workers.count" not in named
    ):  # one without a shard would do nothing
        settings = settings.model_copy(
            update={"workers": settings.workers.model_copy(update={"count": len(job.commits)})}
        )
    judged_by = judge_of(tried, job.judged_by, reference, asked.judge, app_dir)
    connector = connector_of(tried, settings, asked.conf or ())
    chosen, ways = kinds(asked.only, settings, runtime, ENDS[job.judged_by])
    if asked.topics:
        source = feed_of_topics(asked, job, settings)
    else:
        source = feed_of_source(asked.source, reference, app_dir, job.inputs or job.outputs)
    trial = Trial(
        **{
            **vars(asked),
            "seed": random.randrange(_SEEDS) if asked.seed is None else asked.seed,  # noqa: S311 - no secret
            "faults": None if asked.minutes is not None else asked.faults or FAULTS,
        },
        reference=reference,
        job=job,
        app_dir=app_dir.absolute(),
        options=_options(given.config, given.assignments or ()),
        kinds=chosen,
        ways=ways,
        directory=report or Path(),
        jars=jars_root(settings.local.directory, settings.local.jars),
        connector=connector,
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
        _end(proof)


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


def _end(proof: Proof) -> None:
    from eos.prove.trial_report import code_of, verdict_of

    if proof.exactly_once:
        return
    for one in (*proof.verdict.against, *proof.verdict.unfinished):
        say(one)
    end_with(code_of(proof), f"{verdict_of(proof)}. Again: {proof.trial.again}")


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """Of every `eos run`: what was given here."""
    configured = [] if config is None else ["--config", str(config.absolute())]
    return [*configured, *(word for one in assignments for word in ("--set", one))]
