"""`eos transactions abort`: the end of a transaction that no coordinator knows of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from eos.cli.help import command
from eos.cli.options import AsJson, GivenCluster, Yes, reach
from eos.cli.printing import answer, at, picked
from eos.cli.transactions import commands
from eos.exits import ExitCode


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def abort(
    *,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Where it hangs.")],
    partition: Annotated[int, typer.Option(metavar="N", min=0, help="In which partition.")],
    offset: Annotated[int, typer.Option(metavar="O", min=0, help="Of its first record there.")],
    discard_committed: Annotated[
        bool, typer.Option("--discard-committed", help="Also one that is committed, without a marker here.")
    ] = False,
    yes: Yes = False,
    given: GivenCluster,
    as_json: AsJson = False,
) -> None:
    """Abort a hanging transaction, which holds back readers of a partition forever.

    It is open in the partition's log, though its coordinator does not count it as open:
    no timeout and no owner ends it. Without --yes it shows what it finds, and ends with
    0. A wrong OFFSET is answered by the offsets at which open ones began.

    What a coordinator counts as open is refused: `eos transactions end`. One that may be
    committed, whose marker is missing here, only with --discard-committed: its records
    are gone then. A producer that a coordinator knows is fenced before.

    Examples:
      eos transactions abort --topic orders --partition 0 --offset 4711 --local
      eos transactions abort --topic orders --partition 0 --offset 4711 --yes
    """
    settings = given.settings()
    reach(settings)
    from eos.offsets import Partition
    from eos.ops.check.transactions import TransactionsView
    from eos.ops.operate import hanging

    where = Partition(topic, partition)
    with TransactionsView(settings) as view:
        if yes:
            found = hanging.abort(settings, view, where, offset, discard_committed=discard_committed)
        else:
            found = hanging.find(settings, view, where, offset)
    known, producer = found.known, found.producer
    plain = {
        **at(where),
        "offset": offset,
        "written": yes,
        **picked(producer, "producer_id", "epoch", "last_ms"),
        "id": known and known.transactional_id,
        "state": known and known.state,
        "may_be_committed": found.may_be_committed,
    }

    def shown() -> Iterator[str]:
        last = datetime.fromtimestamp(producer.last_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        yield (
            f"{where}: a transaction hangs since offset {offset}; producer id {producer.producer_id}, epoch {producer.epoch}, "
            f"last record {last} UTC"
        )
        if known is None:
            yield "no coordinator lists its producer"
        else:
            yield f"transactional.id {known.transactional_id}: {known.state}, epoch {known.producer_epoch}"
        if found.may_be_committed:
            yield hanging.taken_away(found)
        yield "an abort marker was written" if yes else "nothing was written. To do it: --yes"

    answer(plain, shown, as_json=as_json)
