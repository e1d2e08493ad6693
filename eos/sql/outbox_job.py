"""OutboxJob: the declaration of a job that sends the rows of an outbox. Nothing here talks to Kafka or to a database."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel
from sqlalchemy import Engine, Table

from eos.errors import ConfigError, UsageError
from eos.events import Listener
from eos.identity import Identity, Kind, Naming
from eos.job import checked_name, checked_topics
from eos.settings import Settings
from eos.shards import Shard, SinkShard, ledger_group
from eos.sql.engine import engine_of
from eos.sql.outbox import Outbox
from eos.sql.relay import Relay
from eos.sql.relay_entry import Relayed
from eos.sql.relays import RelayPositions
from eos.sql.tables import RELAY

_MAX_SHARDS = 1_000


@dataclass(frozen=True, kw_only=True)
class OutboxJob:
    """A job that relays an outbox: each committed row becomes one record, and the position is committed by the same transaction.

    >>> job = OutboxJob(name="settlements-relay", outbox=Outbox(metadata), outputs=["settlements"])  # doctest: +SKIP

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        outbox: the table.
        outputs: every topic that rows may name. The position stands on one of them, so none is taken out later.
        shards: how many relays share the rows, by the hash of the key; each has a transactional.id and a position of its own. The
            number cannot be changed later.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    kind: ClassVar[Literal[Kind.LOOP]] = Kind.LOOP
    applied: ClassVar[None] = None
    settings: ClassVar[type[BaseModel] | None] = None
    inputs: ClassVar[tuple[str, ...]] = ()
    read_topics: ClassVar[frozenset[str]] = frozenset()

    name: str
    outbox: Outbox
    outputs: Sequence[str]
    shards: int = 1

    def __post_init__(self) -> None:
        checked_name(self.name)
        object.__setattr__(self, "outputs", checked_topics("outputs", self.outputs))
        if not 1 <= self.shards <= _MAX_SHARDS:
            raise UsageError(
                f"OutboxJob {self.name!r}: shards = {self.shards} is out of range [1, {_MAX_SHARDS}]"
            )

    @property
    def own_tables(self) -> Sequence[Table]:
        """The tables that it needs in its database."""
        return (self.outbox.table, *RELAY)

    @property
    def relayed(self) -> Relayed:
        """What it relays."""
        return Relayed(self.outbox, self.outputs, self.shards)

    @property
    def written_topics(self) -> frozenset[str]:
        """Every topic that may be written to."""
        return frozenset(self.outputs)

    def identity(self, settings: Naming) -> Identity:
        """What the job is to everything that looks at it from outside."""
        group = settings.group_for(self.name)
        groups = [ledger_group(self.name, group, number) for number in range(self.shards)]
        return Identity(
            kind=self.kind,
            app=self.name,
            group=group,
            commits=dict.fromkeys(groups, frozenset(self.outputs)),
            mode="sink",
            inputs=(),
            read=(),
            outputs=tuple(sorted(self.outputs)),
            ledgers=groups[0].removesuffix("0"),
            ledger_topic=self.outputs[0],
            judged_by="rows",
            positions=self.positions,
            fixed="relays an outbox: its position is a snapshot of its database, which cannot be set by hand",
        )

    def positions(self, settings: Settings) -> RelayPositions:
        """What operators look at."""
        return RelayPositions(settings, self.identity(settings), self.relayed)

    def bound(self, settings: BaseModel | None = None) -> BoundOutbox:  # noqa: ARG002 - as of every job
        """Its loops."""
        return BoundOutbox(self)


class BoundOutbox:
    """The relays of a job; the calls of `eos.job.OwnLoops`."""

    reads_topics: ClassVar[Literal[False]] = False

    def __init__(self, job: OutboxJob) -> None:
        self._job = job
        self._engine: Engine | None = None

    def shards(self, settings: Settings) -> list[Shard]:
        """Those of this instance: shard n belongs to the instance n mod the number of instances.

        Raises:
            ConfigError: ``poison.policy`` is one that it cannot follow.
        """
        job = self._job
        if settings.poison.policy == "dead-letter":
            raise ConfigError(
                f"poison.policy = 'dead-letter', and OutboxJob {job.name!r} has no topic for rows that Kafka refuses. "
                "Fix: 'stop' or 'skip'"
            )
        instances = settings.ownership.instances or settings.workers.count
        group = job.identity(settings).group
        mine = [number for number in range(job.shards) if number % instances == settings.ordinal]
        return [SinkShard(job.name, group, number) for number in mine]

    def loop(
        self,
        shard: Shard,
        settings: Settings,
        *,
        until_caught_up: bool,
        stop: threading.Event,
        listener: Listener,
    ) -> Relay:
        """The loop of one of them."""
        assert isinstance(shard, SinkShard)  # noqa: S101 - one of `shards`
        if self._engine is None:
            self._engine = engine_of(settings, app=self._job.name)
        return Relay(
            settings,
            self._engine,
            self._job.relayed,
            shard,
            until_caught_up=until_caught_up,
            stop=stop,
            listener=listener,
        )

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
