"""`eos show`: the records of a topic, and what became of their transactions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eos.cli.help import command
from eos.cli.options import GivenCluster, reach
from eos.cli.printing import picked, print_table
from eos.errors import ConfigError
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.offsets import Partition
    from eos.ops.verifier.records import Shown

_MAX_CHARS = 200

commands = typer.Typer()


@command(commands, ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.UNAVAILABLE)
def show(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Whose records.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="PARTITION@OFFSET", help="From here on; else the last ones of each partition."),
    ] = None,
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many, of each partition.")] = 10,
    given: GivenCluster,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a line; bytes that are not UTF-8 as \\xff.")
    ] = False,
) -> None:
    r"""Show records of a topic, with their headers, and whether they are committed.

    Of each record: committed, aborted, or open (its transaction has not ended). A
    read_committed reader, any job of eos for one, gets the committed ones alone, and
    none behind an open one.

    Of Kafka's own __consumer_offsets a commit of offsets is shown in words: whose, and
    what was stored.

    Joins no group and commits nothing. Keys and values are printed: they may be private.

    Examples:
      eos show refunds-emitted --local
      eos show settlements --at 2@4711 -n 3 -c conf/refunds.toml
      eos show settlements -c conf/refunds.toml --json | jq .value
    """
    settings = given.settings()
    start = _start(topic, at)
    reach(settings)
    from eos.group.offset_record import OFFSETS_TOPIC
    from eos.ops.verifier.records import records

    found = list(records(settings, topic, start=start, count=count))
    if topic == OFFSETS_TOPIC:
        found = [_spelled_out(one) for one in found]
    for one in found:
        if as_json:
            typer.echo(json.dumps(_plain(one)))
    if not as_json:
        head = ("record", "when", "state", "key", "value", "headers")
        print_table(head, [_row(one) for one in found], unbroken=True)


def _spelled_out(one: Shown) -> Shown:
    """A record of __consumer_offsets, with what it says in the place of its bytes."""
    from eos.group.offset_record import in_words
    from eos.records import InputRecord

    record = one.record
    key, value = in_words(record.key, record.value)
    places = (record.topic, record.partition, record.offset)
    return replace(one, record=InputRecord(*places, key, value, record.headers, record.timestamp_ms))


def _start(topic: str, at: str | None) -> tuple[Partition, int] | None:
    from eos.offsets import Partition

    if at is None:
        return None
    number, _, offset = at.removeprefix(f"{topic}:").partition("@")
    if not (number.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"--at {at!r}: give PARTITION@OFFSET, for example 2@4711")
    return Partition(topic, int(number)), int(offset)


def _row(one: Shown) -> tuple[str, ...]:
    record = one.record
    when = "" if record.timestamp_ms is None else _when(record.timestamp_ms)
    headers = ", ".join(f"{name}={_text(value)}" for name, value in one.headers)
    return (
        f"{record.partition}@{record.offset}",
        when,
        one.state,
        _text(record.key),
        _text(record.value),
        headers,
    )


def _when(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _text(value: bytes | None) -> str:
    if value is None:
        return "(none)"
    text = value.decode(errors="backslashreplace")
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(value):,} bytes)"


def _plain(one: Shown) -> dict[str, Any]:
    def plain(value: bytes | None) -> str | None:
        return None if value is None else value.decode(errors="backslashreplace")

    return {
        **picked(one.record, "topic", "partition", "offset", "timestamp_ms"),
        "state": one.state,
        "key": plain(one.record.key),
        "value": plain(one.record.value),
        "headers": [[name, plain(value)] for name, value in one.headers],
    }
