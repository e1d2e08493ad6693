"""`eos offsets`: where a job's group stands, and how it is put somewhere else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.cli.ending import complain
from eos.cli.options import (
    AdoptOffsets,
    AppDir,
    AsJson,
    Assignments,
    Config,
    JobReference,
    Local,
    Yes,
    load_declaration,
    load_settings,
    reach,
)
from eos.cli.texts import age, command, print_table, say
from eos.commands import suggested
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.offsets import OffsetVector
    from eos.operate.offsets import Choose, Plan, Standing
    from eos.operate.target import Target
    from eos.settings import Settings

Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="TOPIC[:N]", help="These alone of the job's input; may be repeated."),
]

commands = typer.Typer(
    no_args_is_help=True, help="Show where a job stands in its input, and put it somewhere else."
)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def show(
    *,
    reference: JobReference,
    config: Config = None,
    local: Local = False,
    as_json: AsJson = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Show the committed offset of each input partition, and what the log holds.

    With --json it is a backup that `eos offsets set --to FILE` restores: it has the
    topics' ids and the leaders' epochs too, so that offsets of a log that is another
    one by then are refused. Asks the cluster, and changes nothing.

    Examples:
      eos offsets show jobs.refunds:job -c conf/refunds.toml
      eos offsets show jobs.refunds:job --json > refunds.offsets
    """
    settings, target = _loaded(reference, config, assignments, app_dir, local=local)
    from eos.operate.offsets import show as look

    found = look(settings, target)
    if as_json:
        partitions = [_standing(one) for one in found]
        typer.echo(json.dumps({"group": target.group, "app": target.app, "partitions": partitions}, indent=2))
        return
    say(f"{target.app}: group {target.group!r}")
    print_table(
        ("partition", "committed", "lag", "log begins", "ends", "committed by", "when"),
        [_row(one) for one in found],
    )


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.FENCED,
    ExitCode.UNAVAILABLE,
    ExitCode.OFFSET_GAP,
    name="set",
)
def set_(
    *,
    reference: JobReference,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, a time, offsets (orders:2@4711,…), or a file."
        ),
    ],
    only: Only = None,
    yes: Yes = False,
    adopt_offsets: AdoptOffsets = False,
    config: Config = None,
    local: Local = False,
    as_json: AsJson = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Put a stopped job at other offsets of its input, all of them or none.

    Without --yes it shows what would be done, and ends with 0.

    WHERE is the beginning of the logs, their end (the last stable offset), the first
    record of a time or later (with its zone), an offset for each named partition, or
    what `eos offsets show --json` has written. Offsets that a log does not hold are
    refused.

    Going back, records are processed again: what they make is written a second time.
    Going forward, they are skipped. Either way the committed offset no longer stands
    for the whole output: `eos verify` then needs --input-from and --output-from, which
    this command prints.

    Refused while an owner is at work: a member of the group; or, with ownership by
    partition and on Spark, an open transaction or offsets that move. Before it commits
    it fences every shard of the job, so an owner that only hung can't commit any more.

    Examples:
      eos offsets set jobs.refunds:job --to settlements:2@4711,settlements:3@17
      eos offsets set jobs.refunds:job --to 2026-11-22T10:00:00Z --only settlements
      eos offsets set jobs.refunds:job --to refunds.offsets --yes
    """
    from eos.operate.choosing import chosen
    from eos.operate.places import place_of

    place = place_of(to)
    settings, target = _loaded(
        reference, config, assignments, app_dir, local=local, adopt_offsets=adopt_offsets
    )
    _move(settings, target, lambda: chosen(settings, target, place, only or ()), yes=yes, as_json=as_json)


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.FENCED,
    ExitCode.UNAVAILABLE,
    ExitCode.OFFSET_GAP,
)
def copy(
    *,
    reference: JobReference,
    source: Annotated[
        str, typer.Option("--from-group", metavar="GROUP", help="Whose committed offsets are copied.")
    ],
    only: Only = None,
    yes: Yes = False,
    adopt_offsets: AdoptOffsets = False,
    config: Config = None,
    local: Local = False,
    as_json: AsJson = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Put a stopped job where another group stands, for example one that it had before.

    As `eos offsets set`, with the offsets that the other group has committed in the
    job's input. Of a group that this job has worked in the shards are fenced too, and
    its owners have to be stopped: two groups would make the same output twice. A group
    of another job is left as it is.

    Examples:
      eos offsets copy jobs.refunds:job --from-group refunds --set group=second
      eos offsets copy jobs.refunds:job --from-group old-consumer --yes
    """
    settings, target = _loaded(
        reference, config, assignments, app_dir, local=local, adopt_offsets=adopt_offsets
    )
    from eos.operate.choosing import copied

    def choose() -> OffsetVector:
        return copied(settings, target, source, only or ())

    _move(settings, target, choose, yes=yes, as_json=as_json, source=source)


