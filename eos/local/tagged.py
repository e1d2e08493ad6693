"""Find the processes that descend from one start, by a variable of their environment.

A child inherits its environment, and keeps it when its parent ends or it moves to another directory or process
group. So this also finds those whose parent was killed, and needs no answer from them.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import psutil

from eos.local.process import Identity, identity_of


class Tagged(NamedTuple):
    """A process that carries the variable; ``command`` is its command line, in words."""

    identity: Identity
    command: list[str]


def tagged(name: str, value: str) -> list[Tagged]:
    """The living processes of this user whose environment holds ``name=value``, this one left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(name) == value:
                command = process.cmdline()
                if (identity := identity_of(process.pid)) is not None:
                    found.append(Tagged(identity, command))
        except psutil.Error:
            continue  # it has ended, or is another user's
    return found
