"""`eos prove`: torment a job on a throw-away cluster, and judge what it wrote."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.ending import complain, end_with
from eos.cli.options import AppDir, Assignments, Config, JobReference, load_job, load_settings
from eos.cli.texts import command, print_table
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.prove.faults import Kind
    from eos.prove.proving import Feed, Proof
    from eos.settings import Settings

_SAMPLE_INPUT = "sample_input"
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
            metavar="MODULE:FUNCTION",
            help=f"Makes the input from a seed; {_SAMPLE_INPUT} in the job's module if not given.",
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
    pairs, or eos.OutputRecord for a certain topic. Your cluster is not touched.

    Any other program can be tried with --run, a loop of your own for example. The job is
    what it is judged by. A shell starts it, as often as there are workers, with the
    cluster's address, the group and the settings in EOS_… variables and with EOS_ORDINAL;
    it is started again when it ends with anything but 0.

    Examples:
      eos prove jobs.refunds:job -c conf/refunds.toml
      eos prove jobs.refunds:job -c conf/refunds.toml --seed 7 --minutes 10 --report proof
      eos prove jobs.refunds:job -c conf/refunds.toml --only kill,late --faults 50
      eos prove relay:job --run "python loop.py"
    """
    from eos.cli.progress import bars
    from eos.local.jars import jars_root
    from eos.prove import proving
    from eos.prove.report import figures, replay_line, require_plots, rows, write_report

    if faults is not None and minutes is not None:
        raise ConfigError("--faults and --minutes: one of the two says how long. Fix: leave one out")
    if report is not None:
        require_plots()
    given = {option.partition("=")[0] for option in assignments or ()}
    trial_settings = {  # the logs are those of the job's processes
        name: value
        for name, value in proving.TRIAL_SETTINGS.items()
        if name not in given and not name.startswith("observe.")
    }
    trial_settings |= {"input.start": "earliest", "ownership.ordinal": 0}
    settings = load_settings(config, assignments, trial_settings)
    job = load_job(reference, app_dir)
    source = _feed(feed, reference, app_dir)
    kept = report if report is not None else Path(tempfile.mkdtemp(prefix="eos-prove-"))
    kinds, ways = _kinds(only, settings)
    trial = proving.Trial(
        reference=reference,
        app_dir=app_dir.absolute(),
        options=_options(config, assignments or ()),
        seed=random.randrange(_SEEDS) if seed is None else seed,  # noqa: S311 - no secret
        faults=None if minutes is not None else faults or _FAULTS,
        minutes=minutes,
        kinds=kinds,
        ways=ways,
        quiet=quiet,
        each=each,
        brokers=brokers,
        partitions=partitions,
        rate=rate,
        directory=kept,
        jars=jars_root(settings.local.directory, settings.local.jars),
        command=program,
        source=feed,
    )
    complain(f"seed {trial.seed}; logs in {kept}")
    with bars() as update:
        proof = proving.prove(trial, job, settings, source, update)
    print_table(("", ""), rows(proof))
    if written is not None:
        written.write_text(json.dumps(figures(proof), indent=1) + "\n")
    if report is not None:
        write_report(proof, report / "report.html")
        typer.echo(f"report: {report / 'report.html'}")
    _end(proof, replay_line(proof))


def _end(proof: Proof, again: str) -> None:
    if proof.verdict.exactly_once:
        return
    for one in proof.verdict.against:
        typer.echo(one)
    end_with(ExitCode.NOT_EXACTLY_ONCE, f"not exactly once. Again: {again}")


def _kinds(only: str | None, settings: Settings) -> tuple[Sequence[Kind], Mapping[Kind, Sequence[str]]]:
    """Which kinds, and of some of them only these ways."""
    from eos.prove.faults import WAYS_OF, Kind

    in_a_group = settings.ownership.mode == "group"

    words = [tuple(word.strip().partition("/")) for word in only.split(",")] if only else []
    names = [name for name, _, _ in words] or list(Kind)
    if unknown := sorted(set(names) - set(Kind)):
        raise ConfigError(f"--only {','.join(unknown)}: no such kind of fault. Fix: {', '.join(Kind)}")
    ways: dict[Kind, list[str]] = {}
    for name, slash, way in words:
        if slash and way not in (known := WAYS_OF.get(Kind(name), ())):
            raise ConfigError(
                f"--only {name}/{way}: {name} has no such way. Fix: {', '.join(known) or f'--only {name}'}"
            )
        if slash:
            ways.setdefault(Kind(name), []).append(way)
    if only and Kind.REBALANCE in names and not in_a_group:
        raise ConfigError(
            "--only rebalance: with ownership.mode = 'partition' no instance can join. Fix: leave it out, or "
            "ownership.mode=group"
        )
    return [kind for kind in Kind if kind in names and (in_a_group or kind is not Kind.REBALANCE)], ways


def _feed(named: str | None, reference: str, app_dir: Path) -> Feed:
    from eos.references import load_named

    where = named or f"{reference.partition(':')[0]}:{_SAMPLE_INPUT}"
    try:
        feed: Feed = load_named(where, app_dir.absolute(), object, "a function of a seed")  # type: ignore[assignment]
    except ConfigError as error:
        if named is None:
            raise ConfigError(
                f"the job has no input to be tried with. Fix: --input MODULE:FUNCTION, or a function {_SAMPLE_INPUT}(seed) in the "
                "job's module; it yields values, (key, value) pairs, or eos.OutputRecord"
            ) from error
        raise
    if not callable(feed):
        raise ConfigError(
            f"--input {where}: that is no function. Fix: one that takes a seed and yields the input"
        )
    return feed


def _options(config: Path | None, assignments: Sequence[str]) -> list[str]:
    """Of every `eos run`: what was given here."""
    configured = [] if config is None else ["--config", str(config.absolute())]
    return [*configured, *(word for one in assignments for word in ("--set", one))]
