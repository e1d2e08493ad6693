"""Target: the job whose group an operator works on."""

from __future__ import annotations

import secrets

from eos.errors import ConfigError
from eos.group.metadata import OPERATOR, OffsetMetadata, OwnershipMode
from eos.identity import Identity
from eos.job import Declaration
from eos.settings import Settings


def target_of(job: Declaration, settings: Settings) -> Identity:
    """A job whose place can be moved.

    Raises:
        ConfigError: an operator cannot move it.
    """
    target = job.identity(settings)
    if target.fixed:
        raise ConfigError(f"{target.app!r} {target.fixed}")
    return target


def looked_at(job: Declaration, settings: Settings) -> Identity:
    """A job whose place can be shown; it need not be one that can be moved.

    Raises:
        ConfigError: its place is neither an offset of a group nor anything that its passport gives.
    """
    target = job.identity(settings)
    return target if target.positions is not None else target_of(job, settings)


def metadata_of(target: Identity) -> OffsetMetadata:
    """What is stored with offsets that an operator commits: the job's next owner takes them for its own."""
    # The owner of a Spark task's offsets is "<run>t<task>", by which a verification knows that a shuffle kept no order.
    owner = secrets.token_hex(6) + ("t0" if target.kind.on_spark else "")
    return OffsetMetadata(OwnershipMode(target.mode), OPERATOR, owner, app=target.app)
