"""Positions: what an operator's commands read and set: offsets of a job's group (`in_group`), or what the job's passport gives.

A commit takes the place of the job's owners: it is refused while one is at work, it fences those that only look dead, and all of it is one
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from eos.job import Declaration
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.records import InputRecord
from eos.transform import Applied


@dataclass(frozen=True, slots=True)
class Change:
    """What one transaction is to commit.

    Attributes:
        offsets: where the job is to go on.
        outputs: what a transform has made, and dead letters, as `Applied` returns them.
    """

    offsets: OffsetVector
    outputs: Sequence[Any] = ()


MakeChange = Callable[[Mapping[Partition, Committed]], Change]


class Scope(NamedTuple):
    """What a commit in the place of the owners is about.

    Attributes:
        partitions: whose positions may be committed.
        beside: other partitions, whose owners have to rest too.
        source: the group that the positions are copied from. Its owners have to rest too, if they are the job's own.
    """

    partitions: Collection[Partition]
    beside: Collection[Partition] = ()
    source: str | None = None

    @property
    def resting(self) -> list[Partition]:
        """The partitions whose owners have to rest, sorted."""
        return sorted({*self.partitions, *self.beside})


class Done(NamedTuple):
    """What a commit in the place of the owners has done.

    Attributes:
        fenced: whose right to commit was taken before: transactional.ids, or what else owners have.
        notes: what else there is to say.
    """

    fenced: list[str]
    notes: list[str]


class Refusal(NamedTuple):
    """Whether a commit would be refused now.

    Attributes:
        reason: why; "" if it would not.
        notes: as of `Done`.
    """

    reason: str
    notes: list[str]


class Positions(Protocol):
    """The positions of one job."""

    @property
    def letters(self) -> str | None:
        """The topic or the table of the job's dead letters, if it has one."""
        ...

    def stored(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """What is stored, whoever has; partitions without a position are left out."""
        ...

    def own(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """What is stored.

        Raises:
            ConfigError: another job or another mode of ownership has committed it, and the settings do not adopt it.
        """
        ...

    def of_group(self, group: str, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """What another group has stored for these of the job's partitions, to be copied.

        Raises:
            ConfigError: its offsets do not say where its owners go on, or another program has committed them and the settings do
                not adopt that.
        """
        ...

    def look(self, scope: Scope) -> Refusal:
        """Whether `commit` would be refused now; writes nothing."""
        ...

    def commit(self, scope: Scope, change: MakeChange) -> Done:
        """Commit what ``change`` makes of what is stored, as an owner of these partitions would.

        Args:
            scope: whose positions.
            change: from what is stored to what is committed; called once no older owner can commit any more.

        Raises:
            ConfigError: an owner is at work, or what ``change`` raised; nothing was committed.
            FencedError: an owner came in between; the message says whether the commit has happened.
            UnavailableError: no answer in time; nothing was committed, if the message does not say otherwise.
        """
        ...

    def consequences(self, *, again: int, skipped: int) -> list[str]:
        """What follows where so many offsets are gone back, and so many passed."""
        ...

    def verify_from(self) -> list[str]:
        """The options of `eos verify` that begin where the job stands now; none where no option helps."""
        ...

    def transform(self, job: Declaration) -> Applied | None:
        """The job's transform, as its owners apply it; None: only a run on Spark can."""
        ...

    def letter(self, record: InputRecord, reason: str) -> list[Any]:
        """The dead letter of a record that an operator skips, as `Applied` returns it."""
        ...
