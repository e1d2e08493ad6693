"""Surroundings: what is handed to an owner: its destination, its way into a group, guards that refuse, watches that look.

Of these the destination alone commits. Guards and watches raise, or ask the owner to join its group anew. So the way from a fetch to
a commit can be read without them, and another one is added to a list (`eos.faces.surroundings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from eos.core.destination import Destination
from eos.errors import EosError
from eos.events import Listener
from eos.group.metadata import OwnershipMode
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a consumer sits: what it reads, and as whom.

    Args:
        settings: how to reach the cluster, and all limits.
        topics: the input topics.
        group: the consumer group.
        given: the partitions that it reads without a membership; None: the group assigns.
        app: the job's name; None: any app's offsets are taken over.
        shard: the name in the events.
        listener: called with each event.
        destination: where the committed offsets are.
        partitions: all partitions of the topics, once they are known.
        instance_id: the group.instance.id of a static member, once it has one.
    """

    settings: Settings
    topics: Sequence[str]
    group: str
    given: tuple[Partition, ...] | None
    app: str | None
    shard: str
    listener: Listener
    destination: Destination
    partitions: Sequence[Partition] = ()
    instance_id: str | None = None

    @property
    def mode(self) -> OwnershipMode:
        return OwnershipMode(self.settings.ownership.mode)


@dataclass(frozen=True, kw_only=True)
class TakeOver:
    """Partitions that are about to be owned, and all that was found out about them.

    Args:
        group: the consumer group.
        mode: the mode of ownership of the one who takes them over.
        app: its app; None: it takes offsets of every app.
        partitions: which.
        stored: what the group has stored for them; where one has nothing stored, for all partitions of its topic.
        positions: where the reading begins: the committed offset, or 0 in a partition that has none.
        topic_ids: the ids that their topics have now.
        known_ids: (topic, id) of the topics that partitions are owned of already.
        entered: the committed offsets of the group as the owner found them on its way in.
    """

    group: str
    mode: OwnershipMode
    app: str | None
    partitions: Sequence[Partition]
    stored: Mapping[Partition, Committed]
    positions: OffsetVector
    topic_ids: Mapping[str, str]
    known_ids: set[tuple[str, str]]
    entered: Mapping[Partition, Committed]

    @property
    def own(self) -> dict[Partition, Committed]:
        """What is stored for just these partitions."""
        return {p: self.stored[p] for p in self.partitions if p in self.stored}


Guard = Callable[[Settings, TakeOver], None]
"""Raises what speaks against it; see `eos.guards`."""


class Entered(NamedTuple):
    """What an owner finds on its way into a group.

    Attributes:
        partitions: all of the topics.
        stored: what the group has stored for them.
    """

    partitions: list[Partition]
    stored: dict[Partition, Committed]


Enter = Callable[[Seat, ConsumerClient], Entered]
"""Refuses a group that is not the owner's, and gives one without offsets its first ones."""


class Watch:
    """Looks from outside while a consumer reads; see `eos.watches`. Each overrides what it looks at.

    Attributes:
        due_at: before that, by `time.monotonic`, it is not asked to look.
    """

    due_at = 0.0

    def look(self, client: ConsumerClient, owned: OffsetVector) -> str:  # noqa: ARG002 - what there is to look at
        """Before each fetch: raises what is wrong. Returns why the member has to join its group anew; "" if it has not.

        Args:
            client: the consumer's.
            owned: the committed offset of each owned partition.
        """
        return ""

    def joined_anew(self, seat: Seat) -> None:
        """The consumer has lost all, and is another member of its group from now on."""

    def consumed(self, client: ConsumerClient, count: int, *, asked: int) -> None:
        """A fetch brought so many records and events."""

    def failed(self, error: EosError) -> None:
        """A fetch brought an error that librdkafka goes on after."""


class Goal(Protocol):
    """The end of a run that catches up."""

    @property
    def ends(self) -> OffsetVector:
        """Where the input ended when the run began."""
        ...

    def reached(self, mine: OffsetVector) -> bool:
        """Whether the group has committed all of it; ``mine`` is what this owner has committed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What is handed to an owner.

    Args:
        destination: where its transactions go.
        enter: its way into the group.
        guards: asked in this order whenever it takes partitions over.
        watches: each makes one for a consumer that has just entered; None if there is nothing to watch.
        catch_up: makes the goal of a run that catches up.
    """

    destination: Destination
    enter: Enter
    guards: Sequence[Guard]
    watches: Sequence[Callable[[Seat], Watch | None]]
    catch_up: Callable[[Seat], Goal]
