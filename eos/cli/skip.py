"""`eos skip`: one record is taken out of a job's way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.cli.ending import complain
from eos.cli.options import (
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
from eos.cli.texts import command, say
from eos.commands import suggested
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.operate.skip import Skip

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
    reference: JobReference,
    record: Annotated[
        str, typer.Argument(metavar="TOPIC:N@OFFSET", help="The record, for example orders:2@4711.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the dead letter.")
    ],
    without_letter: Annotated[
        bool, typer.Option("--without-dead-letter", help="Write none: of the record nothing stays.")
    ] = False,
    yes: Yes = False,
    config: Config = None,
    local: Local = False,
    as_json: AsJson = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Skip one record that stops a job: it becomes a dead letter, as by poison.policy.

    Without --yes it shows what would be done, and ends with 0.

    The record is one that the job has not processed. Records between the group's place
    and it (the job has aborted them with it) are transformed here, as the loop would,
    and all is committed in one transaction: what they make, the letter, and the offset
    behind the record. `eos verify` takes the letter for what it says, and notes it.

    Refused while an owner is at work, and fences the shards, as `eos offsets set` does.
    For a SparkJob, which has no dead letters, with --without-dead-letter.

    Examples:
      eos skip jobs.refunds:job settlements:2@4711 --reason "see TICKET-17"
      eos skip jobs.refunds:job settlements:2@4711 --reason "no amount" --yes
    """
    if not reason.strip():
        raise ConfigError("--reason is empty. Fix: say why, for whoever finds the dead letter")
    from eos.operate.places import coordinates

    place = coordinates(record)
    settings = load_settings(config, assignments, local=local, reference=reference, app_dir=app_dir)
    job = load_declaration(reference, app_dir)
    reach(settings)
    from eos.operate.skip import Skipping

    skipping = Skipping(settings, job, place, reason=reason.strip(), without_letter=without_letter)
    done = skipping.write() if yes else skipping.preview()
    if as_json:
        typer.echo(json.dumps(_plain(done, written=yes), indent=2))
        return
    where = f"{place[0]} offset {place[1]}"
    say(f"{job.name}: group {done.group!r} stands at offset {done.committed} of {place[0]}")
    if done.in_front:
        say(f"{done.in_front:,} records in front of it are processed with it: {len(done.outputs):,} outputs")
    if done.letter is not None:
        say(f"{where} becomes a dead letter in {done.letter.topic}")
    else:
        say(f"{where} is skipped without a trace; eos verify will report it")
    say(f"the committed offset becomes {place[1] + 1}")
    if yes:
        say(f"committed in one transaction; fenced before: {', '.join(done.fenced)}")
        return
    if done.refused:
        complain(f"it would be refused now: {done.refused}")
    say(
        "nothing was written. The record: "
        + suggested("show", place[0].topic, "--at", f"{place[0].number}@{place[1]}", "-n", "1")
        + ". To do it: --yes"
    )


def _plain(done: Skip, *, written: bool) -> dict[str, Any]:
    return {
        "group": done.group,
        "written": written,
        "refused": done.refused or None,
        "topic": done.record.topic,
        "partition": done.record.partition,
        "offset": done.record.offset,
        "committed": done.committed,
        "in_front": done.in_front,
        "outputs": len(done.outputs),
        "dead_letter": done.letter and done.letter.topic,
        "fenced": list(done.fenced),
    }
