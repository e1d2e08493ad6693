"""`eos skip`: one record is taken out of a job's way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from eos.base.commands import suggested
from eos.cli.exit import complain
from eos.cli.help import command
from eos.cli.options import AsJson, GivenJobOnCluster, Yes, reach
from eos.cli.printing import answer, picked
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.offsets import Partition
    from eos.ops.operate.skip import Skip

commands = typer.Typer()


@command(
    commands,
    ExitCode.DONE,
    ExitCode.CONFIGURATION,
    ExitCode.FENCED,
    ExitCode.POISON,
    ExitCode.UNAVAILABLE,
    ExitCode.OFFSET_GAP,
)
def skip(
    *,
    record: Annotated[
        str, typer.Argument(metavar="TOPIC:N@OFFSET", help="The record, for example orders:2@4711.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the dead-letter record.")
    ],
    without_letter: Annotated[
        bool, typer.Option("--without-dead-letter", help="Write none: of the record nothing stays.")
    ] = False,
    yes: Yes = False,
    given: GivenJobOnCluster,
    as_json: AsJson = False,
) -> None:
    """Skip one record that stops a job: it becomes a dead-letter record, as by poison.policy.

    Without --yes it shows what would be done, and ends with 0.

    The record is one that the job has not processed. Records between the group's place
    and it (the job has aborted them with it) are transformed here, as the loop would,
    and all is committed in one transaction: what they make, the dead-letter record,
    and the offset behind the record. `eos verify` takes it for what it says, and notes
    it.

    Refused while an owner is at work, and fences the shards, as `eos offsets set` does.
    For a SparkJob, which has no dead-letter topic, with --without-dead-letter. Of a
    SqlJob it is a row, and its database commits all of it.

    Examples:
      eos skip jobs.refunds:job settlements:2@4711 --reason "see TICKET-17"
      eos skip jobs.refunds:job settlements:2@4711 --reason "no amount" --yes
    """
    if not reason.strip():
        raise ConfigError("--reason is empty. Fix: say why, for the person who finds the dead-letter record")
    from eos.ops.operate.places import coordinates

    place = coordinates(record)
    settings, job = given.settings(), given.declaration()
    reach(settings)
    from eos.ops.operate.skip import Skipping

    skipping = Skipping(settings, job, place, reason=reason.strip(), without_letter=without_letter)
    done = skipping.write() if yes else skipping.preview()
    plain = {
        "group": done.group,
        "written": yes,
        "refused": done.refused or None,
        **picked(done.record, "topic", "partition", "offset"),
        **picked(done, "committed", "in_front"),
        "outputs": _outputs(done),
        "dead_letter": done.letters,
        "fenced": list(done.fenced),
        "notes": list(done.notes),
    }
    answer(plain, lambda: _shown(job.name, done, place, written=yes), as_json=as_json)


def _outputs(done: Skip) -> int:
    return sum(map(len, done.outputs))


def _shown(name: str, done: Skip, place: tuple[Partition, int], *, written: bool) -> Iterator[str]:
    partition, offset = place
    where = f"{partition} offset {offset}"
    yield f"{name}: group {done.group!r} stands at offset {done.committed} of {partition}"
    if done.in_front:
        yield f"{done.in_front:,} records in front of it are processed with it: {_outputs(done):,} outputs"
    if done.letters is not None:
        yield f"{where} becomes a dead-letter record in {done.letters}"
    else:
        yield f"{where} is skipped without a trace; eos verify will report it"
    yield f"the committed offset becomes {offset + 1}"
    if written:
        yield f"committed in one transaction; fenced before: {', '.join(done.fenced)}"
        yield from done.notes
        return
    if done.refused:
        complain(f"it would be refused now: {done.refused}")
    show = suggested("show", partition.topic, "--at", f"{partition.number}@{offset}", "-n", "1")
    yield f"nothing was written. The record: {show}. To do it: --yes"
