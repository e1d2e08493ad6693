"""`eos status`: how far a job is, who runs it, and what holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.base.listing import listed
from eos.cli.help import command
from eos.cli.options import GivenJobOnCluster
from eos.cli.printing import Table, age, answer, at, picked
from eos.cli.transactions import plain
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.offsets import Partition
    from eos.ops.check.status import JobStatus, PartitionStatus

_EVERY_S = 2.0
_MAX_LISTED = 8
_CLEAR = "\x1b[H\x1b[2J"

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def status(
    *,
    given: GivenJobOnCluster,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 s, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --watch one object a line.")
    ] = False,
) -> None:
    """Say how far a job is, who runs it, and what holds it up.

    Of each input partition: the committed offset, who committed it and when. Where the
    group has no members, also on which host, as host name/process id. Then how much
    there is to process, whose open transaction holds back the rest, and which broker
    leads it. Of the group: its members as its coordinator counts them; one that died,
    or a static one that was stopped, is among them for ownership.session_timeout_ms.
    Of the job's transactional.ids: the state of their transactions. Of its outputs:
    what another transaction holds back from their readers. Of a SqlJob the position
    in its database stands for the committed offset.

    Asks the cluster, joins no group and changes nothing. For a loop, a SparkJob or a
    StreamJob, whose ledger is not shown.

    Examples:
      eos status jobs.refunds:job -c conf/refunds.toml
      eos status jobs.refunds:job -c conf/refunds.toml --watch
      eos status jobs.refunds:job -c conf/refunds.toml --json | jq '.partitions[].lag'
    """
    settings, job = given.settings(), given.declaration()
    from eos.ops.check.status import status as look

    while True:
        found = look(job, settings)
        if watch and not as_json:
            typer.echo(_CLEAR, nl=False)
        shown = partial(_shown, job.name, found)
        answer(_plain(found), shown, as_json=as_json, indent=None if watch else 2)
        if not watch:
            return
        time.sleep(_EVERY_S)


def _shown(name: str, found: JobStatus) -> Iterator[str | Table]:
    kept = f", positions in {found.kept_in}" if found.kept_in else ""
    yield f"{name}: group {found.group!r}, {len(found.members)} member(s){kept}"
    yield Table(
        ("partition", "committed", "lag", "held back", "by", "when"),
        [_row(name, one) for one in found.partitions],
    )
    for member in found.members:
        yield f"{member} reads {listed(member.partitions, _MAX_LISTED) or 'no partition'}"
    if found.strangers:
        yield (
            f"members that are no instances of this job, which does not process the partitions that they are given: "
            f"{listed(found.strangers, _MAX_LISTED)}. Stop them; to look into a topic: eos show"
        )
    if found.members and (unread := [one.partition for one in found.partitions if one.member is None]):
        yield f"no member reads {listed(unread, _MAX_LISTED)}"
    # Members say where they are; of the other owners only their commits do.
    alone = [one for one in found.partitions if one.member is None and one.metadata and one.metadata.host]
    for host, partitions in _grouped((one.metadata.host, one) for one in alone if one.metadata):
        yield f"{host} last committed {listed(partitions, _MAX_LISTED)}"
    for leader, partitions in _grouped((one.leader or "no broker", one) for one in found.partitions):
        yield f"{leader} leads {listed(partitions, _MAX_LISTED)}"
    yield from _waiting(found)
    yield from (text for one in found.partitions for text in _troubles(one))
    yield from (f"output: {one}" for one in found.outputs)
    for transaction in found.transactions or ():
        if transaction.open_s is not None:
            open_s = transaction.open_s
            yield f"{transaction.transactional_id}: {transaction.state}, open for {open_s:.1f} s"
    yield from (*found.remarks, *found.unknown)


def _waiting(found: JobStatus) -> Iterator[str]:
    waiting = {one.partition: one.age_s for one in found.partitions if one.waits and one.age_s is not None}
    if waiting:
        yield (
            f"{listed(waiting, _MAX_LISTED)}: input waits, and nothing was committed for {age(min(waiting.values()))}. The owner's "
            "transform hangs or takes long (its log names the record after 10 s), or no owner runs"
        )


def _troubles(one: PartitionStatus) -> Iterator[str]:
    if one.gone:
        yield (
            f"{one.partition}: up to {one.gone:,} offsets were deleted before they were processed, the log begins at "
            f"{one.start:,}. The job ends with 6: see 'Input is gone' in docs/operations/offsets.md"
        )
    if one.beyond:
        yield (
            f"{one.partition}: the offset is {one.beyond:,} beyond the end of the log, {one.end:,}: it was truncated, or the offset is one of "
            "another log. The job ends with 6"
        )
    if one.committed is not None and one.metadata is None:
        yield (
            f"{one.partition}: another program than eos has committed {one.committed:,}. A start is refused there, and says where eos's "
            "own offset was: see 'An offset that eos has not committed' in docs/operations/offsets.md"
        )
    if one.held_back:
        yield f"{one.partition}: {one.end - one.lso:,} offsets are held back {one.held_back}"


def _grouped(named: Iterable[tuple[str, PartitionStatus]]) -> list[tuple[str, list[Partition]]]:
    found: dict[str, list[Partition]] = {}
    for name, one in named:
        found.setdefault(name, []).append(one.partition)
    return sorted(found.items())


def _row(name: str, one: PartitionStatus) -> tuple[str, ...]:
    # Narrow enough for 80 columns: of another app only, its name is shown too.
    return (
        str(one.partition),
        "none" if one.committed is None else f"{one.committed:,}",
        "" if one.lag is None else f"{one.lag:,}",
        f"{one.end - one.lso:,}",
        ""
        if one.committed is None
        else "not eos"
        if one.metadata is None
        else one.metadata.shard
        if one.metadata.app == name
        else f"{one.metadata.app} {one.metadata.shard}",
        "" if one.age_s is None else f"{age(one.age_s)} ago",
    )


def _plain(found: JobStatus) -> dict[str, Any]:
    return {
        "group": found.group,
        "members": [
            {
                **picked(one, "client_id", "instance_id", "host"),
                "partitions": [str(p) for p in one.partitions],
            }
            for one in found.members
        ],
        "partitions": [
            {
                **at(one.partition),
                **picked(one, "committed", "lag", "gone", "start", "lso", "end"),
                "held_back_by": one.held_back or None,
                **picked(one, "age_s", "waits"),
                **picked(one.metadata, "mode", "app", "shard", "commit"),
                "host": one.metadata and (one.metadata.host or None),
                **picked(one, "member", "leader"),
            }
            for one in found.partitions
        ],
        "transactions": None if found.transactions is None else list(map(plain, found.transactions)),
        "unknown": list(found.unknown),
        "kept_in": found.kept_in or None,
        "remarks": list(found.remarks),
        "strangers": [str(one) for one in found.strangers],
        "outputs_held_back": [
            {**at(one.partition), **picked(one, "lso", "hangs"), "end": one.high_watermark, "by": one.by}
            for one in found.outputs
        ],
    }
