"""Positions that are no offsets of a job's group, as commands look at them.

A job that has such ones says so in its passport (`Identity.positions`). No command reads the offsets of its group in their place: no owner
of the job begins at them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from eos.identity import Identity
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.settings import Settings


class Kept(Protocol):
    """The positions of one job, to look at. One that an operator may set is an `eos.ops.operate.positions.Positions` too."""

    @property
    def kept_in(self) -> str:
        """What they are kept in: the name of a table, say."""
        ...

    def check(self, *, timeout_s: float) -> list[str]:
        """Look whether an owner could work there; returns warnings.

        Raises:
            ConfigError: it could not.
            UnavailableError: no answer in time.
        """
        ...

    def stored(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The positions, whoever has set them; partitions without one are left out.

        Raises:
            ConfigError: there is no place for them.
            UnavailableError: no answer in time.
        """
        ...

    def remarks(self, stored: Mapping[Partition, Committed]) -> list[str]:
        """What there is to say of them beside: that a copy of them lags, say."""
        ...


def kept_elsewhere(settings: Settings, target: Identity) -> Kept | None:
    """The positions of a job that are no offsets of its group; None: they are.

    Raises:
        ConfigError: the settings do not say where.
    """
    if target.positions is None:
        return None
    kept: Kept = target.positions(settings)
    return kept


def check_kept(settings: Settings, target: Identity, *, timeout_s: float) -> list[str]:
    """As `Kept.check`, of a job that has them."""
    kept = kept_elsewhere(settings, target)
    return [] if kept is None else kept.check(timeout_s=timeout_s)
