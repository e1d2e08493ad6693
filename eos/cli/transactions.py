"""`eos transactions`: which are open, what an id means, and the end of one that its owner will not end."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.base.commands import suggested
from eos.cli.exit import complain
from eos.cli.help import command
from eos.cli.options import AppDir, AsJson, GivenCluster, Yes, load_declaration, reach
from eos.cli.printing import Table, age, answer, picked, say
from eos.errors import ConfigError, EosError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.ops.check.held_back import HeldBack
    from eos.ops.check.transactions import TransactionDescription
    from eos.settings import Settings
    from eos.shards import Shard

_READ_S = 15.0

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="The transactional.id.")]

commands = typer.Typer(
    no_args_is_help=True, help="Look at transactions, and end one that its owner will not end."
)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE, name="list")
def list_(
    *,
    reference: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:NAME]", help="Of this job alone; else all that may be seen."),
    ] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Those alone that hold back readers.")] = False,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Those alone that write to it.")] = None,
    given: GivenCluster,
    as_json: AsJson = False,
    app_dir: AppDir = Path(),
) -> None:
    """List transactional.ids and the state of their transactions.

    Shows what the principal may describe (Describe on TransactionalId). A transaction
    that stays open in a log, and that no coordinator lists as open, is Hanging; its
    command follows.

    Examples:
      eos transactions list jobs.refunds:job -c conf/refunds.toml
      eos transactions list --open --topic settlements --local
    """
    settings = given.settings()
    reach(settings)
    prefix, topics = "", None if topic is None else {topic}
    if reference is not None:
        known = load_declaration(reference, app_dir).identity(settings)
        if known.ids is None:
            raise ConfigError(f"{known.app!r} has no transactional.id. Fix: leave the job out")
        prefix = known.ids
        topics = topics or {*known.read, *known.outputs}
    from eos.ops.check.transactions import TransactionsView

    with TransactionsView(settings, timeout_s=_READ_S) as view:
        described = view.describe(view.transactional_ids(prefix)).values()
    found = [
        one
        for one in sorted(described, key=lambda one: one.transactional_id)
        if (one.is_open or not only_open) and (topic is None or topic in {p.topic for p in one.partitions})
    ]
    names: dict[int | None, str] = {one.producer_id: one.transactional_id for one in described}
    hanging = _hanging(settings, topics)
    rows = [
        *((one.transactional_id, one.state, _open_for(one), _listed(one)) for one in found),
        *((names.get(one.producer_id, "not listed"), "Hanging", "", str(one.partition)) for one in hanging),
    ]
    table = Table(("transactional.id", "state", "open for", "partitions"), rows)
    plainly = [
        *(plain(one) for one in found),
        *(
            {
                "id": names.get(one.producer_id),
                "state": "Hanging",
                "is_open": True,
                **picked(one, "producer_id"),
                "partitions": [str(one.partition)],
                "offset": one.lso,
            }
            for one in hanging
        ),
    ]
    answer(plainly, lambda: [table, *map(str, hanging)], as_json=as_json)


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def explain(
    *,
    transactional_id: TransactionalId,
    given: GivenCluster,
) -> None:
    """Say what an id means, what its transaction is doing, who owns it, and what to do.

    Examples:
      eos transactions explain refunds.refunds.i.3 -c conf/refunds.toml
    """
    settings = given.settings()
    reach(settings)
    from eos.ops.check.held_back import how_to_abort

    shard = _shard(transactional_id)
    if shard is None:
        say("no id of eos: its program knows what it means")
    else:
        say(f"app {shard.app}, group {shard.group}: {meaning(shard)}")
    described = _described(settings, transactional_id)
    if described is None:
        say("no coordinator knows it: no producer has had it, or not since transactional.id.expiration.ms")
        return
    say(
        f"{described.state}; producer id {described.producer_id}, epoch {described.producer_epoch}, timeout "
        f"{described.timeout_ms / 1000:g} s; coordinator: broker {described.coordinator}"
    )
    if described.is_open:
        say(f"open for {_open_for(described)}, writes to {_listed(described)}")
    members = _members(settings, shard)
    for member in members:
        say(f"member of the group: {member}")
    if last := _last_commit(settings, shard):
        say(last)
    hanging = [one for one in _hanging(settings, None) if one.producer_id == described.producer_id]
    for one in hanging:
        say(
            f"{one.partition}: a transaction of it hangs there since offset {one.lso:,}. It is open in the log, and its coordinator does "
            "not count it as open"
        )
    if hanging and not described.is_open:
        say(
            f"to do: find out how it ended before anything is written (docs/operations/lso.md, 'A hanging transaction'): "
            f"{how_to_abort(hanging[0].partition, hanging[0].lso)}"
        )
    else:
        say(_advice(described, shard, has_members=bool(members)))


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def end(
    *,
    transactional_id: TransactionalId,
    fence_owner: Annotated[
        bool, typer.Option("--fence-owner", help="Also if its owner may live: it ends as fenced.")
    ] = False,
    yes: Yes = False,
    given: GivenCluster,
) -> None:
    """Fence a transactional.id: abort what is open under it, and end its owner.

    Without --yes it shows what would be done, and ends with 0.

    As the owner's own successor does when it starts, which is the better way: start the
    job again. This is for an owner that will not come back, while readers wait for its
    transaction's timeout. Needs Write on the TransactionalId. A transaction whose end is
    decided (PrepareCommit, PrepareAbort) cannot be ended by anybody.

    Refused while the group has members or where that cannot be known, unless
    --fence-owner says that the owner may be fenced.

    Examples:
      eos transactions end refunds.refunds.i.3 -c conf/refunds.toml
      eos transactions end refunds.refunds.i.3 -c conf/refunds.toml --yes
    """
    settings = given.settings()
    reach(settings)
    shard = _shard(transactional_id)
    before = _described(settings, transactional_id)
    if before is None:
        raise ConfigError(f"no coordinator knows {transactional_id!r}. Fix: {suggested('transactions list')}")
    if before.state.startswith("Prepare"):
        raise ConfigError(
            f"{transactional_id!r} is in {before.state}: its end is decided, and its coordinator has to write it. See docs/operations/lso.md, "
            "'The LSO is stuck'"
        )
    refused = "" if fence_owner else _refusal(settings, shard)
    if not yes:
        would = f"abort its transaction, open for {_open_for(before)}, which writes to {_listed(before)}"
        say(f"{transactional_id}: would fence it{f' and {would}' if before.is_open else '; none is open'}")
        if refused:
            complain(f"it would be refused now: {refused}")
        say("nothing was done. To do it: --yes")
        return
    if refused:
        raise ConfigError(refused)
    from eos.core.fence import fence

    fence(settings, transactional_id)
    what = (
        f"its transaction, open for {_open_for(before)}, was aborted" if before.is_open else "none was open"
    )
    say(f"{transactional_id}: fenced; {what}")


def meaning(shard: Shard) -> str:
    """What a shard is, in words."""
    from eos.shards import BatchShard, OrdinalShard, PartitionShard, SinkShard, StartShard

    match shard:
        case PartitionShard():
            return f"partition {shard.partition}"
        case OrdinalShard():
            return f"instance {shard.ordinal}"
        case SinkShard():
            return f"output shard {shard.number} of a streaming query"
        case BatchShard():
            return "a batch run: all input partitions in one transaction"
        case StartShard():
            return "the group's first offsets (start policy)"


def _shard(transactional_id: str) -> Shard | None:
    from eos.shards import parse_transactional_id

    try:
        return parse_transactional_id(transactional_id)
    except ConfigError:
        return None


def _described(settings: Settings, transactional_id: str) -> TransactionDescription | None:
    from eos.ops.check.transactions import TransactionsView

    with TransactionsView(settings, timeout_s=_READ_S) as view:
        return view.describe([transactional_id]).get(transactional_id)


def _members(settings: Settings, shard: Shard | None) -> list[str]:
    """Of its group, with what each has; none if the group may not be seen."""
    from eos.kafka.admin import Admin

    if shard is None:
        return []
    try:
        found = Admin.of(settings).groups.members(shard.group, _READ_S)
    except EosError as error:
        return [f"not known: {error}"]
    return [f"{one}, has {', '.join(map(str, one.partitions)) or 'no partition'}" for one in found]


def _last_commit(settings: Settings, shard: Shard | None) -> str:
    """Of a partition's owner, who is no member of the group; "" if there is none, or it may not be seen."""
    from eos.group.committed import committed_offsets, fresh_reader
    from eos.group.metadata import OffsetMetadata
    from eos.shards import PartitionShard

    if not isinstance(shard, PartitionShard):
        return ""
    try:
        with fresh_reader(settings, shard.group, stable=False) as reader:
            stored = committed_offsets(reader, [shard.partition], timeout_s=_READ_S).get(shard.partition)
    except EosError as error:
        return f"last commit not known: {error}"
    metadata = None if stored is None else OffsetMetadata.parse(stored.metadata)
    if stored is None or metadata is None:
        return ""
    where = f" on {metadata.host}" if metadata.host else ""
    return f"last commit: offset {stored.offset:,}{where}, {age(time.time() - metadata.at_s)} ago"


