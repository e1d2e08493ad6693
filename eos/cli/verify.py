"""`eos verify`: prove from the outside that a job's output is exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eos.cli.ending import complain
from eos.cli.options import AppDir, Assignments, Config, JobReference, Local, load_settings
from eos.cli.texts import exit_codes, help_of
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.check import VerificationReport
    from eos.check.verify import Progress
    from eos.offsets import Partition

_DEADLINE_S = 3600.0
_STAGES = {"input": "reading input", "output": "reading output", "compare": "comparing"}
_HELP = help_of(
    """
    Prove from the outside that a job's output is exactly once.

    Reads the input up to the group's committed offsets, applies the transform
    again, and compares with the read_committed output: lost, duplicated, torn,
    unexpected. It only reads, and waits until the output is settled; let the job
    catch up, or stop it, before.

    Where the group did not begin at offset 0, or input or output was deleted since,
    say where to begin on both sides.

    Examples:
      eos verify jobs.refunds:job --config conf/refunds.toml
      eos verify jobs.refunds:job --input-from settlements:0=500
    """
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "verify",
        help=_HELP,
        epilog=exit_codes(
            ExitCode.DONE,
            ExitCode.UNEXPECTED,
            ExitCode.CONFIGURATION,
            ExitCode.UNAVAILABLE,
            ExitCode.OFFSET_GAP,
            ExitCode.NOT_EXACTLY_ONCE,
        ),
    )(_verify)


def _verify(
    *,
    reference: JobReference,
    config: Config = None,
    local: Local = False,
    input_from: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:N=OFFSET", help="Where the group began; may be repeated."),
    ] = None,
    output_from: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:N=OFFSET", help="The output's end before it began; may be repeated."),
    ] = None,
    deadline_s: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="Give up after this.", min=1)
    ] = _DEADLINE_S,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    from eos.worker import bind, load_job

    begins = _offsets("--input-from", input_from or ()), _offsets("--output-from", output_from or ())
    settings = load_settings(config, assignments, local=local)
    job = load_job(reference, app_dir.absolute())
    bind(job, settings)
    from eos.check import verify  # only now: it takes longest to load

    with _progress() as progress:
        report = verify(
            job,
            settings,
            deadline_s=deadline_s,
            progress=progress,
            input_from=begins[0],
            output_from=begins[1],
        )
    _print(report)
    raise typer.Exit(int(ExitCode.DONE if report.exactly_once else ExitCode.NOT_EXACTLY_ONCE))


def _offsets(option: str, texts: Iterable[str]) -> dict[Partition, int]:
    from eos.settings.tables import parse_partition

    offsets = {}
    for text in texts:
        partition, _, offset = text.rpartition("=")
        try:
            offsets[parse_partition(partition)] = int(offset)
        except ValueError as error:
            raise ConfigError(
                f"{option} {text!r}: give TOPIC:NUMBER=OFFSET, for example orders:0=500"
            ) from error
    return offsets


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar per stage on stderr; nothing where that is no terminal."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<14}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        tasks: dict[str, progress.TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(_STAGES.get(stage, stage))
            shown.update(tasks[stage], completed=done, total=total)

        yield update


def _print(report: VerificationReport) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for what, figures in report.rows():
        table.add_row(what, figures)
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(table)
    if not report.records:
        complain("nothing was compared: the group has processed no record yet")
    for example in report.examples:
        console.print(str(example), soft_wrap=True)