def _loaded(
    reference: str,
    config: Path | None,
    assignments: list[str] | None,
    app_dir: Path,
    *,
    local: bool,
    adopt_offsets: bool = False,
) -> tuple[Settings, Target]:
    settings = load_settings(
        config,
        assignments,
        {"ownership.adopt_offsets": adopt_offsets or None},
        local=local,
        reference=reference,
        app_dir=app_dir,
    )
    from eos.operate.target import Target

    job = load_declaration(reference, app_dir)
    target = Target.of(job, settings)
    reach(settings)
    return settings, target


def _move(
    settings: Settings,
    target: Target,
    choose: Choose,
    *,
    yes: bool,
    as_json: bool,
    source: str | None = None,
) -> None:
    from eos.operate.offsets import preview, write

    plan = (write if yes else preview)(settings, target, choose, source=source)
    if as_json:
        typer.echo(json.dumps(_plan(plan, written=yes), indent=2))
        return
    say(f"{target.app}: group {plan.group!r}")
    rows = [
        (
            str(one.partition),
            "none" if one.committed is None else f"{one.committed:,}",
            f"{one.to:,}",
            _difference(one.difference),
            f"{one.start:,} to {one.end:,}",
        )
        for one in plan.moves
    ]
    print_table(("partition", "committed", "to", "difference", "log"), rows)
    for note in plan.notes:
        say(note)
    if yes:
        say(f"committed in one transaction; fenced before: {', '.join(plan.fenced)}")
        if plan.verify_from:
            # Of a job for Spark another one is verified, the loop's that makes the same.
            again = suggested("verify", *plan.verify_from, job=not target.by_spark)
            say(f"from here on: {again}{' (with the job that it is judged by)' if target.by_spark else ''}")
        return
    if plan.refused:
        complain(f"it would be refused now: {plan.refused}")
    say("nothing was written. To do it: --yes")


def _difference(offsets: int | None) -> str:
    if not offsets:
        return "" if offsets is None else "0"
    return f"{offsets:+,} ({'skipped' if offsets > 0 else 'again'})"


def _plan(plan: Plan, *, written: bool) -> dict[str, Any]:
    return {
        "group": plan.group,
        "written": written,
        "refused": plan.refused or None,
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.number,
                "committed": one.committed,
                "to": one.to,
                "difference": one.difference,
                "start": one.start,
                "end": one.end,
            }
            for one in plan.moves
        ],
        "notes": list(plan.notes),
        "fenced": list(plan.fenced),
        "verify_from": list(plan.verify_from),
    }


def _row(one: Standing) -> tuple[str, ...]:
    if one.stored is None:
        return (str(one.partition), "none", "", f"{one.start:,}", f"{one.end:,}", "", "")
    by, metadata = "not eos", one.metadata
    if metadata is not None:
        by = f"{metadata.app} {metadata.shard}"
    return (
        str(one.partition),
        f"{one.stored.offset:,}",
        f"{max(0, one.end - one.stored.offset):,}",
        f"{one.start:,}",
        f"{one.end:,}",
        by,
        "" if metadata is None else f"{age(max(0.0, time.time() - metadata.at_s))} ago",
    )


def _standing(one: Standing) -> dict[str, Any]:
    metadata = one.metadata
    return {
        "topic": one.partition.topic,
        "partition": one.partition.number,
        "committed": one.stored and one.stored.offset,
        "leader_epoch": one.stored and one.stored.leader_epoch,
        "topic_id": one.topic_id or None,
        "start": one.start,
        "end": one.end,
        "app": metadata and metadata.app,
        "mode": metadata and metadata.mode,
        "shard": metadata and metadata.shard,
        "at_s": metadata and metadata.at_s,
    }
