"""OwnOffsets: the offsets that one producer commits, in one group, and what that group has stored for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from eos import retry
from eos.base.deadline import Deadline
from eos.core.comparison import compare, compared, look_for_rival
from eos.core.ledger import Ledger, Outcome
from eos.core.topics_used import TopicsUsed
from eos.errors import UsageError
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.expiry import StartedPartitions
from eos.group.topics import TopicIds, refuse_recreated, stored_topic_ids
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

# How long a rival has to show a commit after a fence: a session commits the offsets it took over some 0.1 s after its init.
_RIVAL_SHOWS_S = 3.0
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Asking:
    """How a producer asks for offsets.

    Args:
        settings: how to reach the cluster.
        on_retry: told of each failed try.
        timeout_s: how long a question may take now.
    """

    settings: Settings
    on_retry: retry.OnRetry
    timeout_s: Callable[[], float]


class OwnOffsets:
    """What a producer has committed. Every offset that it sends goes through here.

    Args:
        asking: how to ask the group.
        ledger: what is known of the offsets.
        group: the group; None: that of the first offsets.
        topics: those of the open transaction.
        started: per topic, how many partitions have or had an offset, for the next day (`eos.group.expiry`); None: it is read.
        name: of the producer, in errors.
    """

    def __init__(
        self,
        asking: Asking,
        ledger: Ledger,
        group: str | None,
        *,
        topics: TopicsUsed,
        started: Mapping[str, int] | None,
        name: str,
    ) -> None:
        self.ledger = ledger
        self.group = group
        self._asking = asking
        self._topics = topics
        self._known_started = started
        self._started: StartedPartitions | None = None
        self._found_late: set[Partition] = set()
        self._name = name

    def ledger_of(self, group_id: str) -> Ledger:
        """What was committed in a group, which is the only one from now on.

        Raises:
            UsageError: it has committed in another group.
        """
        self.group = self.group or group_id
        if group_id != self.group:
            raise UsageError(
                f"{self._name}: it commits offsets of the group {self.group!r}, and was given some of {group_id!r}. "
                "Fix: a producer for each group, with an app or ordinal of its own"
            )
        return self.ledger

    @property
    def show_owners(self) -> bool:
        """Whether another owner's commit would be seen: not by offsets that were found at this producer's first commit of them.

        Where its id had expired, a successor has committed by then, whose offsets would count as found.
        """
        stored, mine = self.ledger.stored, self.ledger.metadata
        late = [stored[partition] for partition in self._found_late & stored.keys()]
        committed = all(one is not None and mine.is_owner_of(one.metadata) for one in late)
        return committed and bool(compared(self.ledger))

    def take_over(self, group_id: str, partitions: Iterable[Partition]) -> dict[Partition, Committed]:
        """As :meth:`ShardProducer.take_over`."""
        wanted = tuple(partitions)
        stored = self._committed(group_id, wanted, stable=True)
        self.ledger_of(group_id).taken_over(dict.fromkeys(wanted) | stored)
        return stored

    def sent(self, offsets: OffsetVector, group_id: str) -> Mapping[Partition, Committed]:
        """A transaction is about to send these offsets; returns them with the metadata to store.

        Raises:
            AbortableError: what the metadata needs could not be read.
            OffsetGapError: a topic was deleted and created anew since the stored offsets were committed.
        """
        ledger = self.ledger_of(group_id)
        # Offsets that say which topic they count in are compared at the last look, before the commit is sent. Of others the ids
        # are asked first: offsets that are read after it belong to the topic with this id, or that look refuses them.
        unnamed = {topic for topic, _ in offsets if not offsets.topic_ids.get(topic)}
        asked = self._topics.ids_of(unnamed)
        if unknown := offsets.without(ledger.stored_of(offsets)):
            self.take_over(group_id, unknown)
            self._found_late.update(unknown)
        # Offsets that say themselves which topic they count in replace what is stored, also where that counts in a deleted one.
        stored_ids = stored_topic_ids(ledger.stored_of(offsets), with_more=True)
        self._topics.refuse_recreated({(t, i) for t, i in stored_ids if t in unnamed}, asked)
        ids = {topic: asked.get(topic) or offsets.topic_ids.get(topic, "") for topic, _ in offsets}
        self._topics.read(ids)
        if self._started is None:
            self._started = StartedPartitions(self._asking.settings, group_id, self._known_started)
        known = [partition for partition, one in ledger.stored.items() if one is not None]
        return ledger.sent(offsets, self._started.with_offsets_of(offsets, stored=known), ids)

    def look_for_rival(self, group_id: str, *, after_a_fence: bool) -> None:
        """Before the init of a rebuilt producer: look for what only another owner can have committed.

        Args:
            group_id: the group.
            after_a_fence: give the other owner time to commit.

        Raises:
            FencedError: there is one.
        """
        deadline = Deadline(_RIVAL_SHOWS_S if after_a_fence else 0.0)
        while True:
            look_for_rival(self.ledger, self.stored(group_id, stable=False))
            if deadline.passed:
                return
            time.sleep(_LOOK_EVERY_S)

    def compare(self, group_id: str) -> Outcome:
        """After the init: hold what the group has against the ledger. Returns the outcome of an unanswered commit.

        Raises:
            FencedError: another owner has committed.
            OffsetGapError: a topic was deleted and created anew, and the offsets went with it.
            ConfigError: a topic was deleted.
            UnavailableError: the cluster did not answer in time.
        """
        stored = self.stored(group_id, stable=True)
        self._refuse_recreated({p: one for p, one in self.ledger.stored.items() if p not in stored})
        return compare(self.ledger, stored)

    def stored(self, group_id: str, *, stable: bool) -> dict[Partition, Committed]:
        """What the group has of all that is compared. Not ``stable``: also while a transaction is pending on the offsets."""
        return self._committed(group_id, compared(self.ledger), stable=stable)

    def _refuse_recreated(self, gone: Mapping[Partition, Committed | None]) -> None:
        """Kafka drops the offsets of a topic that is deleted: that is no sign of another owner."""
        if was_in := stored_topic_ids(gone, with_more=True):
            ids, timeout_s = TopicIds(self._asking.settings), self._asking.timeout_s()
            now_in = ids.of({topic for topic, _ in was_in}, timeout_s=timeout_s)
            refuse_recreated(was_in, ids.agreed(was_in, now_in, timeout_s=timeout_s))

    def _committed(
        self, group_id: str, partitions: Iterable[Partition], *, stable: bool
    ) -> dict[Partition, Committed]:
        asking = self._asking
        with fresh_reader(asking.settings, group_id, stable=stable) as reader:
            return committed_offsets(
                reader, partitions, timeout_s=asking.timeout_s(), on_retry=asking.on_retry
            )
