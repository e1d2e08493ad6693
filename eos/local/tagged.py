"""Find the processes that descend from one start, by a word that they carry in their environment.

A child inherits its environment, whoever its parent is by now and whatever directory or process group it has
moved to. So this finds also those whose parent was killed, and asks none of them to answer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from eos.local.process import Identity, identity_of

_PROC = Path("/proc")
_ASK_TIMEOUT_S = 10.0


class Tagged(NamedTuple):
    """A process that carries the word; ``command`` is its command line, in words."""

    identity: Identity
    command: list[str]


def tagged(name: str, value: str) -> list[Tagged]:
    """The living processes of this user whose environment holds ``name=value``, this one left out."""
    found = []
    for pid, command in _candidates(f"{name}={value}"):
        if pid != os.getpid() and (identity := identity_of(pid)) is not None:
            found.append(Tagged(identity, command))
    return found


def _candidates(word: str) -> Iterator[tuple[int, list[str]]]:
    if not (_PROC / "self" / "environ").exists():
        # macOS: -E appends the environment to the command.
        ps = ["ps", "-axEww", "-o", "pid=,command="]
        shown = subprocess.run(ps, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False).stdout
        for line in shown.splitlines():
            pid, *command = line.split()
            if word in command:
                yield int(pid), command
        return
    for directory in _PROC.glob("[0-9]*"):
        try:
            environment = (directory / "environ").read_bytes()
            if os.fsencode(word) in environment.split(b"\0"):
                arguments = os.fsdecode((directory / "cmdline").read_bytes())
                yield int(directory.name), arguments.rstrip("\0").split("\0")
        except OSError:
            continue  # it has ended, or is another user's
