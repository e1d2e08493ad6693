"""What a parent and the processes of its workers send each other; it loads nothing of what the work needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from eos.base.commands import Started
from eos.exits import ExitCode

if TYPE_CHECKING:
    from eos.events import Listener
    from eos.kafka.group_offsets import Committed
    from eos.offsets import Partition
    from eos.settings import Settings

OPENED = "opened"  # a worker's message: it has a session, so the group has its first offsets
PASSED = "passed"  # … and: it is past a record that its predecessors have died with


def _prepare_nothing(settings: Settings) -> None:
    """The default of :attr:`Plan.prepare`."""


class Plan(NamedTuple):
    """What every worker gets; picklable, because workers are spawned (librdkafka does not survive fork).

    ``prepare`` is called in a process before it imports the job's module, with the settings of the plan; ``listener`` in one
    that is a worker, with that worker's. ``started`` says how the parent was started.
    """

    job: str
    app_dir: Path
    settings: Settings
    until_caught_up: bool
    listener: Callable[[Connection, int, Settings], Listener]
    prepare: Callable[[Settings], None] = _prepare_nothing
    started: Started = Started()


class Unfit(NamedTuple):
    """A message of a process that is no use: it could not import the job's module. As a worker it ends with the error."""

    reason: str


class Ending(NamedTuple):
    """The last message of a worker: its sessions are closed, and nothing more comes from it.

    Attributes:
        code: how it ended.
        asked_by: the signal that asked it to stop; 0: it has done all its work, or failed.
        left: the offsets that its owners have left, each in its partition, once they had caught up.
    """

    code: ExitCode
    asked_by: int = 0
    left: Mapping[Partition, Committed] = {}
