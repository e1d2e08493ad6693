"""Owners: that none of a job's is at work, and that none of them can commit any more.

The brokers know the members of a group. Of an owner that is no member (ownership by partition, Spark) they know only what it
does: a transaction that is open, an offset that moves. So such an owner is looked for, for a moment, and what cannot be seen
is made harmless: every shard is fenced before anything is committed. An owner that was asleep then finds itself fenced, and
another's commit behind its own, and leaves the shard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

from eos import retry
from eos.base.at_once import at_once
from eos.base.commands import suggested
from eos.core.fence import fence
from eos.errors import ConfigError, FencedError
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards.owners import refuse_members
from eos.kafka.admin import Admin
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.settings import Settings
from eos.shards import BatchShard, OrdinalShard, PartitionShard, Shard, parse_transactional_id, shard_prefix

_LOOK_S = (1.0, 5.0)  # for owners that are no members: at least and at most
_INTERVALS = 2  # a loop at work commits once in an interval

Epoch = tuple[int, int]  # producer id, and epoch


class Owners:
    """The owners of an app's shards in a group, as far as they may commit offsets of these partitions.

    Args:
        settings: how to reach the cluster.
        view: of the cluster's transactions.
        app, group: whose shards.
        mode: how they own their input; None: in whichever way, the group is left. Then it is no matter that it had members.
        partitions: the partitions. With ownership by partition only their shards count.

    Attributes:
        group, mode: as above.
    """

    def __init__(
        self,
        settings: Settings,
        view: TransactionsView,
        *,
        app: str,
        group: str,
        mode: OwnershipMode | None,
        partitions: Collection[Partition],
    ) -> None:
        self._settings = settings
        self._view = view
        self._one_asks = threading.Lock()  # the view is of one thread
        self._app = app
        self._prefix = shard_prefix(app, group)
        self.group = group
        self.mode = mode
        self._partitions = frozenset(partitions)
        self._fenced: dict[str, Epoch] = {}

    def refuse_live(self) -> None:
        """Refuse where an owner is at work.

        Raises:
            ConfigError: a group with members; or, of owners that are no members, an open transaction or offsets that move.
            UnavailableError: the cluster did not answer in time.
        """
        refuse_membership(self._settings, self.group, self.mode)
        if self.mode is OwnershipMode.GROUP:
            return
        before = self._seen()
        if self.mode is None and all(_is_a_members(name) for name in before[1]):
            return
        time.sleep(look_s(self._settings))
        after = self._seen()
        for name, one in sorted((before[1] | after[1]).items()):
            if one.is_open:
                raise ConfigError(
                    f"{name}: a transaction is open. Its owner is at work, or has died a moment ago. Fix: stop the owner; if it "
                    f"is dead already, wait for the transaction's timeout, or end it: {suggested('transactions end', name, '--fence-owner')}"
                )
        if moved := sorted(p for p in self._partitions if before[0].get(p) != after[0].get(p)):
            raise ConfigError(
                f"{moved[0]}: the committed offset moves, an owner is at work. Fix: stop it first"
            )
        if opened := sorted(_epochs(after[1]).items() - _epochs(before[1]).items()):
            raise ConfigError(f"{opened[0][0]}: an owner has opened this shard just now. Fix: stop it first")

    def fence(self, own: str) -> list[str]:
        """Open every shard anew, which ends what is open there and takes the right to commit from whoever had it.

        Args:
            own: the transactional.id that the caller has opened already, and keeps.

        Returns:
            The transactional.ids.

        Raises:
            ConfigError: this principal may not see, or not open, the job's transactional.ids.
            UnavailableError: a coordinator did not answer in time.
        """
        listed = self._view.transactional_ids(self._prefix)
        if own not in listed and own.startswith(self._prefix):
            raise ConfigError(
                f"{own!r} was opened just now, and is not among the transactional.ids that the brokers list: this principal may "
                "not see all of them, so an owner could be overlooked. Fix: grant Describe on TransactionalId with the prefix "
                f"{self._prefix!r} ({suggested('acl show', '--for', 'offsets', job=True)})"
            )
        seen = {name for name in listed if name != own and self._concerns(name)}
        wanted = sorted(seen | self._last_committers())
        self._fenced = at_once(self._open, wanted)
        return wanted

    def sleeper_of(self, partition: Partition, mode: OwnershipMode) -> PartitionShard | BatchShard | None:
        """The shard whose owner, no member of the group, may sleep, and go on with the partition when it wakes up; None: there is none.

        Args:
            partition: the partition.
            mode: of who has committed its offset. An owner that has just taken it over from a member has not committed yet.
        """
        sleeping = PartitionShard(self._app, self.group, partition)
        return no_members_shard(self._app, self.group, partition, mode) or (
            sleeping if sleeping.transactional_id in self._fenced else None
        )

    def hold(self, shard: Shard) -> None:
        """The caller has opened this shard once more, and commits under it: who opens it from now on is new."""
        name = shard.transactional_id
        with self._one_asks:
            self._fenced |= _epochs(self._view.describe([name]))

    def refuse_new(self) -> None:
        """Refuse where an owner has come since the shards were fenced.

        Raises:
            FencedError: names it.
        """
        now = _epochs(self._described())
        for name, epoch in now.items():
            if self._fenced.get(name) != epoch:
                raise FencedError(
                    f"{name}: an owner has opened this shard since it was fenced here. Fix: stop it, and begin anew"
                )
        of_members = self.mode in (OwnershipMode.GROUP, None)
        if of_members and (members := _members(self._settings, self.group)):
            raise FencedError(
                f"group {self.group!r} has got members meanwhile: {', '.join(members)}. Fix: stop them, and begin anew"
            )

    # --- inside ------------------------------------------------------------------------------------

    def _last_committers(self) -> set[str]:
        """The shards that the stored offsets name: fenced also where this principal may not see them in the list.

        Of the other instances of a group the coordinator takes no offsets once they are no members.
        """
        found: set[str] = set()
        for partition, committed in self._stored().items():
            metadata = OffsetMetadata.parse(committed.metadata)
            if metadata is None or metadata.app != self._app:
                continue
            shard: Shard | None = no_members_shard(self._app, self.group, partition, metadata.mode)
            if shard is None and metadata.shard.startswith("#") and metadata.shard[1:].isdecimal():
                shard = OrdinalShard(self._app, self.group, int(metadata.shard[1:]))
            if shard is not None:
                found.add(shard.transactional_id)
        return found

    def _stored(self) -> dict[Partition, Committed]:
        with fresh_reader(self._settings, self.group, stable=False) as reader:
            timeout_s = self._settings.open_timeout_s
            return committed_offsets(reader, sorted(self._partitions), timeout_s=timeout_s)

    def _seen(self) -> tuple[dict[Partition, Committed], dict[str, TransactionDescription]]:
        return self._stored(), self._described()

    def _described(self) -> dict[str, TransactionDescription]:
        return self._view.describe(
            name for name in self._view.transactional_ids(self._prefix) if self._concerns(name)
        )

    def _concerns(self, transactional_id: str) -> bool:
        try:
            shard = parse_transactional_id(transactional_id)
        except ConfigError:
            return False
        if isinstance(shard, PartitionShard):
            return shard.partition in self._partitions
        # The start's shard is what the caller commits with, and a query's output shards commit no offsets of an input.
        return isinstance(shard, OrdinalShard | BatchShard)

    def _open(self, transactional_id: str) -> Epoch:
        found = fence(self._settings, transactional_id)
        if found is None:
            return _epochs(self._view.describe([transactional_id]))[transactional_id]
        return found.producer_id, found.epoch


def no_members_shard(
    app: str, group: str, partition: Partition, mode: OwnershipMode
) -> PartitionShard | BatchShard | None:
    """The shard whose owner, no member of the group, has committed a partition's offset in this mode; None: a member has."""
    if mode is OwnershipMode.BATCH:
        return BatchShard(app, group)
    return PartitionShard(app, group, partition) if mode is OwnershipMode.PARTITION else None


