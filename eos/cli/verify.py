"""`eos verify`: prove from the outside that a job's output is exactly once."""

from __future__ import annotations

from pathlib import Path

import typer

from eos.cli.options import AppDir, Assignments, Config, JobReference, Local, load_settings
from eos.cli.texts import exit_codes, help_of
from eos.exits import ExitCode

_HELP = help_of(
    """
    Prove from the outside that a job's output is exactly once.

    Reads the input up to the group's committed offsets, applies the transform again,
    and compares with the read_committed output: lost, duplicated, torn, unexpected.
    It only reads. The job may be running or not; a running one is not at rest, so
    verify it after it has caught up or was stopped.

    Example:
      eos verify jobs.refunds:job --config conf/refunds.toml
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
            ExitCode.NOT_EXACTLY_ONCE,
        ),
    )(_verify)


def _verify(
    reference: JobReference,
    config: Config = None,
    local: Local = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    from eos.worker import bind, load_job

    settings = load_settings(config, assignments, local=local)
    job = load_job(reference, app_dir.absolute())
    bind(job, settings)
