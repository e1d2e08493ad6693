"""`eos offsets`: where a job's group stands, and how it is put somewhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.base.commands import suggested
from eos.cli.exit import complain
from eos.cli.help import command
from eos.cli.options import AdoptOffsets, AsJson, GivenJobOnCluster, Yes, reach
from eos.cli.printing import Table, age, answer, at, picked
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.identity import Identity
    from eos.offsets import OffsetVector
    from eos.ops.operate.offsets import Choose, Plan, Standing
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
    given: GivenJobOnCluster,
    as_json: AsJson = False,
) -> None:
    """Show the committed offset of each input partition, and what the log holds.

    Of a SqlJob it is the position in its database, and where Kafka's copy differs.

    With --json it is a backup that `eos offsets set --to FILE` restores: it has the
    topics' ids and the leaders' epochs too, so that offsets of a log that is another
    one by then are refused. Asks the cluster, and changes nothing.

    Examples:
      eos offsets show jobs.refunds:job -c conf/refunds.toml
      eos offsets show jobs.refunds:job --json > refunds.offsets
    """
    settings = given.settings()
    from eos.ops.operate.offsets import show as look
    from eos.ops.operate.target import looked_at

    target = looked_at(given.declaration(), settings)
    reach(settings)
    found, remarks = look(settings, target)
    head = ("partition", "committed", "lag", "log begins", "ends", "committed by", "when")
    answer(
        {
            **picked(target, "group", "app"),
            "partitions": [_standing(one) for one in found],
            "remarks": remarks,
        },
        lambda: [
            f"{target.app}: group {target.group!r}",
            Table(head, [_row(one) for one in found]),
            *remarks,
        ],
        as_json=as_json,
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
    to: Annotated[
        list[str],
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, a time, offsets (orders:2@4711,…), or a file."
        ),
    ],
    only: Only = None,
    yes: Yes = False,
    adopt_offsets: AdoptOffsets = False,
    given: GivenJobOnCluster,
    as_json: AsJson = False,
) -> None:
    """Put a stopped job at other offsets of its input, all of them or none.

    Without --yes it shows what would be done, and ends with 0.

    WHERE is the beginning of the logs, their end (the last stable offset), or the
    first record of a time or later (with its zone). It may be an offset for each named
    partition, or what `eos offsets show --json` has written. Offsets that a log does not hold are
    refused.

    Going back, records are processed again: what they make is written a second time.
    Going forward, they are skipped. Either way the committed offset no longer stands
    for the whole output: `eos verify` then needs --input-from and --output-from, which
    this command prints.

    Refused while an owner is at work: a member of the group; or, with ownership by
    partition and on Spark, an open transaction or offsets that move. Before it commits
    it fences every shard of the job, so an owner that only hung can't commit any more.

    Of a SqlJob it sets the positions in its database, in one transaction there, and
    Kafka's copy with them. `eos verify` then reports rows that were skipped as missing.

    Examples:
      eos offsets set jobs.refunds:job --to settlements:2@4711,settlements:3@17
      eos offsets set jobs.refunds:job --to 2026-11-22T10:00:00Z --only settlements
      eos offsets set jobs.refunds:job --to refunds.offsets --yes
    """
    from eos.ops.operate.choosing import chosen
    from eos.ops.operate.places import place_of

    place = place_of(",".join(to))
    settings, target = _loaded(given, adopt_offsets=adopt_offsets)
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
    source: Annotated[
        str, typer.Option("--from-group", metavar="GROUP", help="Whose committed offsets are copied.")
    ],
    only: Only = None,
    yes: Yes = False,
    adopt_offsets: AdoptOffsets = False,
    given: GivenJobOnCluster,
    as_json: AsJson = False,
) -> None:
    """Put a stopped job where another group stands, for example one that it had before.

    As `eos offsets set`, with the offsets that the other group has committed in the
    job's input. A group that this job has worked in is left: its owners have to be
    stopped, its shards are fenced too, and a start there is refused from then on, for
    two groups would make the same output twice. A group of another job stays as it is.
    For a SqlJob: the positions that the group has in the same database, or else its
    offsets in Kafka.

    Examples:
      eos offsets copy jobs.refunds:job --from-group refunds --set group=second
      eos offsets copy jobs.refunds:job --from-group old-consumer --adopt-offsets --yes
    """
    settings, target = _loaded(given, adopt_offsets=adopt_offsets)
    from eos.ops.operate.choosing import copied
    from eos.ops.operate.in_group import positions_of

    positions = positions_of(settings, target)

    def choose() -> OffsetVector:
        return copied(settings, target, positions, source, only or ())

    _move(settings, target, choose, yes=yes, as_json=as_json, source=source)


def _loaded(given: GivenJobOnCluster, *, adopt_offsets: bool) -> tuple[Settings, Identity]:
    settings = given.settings({"ownership.adopt_offsets": adopt_offsets or None})
    from eos.ops.operate.target import target_of

    target = target_of(given.declaration(), settings)
    reach(settings)
    return settings, target


def _move(
    settings: Settings,
    target: Identity,
    choose: Choose,
    *,
    yes: bool,
    as_json: bool,
    source: str | None = None,
) -> None:
    from eos.ops.operate.offsets import preview, write

    plan = (write if yes else preview)(settings, target, choose, source=source)
    plain = {
        "group": plan.group,
        "written": yes,
        "refused": plan.refused or None,
        "partitions": [
            {**at(one.partition), **picked(one, "committed", "to", "difference", "start", "end")}
            for one in plan.moves
        ],
        **{name: list(getattr(plan, name)) for name in ("notes", "fenced", "verify_from")},
    }
    answer(plain, lambda: _shown(target, plan, written=yes), as_json=as_json)


def _shown(target: Identity, plan: Plan, *, written: bool) -> Iterator[str | Table]:
    yield f"{target.app}: group {plan.group!r}"
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
    yield Table(("partition", "committed", "to", "difference", "log"), rows)
    yield from plan.notes
    if written:
        yield f"committed in one transaction; fenced before: {', '.join(plan.fenced)}"
        if plan.verify_from:
            # Of a job for Spark another one is verified, the loop's that makes the same.
            on_spark = target.kind.on_spark
            again = suggested("verify", *plan.verify_from, job=not on_spark)
            yield f"from here on: {again}{' (with the job that it is judged by)' if on_spark else ''}"
        return
    if plan.refused:
        complain(f"it would be refused now: {plan.refused}")
    yield "nothing was written. To do it: --yes"


def _difference(offsets: int | None) -> str:
    if not offsets:
        return "" if offsets is None else "0"
    return f"{offsets:+,} ({'skipped' if offsets > 0 else 'again'})"


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
    return {
        **at(one.partition),
        "committed": one.stored and one.stored.offset,
        "leader_epoch": one.stored and one.stored.leader_epoch,
        "topic_id": one.topic_id or None,
        **picked(one, "start", "end"),
        **picked(one.metadata, "app", "mode", "shard", "at_s"),
    }
