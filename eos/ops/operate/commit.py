"""One commit in the place of a job's owners: refused while one is at work, behind fences, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from eos.base.at_once import at_once
from eos.core.ledger import Outcome
from eos.core.producer import ShardProducer
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    ConfigError,
    FencedError,
    RebalancedError,
    ReopenError,
    UnavailableError,
)
from eos.group.committed import fresh_reader
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards.owners import refuse_foreign
from eos.identity import Identity
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionsView
from eos.ops.operate.choosing import stored_of
from eos.ops.operate.owners import Owners
from eos.ops.operate.positions import Change, MakeChange
from eos.ops.operate.target import metadata_of
from eos.settings import Settings
from eos.shards import Shard, StartShard


def stored_offsets(
    settings: Settings, target: Identity, partitions: Collection[Partition]
) -> dict[Partition, Committed]:
    """What the job's group has stored, once no transaction is pending on it.

    Raises:
        ConfigError: another job or another mode of ownership has committed it.
        UnavailableError: the cluster did not answer in time.
    """
    stored = stored_of(settings, target.group, partitions)
    refuse_foreign(settings, target.group, stored, OwnershipMode(target.mode), target.app)
    return stored


def why_refused(
    settings: Settings, view: TransactionsView, target: Identity, partitions: Collection[Partition]
) -> str:
    """Why a commit would be refused now, with owners of these partitions; "" if it would not.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """
    try:
        owners_of(settings, view, target, partitions).refuse_live()
    except ConfigError as error:
        return str(error)
    return ""


def commit_in_place(
    settings: Settings,
    target: Identity,
    partitions: Collection[Partition],
    change: MakeChange,
    *,
    owners: Sequence[Owners],
) -> list[str]:
    """Commit what ``change`` makes of what is stored, as an owner of these partitions would.

    Order matters. First no owner is at work. Then each shard is opened anew, so that no owner that only looks dead can commit
    any more; after that the offsets are read, and are final. The transaction has all or nothing. At its end the cluster is
    asked again: an owner that came in between has read what was stored before, and would go on from there.

    Args:
        settings: how to reach the cluster.
        target: the job.
        partitions: whose offsets may be committed.
        change: from what is stored to what is committed.
        owners: who has to rest.

    Returns:
        The transactional.ids that were fenced.

    Raises:
        ConfigError: an owner is at work, or what ``change`` raised; nothing was committed.
        FencedError: an owner came in between; the message says whether the commit has happened.
        UnavailableError: the cluster did not answer in time; nothing was committed, if the message does not say otherwise.
    """
    for one in owners:
        one.refuse_live()
    shard = StartShard(target.app, target.group)  # as who applies the start policy: one of the two at a time
    with ShardProducer(settings, shard, metadata=metadata_of(target)) as producer:
        fenced = [name for one in owners for name in one.fence(shard.transactional_id)]
        made = change(producer.take_over(target.group, partitions))
        for one in owners:
            one.refuse_new()
        for one in owners:
            if one.group != target.group:
                _move_away(settings, target, one, made.offsets)
        _commit(settings, target.group, producer, made)
        try:
            _look_after(settings, target, producer, made.offsets)
            for one in owners:
                one.refuse_new()
        except FencedError as error:
            raise FencedError(f"committed, but it may not last: {error}") from error
        except UnavailableError as error:
            raise UnavailableError(
                f"committed, but whether an owner came in between is not known: {error}"
            ) from error
    return [shard.transactional_id, *fenced]


def owners_of(
    settings: Settings, view: TransactionsView, target: Identity, partitions: Collection[Partition]
) -> Owners:
    """The job's, in its group."""
    mode = OwnershipMode(target.mode)
    return Owners(settings, view, app=target.app, group=target.group, mode=mode, partitions=partitions)


def _move_away(settings: Settings, target: Identity, source: Owners, offsets: OffsetVector) -> None:
    """Commit the same offsets in the group that they are copied from, marked as moved: no owner takes them over there any more.

    An owner that sleeps finds another's commit behind its own. A fence alone does not end one that is no member: with no commit but
    its own there, it opens its shard again. So its shard commits under its own id, and of an owner that has come back meanwhile one
    of the two is fenced. What another program has committed there stays what it is.

    Raises:
        FencedError: an owner has committed since the offsets were read.
        UnavailableError: as of `commit_in_place`.
    """
    # In the mode that they have: its owners go on there if nothing is committed in the target.
    shards: dict[tuple[Shard, OwnershipMode], list[Partition]] = {}
    for partition, one in stored_of(settings, source.group, sorted(offsets)).items():
        by = OffsetMetadata.parse(one.metadata)
        if by is None or by.app not in ("", target.app):
            continue
        shard = source.sleeper_of(partition, by.mode) or StartShard(target.app, source.group)
        shards.setdefault((shard, by.mode), []).append(partition)

    def commit(place: tuple[Shard, OwnershipMode]) -> None:
        (shard, mode), own = place, shards[place]
        metadata = replace(metadata_of(target), mode=mode).moved(target.group)
        with ShardProducer(settings, shard, metadata=metadata) as producer:
            stored = producer.take_over(source.group, own)
            source.hold(shard)  # before the commit: it fails where another owner has come before this look
            if moved := [p for p in own if p not in stored or stored[p].offset != offsets[p]]:
                raise FencedError(
                    f"{moved[0]}: an owner has committed in the group {source.group!r} meanwhile; nothing was committed in "
                    f"{target.group!r}. Fix: stop it, and begin anew"
                )
            if not _commit(settings, source.group, producer, Change(offsets.only(own))):
                raise UnavailableError(
                    f"nothing was committed in {target.group!r}: the commit in {source.group!r} was answered late, and an owner may have come "
                    "meanwhile. Fix: begin anew"
                )

    at_once(commit, shards)


def _commit(settings: Settings, group: str, producer: ShardProducer, made: Change) -> bool:
    """Returns whether the producer is still the one that it was; else it was opened again to learn that the commit has happened."""
    with fresh_reader(settings, group, stable=False) as reader:
        no_member = reader.group_metadata()
    done = "nothing was committed"
    try:
        try:
            with producer.transaction() as transaction:
                for output in made.outputs:
                    transaction.produce_records(output)
                transaction.add_offsets(made.offsets, no_member)
        except CommitOutcomeUnknownError as error:
            done = "whether the commit has happened is not known"
            if producer.reopen() is Outcome.COMMITTED:
                return False
            raise UnavailableError(
                f"nothing was committed in {group!r}: the commit got no answer, and was ended. Fix: begin anew",
                code=error.code,
            ) from error
    except (
        FencedError,
        RebalancedError,
    ) as error:  # KIP-848 groups refuse offsets from outside while they have members
        raise FencedError(
            f"{done}: an owner has come in the group {group!r} meanwhile ({str(error).partition(' Fix')[0]}). Fix: stop it, and begin anew"
        ) from error
    except (AbortableError, ReopenError) as error:
        raise UnavailableError(f"{done} in {group!r}: {error}", code=error.code) from error
    return True


def _look_after(settings: Settings, target: Identity, producer: ShardProducer, offsets: OffsetVector) -> None:
    mine = producer.ledger_of(target.group).metadata
    stored = stored_of(settings, target.group, sorted(offsets))
    for partition, offset in offsets.items():
        now = stored.get(partition)
        if now is None or now.offset != offset or not mine.is_owner_of(now.metadata):
            raise FencedError(
                f"{partition}: offset {offset} was committed, and {now.offset if now else 'none'} is stored: another owner has "
                "committed since. Fix: stop it, and begin anew"
            )
