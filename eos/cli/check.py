"""`eos check`: whether a cluster offers what a job needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import typer

from eos.base.listing import counted
from eos.cli.help import command
from eos.cli.options import PREFLIGHT_S, GivenJobOnCluster, local_topics
from eos.cli.printing import say
from eos.errors import EosError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.identity import Identity
    from eos.settings import Settings

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def check(given: GivenJobOnCluster) -> None:
    """Look whether a cluster fits a job: what `eos run` looks at before its first transaction.

    Topics, access, brokers' versions and limits, replicas; of a SqlJob its database too:
    whether it answers, its version, tables and the user's rights. And, beside that: a
    transaction that hangs in the job's topics. Prints what is less safe than it could be, a
    line each, and ends with 0; with 2 if the job would not start. It only reads.

    Examples:
      eos check jobs.refunds:job -c conf/refunds.toml
    """
    settings, job = given.settings(), given.declaration()
    from eos.ops.check.preflight import preflight
    from eos.settings.binding import HasSettings, own_settings

    own_settings(cast("HasSettings", job), settings)
    create = local_topics(given.reference, local=given.local)
    warnings = preflight(job, settings, timeout_s=PREFLIGHT_S, one_machine=given.local, create=create)
    warnings += _hanging(job.identity(settings), settings)
    for warning in warnings:
        say(warning)
    say(f"{job.name}: the cluster fits" + (f", with {counted(len(warnings), 'warning')}" if warnings else ""))


def _hanging(job: Identity, settings: Settings) -> list[str]:
    """What holds readers of the job's topics back, and no timeout ends. A start does not look: it would take longer."""
    from eos.ops.check.held_back import held_back_in

    try:
        return [str(one) for one in held_back_in(settings, {*job.read, *job.outputs}) if one.hangs]
    except EosError as error:
        return [f"whether a transaction hangs in its topics could not be asked for: {error}"]
