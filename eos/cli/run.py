"""`eos run`: run a job's worker processes until done, told to stop, or one may not go on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eos.cli.ending import complain
from eos.cli.options import AppDir, Assignments, Config, JobReference, Local, load_settings
from eos.cli.texts import exit_codes, help_of
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.observe import Board
    from eos.settings import Settings

_PREFLIGHT_S = 30.0

log = logging.getLogger("eos.cli")

_HELP = help_of(
    r"""
    Run a job: its outputs and input offsets in one transaction.

    Ends on SIGTERM or Ctrl-C (it finishes or aborts the open transaction within
    shutdown.grace_ms), or, with --until-caught-up, at the end of the input. A worker
    killed by a signal is started again; any other failure ends all workers.

    --start is for the first start of a group, which has no offsets yet. It is applied
    once; do not keep it in a deployment.

    Examples:
      eos run jobs.refunds:job -c conf/refunds.toml --start earliest
      eos run jobs.refunds:job -c conf/refunds.toml --workers 2 --until-caught-up
      EOS_ORDINAL=1 eos run jobs.refunds:job -c conf/refunds.toml
    """
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "run",
        help=_HELP,
        epilog=exit_codes(*(code for code in ExitCode if code is not ExitCode.NOT_EXACTLY_ONCE)),
    )(_run)


def _run(
    *,
    reference: JobReference,
    config: Config = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes on this machine (workers.count).")
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End once all present input is processed.")
    ] = False,
    start: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(metavar="earliest|latest", help="Once: where a group without offsets begins."),
    ] = None,
    adopt_offsets: Annotated[
        bool,
        typer.Option("--adopt-offsets", help="Once: take over offsets of the other ownership.mode."),
    ] = False,
    local: Local = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    from eos.observe import configure_logs
    from eos.worker import bind, load_job

    options = {
        "workers.count": workers,
        "input.start": start,
        "ownership.adopt_offsets": adopt_offsets or None,
    }
    settings = load_settings(config, assignments, options, local=local)
    configure_logs(settings.observe)
    folder = app_dir.absolute()
    job = load_job(reference, folder)
    bind(job, settings)
    from eos.check import preflight  # only now: it takes longest to load

    deadline_s = min(_PREFLIGHT_S, settings.transaction.timeout_s)
    for warning in preflight(job, settings, deadline_s=deadline_s):
        log.warning("preflight: %s", warning)
    code = _supervise(reference, folder, settings, until_caught_up=until_caught_up)
    if code is not ExitCode.DONE:
        complain(f"{reference} ended with exit code {int(code)} ({code.name.lower().replace('_', ' ')})")
    raise typer.Exit(int(code))


def _supervise(reference: str, app_dir: Path, settings: Settings, *, until_caught_up: bool) -> ExitCode:
    from eos.cli.listening import listen
    from eos.observe import Board, serve
    from eos.supervisor import Plan, Restarted, run_workers

    board = Board(settings.for_worker(index).ordinal for index in range(settings.workers.count))
    server = serve(board, settings.observe)
    if server is not None:
        log.info("metrics and health: %s", server.url)
    with (
        server or nullcontext(),
        _progress(board, settings, until_caught_up=until_caught_up) as (update, workers),
    ):

        def on_report(ordinal: int, report: object) -> None:
            if isinstance(report, bytes):
                board.take(ordinal, report)
            update()

        def on_restart(restarted: Restarted) -> None:
            board.restarted(restarted.ordinal)

        plan = Plan(reference, app_dir, workers, until_caught_up, listen)
        return run_workers(plan, on_report=on_report, on_restart=on_restart)


@contextmanager
def _progress(
    board: Board, settings: Settings, *, until_caught_up: bool
) -> Iterator[tuple[Callable[[], None], Settings]]:
    """Who shows how far it is, and the settings of the workers.

    Beside a bar workers only write warnings: their lines would tear it. Whoever asks for a log level or a
    format gets the lines and no bar.
    """
    from eos.cli import progress
    from eos.settings.shown import DEFAULT

    observe = settings.shown()["observe"]
    unasked = observe["log_level"].source == observe["log_format"].source == DEFAULT
    if not until_caught_up:
        yield lambda: None, settings
    elif sys.stderr.isatty() and unasked:
        quiet = settings.observe.model_copy(update={"log_level": "warning"})
        with progress.bar(board) as update:
            yield update, settings.model_copy(update={"observe": quiet})
    else:
        with progress.lines(board) as update:
            yield update, settings
