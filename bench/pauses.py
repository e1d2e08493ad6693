"""When a broker stood still: the pauses of its Java machine for its garbage collector."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"\[(?P<ended>[^\]]+)\].*\bPause\b.* (?P<lasted>[\d.]+)ms")


class Pause(NamedTuple):
    """Milliseconds since the epoch."""

    began_ms: float
    ended_ms: float


def logged_to(path: Path) -> str:
    """The option by which a Java machine writes its pauses there."""
    return f"-Xlog:gc:file={path}:time"


def read(log: Path) -> list[Pause]:
    """The pauses of such a log, in their order; a line is written at a pause's end."""
    found: list[Pause] = []
    for match in map(_LINE.match, log.read_text().splitlines()):
        if match is not None:
            ended_ms = datetime.strptime(match["ended"], "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() * 1000
            found.append(Pause(ended_ms - float(match["lasted"]), ended_ms))
    return found


def met(began_ms: float, ended_ms: float, pauses: list[Pause]) -> bool:
    """Whether something that lasted from then to then has met one of the pauses, which are in their order."""
    first = bisect_left(pauses, began_ms, key=lambda pause: pause.ended_ms)
    return first < len(pauses) and pauses[first].began_ms <= ended_ms


def within(pauses: Iterable[Pause], began_ms: float, ended_ms: float) -> list[Pause]:
    """Those that began in this time."""
    return [pause for pause in pauses if began_ms <= pause.began_ms <= ended_ms]
