"""A relay in a process of its own, which ends itself by SIGKILL, or stands still, at a chosen point of its way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import MetaData

import eos
from eos.core.producer import ShardProducer
from eos.core.transaction import ShardTransaction
from eos.errors import EosError
from eos.exits import ExitCode, exit_code_of
from eos.settings import Settings
from eos.sql import Outbox, OutboxJob
from eos.sql.relay_mark import RelayMark
from eos.sql.relay_source import RelaySource

# Where: the call, and whether the process ends in front of it or behind it.
POINTS: dict[str, tuple[type, str, bool]] = {
    "opened, mark not claimed": (RelaySource, "claim", True),
    "mark claimed, nothing committed": (RelaySource, "claim", False),
    "read, mark not written": (RelayMark, "note", True),
    "mark written, not committed": (RelayMark, "note", False),
    "marked, nothing produced": (RelaySource, "read", False),
    "next page begun": (RelaySource, "read_ahead", False),  # only where a page is full
    "produced, offsets not sent": (ShardTransaction, "add_offsets", True),
    "offsets to be sent": (ShardProducer, "offsets_sent", False),
    "before commit": (ShardTransaction, "commit", True),
    "behind commit": (ShardTransaction, "commit", False),
}


def stops_at(point: str, nth: int, how: signal.Signals) -> None:
    """The nth time that the process passes there."""
    owner, name, before = POINTS[point]
    call: Callable[..., Any] = getattr(owner, name)
    passed = 0

    def passing(*arguments: Any, **named: Any) -> Any:
        nonlocal passed
        passed += 1
        if before and passed == nth:
            end(how)
        result = call(*arguments, **named)
        if not before and passed == nth:
            end(how)
        return result

    setattr(owner, name, passing)


def end(how: signal.Signals) -> None:
    """Here and now: a SIGSTOP to the process would let this thread go on until another one has taken it."""
    signal.pthread_kill(threading.get_ident(), how)


def main(name: str, topic: str, point: str, nth: str, how: str) -> ExitCode:
    if point:
        stops_at(point, int(nth), signal.Signals[how])
    job = OutboxJob(name=name, outbox=Outbox(MetaData()), outputs=[topic])
    try:
        eos.run(job, Settings.load(), until_caught_up=True)
    except EosError as error:
        sys.stderr.write(f"{error}\n")
        return exit_code_of(error)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(int(main(*sys.argv[1:])))
