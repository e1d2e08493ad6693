"""`eos transactions abort`: the end of a transaction that no coordinator knows of."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from eos.cli.options import AsJson, Assignments, Config, Local, Yes, load_settings, reach
from eos.cli.texts import command, say
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
    config: Config = None,
    local: Local = False,
    as_json: AsJson = False,
    assignments: Assignments = None,
) -> None:
    """Abort a hanging transaction, which holds back readers of a partition for ever.

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
    settings = load_settings(config, assignments, local=local)
    reach(settings)
    from eos.check.transactions import TransactionsView
    from eos.offsets import Partition
    from eos.operate import hanging

    where = Partition(topic, partition)
    with TransactionsView(settings) as view:
        if yes:
            found = hanging.abort(settings, view, where, offset, discard_committed=discard_committed)
        else:
            found = hanging.find(settings, view, where, offset)
    known, producer = found.known, found.producer
    if as_json:
        told = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "written": yes,
            "producer_id": producer.producer_id,
            "epoch": producer.epoch,
            "last_ms": producer.last_ms,
            "id": known and known.transactional_id,
            "state": known and known.state,
            "may_be_committed": found.may_be_committed,
        }
        typer.echo(json.dumps(told, indent=2))
        return
    last = datetime.fromtimestamp(producer.last_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    say(
        f"{where}: a transaction hangs since offset {offset}; producer id {producer.producer_id}, epoch {producer.epoch}, "
        f"last record {last} UTC"
    )
    say(
        "no coordinator lists its producer"
        if known is None
        else f"transactional.id {known.transactional_id}: {known.state}, epoch {known.producer_epoch}"
    )
    if found.may_be_committed:
        say(hanging.taken_away(found))
    say("an abort marker was written" if yes else "nothing was written. To do it: --yes")