def _may_live(shard: Shard | None, members: list[str]) -> str:
    """Why its owner may be at work, in words; "" if it is not."""
    from eos.shards import OrdinalShard

    if not isinstance(shard, OrdinalShard):
        return "whether its owner lives cannot be seen, for it is no member of a group"
    return (
        f"the group {shard.group!r} has members, its owner may be one: {'; '.join(members)}"
        if members
        else ""
    )


def _refusal(settings: Settings, shard: Shard | None) -> str:
    """Why the owner may not be fenced, and what to do; "" if it may."""
    why = _may_live(shard, _members(settings, shard))
    if why and (last := _last_commit(settings, shard)):
        why = f"{why} ({last})"
    return why and f"{why}. Fix: stop it, or start it again, which ends its old transaction; or --fence-owner"


def _advice(one: TransactionDescription, shard: Shard | None, *, has_members: bool) -> str:
    if not one.is_open:
        return "to do: nothing, no transaction is open"
    if one.state.startswith("Prepare"):
        return "to do: wait, its end is decided; if it stays, see docs/operations/lso.md, 'The LSO is stuck'"
    left_s = one.timeout_ms / 1000 - (one.open_s or 0.0)
    by_timeout = f"the coordinator aborts it {f'in {left_s:.0f} s' if left_s > 0 else 'within seconds'}"
    at_once = suggested("transactions end", one.transactional_id)
    if shard is None:
        return f"to do: its program ends it, or {by_timeout}. At once, and its program with it: {at_once} (with --fence-owner)"
    alive = "its owner commits it, if it lives; " if has_members else ""
    return (
        f"to do: nothing, {alive}the next owner of this id aborts it when it starts, or {by_timeout}. At once: "
        f"{at_once}"
    )


def _open_for(one: TransactionDescription) -> str:
    return (
        f"{time.time() - one.started_ms / 1000:.1f} s" if one.is_open and one.started_ms is not None else ""
    )


def _hanging(settings: Settings, topics: Collection[str] | None) -> list[HeldBack]:
    """What hangs in the logs of these topics, or of all; nothing where that could not be asked for, which is said."""
    from eos.ops.check.held_back import held_back_in

    try:
        return [one for one in held_back_in(settings, topics) if one.hangs]
    except EosError as error:
        complain(f"whether a transaction hangs could not be asked for: {error}")
        return []


def _listed(one: TransactionDescription) -> str:
    return ", ".join(map(str, sorted(one.partitions)))


def plain(one: TransactionDescription) -> dict[str, Any]:
    """A transaction, for JSON."""
    return {
        "id": one.transactional_id,
        **picked(one, "state", "is_open", "producer_id"),
        "epoch": one.producer_epoch,
        **picked(one, "timeout_ms", "started_ms"),
        "partitions": [str(p) for p in sorted(one.partitions)],
        "coordinator": one.coordinator,
    }
