"""`eos check`: whether a cluster offers what a job needs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import typer

from eos.cli.options import (
    PREFLIGHT_S,
    AppDir,
    Assignments,
    Config,
    JobReference,
    Local,
    load_declaration,
    load_settings,
    local_topics,
)
from eos.cli.texts import command, say
from eos.exits import ExitCode

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def check(
    *,
    reference: JobReference,
    config: Config = None,
    local: Local = False,
    app_dir: AppDir = Path(),
    assignments: Assignments = None,
) -> None:
    """Look whether a cluster fits a job: what `eos run` looks at before its first transaction.

    Topics, access, brokers' versions and limits, replicas. Prints what is less safe than it
    could be, a line each, and ends with 0; with 2 if the job would not start. It only reads.

    Examples:
      eos check jobs.refunds:job -c conf/refunds.toml
    """
    settings = load_settings(config, assignments, local=local, reference=reference, app_dir=app_dir)
    job = load_declaration(reference, app_dir)
    from eos.check.preflight import preflight
    from eos.settings.binding import HasSettings, own_settings

    own_settings(cast("HasSettings", job), settings)
    warnings = preflight(
        job, settings, timeout_s=PREFLIGHT_S, one_machine=local, create=local_topics(reference, local=local)
    )
    for warning in warnings:
        say(warning)
    say(f"{job.name}: the cluster fits" + (f", with {len(warnings)} warning(s)" if warnings else ""))