def refuse_membership(settings: Settings, group: str, mode: OwnershipMode | None) -> None:
    """Refuse a group that has members; and for owners that are none, one that had some. Mode None: as of `Owners`.

    Raises:
        ConfigError: names them, or says how to move to another group.
        UnavailableError: the cluster did not answer in time.
    """
    if mode not in (OwnershipMode.GROUP, None):
        refuse_members(Admin.of(settings), group, mode, timeout_s=settings.open_timeout_s)
    elif members := _members(settings, group):
        left_s = settings.ownership.session_timeout_ms / 1000
        raise ConfigError(
            f"group {group!r} has live members: {', '.join(members)}. Fix: stop all of them first; a static member "
            f"that was stopped stays for ownership.session_timeout_ms, {left_s:g} s here"
        )


def look_s(settings: Settings) -> float:
    """For how many seconds to look for owners that are no members: one at work moves its offsets meanwhile."""
    return min(max(_LOOK_S[0], _INTERVALS * settings.transaction.interval_s), _LOOK_S[1])


def _is_a_members(transactional_id: str) -> bool:
    return isinstance(parse_transactional_id(transactional_id), OrdinalShard)


def _members(settings: Settings, group: str) -> list[str]:
    admin = Admin.of(settings)
    return [
        str(one)
        for one in retry.ask(lambda s: admin.groups.members(group, s), timeout_s=settings.open_timeout_s)
    ]


def _epochs(known: Mapping[str, TransactionDescription]) -> dict[str, Epoch]:
    return {name: (one.producer_id, one.producer_epoch) for name, one in known.items()}
