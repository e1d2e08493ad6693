"""Adoption: offsets that another program has committed become eos's own, once, where settings say so (``ownership.adopt_offsets``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from eos import retry
from eos.core.producer import ShardProducer
from eos.core.surroundings import Entered
from eos.errors import RetriableError
from eos.group.metadata import ADOPTED, OffsetMetadata, OwnershipMode
from eos.group.mirror import refuse_mirror
from eos.group.others import of_others
from eos.guards.truncated import refuse_truncated
from eos.kafka.admin import Admin
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed, same_commit, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import StartShard


class Adoption:
    """What one start takes over from another program: what is stored once the group has no members, and nothing later.

    Args:
        settings: whether anything is adopted, and how to reach the cluster.
        reader: a client of the group.
        own: the partitions that the caller will read; None: all.
        app: the first part of the transactional.id.
        mode: how the caller owns its input.
        on_adopted: called with what was adopted.
    """

    def __init__(
        self,
        settings: Settings,
        reader: ConsumerClient,
        own: Collection[Partition] | None,
        *,
        app: str,
        mode: OwnershipMode,
        on_adopted: Callable[[OffsetVector], object],
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._own = own
        self._app = app
        self._mode = mode
        self._on_adopted = on_adopted
        self._left: Mapping[Partition, Committed] | None = None  # None: not settled yet

    def settled(self, look: Callable[[], Entered]) -> Entered:
        """A look at the group, behind which it is settled what is adopted: what it shows once the group has no members.

        Args:
            look: asks for the input's partitions, and what the group has stored for them.

        Raises:
            RetriableError: the group has members, and something that is stored is to be adopted.
        """
        _, stored = found = look()
        if self._is_due and self._has_no_members(beside=stored):
            own = stored.keys() - of_others(
                stored
            )  # what another program commits there from now on is not adopted
            _, stored = found = look()  # with what was committed by those that have left
            self._left = {p: stored[p] for p in self.left_in(stored) if p not in own}
        return found

    def left_in(self, stored: Mapping[Partition, Committed]) -> list[Partition]:
        """The partitions whose offsets are to be adopted still."""
        if not self._settings.ownership.adopt_offsets:
            return []
        return sorted(
            p
            for p, one in of_others(stored).items()
            if (self._own is None or p in self._own) and self._counts(p, one)
        )

    def adopt(self, partitions: Sequence[Partition]) -> None:
        """Commit another program's offsets again, with eos's metadata, in a transaction under the id of the start.

        From then on they are eos's, so that whatever another program commits later shows.

        Raises:
            OffsetGapError: such an offset is not in the log.
        """
        settings, group = self._settings, self._reader.group_id
        shard = StartShard(self._app, group)
        with ShardProducer(settings, shard, metadata=OffsetMetadata(self._mode, ADOPTED)) as producer:
            producer.give_up(retry.is_given_up)
            # The init above ended what another instance left pending, so this is final.
            now = producer.take_over(group, partitions)
            found = {p: one for p, one in now.items() if self._counts(p, one)}
            if not found:
                return
            refuse_mirror(group, found)
            positions = stored_positions(found)
            refuse_truncated(settings, group, positions, timeout_s=settings.open_timeout_s)
            with producer.transaction() as txn:
                txn.add_offsets(positions, self._reader.group_metadata())  # of no member
        self._left = {p: one for p, one in (self._left or {}).items() if p not in found}
        self._on_adopted(positions)

    # --- inside ------------------------------------------------------------------------------------

    @property
    def _is_due(self) -> bool:
        return self._settings.ownership.adopt_offsets and (self._left is None or bool(self._left))

    def _counts(self, partition: Partition, stored: Committed) -> bool:
        """Whether it is what was settled on, and nothing that came behind that; before, it is whatever there is."""
        return self._left is None or same_commit(self._left.get(partition), stored)

    def _has_no_members(self, *, beside: Mapping[Partition, Committed]) -> bool:
        """Whether the group has no members. Raises as `settled` does."""
        settings, group = self._settings, self._reader.group_id
        admin = Admin.of(settings)
        members = retry.ask(lambda s: admin.groups.members(group, s), timeout_s=settings.open_timeout_s)
        if members and self.left_in(beside):
            raise RetriableError(
                f"the group {group!r} has members ({', '.join(map(str, members))}), and offsets of another program are taken over "
                "(ownership.adopt_offsets) only while nobody may commit beside that. Fix: stop them; a static member that was stopped stays for "
                "ownership.session_timeout_ms"
            )
        return not members
