"""SqlJob: the declaration of a job that turns records into rows. Nothing here talks to a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel
from sqlalchemy import Table

from eos.errors import UsageError
from eos.identity import Identity, Kind, Naming
from eos.job import check_topics
from eos.references import load_named
from eos.settings import Settings
from eos.settings.binding import bind
from eos.sql.bound import BoundChanges, OwnSql, PerBatch, PerRecord
from eos.sql.tables import SINK

if TYPE_CHECKING:
    from eos.sql.operated import TablePositions


@dataclass(frozen=True, kw_only=True)
class SqlJob:
    """A job from topics to tables: the rows and the position of their input are committed in one transaction of the database.

    >>> job = SqlJob(name="refunds-table", inputs=["refunds-emitted"], tables=[refunds], transform=rows)  # doctest: +SKIP

    Args:
        name: letters, digits, '_' and '-'; the positions in the database belong to it.
        inputs: the topics read.
        tables: every table that is changed, a referenced one before those that refer to it; rows are written in this order.
        transform: one record -> its changes: Insert, Upsert, Delete. What it raises, and a row that the database refuses, is
            answered by the poison policy; a dead letter is a row of ``eos_dead_letters``.
        transform_batch: many records, by column -> changes. It must be a pure map over records.
        apply: SQL of one's own, called with a SQLAlchemy connection and a batch, inside the transaction. It must not commit.

    Exactly one of transform, transform_batch and apply is given.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    kind: ClassVar[Literal[Kind.LOOP]] = Kind.LOOP
    applied: ClassVar[None] = None
    settings: ClassVar[type[BaseModel] | None] = None

    name: str
    inputs: Sequence[str]
    tables: Sequence[Table] = ()
    transform: PerRecord | None = None
    transform_batch: PerBatch | None = None
    apply: OwnSql | None = None

    def __post_init__(self) -> None:
        inputs, _ = check_topics(self.name, self.inputs, None)
        object.__setattr__(self, "inputs", inputs)
        if [self.transform, self.transform_batch, self.apply].count(None) != 2:  # noqa: PLR2004 - all but one
            raise UsageError(
                f"SqlJob {self.name!r}: give exactly one of transform=, transform_batch= and apply="
            )
        if self.apply is None and not self.tables:
            raise UsageError(f"SqlJob {self.name!r}: tables= names every table that the transform changes")
        if keyless := [table.name for table in self.tables if not table.primary_key.columns]:
            raise UsageError(
                f"SqlJob {self.name!r}: {', '.join(keyless)} has no primary key, by which a row is found again. Fix: primary_key=True "
                "for a column"
            )

    @property
    def own_tables(self) -> Sequence[Table]:
        """The tables of eos's own that it needs in its database."""
        return SINK

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that the job reads."""
        return frozenset(self.inputs)

    @property
    def written_topics(self) -> frozenset[str]:
        """None: a record to Kafka and a row in one transaction, nothing can make atomic. An outbox is the way."""
        return frozenset()

    def identity(self, settings: Naming) -> Identity:
        """What the job is to everything that looks at it from outside."""
        return Identity(
            kind=self.kind,
            app=self.name,
            group=settings.group_for(self.name),
            commits={},
            mode=settings.ownership.mode,
            inputs=tuple(sorted(self.inputs)),
            read=tuple(sorted(self.inputs)),
            outputs=(),
            transactional=False,
            judged_by="tables",
            positions=self.positions,
        )

    def positions(self, settings: Settings) -> TablePositions:
        """What operators read and set its positions by."""
        from eos.sql.operated import TablePositions  # workers need none of it

        return TablePositions(settings, self.identity(settings), self.tables, bind(self, settings))

    def bound(self, settings: BaseModel | None = None) -> BoundChanges:  # noqa: ARG002 - as of every job
        """The transform as one interface over its three shapes."""
        return BoundChanges(
            self.name,
            self.tables,
            self.transform,
            self.transform_batch,
            self.apply,
            identity=self.identity,
        )


@runtime_checkable
class KeepsTables(Protocol):
    """A job that needs tables of eos's own in its database."""

    @property
    def own_tables(self) -> Sequence[Table]: ...


def tables_of(reference: str, app_dir: Path) -> Sequence[Table]:
    """The tables of eos's own that the job needs which ``package.module:name`` names.

    Raises:
        ConfigError: there is no such module or name, or it is no job that writes to a database.
    """
    kind: type[KeepsTables] = KeepsTables  # type: ignore[type-abstract]  # it is only asked whether an object fits
    return load_named(reference, app_dir.absolute(), kind, "eos.sql.SqlJob").own_tables
