"""The entries of a job's relays, as what looks at the job from outside sees them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from eos.errors import ConfigError
from eos.group.committed import committed_elsewhere, committed_offsets, fresh_reader
from eos.identity import Identity
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group
from eos.sql.asking import answer
from eos.sql.engine import engine_of
from eos.sql.fitness import fitness_of_outbox
from eos.sql.outbox_read import require_same_database
from eos.sql.relay_entry import Relayed, RelayEntry, entry_in
from eos.sql.relay_mark import RelayMark


def committed_entries(
    settings: Settings, target: Identity, relayed: Relayed, *, timeout_s: float | None = None
) -> dict[int, RelayEntry]:
    """What is committed, by shard; of those that have relayed, or have begun to.

    Raises:
        ConfigError: none has, or an offset is none of this job's.
        UnavailableError: the cluster did not answer in time, or a transaction stayed pending.
    """
    found = {}
    for number in range(relayed.shards):
        group = ledger_group(target.app, target.group, number)
        with fresh_reader(settings, group, stable=True) as reader:
            stored = committed_offsets(reader, relayed.places, timeout_s=timeout_s or settings.open_timeout_s)
        elsewhere = committed_elsewhere(settings, group, relayed.places)
        entry = entry_in(stored, elsewhere, group=group, app=target.app, shards=relayed.shards)
        if entry is not None:
            found[number] = entry[1]
    if not found:
        raise ConfigError(
            f"the group {target.group!r} has no offset of a relay: {target.app!r} has not run yet, or with other settings. Fix: run it "
            "first; or the settings that it ran with (group)"
        )
    return found


def require_kept(
    connection: Connection, target: Identity, relayed: Relayed, number: int, entry: RelayEntry
) -> None:
    """Look whether this is the database that a shard has relayed, with all that it has read. In the transaction that goes by it.

    Raises:
        OffsetGapError: it is another one, or an earlier state of it.
    """
    require_same_database(connection, relayed.outbox, entry.position)
    shard = SinkShard(target.app, target.group, number)
    group = ledger_group(target.app, target.group, number)
    RelayMark(group, str(shard), owner="").require_kept(connection, entry.relayed)


class RelayPositions:
    """The calls of `eos.ops.positions.Kept` for a job that relays an outbox."""

    kept_in = "offsets that count its rows"

    def __init__(self, settings: Settings, target: Identity, relayed: Relayed) -> None:
        self._settings = settings
        self._target = target
        self._relayed = relayed

    def check(self, *, timeout_s: float) -> list[str]:
        """As `eos.ops.positions.Kept`: the tables, and the rights of its user."""
        engine = engine_of(self._settings, app=self._target.app, keeps=False)
        outbox = self._relayed.outbox.table
        return answer(engine, self._settings, lambda one: fitness_of_outbox(one, outbox), timeout_s=timeout_s)

    def stored(self, _: Collection[Partition]) -> dict[Partition, Committed]:
        """None of an input's: it has no input."""
        return {}

    def remarks(self, _: Mapping[Partition, Committed]) -> list[str]:
        """How far each shard is."""
        try:
            entries = committed_entries(self._settings, self._target, self._relayed)
        except ConfigError as error:
            return [str(error)]
        return [
            f"shard {number}: {entry.relayed:,} rows relayed; committed {max(0.0, time.time() - entry.at_s):.0f} s ago on {entry.host or '?'}"
            for number, entry in sorted(entries.items())
        ]
